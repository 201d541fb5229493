"""A game or an exam up to its first completion, without a model: the prompts that it samples first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from scope_jax.config import Config
from scope_jax.data import sources
from scope_jax.data.keys import rng
from scope_jax.errors import UserError
from scope_jax.learner.types import Datum, Reply
from scope_jax.play.driver import EpisodeContext
from scope_jax.play.math_answers import SECONDS, Comparison
from scope_jax.play.rollouts import Agent, Ask, Failed, Interaction, Rollout
from scope_jax.play.tool_execution import Execution, RolloutCalls
from scope_jax.play.tool_responder import check_answered
from scope_jax.play.turns import Joiner
from scope_jax.retrieval.rows import Row
from scope_jax.rollouts.types import Completion, ToolResult
from scope_jax.run.world import ONLY
from scope_jax.text.messages import Messages
from scope_jax.text.schemas import function_of


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


class _Sampled(Exception):
    """Raised where the first completion would be sampled. rendered: its prompts, None for those of a judge."""

    def __init__(self, rendered: Rendered | None) -> None:
        super().__init__()
        self.rendered = rendered


class _Off:
    """A record in place of tools that are off: a call of one ends the play."""

    closed = True

    def earlier(self, agent: str) -> list[Mapping[str, Any]]:
        return []

    def write(self, agent: str, number: int, result: ToolResult) -> NoReturn:
        raise _Sampled(None)

    def differs(self, agent: str, number: int) -> NoReturn:
        raise _Sampled(None)


class RenderingTools:
    """Implements `play.tools.Tools` up to the first call that needs a model, which ends the play.

    rows: the training data, not empty if the game reads any. exam: the prompts are those of an exam. Searches find
    nothing.
    """

    def __init__(self, cfg: Config, joiner: Joiner, rows: Sequence[Row], *, exam: bool = False) -> None:
        own = exam and cfg.evaluate.max_length is not None
        self._length = cfg.exam_length if exam else cfg.rollout.max_length
        self._key = "evaluate.max_length" if own else "rollout.max_length"
        self._cfg = cfg
        self._joiner = joiner
        self._rows = rows

    def rows(self, first: int, count: int) -> list[Row]:
        return sources.items(self._rows, first, count, self._cfg.seed)

    def prompt_tokens(self, messages: Messages) -> int:
        return len(self._joiner.prompt(messages))

    def tokens(self, text: str) -> int:
        return len(self._joiner.tokenizer.encode(text))

    def play(self, role: str, rollouts: Sequence[Rollout], agent: Agent, samples: int = 1) -> list[list[Completion]]:
        if not rollouts:
            return []
        check_answered(ONLY, agent, self._joiner.mode)
        raise _Sampled(self._rendered(role, [rollout.messages for rollout in rollouts], agent))

    def interact(
        self, role: str, rollouts: Sequence[Rollout], agents: Mapping[str, Agent], samples: int = 1
    ) -> list[list[Interaction]]:
        """Of several agents that are asked first, the prompts of the first one count."""
        first = [self._first(rollout) for rollout in rollouts]
        if not (asked := [each for each in first if each is not None]):
            return [[Interaction(None, {}) for _ in range(samples)] for _ in rollouts]
        for name, agent in agents.items():
            check_answered(name, agent, self._joiner.mode)
        prompts = [Messages(ask.say) if isinstance(ask.say, str) else ask.say for ask in asked]
        raise _Sampled(self._rendered(role, prompts, agents[asked[0].agent]))

    def _rendered(self, role: str, prompts: Sequence[Messages], agent: Agent) -> Rendered:
        named = {function_of(schema)["name"]: schema for schema in self._joiner.tools}
        if unknown := [tool for tool in agent.tools if isinstance(tool, str) and tool not in named]:
            raise UserError(f"the role {role} calls {unknown[0]!r}, which is not among the game's tools (Game.tools).")
        tools = tuple(named[tool] if isinstance(tool, str) else tool.schema for tool in agent.tools)
        lengths = tuple(self.prompt_tokens(messages.declaring(tools)) for messages in prompts)
        limits = (agent.sampling.max_tokens, agent.max_prompt_tokens)
        return Rendered(role, lengths, *limits, self._length, self._key)

    def _first(self, rollout: Rollout) -> Ask | None:
        """What the rollout's generator asks first, None if it asks nothing; its tools are off."""
        assert rollout.play is not None
        execution = Execution(self._joiner.tokenizer.encode, self._joiner.tokenizer.decode, self.tell, 1)
        calls = RolloutCalls(execution, lambda tool: rng("check", tool), _Off())
        generator = rollout.play(EpisodeContext(rollout.name, 0, rng("check", rollout.name), calls))
        try:
            asked = next(generator, None)
        except Failed as error:
            raise UserError(f"the rollout {rollout.name!r} fails before its first turn ({error}); mend it.") from None
        finally:
            generator.close()
        return asked[0] if isinstance(asked, tuple) else asked

    def each(self, name: str, work: Callable[[Any], Any], items: Sequence[Any]) -> NoReturn:
        raise _Sampled(None)

    def once(self, name: str, work: Callable[[], Any]) -> NoReturn:
        raise _Sampled(None)

    def search(self, queries: Sequence[str]) -> list[str]:
        return ["" for _ in queries]

    def judge(self, messages: Sequence[str], **sampling: Any) -> list[Reply]:
        raise _Sampled(None)

    def compare_math(self, comparisons: Sequence[Comparison], seconds: float = SECONDS) -> NoReturn:
        raise _Sampled(None)

    def encode(
        self, messages: Sequence[Mapping[str, Any]], first: int = 0, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[Datum, ...]:
        raise _Sampled(None)

    def score(self, by: str, rows: Sequence[Datum], **options: Any) -> NoReturn:
        raise _Sampled(None)

    def probe(self, by: str) -> str:
        return ""

    def tell(self, sentence: str) -> None:
        """Says nothing."""


def first_prompts(tools: RenderingTools, play: Callable[[RenderingTools], object]) -> Rendered | None:
    """The prompts that `play` samples first; None if it asks a judge before it samples, or samples nothing."""
    try:
        play(tools)
    except _Sampled as reached:
        return reached.rendered
    return None
