"""The evaluation tables: evaluation sets, and how answers are sampled and measured."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from scope_jax.config.base import EXAM_PROMPTS, CardPath, Count, Section, Temperature, Whole
from scope_jax.config.tables import AskSection, JudgeSection, RowsSection, SamplingSection, TopP

Measure = Literal[
    "accuracy",  # the game's own definition
    "exact-match",
    "cover-exact-match",
    "f1",
    "numeric",
    "choice",
    "same-text",
    "json",
    "math",
    "judge",
    "pairwise",
    "rubric",
    "exact",
    "points",
    "rating",
]
OwnMeasure = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$")]  # of a game, by its name in `Exam.own`
BY_RUBRIC = (
    "rubric",
    "exact",
    "points",
    "rating",
)  # measures of rows with rubrics; all others are for rows with correct answers


class EvalSet(RowsSection):
    name: str = Field(pattern=r"^[\w.-]+$")
    """Unique name of letters, digits, `_`, `-` and `.`; its metrics are called `eval/<name>/<measure>`
    (docs/evaluation.md)."""
    path: CardPath
    """Questions with correct answers, or, for the measures `rubric`, `points`, `rating` and `exact`, tasks with
    rubrics."""
    part: Literal["all", "held-out"] = "all"
    """`held-out`: of RLVR's rows those on which it does not train (docs/rlvr.md#rows-and-graders)."""
    samples: Count = 1
    """Answers per question; more than one needs a temperature above 0 (docs/evaluation.md)."""
    temperature: Temperature | None = None
    """Temperature for this set; default: `evaluate.temperature`."""
    top_p: TopP | None = None
    """Nucleus sampling for this set; default: `evaluate.top_p`."""
    top_k: Whole | None = None
    """Most probable tokens for this set; default: `evaluate.top_k`."""
    max_tokens: Count | None = None
    """Sampled tokens of one turn for this set; default: `evaluate.max_tokens`."""
    measures: tuple[Measure | OwnMeasure, ...] = Field(default=(), strict=False)
    """What its answers are measured by: `accuracy` (the game's definition), `exact-match`, `cover-exact-match`,
    `same-text`, `json`, `f1`, `numeric`, `choice`, `math`, `judge`, `pairwise`, or for rows with rubrics `rubric`,
    `points`, `rating`, `exact` (docs/evaluation.md#measures), or a measure of the game's own. []: what the game
    measures, `accuracy` in SSP and SPICE, `rubric` and `exact` in SCOPE and SCORE."""

    @model_validator(mode="after")
    def _one_kind_of_rows(self) -> EvalSet:
        graded = [name for name in self.measures if name in BY_RUBRIC]
        compared = [name for name in self.measures if name not in BY_RUBRIC]
        if graded and compared:
            raise ValueError(
                f"set {self.name!r} has the measures {graded[0]!r}, of rows with rubrics, and {compared[0]!r}, of rows "
                "with right answers; make two sets of it"
            )
        if "points" in self.measures and {"rubric", "exact"} & set(self.measures):
            raise ValueError(
                f"set {self.name!r} has the measure 'points', for which rows keep their negative items, and one that "
                "leaves them out; make two sets of it"
            )
        if "rating" in self.measures and {"rubric", "points"} & set(self.measures):
            raise ValueError(
                f"set {self.name!r} has the measure 'rating' and one of criteria, and both count requests and what was "
                "not graded; make two sets of it"
            )
        if len(set(self.measures)) < len(self.measures):
            raise ValueError(f"set {self.name!r} names a measure twice; remove one")
        return self


class EvalSection(Section):
    sets: tuple[EvalSet, ...] = Field(default=(), strict=False)
    """Sets of questions or tasks."""
    every: Whole = 0
    """Steps between evaluations; 0: only before the first and after the last step."""
    temperature: Temperature = 0.0
    """Temperature of the answers; 0 is greedy (SSP Table 4)."""
    top_p: TopP = 1.0
    """Nucleus sampling; 1: all tokens."""
    top_k: Whole = 0
    """Most probable tokens; 0: all."""
    max_tokens: Count | None = None
    """Sampled tokens of one turn; default: as in training, those of the role that answers, 1024 where all answers are
    given (`sft`, `dpo`)."""
    max_response_tokens: Count = 8192
    """Tokens of an episode after its prompt, sampled or read."""
    max_turns: Count | None = None
    """Turns of an episode, the answer included: one more than its searches (SCOPE §4.1: 6); default: those of training.
    Not for exams without searches."""
    max_length: Count | None = None
    """Tokens of an exam's episode, prompt and search results included (SCOPE §4.1: 24,576); default:
    `rollout.max_length`. The engine has room for the longer of the two, training keeps its own."""
    prompts: CardPath | None = None
    """Folder with `judge.txt`, `pairwise.txt` and `grader.txt`, for games without their own, and the nudges after a
    malformed reply (`nudge_pairwise.txt`, `nudge_score.txt`); default: the package's."""
    judge: JudgeSection | None = None
    """The external model for the measures `judge`, `pairwise` and, if the game's rule uses one, `accuracy`; default:
    `[judge]` (not for `accuracy` of texts with a context)."""
    grader: AskSection | None = None
    """The grader of rubrics (measures `rubric`, `points`, `rating`); default: the game's own."""

    @model_validator(mode="after")
    def _names_differ(self) -> EvalSection:
        names = [exam.name for exam in self.sets]
        if len(set(names)) < len(names):
            raise ValueError(f"two sets are called {max(names, key=names.count)!r}; give each a name of its own")
        for exam in self.sets:
            temperature = self.temperature if exam.temperature is None else exam.temperature
            if exam.samples > 1 and not temperature:
                raise ValueError(
                    f"set {exam.name!r} asks for {exam.samples} samples at temperature 0, which are all the same; "
                    "give it a temperature above 0, or samples = 1"
                )
        return self

    @model_validator(mode="after")
    def _a_prompt_has_room(self) -> EvalSection:
        for key, tokens in (
            ("max_tokens", self.max_tokens),
            *((f"sets.{e.name}.max_tokens", e.max_tokens) for e in self.sets),
        ):
            if self.max_length is not None and (tokens or 0) >= self.max_length:
                raise ValueError(
                    f"{key} is {tokens}, which leaves nothing of max_length = {self.max_length} for a prompt; lower it "
                    "or raise max_length"
                )
        return self

    @property
    def prompts_folder(self) -> str:
        """Folder with the measures' prompts that the game does not define."""
        return self.prompts or str(EXAM_PROMPTS)

    def sampling_of(self, exam: EvalSet, role: SamplingSection) -> SamplingSection:
        """How the answers of a set are sampled. role: how the role that answers is sampled in training."""
        return SamplingSection(
            temperature=self.temperature if exam.temperature is None else exam.temperature,
            top_p=self.top_p if exam.top_p is None else exam.top_p,
            top_k=self.top_k if exam.top_k is None else exam.top_k,
            max_tokens=exam.max_tokens or self.max_tokens or role.max_tokens,
            max_response_tokens=self.max_response_tokens,
        )
