"""The nouns that pass between a game, the loop and the learner (DESIGN §4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from rollouts.types import Completion
from scope_jax.config import Config, JudgeSection, LossCard
from scope_jax.data import Source
from scope_jax.messages import Messages
from scope_jax.schemas import Kind
from scope_jax.turns import Respond

BASE = "base"  # the name under which the weights a run began with speak
Memory = dict[str, Any]  # what is carried between steps: plain JSON data, saved with every checkpoint
Metrics = dict[str, float]


@dataclass(frozen=True)
class Datum:
    """One training row before packing, exactly the tokens the engine saw.

    ids_T: int32; sampled_T: bool, True where the policy chose the token (False: prompt, observation, nudge);
    logprobs_T: float32 behaviour log-probs, 0 where not sampled.
    """

    ids_T: np.ndarray
    sampled_T: np.ndarray
    logprobs_T: np.ndarray

    @staticmethod
    def from_completion(completion: Completion) -> tuple[Datum, ...]:
        """One datum for each row of the completion: its prompt, which is not sampled, and what followed it."""
        datums = []
        for row in completion.rows:
            prompt = np.asarray(row.prompt_ids, np.int32)
            zeros = np.zeros(len(prompt), np.float32)
            datums.append(
                Datum(
                    np.concatenate([prompt, np.asarray(row.ids_T, np.int32)]),
                    np.concatenate([zeros.astype(bool), np.asarray(row.sampled_T, bool)]),
                    np.concatenate([zeros, np.asarray(row.logprobs_T, np.float32)]),
                )
            )
        return tuple(datums)


@dataclass(frozen=True)
class Reply:
    """What a judge said to one message; refused: why an endpoint did not take it, and the text is empty then."""

    text: str
    refused: str = ""


@dataclass(frozen=True)
class Judgement:
    """One question to a judge about an episode: all that was replied, and what was read from it.

    job: such as "grader"; about: the gate or criterion it was about; replies: two where the first could not be read.
    """

    job: str
    about: str
    replies: tuple[Reply, ...]
    read: bool | int | str | None  # a verdict, the number of criteria, an answer; None: nothing


@dataclass(frozen=True)
class Episode:
    """What one role did with one prompt: rows to train on, and text for people.

    `group` names the prompt whose completions are compared with each other; `advantage` is filled by
    `advantages.assign`, and is one number for every sampled token of the episode (None: not yet computed). `padding`
    fills a place of the batch and is not trained: it has no term in the loss and takes no part in a baseline, but
    counts in the divisor of its update's loss.
    """

    role: str
    policy: str
    group: str
    datums: tuple[Datum, ...]
    reward: float
    parts: Mapping[str, float] = field(default_factory=dict)  # reward parts by name
    advantage: float | None = None
    trained: bool = True  # False: written to episodes.jsonl, not learned from
    padding: bool = False
    text: Mapping[str, Any] = field(default_factory=dict)  # prompt, turns, question, answer … for people
    judgements: tuple[Judgement, ...] = ()

    def with_advantage(self, advantage: float) -> Episode:
        return replace(self, advantage=advantage)


@dataclass(frozen=True)
class Prompt:
    """One conversation to complete, with the keys that make its samples reproducible."""

    ids: tuple[int, ...]
    name: str  # unique within a step and role; folded into every sample's PRNG key
    messages: Messages  # what `ids` render; turns that are rendered anew begin with it
    respond: Respond | None = None  # answers its turns, where the call's `respond` is not meant


@dataclass(frozen=True)
class Update:
    """One learner update of a step: the episodes of `role`, trained into `policy` with `card`.

    temperature: at which those episodes were sampled.
    """

    role: str
    policy: str
    card: LossCard
    temperature: float


@dataclass(frozen=True)
class ExamNeeds:
    """What the evaluation of a game takes.

    kind: of the rows of an evaluation set. policy: whose weights answer. asks_base: True if the base itself grades.
    judges: the outside models that grade, by name.
    """

    kind: Kind
    policy: str
    asks_base: bool
    judges: Mapping[str, JudgeSection]


@runtime_checkable
class Tools(Protocol):
    """What a game may do to the world. `train.py` builds it; tests hand in scripted ones."""

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

        A prompt above max_prompt_tokens is not played: its completions have no turns. max_response_tokens: of all that
        follows a prompt, sampled or read. policy: whose weights speak, one of the system's policies or BASE, those that
        the run began with. respond: the text that answers a turn, or its beginning (`Cut`), or None; it becomes tokens
        as the card's `model.turns` says.
        """
        ...

    def tokens(self, text: str) -> int:
        """Length of plain text in tokens of the policy."""
        ...

    def search(self, queries: Sequence[str]) -> list[str]:
        """Formatted result text of each query, within the card's token budget, own tags neutralised."""
        ...

    def judge(
        self,
        messages: Sequence[str],
        *,
        by: str = "judge",
        temperature: float | None = None,
        max_tokens: int | None = None,
    ) -> list[Reply]:
        """Replies of an outside model to single user messages, in order.

        by: which of the system's `judges`. None: what the judge's table in the card says.
        """
        ...


