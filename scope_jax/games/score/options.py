"""The [score] table."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from scope_jax.config.base import CardPath, Count, GameSection, Section, Share, Temperature, Weight, Whole, prompts_of
from scope_jax.config.experiment import Config
from scope_jax.config.learner import LossCard
from scope_jax.config.tables import JudgeSection, RoleSection, SamplingSection, Tries, Ungraded

DimensionName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
DimensionWeight = Annotated[float, Field(ge=0, le=10)]
Idf = Literal["query", "batch"]
ConclusionRule = Literal["section", "report"]
ScoreRole = Literal["solver", "evaluator"]

# The paper does not list its pool: these are the dimensions named in section 3.1 and Figure 6, in our own words.
DIMENSIONS = {
    "factuality": "its claims are correct and supported by evidence that can be checked",
    "citation_effectiveness": "its sources exist, fit the claims they stand behind, and can be found",
    "completeness": "it covers all parts of the question, with the conditions and exceptions that matter",
    "insight": "it explains causes and consequences instead of listing facts",
    "coherence": "its parts follow from each other and do not repeat or contradict themselves",
    "complexity": "it deals with the hard parts of the question instead of simplifying them away",
    "diversity": "it presents the competing views and kinds of evidence that exist",
    "fairness": "it gives each view its due and does not take sides without a reason",
    "contradiction_handling": "where sources disagree it says so and weighs them",
    "uncertainty_calibration": "it is as certain as its evidence allows, and says what is not known",
}


class HarnessEndpointSection(JudgeSection):
    """The model that writes harnesses; the paper uses GPT-5.2."""

    required: ClassVar[bool] = False
    timeout: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    """Timeout of one request in seconds."""
    retries: Tries = 2
    """Retries of a request; after that the harness in force stays."""
    temperature: Temperature = 1.0
    """Temperature of its replies."""
    max_tokens: Count = 4096
    """Most tokens of a reply."""


class ScoreSchedulerSection(Section):
    """The DimensionScheduler of Algorithm 1. The paper does not state its rules."""

    required: Whole = 1
    """At most this many dimensions are required, the longest unused first."""
    patience: Count = 5
    """Steps without use after which a dimension is required."""
    avoided: Whole = 1
    """At most this many dimensions are to be avoided, the least consistent first."""
    min_uses: Count = 3
    """Rubrics that must have used a dimension before it may be avoided, …"""
    margin: Share = 0.05
    """… and by which its mean consistency must be below that of all rubrics."""
    decay: float = Field(default=0.9, ge=0, lt=1)
    """Decay of these moving averages."""
    hints: Whole = 2
    """Rarely used dimensions named for exploration."""
    enforce: bool = False
    """True: a rubric that breaks these constraints is malformed; false: they are advice."""


class ScoreHarnessSection(Section):
    """The meta-harness: what refreshes it, and the one that a run starts with (M_default, not stated in the paper)."""

    driver: Literal["rules", "endpoint", "replay", "off"] = "rules"
    """Who refreshes it: `rules`, `endpoint` (an external model; the paper's GPT-5.2), `replay` (a file), or nobody
    (`off`)."""
    every: Count = 5
    """M, steps between refreshes (Table 2)."""
    endpoint: HarnessEndpointSection | None = None
    """The model of the driver `endpoint`."""
    file: CardPath | None = None
    """The driver `replay`: a JSON list of `{"step", "harness"}`."""
    k: Count = 4
    """Dimensions of a rubric, including the base (Figure 6). This and the next eight keys are the harness that a run
    begins with."""
    must_include: tuple[DimensionName, ...] = Field(default=("factuality",), strict=False, min_length=1)
    """Dimensions of every rubric, the base dimension first."""
    weight_min: DimensionWeight = 0.1
    """Lowest weight of a dimension."""
    weight_max: DimensionWeight = 0.5
    """Highest weight of a dimension."""
    require_search: bool = True
    """The evaluator must search."""
    require_gap_analysis: bool = True
    """The evaluator must say what a report lacks."""
    require_verification: bool = True
    """The evaluator must verify claims."""
    citation_cross_check: bool = True
    """The evaluator must compare citations with their sources."""
    min_tool_calls: Whole = 1
    """`min_number_of_tool_call` of the harness: fewest searches of an assessment."""
    notes: str = Field(default="", max_length=2000)
    """Instructions for the evaluator."""
    # thresholds and limits of the driver "rules"
    saturated: Share = 0.8
    """Driver `rules`, as are the next four keys: at this mean base score, or above, one more dimension and search."""
    spread: Share = 0.02
    """Likewise below this standard deviation of the base scores of a question."""
    unassessed: Share = 0.5
    """Above this share of reports without an assessment, one less of both."""
    max_k: Count = 6
    """Most dimensions of a rubric."""
    max_tool_calls: Whole = 4
    """Most searches that are asked for."""


class ScoreEvaluatorSection(Section):
    """How the evaluator samples, and is trained on its rubrics; one sample per prompt (Table 2: rollout number 1)."""

    max_prompt_tokens: Count = 8192
    """Most tokens of a prompt; longer ones are not sampled (Table 2: maximum input length)."""
    max_turns: Count = 10
    """Most turns of an assessment; a rubric is one turn."""
    sampling: SamplingSection = SamplingSection(temperature=0.8, max_tokens=2048, max_response_tokens=4096)
    """Sampling of a rubric; Table 2 has its temperature in the row of the evaluator's update, and its generation
    length."""
    assessment: SamplingSection = SamplingSection(temperature=0.0, max_tokens=2048, max_response_tokens=10240)
    """Sampling of an assessment, which is not trained: greedy, as chance would enter the rewards; the paper does not
    say."""
    loss: LossCard = LossCard(advantage="ema", aggregation="constant", constant_length=1, kl="k3", kl_coef=0.05)
    """The loss of rubrics; Algorithm 2 l.14: the sum of log-probs over the rubric; low-variance KL, Table 2."""


class ScoreSection(GameSection):
    """Defaults are the paper's; there is no released code."""

    prompts: CardPath = prompts_of("score")
    """Folder with `rubric.txt` (one rubric for the step) or `rubric_query.txt`, `solver.txt`, `scoring.txt`, and
    `harness.txt` for an external model; optionally `nudge_assessment.txt` and system messages, `solver.system.txt` and
    so on. Default: the package's."""
    train: tuple[ScoreRole, ...] = Field(default=("solver", "evaluator"), strict=False)
    """The roles that are trained, `solver`, `evaluator` or both; Figure 3: one of them frozen."""
    policies: Literal["shared", "separate"] = "shared"
    """`shared`: one policy; `separate`: a policy for each role, while the base plays a role that is not trained."""
    rubric: Literal["sampled", "fixed"] = "sampled"
    """`sampled`, or `fixed`: `fixed_rubric` in every step, the static evaluator, which is not trained."""
    rubric_scope: Literal["step", "query"] = "step"
    """One rubric for the `step` (Algorithm 1), or one for each `query` (section 3.4)."""
    dimensions: dict[DimensionName, str] = DIMENSIONS
    """Names with descriptions, as in all prompts; those of the card are added, an empty description removes one."""
    fixed_rubric: dict[DimensionName, DimensionWeight] = {"insight": 0.3, "coherence": 0.3, "complexity": 0.3}
    """Weights of the dimensions beside the base (Figure 6); a weight of 0 removes one. Also used in exams, and in place
    of a malformed rubric; then as much of it as a refreshed harness admits."""
    solver: RoleSection = RoleSection(
        samples=8,
        max_prompt_tokens=8192,
        max_turns=10,
        sampling=SamplingSection(max_tokens=4096, max_response_tokens=12288),
        loss=LossCard(advantage="group-zscore", aggregation="token-mean", kl="k3", kl_coef=0.05, mini_batches=2),
    )
    """The role that writes reports. Table 2: an input of 8,192 with all results, and a turn of 4,096; in 4,096
    altogether ten turns do not fit."""
    evaluator: ScoreEvaluatorSection = ScoreEvaluatorSection()
    """The role that writes rubrics and assesses reports."""
    update_every: Count = 1
    """U (Table 2)."""
    evaluator_scale: Weight = 1.0
    """α, a factor of the evaluator's whole loss; not stated in the paper."""
    # assessment
    reports_per_call: Count = 1
    """Reports assessed in one conversation, whose number of searches counts for each of them (Listing 4: several; eight
    reports of 4,096 tokens exceed the input length of Table 2)."""
    max_score: Annotated[int, Field(ge=1, le=100)] = 10
    """The highest score, in points (Figure 6)."""
    score_unit: Literal["share", "points"] = "share"
    """a and s_j in R_s: a `share` of `max_score`, or `points`."""
    min_depth: Whole = 1
    """τ_s: fewest searches of an assessment; not stated in the paper."""
    malformed: Ungraded = "leave-out"
    """`leave-out`: reports whose assessment is invalid are not trained, nor is the only report of a query that is left
    (Figure 2); `zero`: they earn 0."""
    # the evaluator's reward
    conclusion: ConclusionRule = "section"
    """What is compared: the `section` with such a heading, else the last paragraph; or the whole `report`."""
    idf: Idf = "query"
    """Inverse document frequencies are fitted on the conclusions of each `query`, or of the whole `batch`."""
    scheduler: ScoreSchedulerSection = ScoreSchedulerSection()
    """Which dimensions a rubric must use or avoid."""
    harness: ScoreHarnessSection = ScoreHarnessSection()
    """The meta-harness."""

    @property
    def pool(self) -> tuple[str, ...]:
        """The names of all dimensions."""
        return tuple(name for name, text in self.dimensions.items() if text)

    @model_validator(mode="after")
    def _consistent(self) -> ScoreSection:
        if not self.train or len(set(self.train)) < len(self.train):
            raise ValueError("train must list solver, evaluator or both, each once")
        if self.rubric == "fixed" and "evaluator" in self.train:
            raise ValueError('rubric = "fixed" leaves the evaluator nothing to learn; set train = ["solver"]')
        if self.rubric == "fixed" and (useless := self.scheduler.changed(*ScoreSchedulerSection.model_fields)):
            raise ValueError(f'rubric = "fixed" schedules no dimensions: remove scheduler.{useless[0]}')
        if self.min_depth >= self.evaluator.max_turns:
            raise ValueError(
                f"min_depth is {self.min_depth}, but an assessment of {self.evaluator.max_turns} turns searches at "
                f"most {self.evaluator.max_turns - 1} times; lower it or raise evaluator.max_turns"
            )
        if self.solver.samples < 2:
            raise ValueError("solver.samples must be at least 2: reports are compared with each other")
        fixed = {name for name, weight in self.fixed_rubric.items() if weight}
        unknown = {*fixed, *self.harness.must_include} - set(self.pool)
        if unknown:
            raise ValueError(f"{min(unknown)!r} is not among score.dimensions; add it, or correct the name")
        if not fixed or self.harness.must_include[0] in fixed:
            raise ValueError(
                "fixed_rubric must have at least one dimension, and not the base, which has no weight; change it or "
                "harness.must_include"
            )
        for driver, key in (("endpoint", "endpoint"), ("replay", "file")):
            given, chosen = bool(self.harness.changed(key)), self.harness.driver == driver
            if chosen and not given:
                raise ValueError(f'harness.driver = "{driver}" needs score.harness.{key}')
            if given and not chosen:
                raise ValueError(
                    f'harness.{key} is used by the driver "{driver}" only, and the card has "{self.harness.driver}"; '
                    f'remove harness.{key}, or set harness.driver = "{driver}"'
                )
        return self


def options(cfg: Config) -> ScoreSection:
    """The card's [score] table."""
    return cfg.options(ScoreSection)


def check(cfg: Config) -> None:
    """Raises ValueError unless [score] and the card's other tables go together."""
    if cfg.data.queries is None:
        raise ValueError("data.queries is missing; SCORE needs a file of questions to report on")
    if cfg.judge is not None:
        raise ValueError("SCORE does not use [judge]; set the model of its harness in [score.harness.endpoint]")
