"""The tools of a game: generate completions, search, ask judges, get rows of data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from scope_jax.config import RoleSection, SamplingSection
from scope_jax.learner.types import Reply
from scope_jax.play.math_answers import SECONDS, Comparison, Verdict
from scope_jax.play.turns import Respond
from scope_jax.retrieval.rows import Row
from scope_jax.rollouts.types import Completion
from scope_jax.text.messages import Messages

BASE = "base"  # the policy with the initial weights of the run, never trained


@dataclass(frozen=True)
class Prompt:
    """One conversation to complete, with a name that makes its samples reproducible."""

    ids: tuple[int, ...]
    name: str  # unique within a step and role; folded into every sample's PRNG key
    messages: Messages  # the messages rendered in `ids`; also used when later turns re-render the conversation
    respond: Respond | None = None  # responder of its turns, overrides the call's `respond`


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

    def encode_prompt(self, messages: Messages) -> tuple[int, ...]:
        """Token ids of the messages through the chat template, ready for the assistant's turn."""
        ...

    def generate(
        self,
        role: str,
        prompts: Sequence[Prompt],
        samples: int,
        *,
        policy: str,
        temperature: float,
        max_tokens: int,
        top_k: int = 0,
        top_p: float = 1.0,
        stop: Sequence[str] = (),
        max_turns: int = 1,
        max_prompt_tokens: int | None = None,
        max_response_tokens: int | None = None,
        respond: Respond | None = None,
        tempered: bool = True,
    ) -> list[list[Completion]]:
        """`samples` completions of each prompt, in order; keys from (run seed, step, role, prompt name, sample).
        Prompts with equal ids are prefilled once.

        A prompt longer than max_prompt_tokens is not sampled: its completions have no turns. max_response_tokens: limit
        on everything after a prompt, sampled or read. policy: the weights to sample from, one of the game's policies or
        BASE. respond: returns the text that responds to a turn, or to a prefix of it (`Cut`), or None to end the
        episode; the text is encoded according to the card's `model.turns`.
        """
        ...

    def tokens(self, text: str) -> int:
        """Length of plain text in tokens of the policy."""
        ...

    def search(self, queries: Sequence[str]) -> list[str]:
        """Formatted result text of each query, within the card's token budget, with our own tags neutralised."""
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

    def probe(self, by: str) -> str:
        """Whether an external model can be reached: "" if it can, else the reason, one sentence.

        For models whose section has `required = False`; the others are probed before the run starts.
        """
        ...

    def tell(self, sentence: str) -> None:
        """Shows the user one sentence among the messages of the run."""
        ...


def sample(
    tools: Tools,
    role: str,
    prompts: Sequence[Prompt],
    samples: int,
    sampling: SamplingSection,
    *,
    policy: str,
    stop: Sequence[str] = (),
    max_turns: int = 1,
    max_prompt_tokens: int | None = None,
    respond: Respond | None = None,
    tempered: bool = True,
) -> list[list[Completion]]:
    """`Tools.generate` with the values of a sampling table; [] without prompts."""
    if not prompts:
        return []
    return tools.generate(
        role,
        prompts,
        samples,
        policy=policy,
        temperature=sampling.temperature,
        max_tokens=sampling.max_tokens,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        stop=stop,
        max_turns=max_turns,
        max_prompt_tokens=max_prompt_tokens,
        max_response_tokens=sampling.max_response_tokens,
        respond=respond,
        tempered=tempered,
    )


def sample_role(
    tools: Tools,
    role: str,
    card: RoleSection,
    prompts: Sequence[Prompt],
    samples: int,
    *,
    policy: str,
    sampling: SamplingSection | None = None,
    stop: Sequence[str] = (),
    respond: Respond | None = None,
) -> list[list[Completion]]:
    """`sample` with the limits of a role's table. sampling: replaces the table's own."""
    return sample(
        tools,
        role,
        prompts,
        samples,
        sampling or card.sampling,
        policy=policy,
        stop=stop,
        max_turns=card.max_turns,
        max_prompt_tokens=card.max_prompt_tokens,
        respond=respond,
        tempered=card.loss.tempered,
    )
