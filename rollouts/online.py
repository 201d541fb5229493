"""Online generation: requests join a decode loop that is already running, and leave it when they are done or cancelled.

A thread of its own runs the loop, and all programs on the devices. `submit` and `Ticket.cancel` may be called from any
other thread. A completion depends on the weights and its request alone, exactly as with `LocalRollouts`: greedy samples
equal those generated offline, whatever else is in the batch.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from scope_jax.errors import UserError
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.episodes import Episode
from scope_jax.rollouts.keys import key_data
from scope_jax.rollouts.loop import DecodeLoop
from scope_jax.rollouts.paged import PagedEngine
from scope_jax.rollouts.scheduler import grouped
from scope_jax.rollouts.slots import stop_row
from scope_jax.rollouts.tools import BatchedTool
from scope_jax.rollouts.types import Completion, NonFiniteError, Request, RolloutError, TextCodec, Turn

WAIT = 0.02  # seconds between looks at responders while no slot decodes


class Full(RolloutError):
    """As many requests are waiting as may wait; try again later."""


class Closed(RolloutError):
    """The engine has stopped, or was told to stop; no more requests are accepted."""


@dataclass(frozen=True)
class Sampled:
    """Tokens that were sampled since the last news."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Done:
    """The last news of a request: its completion, or the error that ended it."""

    completion: Completion | None
    error: BaseException | None = None


News = Sampled | Turn | Done  # a Turn is an observation
Listener = Callable[[News], object]  # called in the loop's thread; it must return at once and raise nothing


def listener_in(loop: asyncio.AbstractEventLoop, tell: Callable[[News], object]) -> Listener:
    """A listener that calls `tell` in an event loop. When the loop has been closed nobody listens."""

    def listener(news: News) -> None:
        try:
            loop.call_soon_threadsafe(tell, news)
        except RuntimeError:
            if not loop.is_closed():
                raise

    return listener


@dataclass(eq=False)
class Ticket:
    """A request on its way. `cancel` frees its slot and memory; it gets no more news then."""

    episode: Episode
    listener: Listener
    _loop: _OnlineLoop
    errors: list[BaseException] = field(default_factory=list)  # raised by its responder
    told: tuple[int, int] = (0, 0)  # (turns, tokens of the turn after them) that the listener knows

    def cancel(self) -> None:
        """Ends the request at the next round of the loop; nothing happens if it has ended."""
        self._loop.cancel(self)


