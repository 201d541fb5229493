"""The tools of a game: generate completions, search, ask judges, get rows of data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from scope_jax.config import SamplingSection
from scope_jax.data.rows import Row
from scope_jax.grading.math_answers import SECONDS, Comparison, Verdict
from scope_jax.learner.types import Datum, Reply
from scope_jax.play.rollouts import Agent, Groups, Interaction, Leg, Rollout
from scope_jax.rollouts.types import Completion
from scope_jax.text.messages import Messages

BASE = "base"  # the policy with the initial weights of the run, never trained


@runtime_checkable
class Tools(Protocol):
    """The tools of a game in one step. `train.py` builds them; tests use scripted ones."""

    def rows(self, first: int, count: int) -> list[Row]:
        """Rows `first` to `first + count` of an endless stream: the data of the game's `source`, reshuffled in every
        epoch with the run's seed.

        The same positions always give the same rows. A game that draws until it has enough calls this several times in
        a step, and keeps its position in its memory.
        """
        ...

    def play(self, role: str, rollouts: Sequence[Rollout], agent: Agent, samples: int = 1) -> list[list[Completion]]:
        """`samples` completions of each rollout, in order; keys from (run seed, step, role, rollout's name, sample).
        Equal prompts are prefilled once.
        """
        ...

    def interact(
        self, role: str, rollouts: Sequence[Rollout], agents: Mapping[str, Agent], samples: int = 1
    ) -> list[list[Interaction[Completion]]]:
        """`samples` of each rollout, in order, whose generators (`Rollout.play`) ask these agents for turns; keys as
        for `play`, and from the agent's name.
        """
        ...

    def chains(self, agents: Mapping[str, Agent], legs: Sequence[Callable[[], Leg]]) -> list[list[Groups]]:
        """What each leg of a chain is given, by request; keys as for `play`. agents: by role, those that are asked; of
        several policies with whole weights the first one's are used first. A leg is begun in one process.
        """
        ...

    def each(self, name: str, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """`work` of each item, in order: plain data, by which the run goes on although `work` may answer otherwise the
        next time. Of several processes each does its share; a resumed run gets what was recorded.

        name: of the work; in a step equal items of a name have one answer. items: plain data, too.
        """
        ...

    def once(self, name: str, work: Callable[[], Any]) -> Any:
        """The result of `work`, which one process does for all: plain data, recorded as by `each`."""
        ...

    def prompt_tokens(self, messages: Messages) -> int:
        """Length of a prompt in tokens, with the chat template up to the assistant's turn."""
        ...

    def tokens(self, text: str) -> int:
        """Length of plain text in tokens of the policy."""
        ...

    def search(self, queries: Sequence[str]) -> list[str]:
        """Formatted result text of each query, within the card's token budget, with our own tags neutralised.

        Of several processes each searches for its share. An agent searches with the tool "search", a generator with
        `Context.call`.
        """
        ...

    def judge(
        self,
        messages: Sequence[str],
        *,
        by: str = "judge",
        temperature: float | None = None,
        max_tokens: int | None = None,
    ) -> list[Reply]:
        """Replies of an external model to single user messages, in order.

        by: one of the game's `judges`. None: the value from the judge's table in the card.
        """
        ...

    def compare_math(self, comparisons: Sequence[Comparison], seconds: float = SECONDS) -> list[Verdict]:
        """The verdict on each pair of mathematical answers, in order, see `MathAnswers`. seconds: CPU time for each.

        Of several processes each decides its share, and all get the same verdicts; those of a run are recorded, and a
        resumed run gets the recorded ones.
        """
        ...

    def encode(
        self, messages: Sequence[Mapping[str, Any]], first: int = 0, tools: Sequence[Mapping[str, Any]] | None = None
    ) -> tuple[Datum, ...]:
        """A given conversation as rows to be trained on, with the tokens of the assistant's messages from number
        `first` on as sampled (`play.conversations`). tools: JSON schemas of functions that the template shows. Raises
        ValueError if the chat template rejects it.
        """
        ...

    def score(
        self,
        by: str,
        rows: Sequence[Datum],
        *,
        after: Sequence[Messages | Sequence[int]] | None = None,
        temperature: float = 1.0,
    ) -> list[np.ndarray]:
        """The log-probs, float32, of the sampled tokens of each row, in order, under other weights or another prompt.

        by: a policy, BASE, or one of the card's `teachers`. after: a prompt for each row, in place of what stands
        before its first sampled token; ids as they are, messages through the chat template. temperature: log-probs are
        those of softmax(logits / temperature), without top-k or top-p. A row's bits do not depend on the others.
        """
        ...

    def probe(self, by: str) -> str:
        """Whether an external model can be reached: "" if it can, else the reason, one sentence.

        For models whose section has `required = False`; the others are probed before the run starts.
        """
        ...

    def tell(self, sentence: str) -> None:
        """Shows the user one sentence among the messages of the run."""
        ...


def single_turn(temperature: float, max_tokens: int) -> SamplingSection:
    """The sampling of an episode of one turn of at most `max_tokens`."""
    return SamplingSection(temperature=temperature, max_tokens=max_tokens, max_response_tokens=max_tokens)
