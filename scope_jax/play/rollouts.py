"""Rollouts: one prompt of one agent, or a generator that asks agents for turns.

An interaction is a generator: it asks an agent for a turn, receives it, and goes on. Its local variables are the state
of the episode, its `finally` is the clean-up, and what it returns is the outcome:

    def play(context):
        said = yield Ask("first", Messages("Name a number."))
        heard = yield Ask("second", Messages(f"Is {said.content} prime?"))
        return {"number": said.content, "answer": heard.content}

An agent asked for several samples of a prompt, which is computed once, answers with a tuple of them:

        answers = yield Ask("first", Messages("Name a number."), samples=4)
        better = yield Ask(sample_name("first", 2), "Name a larger one.")

It never waits for a model while it holds a thread or a slot of the engine, so thousands of them share one batch. What
an agent reads of others is text in its prompt or in a message; only its own tokens are sampled, and trained.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np

from scope_jax.config import RoleSection, SamplingSection
from scope_jax.play.tool_calls import Tool
from scope_jax.rollouts.types import Completion, ToolResult, Turn
from scope_jax.text.messages import Messages

Said = TypeVar("Said", bound=Completion)


@dataclass(frozen=True)
class Agent:
    """Who speaks in an episode, and how its turns are sampled."""

    policy: str
    """The weights to sample from: one of the game's policies, or BASE."""
    sampling: SamplingSection
    """Temperature, top-k, top-p, and the limits of a turn and of everything after the prompt."""
    max_turns: int = 1
    """Most turns of an episode."""
    max_prompt_tokens: int | None = None
    """A longer prompt is not sampled: its completions have no turns."""
    stop: tuple[str, ...] = ()
    """Strings that end a turn."""
    tools: tuple[Tool | str, ...] = ()
    """What its turns may call, those of the game (`Game.tools`, "search") by name; calls are run and answered until a
    turn has none."""
    finals: tuple[str, ...] = ()
    """Tags that end its move once one is closed, whatever calls follow."""
    calls: Literal["all", "stop", "first"] = "all"
    """Which calls of a turn are run: "all"; "stop": the first closing tag ends the turn; "first": the first one, and
    the rest of the turn is dropped."""
    malformed: Literal["answer", "end", "remind"] = "answer"
    """A malformed call is answered with what is wrong, or it counts for nothing; "remind": neither, but a turn with no
    other is answered with `reminder`."""
    reminder: str = ""
    """See `malformed`."""
    tempered: bool = True
    """Log-probs are those of the distribution at the sampling temperature."""

    @staticmethod
    def of_role(card: RoleSection, policy: str, sampling: SamplingSection | None = None, **fields: Any) -> Agent:
        """An agent with the limits of a role's table. sampling: replaces the table's own. fields: as above."""
        limits = {"max_turns": card.max_turns, "max_prompt_tokens": card.max_prompt_tokens}
        return Agent(policy, sampling or card.sampling, tempered=card.loss.tempered, **limits, **fields)


@dataclass(frozen=True)
class Ask:
    """What a generator yields: an agent is asked for a turn. A tuple of several is answered together."""

    agent: str
    """The agent's name, or `sample_name` of one of its samples."""
    say: str | Messages
    """What it reads: a prompt (text alone: a user message) when it is asked first, later a message."""
    keep: int | None = None
    """How many characters of its last turn stay in its context; None: all."""
    anew: bool = False
    """A new row begins: only `say` is in its context."""
    samples: int | None = None
    """How many samples of a first turn it gives, from 1 on: the answer is a tuple of them. Each has a completion of its
    own under `sample_name`, and goes on by itself when that is asked. An agent that has been asked before cannot give
    them. None: one, and the answer is a `Response`."""


def sample_name(agent: str, number: int) -> str:
    """The name of a sample of an agent that was asked for several (`Ask.samples`): the first is the agent itself, "a",
    and the others are "a/1", "a/2", …"""
    return agent if number == 0 else f"{agent}/{number}"


def agent_of(name: str, agents: Collection[str]) -> str:
    """Which of these agents a `sample_name` belongs to."""
    return name if name in agents else name.rpartition("/")[0]