class OnlineRollouts:
    """An engine that serves requests until `close`. waiting: most samples that may wait for a slot.

    Other arguments as for `LocalRollouts`. params: the engine's own, from its `load_params` or `take_params`.
    """

    def __init__(
        self,
        engine: Engine | PagedEngine,
        params: Any,
        tokenizer: TextCodec,
        *,
        waiting: int,
        threads: int,
        ahead: bool,
        tool: BatchedTool[Any] | None = None,
    ) -> None:
        self.engine = engine
        self.params = params
        self.tokenizer = tokenizer
        self._most = engine.config.slots + waiting
        self._lock = threading.Lock()
        self._count = 0  # of requests so far
        self._loop = _OnlineLoop(engine, params, threads, tool, ahead)
        self._thread = threading.Thread(target=self._loop.serve, name="decode-loop", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> BaseException | None:
        """What ended the loop, if it was an error; nothing can be generated after it."""
        return self._loop.failure

    @property
    def running(self) -> int:
        """Slots that are in use."""
        return self._loop.running

    @property
    def waiting(self) -> int:
        """Samples that were submitted and have no slot."""
        return max(0, self._loop.outstanding - self._loop.running)

    def compile(self, *, extends: bool) -> None:
        """Compiles the engine's programs, so that no request waits for one. Called before the first request. extends:
        requests may have responders. Raises what ended the loop, if compiling does."""
        ready = self._loop.compile(extends)
        while not ready.wait(1.0):
            if self.failure is not None:
                raise self.failure

    def submit(self, requests: Sequence[Request], listeners: Sequence[Listener]) -> list[Ticket]:
        """Starts requests, all or none; their listeners get the news from then on.

        Requests of one group share a prefill; calls have groups of their own. Raises Full if too many wait, Closed
        after the end, and ValueError for an invalid request, an unknown policy, a prompt that leaves no room for a
        token, or a group with several prompts or policies.
        """
        limit = self.engine.config.max_length
        with self._lock:
            first, self._count = self._count, self._count + len(requests)
        tickets, keys = [], []
        for number, (request, listener) in enumerate(zip(requests, listeners, strict=True), start=first):
            stop_row(request.params)
            errors: list[BaseException] = []
            self.engine.number(request.policy)
            group = None if request.group is None else f"{first} {request.group}"
            own = replace(_guarded(request, errors), group=group)
            episode = Episode(own, number, self.tokenizer, limit)
            if episode.finish_reason is not None:
                raise UserError(f"The prompt has {len(episode.prompt)} tokens; the engine takes at most {limit - 1}.")
            tickets.append(Ticket(episode, listener, self._loop, errors))
            keys.append(key_data("online", number) if request.key is None else request.key)
        grouped([ticket.episode for ticket in tickets])
        self._loop.accept(tickets, keys, self._most)
        return tickets

    def close(self, seconds: float) -> None:
        """Accepts nothing more, lets what is under way finish for so long, then ends it with the error Closed."""
        self._loop.close()
        self._thread.join(seconds)
        self._loop.halt()
        self._thread.join()


def _guarded(request: Request, errors: list[BaseException]) -> Request:
    """The request, whose responder's exceptions end its episode instead of the loop; they are reported with `Done`."""
    respond = request.respond
    if respond is None:
        return request

    def guarded(turns: tuple[Turn, ...]) -> Any:
        try:
            return respond(turns)
        except Exception as error:  # noqa: BLE001 (it reaches the listener)
            errors.append(error)
            return None

    return replace(request, respond=guarded)


class _OnlineLoop(DecodeLoop):
    """The decode loop with an inbox."""

    def __init__(
        self, engine: Engine | PagedEngine, params: Any, threads: int, tool: BatchedTool[Any] | None, ahead: bool
    ) -> None:
        self._own_keys: dict[int, np.ndarray] = {}
        super().__init__(
            engine, params, engine.init_decode_state(), (), self._own_keys, threads, tool, ahead, prefills=1
        )
        self._door = threading.Lock()  # for the next five
        self._inbox: list[tuple[Ticket, np.ndarray]] = []
        self._cancelled: list[Ticket] = []
        self._closing = self._halted = False
        self._to_compile: tuple[bool, threading.Event] | None = None  # with programs of `extend`; set once it is done
        self.outstanding = 0
        self._tickets: dict[int, Ticket] = {}
        self.failure: BaseException | None = None

    @property
    def running(self) -> int:
        return self._engine.config.slots - len(self._free)

    # ------------------------------------------------------------------------------------------- from other threads
    def accept(self, tickets: Sequence[Ticket], keys: Sequence[np.ndarray], most: int) -> None:
        with self._door:
            if self._closing:
                raise Closed("The engine has stopped.")
            if self.outstanding + len(tickets) > most:
                raise Full(f"{self.outstanding} requests are running or waiting, and {most} may; try again later.")
            self.outstanding += len(tickets)
            self._inbox += zip(tickets, keys, strict=True)
        self._news.set()

    def cancel(self, ticket: Ticket) -> None:
        with self._door:
            self._cancelled.append(ticket)
        self._news.set()

    def compile(self, extends: bool) -> threading.Event:
        with self._door:
            self._to_compile = extends, threading.Event()
            ready = self._to_compile[1]
        self._news.set()
        return ready

    def close(self) -> None:
        with self._door:
            self._closing = True
        self._news.set()

    def halt(self) -> None:
        self._halted = True
        self._news.set()

    # ------------------------------------------------------------------------------------------------ in the thread
    def serve(self) -> None:
        """Runs until `close` and everything has finished, until `halt`, or until an error, kept in `failure`."""
        try:
            with nullcontext() if self._tool is None else self._tool.served(self._news.set):
                while self._round():
                    pass
        except BaseException as error:  # noqa: BLE001 (kept for the owner: a thread has no caller)
            self.failure = error
        finally:
            self._end_all()
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _round(self) -> bool:
        """One round; False when it was the last one."""
        self._news.clear()
        with self._door:
            to_compile, self._to_compile = self._to_compile, None
        if to_compile is not None:
            extends, ready = to_compile
            self._state = self._engine.compile(self._params, self._state, extends=extends)
            ready.set()
        self._admit()
        if self._halted:
            return False
        if not (self._queue or self._filling or self._live or self._asked or self._suspended):
            self._flight.clear()
            if self._closing:
                return False
            self._news.wait()
            return True
        self._resume()
        self._place()
        free = len(self._free)
        self._answer(block=False)
        self._advance(self._prefills)
        self._launch()
        while len(self._flight) > self._ahead:
            self._read()
        if not self._live:
            self._flight.clear()  # only tokens that will be discarded
            if not self._filling and len(self._free) <= free:
                self._news.wait(WAIT)  # for responders: what waits has no slot or no memory until one replies
        for ticket in list(self._tickets.values()):
            self._report(ticket)
        return True

    def _admit(self) -> None:
        with self._door:
            arrived, self._inbox = self._inbox, []
            cancelled, self._cancelled = self._cancelled, []
        for ticket, key in arrived:
            self._tickets[ticket.episode.index], self._own_keys[ticket.episode.index] = ticket, key
        self._queue.append([ticket.episode for ticket, _ in arrived])
        for ticket in cancelled:
            if ticket.episode.index in self._tickets:
                self._drop(ticket.episode)
                self._forget(ticket)

    def _drop(self, episode: Episode) -> None:
        """Takes an episode out of the queue, its slot, its responder's hands or host memory, wherever it is."""
        self._queue.remove(episode)
        self._suspended = deque(one for one in self._suspended if one.episode is not episode)
        for slot in [slot for slot, other in self._filling.items() if other is episode]:
            del self._filling[slot]
            self._end(slot)
        for slot in [slot for slot, other in self._live.items() if other is episode]:
            del self._live[slot]
            self._state = self._engine.pause(self._state, [slot])
            self._end(slot)
        for future in [future for future, (_, other) in self._asked.items() if other is episode]:
            slot, _ = self._asked.pop(future)
            future.cancel()
            self._aside.pop(episode.index, None)
            if slot is not None:
                self._end(slot)

    def _fail(self, episode: Episode, error: NonFiniteError) -> None:
        """Ends the one request; the others go on."""
        ticket = self._tickets[episode.index]
        self._drop(episode)
        self._forget(ticket)
        ticket.listener(Done(None, error))

    def _report(self, ticket: Ticket) -> None:
        """Tells the listener what is new."""
        episode = ticket.episode
        turns, tokens = ticket.told
        for turn in episode.turns[turns:]:
            if turn.kind == "observation":
                ticket.listener(turn)
            elif len(turn.ids) > tokens:
                ticket.listener(Sampled(tuple(turn.ids[tokens:].tolist()), tuple(turn.logprobs[tokens:].tolist())))
            turns, tokens = turns + 1, 0
        ids, logprobs = episode.sampling
        if len(ids) > tokens:
            ticket.listener(Sampled(tuple(ids[tokens:]), tuple(logprobs[tokens:])))
            tokens = len(ids)
        ticket.told = turns, tokens
        if episode.finish_reason is not None:
            self._forget(ticket)
            error = ticket.errors[0] if ticket.errors else None
            ticket.listener(Done(episode.completion(), error))

    def _forget(self, ticket: Ticket) -> None:
        del self._tickets[ticket.episode.index], self._own_keys[ticket.episode.index]
        with self._door:
            self.outstanding -= 1

    def _end_all(self) -> None:
        """Accepts nothing more; what has not finished ends with an error."""
        with self._door:
            self._closing = True
            left = [*self._tickets.values(), *(ticket for ticket, _ in self._inbox)]
            self._inbox, self.outstanding = [], 0
        self._tickets.clear()
        error = Closed("The engine stopped before the request was finished.")
        error.__cause__ = self.failure
        for ticket in left:
            ticket.listener(Done(None, error))
