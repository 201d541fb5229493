"""Responders in their threads; searches of episodes that wait at the same time become few large calls.

A responder runs in a thread and calls a tool with its episode's texts. Who then calls the function behind the tool is
the tool's choice: the thread of the decode loop, between two dispatches, or a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from scope_jax.rollouts.types import RolloutError

Answer = TypeVar("Answer")

SETTLE = 0.01  # seconds, at most, that responders get to call a tool or to reply before the next dispatch
GATHER = 0.005  # seconds that a tool with its own thread waits for more: turns that end together call within these


@dataclass(frozen=True)
class _Call(Generic[Answer]):
    texts: list[str]
    answers: Future[list[Answer]] = field(default_factory=Future)


class BatchedTool(Generic[Answer]):
    """A batched function that many threads call with a few texts each.

    All calls that wait become one call of `function`, without repeated texts; each caller gets the answers to its own
    texts, in its order. As `function` answers each text independently, they do not depend on other callers. An
    exception of `function` is raised in every caller of that batch.

    own_thread: a thread of the tool calls `function`, while decoding goes on; for functions that mostly wait, such as
    requests to a server. Otherwise `serve` does, in the thread of the decode loop: for functions that run programs on
    the devices, which no other thread may do. Programs of one device run in the order in which they are sent, and
    those of several devices must be sent to all of them in the same order. In both cases, the thread that made the tool
    calls `function` directly.
    """

    def __init__(self, function: Callable[[list[str]], Sequence[Answer]], *, own_thread: bool) -> None:
        self._function = function
        self._maker = threading.get_ident()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tool") if own_thread else None
        self._lock = threading.Lock()
        self._waiting: list[_Call[Answer]] = []
        self._under_way = 0  # calls in the batch that is being answered
        self._notify: Callable[[], None] | None = None  # tells the decode loop that a call waits
        self.batches = self.texts = 0  # calls of `function` so far, and texts in them
        self.waited = 0.0  # seconds that calls from other threads have waited for their answers, added up

    def __call__(self, texts: Sequence[str]) -> list[Answer]:
        """The function's answers to `texts`, in order. Raises RolloutError in a thread whose run is over."""
        if not texts:
            return []
        call: _Call[Answer] = _Call(list(texts))
        began = time.monotonic()
        if threading.get_ident() == self._maker:
            self._answer([call])
            return call.answers.result()
        with self._lock:
            if self._thread is None and self._notify is None:
                raise RolloutError("A tool was called after the run of its episode had ended.")
            self._waiting.append(call)
            if self._thread is not None and len(self._waiting) == 1:
                self._thread.submit(self._gather)
            if self._notify is not None:
                self._notify()
        try:
            return call.answers.result()
        finally:
            with self._lock:
                self.waited += time.monotonic() - began

    @property
    def callers(self) -> int:
        """How many threads wait for answers."""
        with self._lock:
            return len(self._waiting) + self._under_way

    @contextmanager
    def served(self, notify: Callable[[], None]) -> Iterator[None]:
        """While the caller calls `serve`, which it should do soon after each notify(). Calls that still wait at the end
        fail with a RolloutError, unless this was inside another such block, in which they are served."""
        with self._lock:
            outer, self._notify = self._notify, notify
        try:
            yield
        finally:
            with self._lock:
                self._notify = outer
                left = self._take() if self._thread is None and outer is None else []
                self._under_way -= len(left)
            for call in left:
                call.answers.set_exception(RolloutError("The run ended before the tool answered."))

    def serve(self) -> int:
        """Answers all calls that wait for the decode loop, together, and returns their number."""
        return self._answer_waiting() if self._thread is None else 0

    def _gather(self) -> None:
        time.sleep(GATHER)
        self._answer_waiting()

    def _take(self) -> list[_Call[Answer]]:
        batch, self._waiting = self._waiting, []
        self._under_way += len(batch)
        return batch

    def _answer_waiting(self) -> int:
        with self._lock:
            batch = self._take()
        try:
            self._answer(batch)
        finally:
            with self._lock:
                self._under_way -= len(batch)
        return len(batch)

    def _answer(self, batch: Sequence[_Call[Answer]]) -> None:
        texts = list(dict.fromkeys(text for call in batch for text in call.texts))
        if not texts:
            return
        self.batches += 1
        self.texts += len(texts)
        try:
            answers = self._function(texts)
            if len(answers) != len(texts):
                raise ValueError(f"The tool gave {len(answers)} answers to {len(texts)} texts; one for each is due.")
        except BaseException as error:
            for call in batch:
                call.answers.set_exception(error)
            if not isinstance(error, Exception):  # an interrupt concerns this thread as well
                raise
            return
        by_text = dict(zip(texts, answers, strict=True))
        for call in batch:
            call.answers.set_result([by_text[text] for text in call.texts])


class Responders:
    """The threads of responders, seen from the decode loop, whose thread calls everything but `wake`.

    threads: number of responders that run concurrently. tool: what they call, if they call one.
    """

    def __init__(self, threads: int, tool: BatchedTool[Any] | None) -> None:
        self._threads = threads
        self._tool = tool
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="responder")
        self._news = threading.Event()  # set when a responder has replied or called the tool, and by `wake`

    @contextmanager
    def running(self) -> Iterator[None]:
        """While responders may be asked. Those that still run at the end are not waited for."""
        try:
            with nullcontext() if self._tool is None else self._tool.served(self.wake):
                yield
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def ask(self, respond: Callable[[], object]) -> Future[object]:
        """Calls a responder in a thread."""
        future = self._pool.submit(respond)
        future.add_done_callback(lambda _: self.wake())
        return future

    def replied(self, asked: Collection[Future[object]]) -> list[Future[object]]:
        """Those that have replied.

        Responders that have just begun get a moment to call the tool, so that their calls are answered together, and
        another one to reply, so that their episodes take part in the next dispatch.
        """
        until = time.monotonic() + SETTLE
        while True:
            self._news.clear()
            done = [future for future in asked if future.done()]
            calling = 0 if self._tool is None else self._tool.callers
            at_work = min(len(asked) - len(done), self._threads) - calling
            left = until - time.monotonic()
            if at_work > 0 and left > 0:
                self._news.wait(left)
            elif self._tool is not None and self._tool.serve():
                until = time.monotonic() + SETTLE
            else:
                return done

    def serve(self) -> None:
        """Answers the calls of the tool that wait."""
        if self._tool is not None:
            self._tool.serve()

    def rest(self, seconds: float | None = None) -> None:
        """Waits for a reply, a call of the tool or `wake`, at most so long; not at all if there was one since the last
        look at them."""
        self._news.wait(seconds)
        self._news.clear()

    def wake(self) -> None:
        """Ends a rest; for any thread."""
        self._news.set()
