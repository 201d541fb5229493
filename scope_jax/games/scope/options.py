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

    think: Literal["paired", "opening", "starts"] = "paired"  # App. F; released code: opening, solver starts


class ChallengerRewardSection(ThinkingRule):
    """Eq. (4), Eq. (5), App. F.1."""

    format: Weight = 0.5  # lambda_fmt, Table 9
    difficulty: Weight = 1.0  # lambda_diff, Table 9
    target: float = Field(default=0.5, gt=0, lt=1)  # tau, Table 9
    subtract_malformed: bool = False  # malformed searches reduce the tool reward; released code: True
    require_question: bool = False  # a <task> needs a <question> inside (App. F.1); neither prompt nor code has one
    failure_zeroes_format: bool = False  # without a task or rubrics the format reward is 0, too; released code: True


class SolverRewardSection(ThinkingRule):
    """Eq. (6), Eq. (7), App. F.2."""

    rubric: Weight = 1.0  # lambda_acc, Table 9
    format: Weight = 0.5  # lambda_fmt, Table 9
    search: Weight = 0.1  # lambda_search, Table 9
    searches: Count = 3  # number for the full search reward, Table 9
    length_penalty: bool = True  # False: the ablation of Figure 2
    soft_limit: Whole = 1024  # tokens per answer, Table 9
    hard_limit: Count = 2048
    floor: Share = 0.05  # ell_min, Table 9
    zero_beyond_double: bool = False  # above twice the hard limit the factor is 0; released code: True

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
    mode: Literal["self-play", "curated"] = "self-play"  # curated: the baseline GRPO_data on data.prompts
    iterations: Count = 3  # Table 9
    steps_per_iteration: Count = 20  # per role, Table 9
    challenger_batch: Count = 64  # documents per update, Table 9
    solver_batch: Count = 256  # tasks per update, Table 9
    freeze_challenger_after: Whole | None = None  # number of iterations in which it is trained; None: all
    challenger: RoleSection = RoleSection(samples=8, max_turns=10, max_prompt_tokens=1024, loss=SCOPE_CARD)
    solver: RoleSection = RoleSection(samples=8, max_turns=5, max_prompt_tokens=2048, loss=SCOPE_CARD)
    # what the challenger is asked for
    document_tokens: Count = 256  # per source document; released code
    task_types: dict[TaskType, Weight] = {"long_form_qa": 1.0, "summarization": 1.0, "planning": 1.0, "writing": 1.0}
    # shares of tasks with 1, 2, 3 ... expected searches, App. G
    search_turns: tuple[Weight, ...] = Field(default=(4, 3, 2), strict=False)
    dynamic_turns: bool = True  # each observation says how many searches are left; released code
    solver_stops_at_search: bool = True  # False: turns do not stop there, text after a search is dropped; the code
    # the solver's rollouts that measure a task's difficulty, and task creation (App. G)
    n_train: Count = 8  # N in stage 1
    n_filter: Count = 4  # N in the filter
    estimate: SamplingSection = SamplingSection(temperature=0.7, top_p=0.9)  # in stage 1; released code
    creation: SamplingSection = SamplingSection()  # both roles during task creation; released code
    window: tuple[Share, Share] = Field(default=(0.2, 0.8), strict=False)  # mean scores, bounds included
    target_tasks: Count = 5120
    generation_batch: Count = 500  # documents at a time
    max_batches: Count = 80  # then the solver is trained on the tasks found so far; code: 40,000 documents
    # the judge
    quality_gates: bool = True  # False: the ablation of Figure 2
    gates_first: bool = True  # False: rubrics are written before the gates are judged (released code)
    gates: AskSection = AskSection(temperature=0.0, max_tokens=256)  # released code; Qwen3: 1024
    rubric_writer: AskSection = AskSection(temperature=0.0, max_tokens=8192)  # Table 9
    grader: AskSection = AskSection(temperature=0.6, max_tokens=16384)  # Table 9
    min_rubrics: Count = 3  # Table 9
    max_rubrics: Count = 5  # section 3; released code: 10
    # w_k by priority, section 4.1
    rubric_weights: dict[str, Weight] = {"critical": 1.0, "important": 1.0, "bonus": 1.0}
    ungraded: Ungraded = "leave-out"  # criteria without a verdict; released code: zero
    min_graded: Share = 0.5  # a rollout with a smaller share of verdicts has no score
    missing_answer: MissingAnswer = "zero"  # in the mean score of a task; released code: exclude
    cut_answer: bool = False  # the grader sees an answer only up to the hard limit; released code: True
    challenger_reward: ChallengerRewardSection = ChallengerRewardSection()
    solver_reward: SolverRewardSection = SolverRewardSection()

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
