"""The [scope] table."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from scope_jax.config.base import CardPath, Count, GameSection, Section, Share, Weight, Whole, prompts_of
from scope_jax.config.experiment import Config
from scope_jax.config.learner import LossCard
from scope_jax.config.tables import AskSection, RoleSection, SamplingSection, Ungraded


class ThinkingRule(Section):
    """What counts as thinking in a turn: a closed pair, an opening tag, or a turn that starts with the opening tag."""

    think: Literal["paired", "opening", "starts"] = "paired"
    """A turn counts as thinking if it has a closed `<think>` (`paired`, App. F), an opening one (`opening`; released
    code), or begins with it (`starts`; the solver's in the released code)."""


class ChallengerRewardSection(ThinkingRule):
    """Eq. (4), Eq. (5), App. F.1."""

    format: Weight = 0.5
    """λ_fmt of Eq. (4) (Table 9)."""
    difficulty: Weight = 1.0
    """λ_diff of Eq. (4) (Table 9)."""
    target: float = Field(default=0.5, gt=0, lt=1)
    """τ of Eq. (5) (Table 9)."""
    subtract_malformed: bool = False
    """Turns with a malformed search are subtracted from those with a valid one (released code: true)."""
    require_question: bool = False
    """A `<task>` must contain a `<question>` (App. F.1; neither prompt nor code has one)."""
    failure_zeroes_format: bool = False
    """The whole reward, that of the format too, is 0 without a task or without a rubric (released code: true)."""


class SolverRewardSection(ThinkingRule):
    """Eq. (6), Eq. (7), App. F.2."""

    rubric: Weight = 1.0
    """λ_acc of Eq. (6) (Table 9)."""
    format: Weight = 0.5
    """λ_fmt of Eq. (6) (Table 9)."""
    search: Weight = 0.1
    """λ_search of Eq. (6) (Table 9)."""
    searches: Count = 3
    """Number of searches for the full search reward (Table 9)."""
    length_penalty: bool = True
    """False: L = 1 for every answer, the ablation of Figure 2."""
    soft_limit: Whole = 1024
    """Length of an answer in tokens up to which L = 1 (Table 9)."""
    hard_limit: Count = 2048
    """Length of an answer in tokens from which L is the floor."""
    floor: Share = 0.05
    """ℓ_min of Eq. (7) (Table 9)."""
    zero_beyond_double: bool = False
    """L = 0 above twice the hard limit (released code: true)."""

    @model_validator(mode="after")
    def _limits_in_order(self) -> SolverRewardSection:
        if self.hard_limit <= self.soft_limit:
            raise ValueError("hard_limit must be larger than soft_limit")
        return self


TaskType = Annotated[str, Field(pattern=r"^\w+$")]  # its description is the prompt type_<name>.txt
MissingAnswer = Literal["zero", "exclude"]
SCOPE_CARD = LossCard(advantage="group-zscore", aggregation="token-mean", kl="k3", kl_coef=1e-3)


class ScopeSection(GameSection):
    """Defaults are the paper's; where it is silent, the released code's."""

    prompts: CardPath = prompts_of("scope")
    """Folder of prompt files; default: the package's. They are `challenger`, `solver`, `rubric_writer`, `grader`,
    `gate_entity`, `gate_relevance`, `type_<name>`, `nudge_score`, `nudge_rubrics`, `search_not_run`, `turns_left`,
    `turns_over`, all `.txt`; optional system messages: `challenger.system.txt`, `solver.system.txt`."""
    mode: Literal["self-play", "curated"] = "self-play"
    """`self-play`, or `curated`: only the solver is trained, on the prompts and rubrics in `data.prompts` (the baseline
    GRPO_data)."""
    iterations: Count = 3
    """Number of iterations of both stages, which may be raised when a run has ended; in curated mode, of
    `steps_per_iteration` solver steps (Table 9)."""
    steps_per_iteration: Count = 20
    """Updates of each role in an iteration (Table 9)."""
    challenger_batch: Count = 64
    """Documents of one update (Table 9)."""
    solver_batch: Count = 256
    """Tasks of one update (Table 9)."""
    freeze_challenger_after: Whole | None = None
    """Number of iterations that train the challenger; afterwards it only writes tasks; default: all."""
    challenger: RoleSection = RoleSection(samples=8, max_turns=10, max_prompt_tokens=1024, loss=SCOPE_CARD)
    """The role that writes tasks."""
    solver: RoleSection = RoleSection(samples=8, max_turns=5, max_prompt_tokens=2048, loss=SCOPE_CARD)
    """The role that answers them; its prompt says 4 searches. Exams have the turns and lengths of section 4.1 in the
    paper's cards (docs/evaluation.md)."""
    # what the challenger is asked for
    document_tokens: Count = 256
    """Source documents are cut off after this many tokens, at a word boundary (at any character in scripts without
    spaces); released code."""
    task_types: dict[TaskType, Weight] = {"long_form_qa": 1.0, "summarization": 1.0, "planning": 1.0, "writing": 1.0}
    """Relative frequency of each type; 0 disables it; a new type needs a prompt file `type_<name>.txt`."""
    search_turns: tuple[Weight, ...] = Field(default=(4, 3, 2), strict=False)
    """Relative frequency of prompts that ask for 1, 2, 3, … searches (App. G)."""
    dynamic_turns: bool = True
    """After each search the challenger is told how many search turns are left; a search after the last one ends its
    episode (released code)."""
    solver_stops_at_search: bool = True
    """False: a solver's turn continues past a search, so that a search quoted inside an answer does not cut the answer
    off; tokens after the first search of a turn are dropped, also from the training row (released code)."""
    n_train: Count = 8
    """Attempts at a task in stage 1 (N)."""
    n_filter: Count = 4
    """Attempts at a task in task generation (N in the filter)."""
    estimate: SamplingSection = SamplingSection(temperature=0.7, top_p=0.9)
    """Sampling of the solver's attempts in stage 1, which measure a task's difficulty (App. G; released code)."""
    creation: SamplingSection = SamplingSection()
    """Sampling of both roles in task generation (App. G; released code)."""
    window: tuple[Share, Share] = Field(default=(0.2, 0.8), strict=False)
    """Range of mean scores in which a task is kept, bounds included."""
    target_tasks: Count = 5120
    """Tasks of an iteration."""
    generation_batch: Count = 500
    """Documents of one step of task generation."""
    max_batches: Count = 80
    """Most such steps in an iteration; then the solver trains on the tasks written so far (released code: 40,000
    documents). If there are none, the iteration ends."""
    # the judge
    quality_gates: bool = True
    """False: no gates, every task passes (the ablation of Figure 2)."""
    gates_first: bool = True
    """False: rubrics are written first, and gates are checked only for tasks with a rubric (released code)."""
    gates: AskSection = AskSection(temperature=0.0, max_tokens=256)
    """Sampling of the gate verdicts, and who gives them (released code); Qwen3, which thinks longer, needs `max_tokens
    = 1024`."""
    rubric_writer: AskSection = AskSection(temperature=0.0, max_tokens=8192)
    """Sampling of rubrics, and who writes them (Table 9)."""
    grader: AskSection = AskSection(temperature=0.6, max_tokens=16384)
    """Sampling of grades, and who gives them (Table 9)."""
    min_rubrics: Count = 3
    """Fewest criteria of a rubric (Table 9)."""
    max_rubrics: Count = 5
    """Most criteria of a rubric (section 3; released code: 10)."""
    rubric_weights: dict[str, Weight] = {"critical": 1.0, "important": 1.0, "bonus": 1.0}
    """w_k of Eq. (1) by priority (section 4.1); if they differ, a criterion with an unknown priority or none makes the
    rubric malformed."""
    ungraded: Ungraded = "leave-out"
    """A criterion without a verdict is left out of the mean (`leave-out`), or counts as not met (`zero`; released
    code)."""
    min_graded: Share = 0.5
    """Share of criteria that must have a verdict; an attempt with fewer has no score, is left out of mean scores and is
    not trained (with `ungraded = "zero"`: its score is 0). An attempt is not trained either if no other attempt at its
    task has a score."""
    missing_answer: MissingAnswer = "zero"
    """An attempt without an answer counts as 0 in ḡ (`zero`), or is left out (`exclude`; released code)."""
    cut_answer: bool = False
    """The grader reads an answer only up to `solver_reward.hard_limit` (released code: true)."""
    challenger_reward: ChallengerRewardSection = ChallengerRewardSection()
    """The challenger's reward."""
    solver_reward: SolverRewardSection = SolverRewardSection()
    """The solver's reward."""

    @model_validator(mode="after")
    def _consistent(self) -> ScopeSection:
        if self.min_rubrics > self.max_rubrics:
            raise ValueError("min_rubrics must not be larger than max_rubrics")
        if self.window[0] > self.window[1]:
            raise ValueError("window must be [lowest, highest] mean score of a task")
        for name in ("task_types", "rubric_weights"):
            weights = getattr(self, name)
            if not any(weights.values()):
                raise ValueError(f"{name} must hold at least one weight above 0")
        if not any(self.search_turns):
            raise ValueError("search_turns must hold at least one share above 0")
        return self


def options(cfg: Config) -> ScopeSection:
    """The card's [scope] table."""
    return cfg.options(ScopeSection)


def check(cfg: Config) -> None:
    """Raises ValueError unless [scope] and the card's other tables go together."""
    card = options(cfg)
    if cfg.judge is not None:
        raise ValueError(
            "SCOPE does not use [judge]; set an endpoint for each job of its judge: "
            "[scope.gates.endpoint], [scope.rubric_writer.endpoint], [scope.grader.endpoint]"
        )
    if len(card.search_turns) >= card.challenger.max_turns:
        raise ValueError(
            f"scope.search_turns allows up to {len(card.search_turns)} searches, which with the task take "
            f"{len(card.search_turns) + 1} turns; shorten it or raise scope.challenger.max_turns"
        )
    if card.mode == "curated" and cfg.data.prompts is None:
        raise ValueError('data.prompts is missing; scope.mode = "curated" needs a file of prompts with rubrics')
    if card.mode == "self-play" and cfg.data.documents is None:
        if cfg.retrieval is None or cfg.retrieval.corpus is None:
            raise ValueError("data.documents is missing; without retrieval.corpus SCOPE needs a file of documents")
        if cfg.data.columns or cfg.data.split or cfg.data.hub_config:
            raise ValueError(
                "data.columns, data.split and data.hub_config apply to data.documents, which is missing; "
                "set those of the corpus in [retrieval]"
            )
