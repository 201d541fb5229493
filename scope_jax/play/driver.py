"""Runs the generator of an interaction: from what it asks to requests and replies of the engine, and back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from scope_jax.errors import UserError, without_passwords
from scope_jax.play.failures import END_RUN, failed, is_bug
from scope_jax.play.rollouts import Agent, Ask, Failed, Interaction, Response, Rollout
from scope_jax.play.tool_calls import Tool, ToolError
from scope_jax.play.tool_execution import RolloutCalls, ToolCall, tools_of
from scope_jax.play.turns import Cut, Joiner
from scope_jax.rollouts.interactions import Move, Spoken
from scope_jax.rollouts.types import Completion, Continuation, Request, Restart, RolloutError, Turn
from scope_jax.text.messages import Messages
from scope_jax.web.exchange import whole

CLOSING = 60.0  # seconds of a generator's clean-up where the run ends before it
IN_GENERATOR: ContextVar[bool] = ContextVar("IN_GENERATOR", default=False)  # True while a rollout's generator runs


@contextmanager
def _in_generator() -> Iterator[None]:
    token = IN_GENERATOR.set(True)
    try:
        yield
    finally:
        IN_GENERATOR.reset(token)


@dataclass(frozen=True)
class EpisodeContext:
    """See `play.rollouts.Context`."""

    name: str
    sample: int
    rng: np.random.Generator
    calls: RolloutCalls
    toolbox: Mapping[str, Tool] = field(default_factory=dict)

    def call(self, tool: Tool | str, **arguments: Any) -> str:
        (result,) = self.calls.run("", -1, [ToolCall(tools_of((tool,), self.toolbox)[0], arguments)])
        if result.status != "ok":
            raise ToolError(result.text.removeprefix("error: "))
        return result.text

    def recorded(self, name: str, arguments: Mapping[str, Any], work: Callable[[], Any], seconds: float = 60.0) -> Any:
        return self.calls.recorded(name, arguments, work, seconds)

    def stored(self, name: str, arguments: Mapping[str, Any]) -> Any:
        return self.calls.stored(name, arguments)

    def store(self, name: str, arguments: Mapping[str, Any], value: Any) -> Any:
        return self.calls.store(name, arguments, value)

    def end(self, name: str, work: Callable[[], Any], seconds: float) -> None:
        self.calls.end(name, work, seconds)


@dataclass
class _Speaker:
    """An agent that has been asked: how its current row began, and which of its turns the generator has seen."""

    messages: Messages
    turns: int = 0
    first: int = 0
    """The number of the first turn of its current row."""
    calls: int = 0


@dataclass
class InteractionDriver:
    """See `rollouts.interactions.Driver`. request: makes the request of an agent's first turn from its prompt."""

    rollout: Rollout
    agents: Mapping[str, Agent]
    context: EpisodeContext
    joiner: Joiner
    request: Callable[[str, Messages], Request]
    value: Any = None
    failed: str = ""
    _generator: Generator[Any, Any, Any] | None = None
    _asked: tuple[Ask, ...] = ()
    _several: bool = False
    _speakers: dict[str, _Speaker] = field(default_factory=dict)
    _turns: dict[str, tuple[Turn, ...]] = field(default_factory=dict)

    def advance(self, spoken: Mapping[str, Spoken]) -> Mapping[str, Move]:
        """See `Driver`, and `failures` for the errors that the generator may raise. One that ends the run has a note
        that names rollout and sample."""
        try:
            return self._moves(spoken)
        except StopIteration as end:
            self.value = end.value
        except Failed as error:
            self._fail(error)
        except BaseException as error:
            error.add_note(f"raised in sample {self.context.sample} of the rollout {self.rollout.name!r}")
            if isinstance(error, END_RUN) or is_bug(error, self._generator):
                raise
            self._fail(failed(error, f"the rollout {self.rollout.name!r} raised"), error)
        self.close()
        return {}

    def close(self) -> None:
        """Ends the generator and the states of its tools; nothing happens if they have ended."""
        if self._generator is not None and inspect.getgeneratorstate(self._generator) != inspect.GEN_CLOSED:
            bug = partial(is_bug, generator=self._generator)
            with _in_generator():
                self.context.calls.end(f"the rollout {self.rollout.name!r}", self._generator.close, CLOSING, bug)
        self.context.calls.close()

    def _fail(self, reason: Failed, error: BaseException | None = None) -> None:
        """error: what the code of others has raised, which is shown once."""
        self.failed = without_passwords(whole(str(reason))) or "failed"
        if (error := error or reason.__cause__) is not None:
            self.context.calls.tell(self.failed, error)

    def _moves(self, spoken: Mapping[str, Spoken]) -> Mapping[str, Move]:
        """What the generator asks for next; it is told (UserError) where it asked for what no prompt can be made of."""
        responses = tuple(self._response(ask.agent, spoken[ask.agent]) for ask in self._asked)
        asked = self._next(responses if self._several else responses[0] if responses else None)
        while True:
            self._several = isinstance(asked, tuple)
            self._asked = asked if isinstance(asked, tuple) else (asked,)
            try:
                return {ask.agent: self._move(ask) for ask in self._checked(self._asked)}
            except UserError as error:
                assert self._generator is not None
                with _in_generator():
                    asked = self._generator.throw(error)

    def interaction(self, completions: Mapping[str, Completion]) -> Interaction:
        """The result, given what the agents have sampled."""
        return Interaction(self.value, completions, tuple(self.context.calls.results.get("", ())), self.failed)

    def _next(self, answer: Any) -> Any:
        with _in_generator():
            if self._generator is None:
                assert self.rollout.play is not None
                self._generator = self.rollout.play(self.context)
                return next(self._generator)
            return self._generator.send(answer)

    def _checked(self, asked: tuple[Any, ...]) -> tuple[Ask, ...]:
        names = [ask.agent if isinstance(ask, Ask) else type(ask).__name__ for ask in asked]
        if not asked or not all(isinstance(ask, Ask) for ask in asked):
            raise RolloutError(f"A generator yields an Ask or a tuple of them, not {', '.join(names) or 'nothing'}.")
        if unknown := [name for name in names if name not in self.agents]:
            raise RolloutError(f"There is no agent {unknown[0]!r}; there are {', '.join(self.agents)}.")
        if len(set(names)) != len(names):
            raise RolloutError(f"The agent {max(names, key=names.count)!r} is asked twice at a time.")
        return asked

    def _move(self, ask: Ask) -> Move:
        speaker = self._speakers.get(ask.agent)
        messages = Messages(whole(ask.say)) if isinstance(ask.say, str) else ask.say
        if speaker is None:
            request = self.request(ask.agent, messages)
            self._speakers[ask.agent] = _Speaker(messages)
            return request
        turns = self._turns[ask.agent]
        if ask.anew:
            restart = Restart(self.joiner.prompt(messages), messages.text)
            speaker.messages, speaker.first = messages, len(turns) + 1
            return restart
        said = messages.text if ask.keep is None else Cut(ask.keep, messages.text)
        reply = self.joiner.responder(lambda _: said, speaker.messages)(turns[speaker.first :])
        assert isinstance(reply, Continuation | Restart)
        return reply

    def _response(self, agent: str, spoken: Spoken) -> Response:
        speaker = self._speakers[agent]
        self._turns[agent] = spoken.turns
        new, speaker.turns = spoken.turns[speaker.turns :], len(spoken.turns)
        results = self.context.calls.results.get(agent, [])
        calls, speaker.calls = tuple(results[speaker.calls :]), len(results)
        sampled = [turn for turn in new if turn.kind == "sampled"]
        if not sampled:
            return Response("", "", over=True)
        last = sampled[-1]
        return Response(last.text, last.content, new, calls, last.finish, spoken.over)
