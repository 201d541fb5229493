"""Runs the generator of an interaction: from what it asks to requests and replies of the engine, and back."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from scope_jax.errors import UserError, without_passwords
from scope_jax.play.failures import END_RUN, failed, is_bug
from scope_jax.play.rollouts import Agent, Ask, Failed, Interaction, Response, Rollout, sample_name
from scope_jax.play.tool_calls import Tool, ToolError
from scope_jax.play.tool_execution import RolloutCalls, ToolCall, tools_of
from scope_jax.play.turns import Cut, Joiner
from scope_jax.rollouts.interactions import Driver, Move, Spoken
from scope_jax.rollouts.types import Completion, Continuation, Request, Restart, RolloutError, Turn
from scope_jax.text.messages import Messages
from scope_jax.text.plain_data import NotPlain, plain
from scope_jax.web.exchange import whole

CLOSING = 60.0  # seconds of a generator's clean-up where the run ends before it
IN_GENERATOR: ContextVar[bool] = ContextVar("IN_GENERATOR", default=False)  # True while a generator of a game runs


@contextmanager
def in_generator() -> Iterator[None]:
    """While a game's generator runs, which must not call what all processes call together."""
    token = IN_GENERATOR.set(True)
    try:
        yield
    finally:
        IN_GENERATOR.reset(token)


class ResultDriver(Driver, Protocol):
    """A driver whose interaction has a result."""

    def close(self) -> None:
        """Ends what it runs; nothing happens if that has ended."""
        ...

    def result(self, completions: Mapping[str, Completion]) -> Any:
        """What processes exchange, given what its agents have sampled."""
        ...


@dataclass
class EpisodeContext:
    """See `play.rollouts.Context`. draw: makes `rng`."""

    name: str
    sample: int
    draw: Callable[[], np.random.Generator]
    calls: RolloutCalls
    toolbox: Mapping[str, Tool] = field(default_factory=dict)
    _rng: np.random.Generator | None = None

    @property
    def rng(self) -> np.random.Generator:
        if self._rng is None:
            self._rng = self.draw()
        return self._rng

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


def _one_ask(agent: str, messages: Messages) -> Generator[Ask, Response, None]:
    """The generator of a rollout without one."""
    yield Ask(agent, messages)


@dataclass
class _Speaker:
    """An agent, or a sample of one, that has been asked: how its current row began, and which of its turns the
    generator has seen."""

    messages: Messages
    turns: int = 0
    first: int = 0
    """The number of the first turn of its current row."""
    calls: int = 0