@dataclass(frozen=True)
class Response:
    """What an agent has answered."""

    text: str
    """Its last turn, without the mark of a thought that the prompt opened (`Turn.written` has it); "" if it could not
    speak."""
    content: str
    """The same with thinking replaced by spaces."""
    turns: tuple[Turn, ...] = ()
    """All turns of this move, with the results of its tools between them."""
    calls: tuple[ToolResult, ...] = ()
    """The calls of this move."""
    finish: str | None = None
    """How the last turn ended, see `Turn.finish`; None if it could not speak."""
    over: bool = False
    """It cannot be asked again: it has no turns or no room left."""


@runtime_checkable
class Context(Protocol):
    """What a generator has of its surroundings."""

    @property
    def name(self) -> str:
        """The rollout's."""
        ...

    @property
    def sample(self) -> int:
        """The number of this sample of the rollout."""
        ...

    @property
    def rng(self) -> np.random.Generator:
        """Random numbers that depend on the run's seed, step, role, rollout and sample alone."""
        ...

    def call(self, tool: Tool | str, **arguments: Any) -> str:
        """The text of the result of a tool, or of the game's tool of that name; recorded like the calls of a policy.
        Raises ToolError if the tool fails."""
        ...

    def recorded(self, name: str, arguments: Mapping[str, Any], work: Callable[[], Any], seconds: float = 60.0) -> Any:
        """The result of `work`, plain data, from the record if there is one: for what is no function of the seed and no
        tool. What it raises is raised here; TimeoutError if it takes longer, Failed if it is no plain data. arguments:
        what it depends on."""
        ...

    def stored(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """What an earlier process of the run has stored at this place; None if it has not."""
        ...

    def store(self, name: str, arguments: Mapping[str, Any], value: Any) -> Any:
        """Records plain data at this place; returns it as it will be read. Raises Failed for other data."""
        ...

    def end(self, name: str, work: Callable[[], Any], seconds: float) -> None:
        """Runs a clean-up. An error is shown to the user and changes nothing; one that takes longer is left behind."""
        ...


Play = Callable[[Context], Generator[Any, Any, Any]]  # yields an Ask or a tuple of them, receives Response or a tuple


class Failed(Exception):
    """Raised by a generator whose rollout cannot be used: it has no value, and its agents' turns are not to be trained.
    The text is the reason. Other errors that fail a rollout: `failures`."""


@dataclass(frozen=True)
class Rollout:
    """One episode to be played, and a name that makes its samples reproducible."""

    name: str
    """Unique within a step and role; folded into every sample's PRNG key."""
    messages: Messages = field(default_factory=lambda: Messages(""))
    """The prompt of its only agent if there is no `play`; later turns may render the conversation again with it."""
    remark: Callable[[int], str | None] | None = None
    """What follows the results of a turn's calls on a line of its own, by the number of turns so far; None: they are
    not run, and the move ends."""
    prompt_ids: tuple[int, ...] | None = None
    """Token ids of the prompt; None: those of `messages` through the chat template."""
    label: str = ""
    """What the names of its samples' metrics begin with; "": as the step says."""
    play: Play | None = None
    """The generator of an interaction; None: one that asks the only agent once, for a turn after `messages`."""


@dataclass(frozen=True)
class RolloutRequest:
    """What the chain of an item (`play.chains`) waits for, as `Tools.play` gives it."""

    role: str
    """What enters the keys."""
    rollouts: Sequence[Rollout]
    """Without generators of their own."""
    agent: Agent
    """Who speaks."""
    samples: int
    """Of each rollout."""


Groups = list[list[Completion]]  # the samples of each rollout, in order
Leg = Generator[RolloutRequest, Groups, None]  # a part of a chain that needs nothing of others


@dataclass(frozen=True)
class Interaction(Generic[Said]):
    """A rollout of several agents that has been played."""

    value: Any
    """What its generator returned: plain data. None if it failed."""
    completions: Mapping[str, Said]
    """By name, of each agent that was asked; of several samples of one, each under its `sample_name`."""
    calls: tuple[ToolResult, ...] = ()
    """The generator's own calls of tools."""
    failed: str = ""
    """Why it failed; "": it did not."""
    prompts: Mapping[str, Messages] = field(default_factory=dict)
    """What each began with, by the same names."""
