"""Merges many small tool calls into few large ones: searches of concurrent episodes are answered together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout

Batched = Callable[[list[str]], list[str]]


class ToolTimeout(TimeoutError):
    """A tool that did not answer in time."""


class BatchedTool:
    """A batched function, called from many threads with a few texts each.

    Calls that arrive within `wait` seconds of each other (or until there are `max_batch` texts) become one call of
    `function`, with duplicate texts removed. Each caller gets the answers to its own texts, in its order; as `function`
    answers each text independently, they do not depend on other callers. A call that raises one of `retry_on` is
    retried at most `retries` times; the last exception is raised in every caller. timeout: seconds that a caller waits
    before it gets ToolTimeout.
    """

    def __init__(
        self,
        function: Batched,
        *,
        max_batch: int,
        wait: float,
        timeout: float,
        retries: int,
        retry_on: tuple[type[Exception], ...],
    ) -> None:
        self._function = function
        self._max_batch = max_batch
        self._wait = wait
        self._timeout = timeout
        self._retries = retries
        self._retry_on = retry_on
        self._lock = threading.Condition()
        self._waiting: deque[tuple[list[str], Future[list[str]]]] = deque()
        self._busy = False
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tool")

    def __call__(self, texts: Sequence[str]) -> list[str]:
        """The function's answers to `texts`, in order."""
        if not texts:
            return []
        future: Future[list[str]] = Future()
        with self._lock:
            self._waiting.append((list(texts), future))
            self._lock.notify()
            if not self._busy:
                self._busy = True
                self._pool.submit(self._serve)
        try:
            return future.result(self._timeout)
        except FutureTimeout:
            if future.done():  # the function itself raised a TimeoutError
                raise
            raise ToolTimeout(
                f"The tool did not answer within {self._timeout:g} seconds; raise the timeout or check the tool."
            ) from None

    def close(self) -> None:
        """Stops the thread after all waiting calls have been answered."""
        self._pool.shutdown(wait=True)

    def _serve(self) -> None:
        """Answers batches until no call is waiting."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._busy = False
                    return
                self._lock.wait_for(self._full, self._wait)
                batch = [self._waiting.popleft()]
                while self._waiting and self._size(batch) + len(self._waiting[0][0]) <= self._max_batch:
                    batch.append(self._waiting.popleft())
            self._answer(batch)

    def _full(self) -> bool:
        return self._size(self._waiting) >= self._max_batch

    @staticmethod
    def _size(calls: Sequence[tuple[list[str], Future[list[str]]]] | deque) -> int:
        return sum(len(texts) for texts, _ in calls)

    def _answer(self, batch: list[tuple[list[str], Future[list[str]]]]) -> None:
        texts = list(dict.fromkeys(text for call, _ in batch for text in call))
        # A future carries any exception of the function to the calling threads.
        outcome: Future[list[str]] = Future()
        for attempt in range(self._retries + 1):
            outcome = _outcome(self._function, texts)
            if attempt == self._retries or not isinstance(outcome.exception(), self._retry_on):
                break
        error = outcome.exception()
        if error is None and len(outcome.result()) != len(texts):
            error = ValueError(
                f"The tool gave {len(outcome.result())} answers to {len(texts)} texts; one for each is due."
            )
        for call, future in batch:
            if error is not None:
                future.set_exception(error)
            else:
                answers = dict(zip(texts, outcome.result(), strict=True))
                future.set_result([answers[text] for text in call])


def _outcome(function: Batched, texts: list[str]) -> Future[list[str]]:
    """What the call returns or raises, as a finished future."""
    with ThreadPoolExecutor(1, thread_name_prefix="tool-call") as pool:
        return pool.submit(function, texts)