@dataclass
class InteractionDriver:
    """See `rollouts.interactions.Driver`. request: makes the request of the first turn of an agent, by the number of
    its sample, from its prompt."""

    rollout: Rollout
    agents: Mapping[str, Agent]
    context: EpisodeContext
    joiner: Joiner
    request: Callable[[str, Messages, int], Request]
    value: Any = None
    failed: str = ""
    _generator: Generator[Any, Any, Any] | None = None
    _asked: tuple[Ask, ...] = ()
    _several: bool = False  # it has yielded a tuple
    _speakers: dict[str, _Speaker] = field(default_factory=dict)
    _turns: dict[str, tuple[Turn, ...]] = field(default_factory=dict)
    _prompts: dict[str, Messages] = field(default_factory=dict)  # of the first turns

    @property
    def immediate(self) -> bool:
        """See `Driver`: nothing of others runs, neither a generator nor the clean-up of a tool."""
        return self.rollout.play is None and not self.context.calls.holds

    def advance(self, spoken: Mapping[str, Spoken]) -> Mapping[str, Move]:
        """See `Driver`, and `failures` for the errors that the generator may raise. One that ends the run has a note
        that names rollout and sample."""
        try:
            return self._moves(spoken)
        except StopIteration as end:
            self._return(end.value)
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
        """Ends the generator and the states of its tools; nothing happens if they have ended. A generator that is at
        work in a thread, as the run ends before it, is left behind."""
        generator = self._generator
        if generator is not None and inspect.getgeneratorstate(generator) == inspect.GEN_SUSPENDED:
            with in_generator():
                self.context.calls.end(f"the rollout {self.rollout.name!r}", generator.close, CLOSING)
        self.context.calls.close()

    def _return(self, value: Any) -> None:
        try:
            if value is not None:  # as that of a single ask, of which there are many
                plain(value)
        except NotPlain as error:
            self._fail(Failed(f"the rollout {self.rollout.name!r} returned what is no plain data ({error})"))
        else:
            self.value = value

    def _fail(self, reason: Failed, error: BaseException | None = None) -> None:
        """error: what the code of others has raised, which is shown once."""
        self.failed = without_passwords(whole(str(reason))) or "failed"
        if (error := error or reason.__cause__) is not None:
            self.context.calls.tell(self.failed, error)

    def _moves(self, spoken: Mapping[str, Spoken]) -> Mapping[str, Move]:
        """What the generator asks for next; it is told (UserError) where it asked for what no prompt can be made of."""
        answers = tuple(self._answer(ask, spoken) for ask in self._asked)
        asked = self._next(answers if self._several else answers[0] if answers else None)
        while True:
            self._several = isinstance(asked, tuple)
            self._asked = asked if isinstance(asked, tuple) else (asked,)
            try:
                checked = self._checked(self._asked)
                return {name: move for ask in checked for name, move in self._moves_of(ask)}
            except UserError as error:
                assert self._generator is not None
                with in_generator():
                    asked = self._generator.throw(error)

    def result(self, completions: Mapping[str, Completion]) -> Interaction:
        """The result, given what the agents have sampled."""
        calls = tuple(self.context.calls.results.get("", ()))
        return Interaction(self.value, completions, calls, self.failed, self._prompts)

    def _next(self, answer: Any) -> Any:
        with in_generator():
            if self._generator is None:
                self._generator = self._begun()
                return next(self._generator)
            return self._generator.send(answer)

    def _begun(self) -> Generator[Any, Any, Any]:
        if self.rollout.play is None:
            (agent,) = self.agents
            return _one_ask(agent, self.rollout.messages)
        generator = self.rollout.play(self.context)
        if not inspect.isgenerator(generator):
            raise RolloutError(
                f"The play of a rollout returned {type(generator).__name__}; it must be a generator function, which "
                "yields an Ask or a tuple of them."
            )
        return generator

    def _checked(self, asked: tuple[Any, ...]) -> tuple[Ask, ...]:
        names = [ask.agent if isinstance(ask, Ask) else type(ask).__name__ for ask in asked]
        if not asked or not all(isinstance(ask, Ask) for ask in asked):
            raise RolloutError(f"A generator yields an Ask or a tuple of them, not {', '.join(names) or 'nothing'}.")
        known = dict.fromkeys((*self.agents, *self._speakers))
        if unknown := [name for name in names if name not in known]:
            raise RolloutError(f"There is no agent {unknown[0]!r}; there are {', '.join(known)}.")
        for ask in asked:
            self._check(ask)
        names = [name for ask in asked for name in _names(ask)]
        if len(set(names)) != len(names):
            raise RolloutError(f"The agent {max(names, key=names.count)!r} is asked twice at a time.")
        return asked

    def _check(self, ask: Ask) -> None:
        """Raises RolloutError for what nobody can be asked."""
        if not isinstance(ask.say, str | Messages):
            raise RolloutError(
                f"The agent {ask.agent!r} is asked to read {type(ask.say).__name__}; give text or Messages."
            )
        for name, number, least in (("samples", ask.samples, 1), ("keep", ask.keep, 0)):
            if number is not None and (not is_whole(number) or number < least):
                raise RolloutError(
                    f"The agent {ask.agent!r} is asked with {name}={number!r}; give a whole number from {least} on."
                )
        if ask.samples is not None and (before := [name for name in _names(ask) if name in self._speakers]):
            raise RolloutError(
                f"Several samples of {ask.agent!r} were asked for, but {before[0]!r} has been asked before; they can "
                "only be of an agent's first turn, after which each is asked by its own name."
            )

    def _moves_of(self, ask: Ask) -> Iterator[tuple[str, Move]]:
        """The names that are asked with their moves; samples share one prompt."""
        messages = Messages(whole(ask.say)) if isinstance(ask.say, str) else ask.say
        if ask.samples is None:
            yield ask.agent, self._move(ask, messages)
            return
        group = f"{self.rollout.name}/{self.context.sample}/{ask.agent}"
        for number, name in enumerate(_names(ask)):
            request = self.request(ask.agent, messages, number)
            self._begin(name, messages)
            yield name, replace(request, group=group)

    def _move(self, ask: Ask, messages: Messages) -> Move:
        speaker = self._speakers.get(ask.agent)
        if speaker is None:
            request = self.request(ask.agent, messages, 0)
            self._begin(ask.agent, messages)
            return request
        turns = self._turns[ask.agent]
        if ask.anew or not turns:  # its prompt was too long: it is over
            restart = Restart(self.joiner.prompt(messages), messages.text)
            speaker.messages, speaker.first = messages, len(turns) + 1
            return restart
        said = messages.text if ask.keep is None else Cut(ask.keep, messages.text)
        reply = self.joiner.responder(lambda _: said, speaker.messages)(turns[speaker.first :])
        assert isinstance(reply, Continuation | Restart)
        return reply

    def _begin(self, name: str, messages: Messages) -> None:
        self._speakers[name] = _Speaker(messages)
        self._prompts[name] = messages

    def _answer(self, ask: Ask, spoken: Mapping[str, Spoken]) -> Response | tuple[Response, ...]:
        answers = tuple(self._response(name, spoken[name]) for name in _names(ask))
        return answers[0] if ask.samples is None else answers

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


def _names(ask: Ask) -> list[str]:
    """Under which its answers are."""
    return [sample_name(ask.agent, number) for number in range(ask.samples or 1)]


def is_whole(number: Any) -> bool:
    """Whether a number is whole, also one of NumPy."""
    if isinstance(number, bool):
        return False
    try:
        operator.index(number)
    except TypeError:
        return False
    return True


@contextmanager
def ended(drivers: Callable[[], Iterable[ResultDriver]]) -> Iterator[None]:
    """Closes drivers at the end of the block, which an error may have ended before their rollouts were over."""
    try:
        yield
    finally:
        for driver in drivers():
            driver.close()
