"""A game or an exam up to its first completion, without a model: the prompts that it samples first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from scope_jax.data import sources
from scope_jax.data.keys import rng
from scope_jax.data.rows import Row
from scope_jax.errors import UserError
from scope_jax.play.driver import EpisodeContext, InteractionDriver
from scope_jax.play.failures import check_failures
from scope_jax.play.rollouts import Agent, Interaction, Leg, Rollout
from scope_jax.play.tool_calls import SEARCH, Tool
from scope_jax.play.tool_execution import Execution, RolloutCalls, tools_of
from scope_jax.rollouts.types import Completion, RolloutError
from scope_jax.run.opened import OpenedCard
from scope_jax.run.world import NO_SEARCH, ONLY, check_alone, check_judge, check_rollouts
from scope_jax.text.messages import Messages


@dataclass(frozen=True)
class Rendered:
    """The prompts of a role: their lengths in tokens, and the limits of the call that samples from them.

    max_tokens: of one turn. max_prompt_tokens: longer prompts are not sampled, None: all that fit. max_length: of
    an episode with its prompt, the value of `key`.
    """

    role: str
    lengths: tuple[int, ...]
    max_tokens: int
    max_prompt_tokens: int | None
    max_length: int
    key: str = "rollout.max_length"

    def sampled(self) -> list[int]:
        """Lengths of the prompts that are sampled."""
        longest = min(self.max_length - 1, self.max_prompt_tokens or self.max_length)
        return [length for length in self.lengths if length <= longest]

    def described(self) -> str:
        """One line: lengths, prompts that are too long, and the room that is left for a turn after the longest one."""
        count, fitting = len(self.lengths), self.sampled()
        low, high = min(self.lengths), max(self.lengths)
        text = f"{count} of {high:,} tokens" if low == high else f"{count} of {low:,} to {high:,} tokens"
        if len(fitting) < count:
            own = self.max_prompt_tokens is not None and self.max_prompt_tokens < self.max_length
            limit = f"their max_prompt_tokens = {self.max_prompt_tokens}" if own else self._room
            text += f"; {count - len(fitting)} are too long for {limit} and are not sampled: raise it, or shorten them"
        if fitting and (room := self.max_length - max(fitting)) < self.max_tokens:
            text += (
                f"; after the longest there is room for {room:,} of a turn's {self.max_tokens:,} tokens in {self._room}"
            )
        return text

    @property
    def _room(self) -> str:
        return f"{self.key} = {self.max_length}"


class _Sampled(RolloutError):
    """Raised where the first completion would be sampled, or something outside asked; a generator does not survive it.
    rendered: the prompts, None where something outside is asked."""

    def __init__(self, rendered: Rendered | None) -> None:
        super().__init__()
        self.rendered = rendered


class _FirstRequest(RolloutError):
    """Raised where a rollout would get its first turn: of the agent `name`, after these messages."""

    def __init__(self, name: str, messages: Messages) -> None:
        super().__init__()
        self.name, self.messages = name, messages


def _sampled(*_: Any, **__: Any) -> NoReturn:
    raise _Sampled(None)


def _asked(name: str, messages: Messages, number: int) -> NoReturn:
    raise _FirstRequest(name, messages)


class _Off:
    """A record in place of tools that are off: a call that would be recorded ends the play before it is run."""

    closed = True
    earlier = write = differs = staticmethod(_sampled)


class RenderingTools:
    """Implements `play.tools.Tools` up to the first call that needs a model or something outside, which ends the play.

    exam: the prompts are those of an exam. Searches find nothing.
    """

    each = once = compare_math = encode = score = staticmethod(_sampled)

    def __init__(self, opened: OpenedCard, *, exam: bool = False) -> None:
        cfg = self._cfg = opened.cfg
        own = exam and cfg.evaluate.max_length is not None
        self._length = cfg.exam_length if exam else cfg.rollout.max_length
        self._key = "evaluate.max_length" if own else "rollout.max_length"
        self._joiner = opened.joiner
        self._judges = opened.external_models()
        self._searches = opened.searches
        self._rows = () if exam else opened.rows
        search = [Tool("search", lambda query: "", SEARCH)] if opened.searches_index else []
        self._toolbox = {tool.name: tool for tool in (*search, *opened.tools)}

    def rows(self, first: int, count: int) -> list[Row]:
        return sources.items(self._rows, first, count, self._cfg.seed)

    def prompt_tokens(self, messages: Messages) -> int:
        return len(self._joiner.prompt(messages))

    def tokens(self, text: str) -> int:
        return len(self._joiner.tokenizer.encode(text))

    def play(self, role: str, rollouts: Sequence[Rollout], agent: Agent, samples: int = 1) -> list[list[Completion]]:
        check_alone(role, rollouts)
        groups = self.interact(role, rollouts, {ONLY: agent}, samples)
        return [[each.completions[ONLY] for each in group] for group in groups]

    def interact(
        self, role: str, rollouts: Sequence[Rollout], agents: Mapping[str, Agent], samples: int = 1
    ) -> list[list[Interaction]]:
        """Of several agents that are asked first, the prompts of the first one count; of rollouts that fail, none."""
        check_rollouts(role, rollouts, agents, samples, self._joiner.mode)
        first = [self._first(rollout, agents) for rollout in rollouts]
        if asked := [each for each in first if isinstance(each, _FirstRequest)]:
            raise _Sampled(self._rendered(role, [each.messages for each in asked], agents[asked[0].name]))
        groups = [[each] * samples for each in first if isinstance(each, Interaction)]
        check_failures(role, groups)
        return groups

    def chains(self, agents: Mapping[str, Agent], legs: Sequence[Callable[[], Leg]]) -> NoReturn:
        """The prompts of the first role that is asked count, those of all items that begin with it."""
        wanted = [next(leg()) for leg in legs]
        first = [rollout for one in wanted if one.role == wanted[0].role for rollout in one.rollouts]
        self.play(wanted[0].role, first, wanted[0].agent)
        raise AssertionError("a prompt that is sampled ends the play")

    def _rendered(self, role: str, prompts: Sequence[Messages], agent: Agent) -> Rendered:
        if unknown := [tool for tool in agent.tools if isinstance(tool, str) and tool not in self._toolbox]:
            raise UserError(f"the role {role} calls {unknown[0]!r}, which is not among the game's tools (Game.tools).")
        tools = [tool.schema for tool in tools_of(agent.tools, self._toolbox)]
        lengths = tuple(self.prompt_tokens(messages.declaring(tools)) for messages in prompts)
        limits = (agent.sampling.max_tokens, agent.max_prompt_tokens)
        return Rendered(role, lengths, *limits, self._length, self._key)

    def _first(self, rollout: Rollout, agents: Mapping[str, Agent]) -> _FirstRequest | Interaction:
        """What the rollout asks first, or its end without a turn."""
        execution = Execution(self._joiner.tokenizer.encode, self._joiner.tokenizer.decode, self.tell, 1)
        calls = RolloutCalls(execution, lambda tool: rng("check", tool), _Off())
        context = EpisodeContext(rollout.name, 0, lambda: rng("check", rollout.name), calls, self._toolbox)
        driver = InteractionDriver(rollout, agents, context, self._joiner, _asked)
        try:
            driver.advance({})
        except _FirstRequest as first:
            return first
        finally:
            driver.close()
        return driver.result({})

    def judge(self, messages: Sequence[str], *, by: str = "judge", **_: Any) -> NoReturn:
        check_judge(by, self._judges)
        _sampled()

    def search(self, queries: Sequence[str]) -> list[str]:
        if not self._searches:
            raise UserError(NO_SEARCH)
        return ["" for _ in queries]

    def probe(self, by: str) -> str:
        return ""

    def tell(self, sentence: str) -> None:
        """Says nothing."""


def first_prompts(tools: RenderingTools, play: Callable[[RenderingTools], object]) -> Rendered | None:
    """The prompts that `play` samples first; None if it samples nothing, or asks something outside before."""
    try:
        play(tools)
    except _Sampled as reached:
        return reached.rendered
    return None