@runtime_checkable
class System(Protocol):
    """The shape every module of `scope_jax.systems` has (no base class: modules are checked against it)."""

    def policies(self, cfg: Config) -> tuple[str, ...]:
        """Names of the trained policies; each has an optimiser of its own, and begins as the base if the card does not
        say otherwise."""
        ...

    def asks_base(self, cfg: Config) -> bool:
        """True if the base itself speaks in the game (a frozen judge), beside being the reference of a KL term."""
        ...

    def judges(self, cfg: Config) -> Mapping[str, JudgeSection]:
        """The outside models the game asks, by name."""
        ...

    def source(self, cfg: Config) -> Source:
        """Where the rows of data come from."""
        ...

    def system_messages(self, cfg: Config) -> tuple[Path, ...]:
        """Files with the system messages of its roles, where the card's folder of prompts has them."""
        ...

    def start(self, cfg: Config) -> Memory:
        """Memory before the first step."""
        ...

    def finished(self, cfg: Config, memory: Memory, step: int) -> bool:
        """True if nothing is left to do after `step` steps (`train.steps` ends a run in any case)."""
        ...

    def expected(self, cfg: Config) -> int | None:
        """Number of steps of a whole run, None if only the game itself will show."""
        ...

    def iterations(self, cfg: Config, memory: Memory) -> int:
        """Number of iterations that are over, 0 in a game that has none."""
        ...

    def adopt(self, cfg: Config, memory: Memory, before: Config) -> Memory:
        """The memory of a run under the card `before`, for one under `cfg` that goes on from there."""
        ...

    def takes(self, cfg: Config, memory: Memory, step: int) -> tuple[int, int]:
        """(first, count): the rows of the stream of data that the next step plays with."""
        ...

    def play(
        self, cfg: Config, tools: Tools, memory: Memory, items: Sequence[Mapping[str, Any]], step: int
    ) -> tuple[list[Episode], Memory, Metrics]:
        """One step of the game on its items; pure in its arguments, `memory` is returned anew."""
        ...

    def updates(self, cfg: Config) -> tuple[Update, ...]:
        """The learner updates a step may have, in order; one without trained episodes is left out."""
        ...

    def exam_needs(self, cfg: Config) -> ExamNeeds:
        """What evaluating takes: a part of what playing does."""
        ...

    def read_exam_prompts(self, cfg: Config) -> None:
        """Reads the prompt files that evaluating fills; raises PromptError for one that is missing or broken."""
        ...

    def answer(
        self, cfg: Config, tools: Tools, rows: Sequence[Mapping[str, Any]], *, temperature: float, max_tokens: int
    ) -> list[dict[str, Any]]:
        """Evaluation: a record for each row, for people, with "measures": numbers of which the mean is reported.

        A record that lacks a measure takes no part in its mean. "counts", where there are any, are added up.
        """
        ...
