"""Online generation: requests join a decode loop that is already running, and leave it when they are done or cancelled.

A thread of its own runs the loop, and all programs on the devices. `submit` and `Ticket.cancel` may be called from any
other thread. A completion depends on the weights and its request alone, exactly as with `LocalRollouts`: greedy samples
equal those generated offline, whatever else is in the batch.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scope_jax.errors import UserError
from scope_jax.rollouts.drafter import Drafter
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.episodes import ActiveEpisode
from scope_jax.rollouts.keys import key_data
from scope_jax.rollouts.loop import DecodeLoop
from scope_jax.rollouts.scheduler import grouped
from scope_jax.rollouts.slots import stop_row
from scope_jax.rollouts.tools import BatchedTool
from scope_jax.rollouts.types import Completion, Request, RolloutError, TextCodec, Turn


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

    episode: ActiveEpisode
    listener: Listener
    rollouts: OnlineRollouts
    errors: list[BaseException] = field(default_factory=list)
    """Raised by its responder."""
    told: tuple[int, int] = (0, 0)
    """(turns, tokens of the turn after them) that the listener knows."""

    def cancel(self) -> None:
        """Ends the request at the next round of the loop; nothing happens if it has ended."""
        self.rollouts.cancel(self)


class OnlineRollouts:
    """An engine that serves requests until `close`. waiting: most samples that may wait for a slot.

    Other arguments as for `LocalRollouts`. params: the engine's own, from its `load_params` or `take_params`.
    """

    def __init__(
        self,
        engine: Engine,
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
        # A request is drafted from itself alone: what others ask shows in no time that it takes.
        drafter = Drafter(shares=False) if engine.config.draft_tokens else None
        state = engine.init_decode_state()
        self.loop = DecodeLoop(engine, params, state, threads, tool, ahead, prefills=1, drafter=drafter)
        self._lock = threading.Lock()  # for the next six
        self._count = 0  # of requests so far
        self._inbox: list[Ticket] = []
        self._cancelled: list[Ticket] = []
        self._to_compile: tuple[bool, bool, threading.Event] | None = None  # (extends, moves, set once it is done)
        self._closing = self._halted = False
        self._outstanding = 0  # samples that were submitted and have not ended
        self._tickets: dict[int, Ticket] = {}  # by number, those that the loop knows
        self.failure: BaseException | None = None  # what ended the loop, if it was an error
        self._thread = threading.Thread(target=self._serve, name="decode-loop", daemon=True)
        self._thread.start()

    @property
    def running(self) -> int:
        """Slots that are in use."""
        return self.loop.used

    @property
    def waiting(self) -> int:
        """Samples that were submitted and have no slot."""
        return max(0, self._outstanding - self.running)

    # ------------------------------------------------------------------------------------------- from other threads
    def compile(self, *, extends: bool, alone: bool = False) -> None:
        """Compiles the engine's programs, so that no request waits for one. Called before the first request. extends:
        requests may have responders. alone: there is one request at a time. Raises what ended the loop, if compiling
        does."""
        ready = threading.Event()
        with self._lock:
            self._to_compile = extends, not alone, ready
        self.loop.responders.wake()
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
        tickets = []
        for number, (request, listener) in enumerate(zip(requests, listeners, strict=True), start=first):
            stop_row(request.params)
            errors: list[BaseException] = []
            self.engine.number(request.policy)
            group = None if request.group is None else f"{first} {request.group}"
            key = key_data("online", number) if request.key is None else request.key
            episode = ActiveEpisode(
                replace(_guarded(request, errors), group=group, key=key), number, self.tokenizer, limit
            )
            if episode.finish_reason is not None:
                raise UserError(f"The prompt has {len(episode.prompt)} tokens; the engine takes at most {limit - 1}.")
            tickets.append(Ticket(episode, listener, self, errors))
        grouped([ticket.episode for ticket in tickets])
        with self._lock:
            if self._closing:
                raise Closed("The engine has stopped.")
            if self._outstanding + len(tickets) > self._most:
                raise Full(
                    f"{self._outstanding} requests are running or waiting, and {self._most} may; try again later."
                )
            self._outstanding += len(tickets)
            self._inbox += tickets
        self.loop.responders.wake()
        return tickets

    def cancel(self, ticket: Ticket) -> None:
        """See `Ticket.cancel`."""
        with self._lock:
            self._cancelled.append(ticket)
        self.loop.responders.wake()

    def close(self, seconds: float) -> None:
        """Accepts nothing more, lets what is under way finish for so long, then ends it with the error Closed."""
        with self._lock:
            self._closing = True
        self.loop.responders.wake()
        self._thread.join(seconds)
        with self._lock:
            self._halted = True
        self.loop.responders.wake()
        self._thread.join()

    # ------------------------------------------------------------------------------------------------ in the thread
    def _serve(self) -> None:
        """Runs until `close` and everything has finished, or until an error, kept in `failure`."""
        try:
            with self.loop.responders.running():
                while self._admit():
                    if not self.loop.busy:
                        self.loop.responders.rest()
                        continue
                    for episode, error in self.loop.round():
                        self._forget(ticket := self._tickets[episode.index])
                        ticket.listener(Done(None, error))
                    for ticket in list(self._tickets.values()):
                        self._report(ticket)
        except BaseException as error:  # noqa: BLE001 (kept for the owner: a thread has no caller)
            self.failure = error
        finally:
            self._end_all()

    def _admit(self) -> bool:
        """Takes over what other threads have asked for; False when there is nothing more to do."""
        with self._lock:
            arrived, self._inbox = self._inbox, []
            cancelled, self._cancelled = self._cancelled, []
            to_compile, self._to_compile = self._to_compile, None
            closing, halted = self._closing, self._halted
        self._tickets |= {ticket.episode.index: ticket for ticket in arrived}  # before anything that may fail
        if to_compile is not None:
            extends, moves, ready = to_compile
            self.loop.compile(extends=extends, moves=moves)
            ready.set()
        self.loop.submit([ticket.episode for ticket in arrived])
        for ticket in cancelled:
            if ticket.episode.index in self._tickets:
                self.loop.drop(ticket.episode)
                self._forget(ticket)
        return not halted and (self.loop.busy or not closing)

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
        del self._tickets[ticket.episode.index]
        with self._lock:
            self._outstanding -= 1

    def _end_all(self) -> None:
        """Accepts nothing more; what has not finished ends with an error."""
        with self._lock:
            self._closing = True
            left = [*self._tickets.values(), *self._inbox]
            self._inbox, self._outstanding = [], 0
        self._tickets.clear()
        error = Closed("The engine stopped before the request was finished.")
        error.__cause__ = self.failure
        for ticket in left:
            ticket.listener(Done(None, error))


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
