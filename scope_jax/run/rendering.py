"""The prompts that a game or an exam samples first, rendered and counted, without an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from scope_jax.config import Config
from scope_jax.data import sources
from scope_jax.learner.types import Reply
from scope_jax.play.math_answers import SECONDS, Comparison
from scope_jax.play.tools import Agent, Rollout
from scope_jax.play.turns import Joiner
from scope_jax.retrieval.rows import Row
from scope_jax.rollouts.types import Completion
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


class _Sampled(Exception):
    """Raised where the first completion would be sampled. rendered: its prompts, None for those of a judge."""

    def __init__(self, rendered: Rendered | None) -> None:
        super().__init__()
        self.rendered = rendered


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
        lengths = tuple(self.prompt_tokens(rollout.messages) for rollout in rollouts)
        limits = (agent.sampling.max_tokens, agent.max_prompt_tokens)
        raise _Sampled(Rendered(role, lengths, *limits, self._length, self._key))

    def search(self, queries: Sequence[str]) -> list[str]:
        return ["" for _ in queries]

    def judge(self, messages: Sequence[str], **sampling: Any) -> list[Reply]:
        raise _Sampled(None)

    def compare_math(self, comparisons: Sequence[Comparison], seconds: float = SECONDS) -> NoReturn:
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
