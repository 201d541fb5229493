"""The schema of an experiment card: the only place where a default lives.

A card is a TOML file; `load_card` reads it, applies `--set a.b=c` overrides and returns a frozen `Config`.
Every field has a reader somewhere in the code; an unknown key is an error that names the file and the key.
Relative paths are taken from the current directory, `${NAME}` in a path is replaced by that environment variable.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from scope_jax import dialects


class CardError(ValueError):
    """A card that cannot be used: the message is one sentence with file, key and remedy."""


def _expand(path: str) -> str:
    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in os.environ:
            raise ValueError(f"the path {path!r} uses ${{{name}}}; set the environment variable {name}")
        return os.environ[name]

    return re.sub(r"\$\{(\w+)\}", value, path)


CardPath = Annotated[str, AfterValidator(_expand)]


def _over(default: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """`default` with the keys of `given` laid over it, table by table."""
    both = {
        key: _over(default[key], value) if isinstance(value, dict) and isinstance(default.get(key), dict) else value
        for key, value in given.items()
    }
    return default | both


class Section(BaseModel):
    """Base of every table: frozen, and closed to keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# --------------------------------------------------------------------------------------------------- model and mesh
def _known_dialect(name: str) -> str:
    dialects.load(name)
    return name


class ModelSection(Section):
    checkpoint: CardPath  # Hugging Face folder: config.json, *.safetensors, tokenizer
    tokenizer: CardPath | None = None  # another tokenizer folder; the checkpoint's own otherwise
    chat_template: CardPath | None = None  # a .jinja file that replaces the tokenizer's template
    chat_template_kwargs: dict[str, bool | int | str] = {}  # handed to the template, e.g. enable_thinking = false
    # how the model writes a search and reads results (SCOPE Table 11): xml, hermes, function, or a TOML file
    dialect: Annotated[CardPath, AfterValidator(_known_dialect)] = "xml"
    turns: Literal["raw", "chat", "chat-trimmed"] = "raw"  # how an observation joins the conversation, see rollouts.md
    compute_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    param_dtype: Literal["float32", "bfloat16"] = "float32"  # master weights and Adam moments


class MeshSection(Section):
    """Devices by axis; -1 takes what is left. `slots` of the engine and rows of a batch spread over data × fsdp."""

    data: int = 1
    fsdp: int = -1
    tensor: int = 1


# ------------------------------------------------------------------------------------------------------- retrieval
class ScannSection(Section):
    num_leaves: int = 200
    leaves_to_search: int = 160  # hashed vectors do not cluster: recall@3 .985 at 160 of 200, .82 at 40
    dimensions_per_block: int = 4
    reorder: int = 100
    brute_force_below: int = 5000  # passages; a smaller corpus is searched without tree and codes


class EncoderSection(Section):
    checkpoint: CardPath | None = None  # Hugging Face folder of a BERT (E5) or Qwen3-Embedding; none = hashed lexical
    query_prefix: str | None = None  # none: E5's or Qwen3-Embedding's, by the folder's architecture
    passage_prefix: str | None = None
    max_tokens: int = Field(default=256, gt=2)  # of one text with prefix and marks; Search-R1's limit for E5
    batch: int = Field(default=64, gt=0)  # passages of one program, over all devices
    compute_dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: float32 on CPU, bfloat16 elsewhere


class RetrievalSection(Section):
    corpus: CardPath | None = None  # JSONL or Parquet file, or a hub name
    index: CardPath | None = None  # folder of a built index; made in the run folder when absent
    kind: Literal["exact", "scann"] = "exact"
    encoder: EncoderSection = EncoderSection()
    dim: int = 2048  # width of the hashed lexical embedding
    scann: ScannSection = ScannSection()
    url: str | None = None  # a search server speaking the Search-R1 protocol, instead of corpus and index
    top_k: int = 3  # SSP §4.1
    max_tokens: int = 500  # tokens of one search result, Search-R1
    timeout: float = 30.0  # seconds for one remote search
    retries: int = 5

    @model_validator(mode="after")
    def _one_source(self) -> RetrievalSection:
        if (self.corpus is None) == (self.url is None):
            raise ValueError("give exactly one of `corpus` (a local corpus) and `url` (a search server)")
        return self


# --------------------------------------------------------------------------------------------------------- rollouts
class SamplingSection(Section):
    temperature: float = Field(default=1.0, ge=0)
    top_k: int = Field(default=0, ge=0)  # 0 = off
    top_p: float = Field(default=1.0, gt=0, le=1)
    max_tokens: int = Field(default=8192, gt=0)  # sampled tokens of one turn


class RolloutSection(Section):
    slots: int = 64  # episodes decoded at the same time, over the whole mesh
    max_length: int = 12288  # tokens of one episode, prompt and observations included
    prefill_buckets: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096)
    prefill_batch: int = 4  # prompts of one prefill program; fixed, so that numbers never depend on neighbours
    decode_steps: int = 16  # tokens per dispatch
    search_threads: int = 8


# ---------------------------------------------------------------------------------------------------------- learner
Advantage = Literal[
    "group-zscore",
    "group-mean",
    "leave-one-out",
    "group-mean-whiten",
    "batch-mean",
    "batch-zscore",
    "token-whiten",
    "ema",
    "none",
]
KL = Literal["none", "k1", "k2", "k3", "k2-plain", "k3-plain"]
OrOff = BeforeValidator(lambda value: 0.0 if value is None else value)  # None means off, as 0 does


class LossCard(Section):
    """One update's objective: four choices (advantage, policy term, aggregation, KL) with their numbers.

    The learner knows nothing else about a role. docs/losses.md has the equations, and the cards of the published
    algorithms.
    """

    objective: Literal["policy", "supervised"] = "policy"
    # advantage: how an episode's reward is compared
    advantage: Advantage = "group-mean"
    advantage_ddof: Literal[0, 1] = 1  # of the standard deviation of a group or batch
    advantage_eps: float = 1e-6
    ema_decay: float = Field(default=0.7, ge=0, lt=1)  # SCORE §3.5; 0.95 in Spiral
    ema_start: float = 0.0  # b_0
    # policy term: ratio r = exp(logπ − logπ_old), what becomes of it, and how far it may go
    surrogate: Literal["clip", "weight"] = "clip"  # PPO's; CISPO's
    ratio: Literal["token", "sequence"] = "token"  # sequence: the geometric mean over the episode, GSPO
    clip_low: float = Field(default=0.2, ge=0)
    clip_high: float = Field(default=0.2, ge=0)
    dual_clip: Annotated[float, OrOff] = 3.0  # 0 = off
    log_ratio_bound: float = Field(default=20.0, gt=0)  # |log-ratios| before they are exponentiated
    old_logprobs: Literal["learner", "rollout"] = "learner"  # who computes logπ_old
    rollout_cap: float = Field(default=0.0, ge=0)  # C of the weight min(π_old/μ, C); 0 = no weight
    rollout_weight: Literal["token", "sequence"] = "token"
    # aggregation: what the sum over tokens is divided by
    aggregation: Literal["token-mean", "sequence-mean", "constant"] = "sequence-mean"
    constant_length: int = Field(default=1, gt=0)  # divisor of "constant": Σ tokens / (sequences · constant_length)
    # KL to the reference, and entropy
    kl: KL = "k3"
    kl_coef: float = 0.01  # beta
    kl_bound: float = Field(default=0.0, ge=0)  # |value| of a token's estimator; 0 = off
    entropy_coef: float = Field(default=0.0, ge=0)
    tempered: bool = True  # log-probs of the policy divided by the rollout temperature
    mini_batches: int = Field(default=1, gt=0)  # optimiser steps of one update

    @model_validator(mode="after")
    def _fits_together(self) -> LossCard:
        if self.dual_clip and self.dual_clip <= 1:
            raise ValueError("dual_clip bounds the loss at dual_clip · |A|: give a number above 1, or 0 for none")
        if self.dual_clip and self.surrogate == "weight" and self.objective == "policy":
            raise ValueError('dual_clip belongs to surrogate = "clip"; set dual_clip = 0 with surrogate = "weight"')
        if self.rollout_cap and self.old_logprobs == "rollout":
            raise ValueError(
                'rollout_cap weighs π_old against the rollout, but with old_logprobs = "rollout" they are the same; '
                'set rollout_cap = 0 or old_logprobs = "learner"'
            )
        return self


class OptimizerSection(Section):
    learning_rate: float = 1e-6
    warmup_steps: int = 5
    schedule: Literal["constant", "cosine"] = "constant"
    total_steps: int | None = None  # length of the cosine
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.01  # of all weights, as torch's AdamW on model.parameters()
    max_grad_norm: float = 1.0

    @model_validator(mode="after")
    def _cosine_has_an_end(self) -> OptimizerSection:
        if self.schedule == "cosine" and self.total_steps is None:
            raise ValueError('schedule = "cosine" needs total_steps, the optimiser step at which it reaches zero')
        return self


class LearnerSection(Section):
    buckets: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 12288)  # row lengths a batch may have
    packing: bool = True  # several episodes in one row
    micro_batch_rows: int = 8  # rows of one forward-backward over the whole mesh; 0 = all at once
    remat: Literal["full", "none"] = "full"
    logprob_chunk: int = 128  # no more logits exist at a time than these tokens have over the whole vocabulary
    attention: Literal["auto", "reference", "dot_product", "splash"] = "auto"  # docs/attention.md


# ------------------------------------------------------------------------------------------------------ data and run
class DataSection(Section):
    answers: CardPath | None = None  # SSP: ground-truth answers, a field `answer` (and optional `aliases`)
    documents: CardPath | None = None  # SCOPE: what tasks are written from; None: the corpus of [retrieval]
    prompts: CardPath | None = None  # SCOPE with scope.mode = "curated": rows with `question` and `rubric`
    limit: int | None = None
    max_searches: int = 1  # a proposer is asked for n searches, n uniform in min_searches..max_searches
    min_searches: int = 1


class EvalSet(Section):
    name: str
    path: CardPath  # QA rows: question, answers
    limit: int | None = None


class EvalSection(Section):
    sets: tuple[EvalSet, ...] = ()
    every: int = 0  # steps between evaluations; 0 = before the first and after the last step only
    temperature: float = 0.0  # SSP Table 4
    max_tokens: int = 1024  # sampled tokens of one turn


class TrainSection(Section):
    steps: int | None = None  # the run ends after so many; None: when the game says so
    batch_size: int = 256  # items (SSP: ground-truth answers) of one step
    save_every: int = 10
    keep: int = 2  # checkpoints that stay
    offload: bool = False  # policies lie in host memory while they are not trained


class EndpointSection(Section):
    """A chat model behind an OpenAI-compatible endpoint."""

    url: str
    model: str
    api_key_env: str | None = None
    timeout: float = 60.0
    retries: int = 5
    retry_delay: float = 1.0  # seconds before the first retry; doubled each time, at most 30
    concurrency: int = 16


class JudgeSection(EndpointSection):
    """Such a model, and how it replies."""

    temperature: float = 0.1  # released SSP code
    max_tokens: int = 70


class LaunchSection(Section):
    kind: Literal["local"] = "local"
    fake_devices: int = 0  # host devices to simulate on CPU


# --------------------------------------------------------------------------------------------------------- the games
class RoleSection(Section):
    """How one role of a game samples and learns."""

    samples: int
    max_turns: int = 10  # SSP App. B.2
    sampling: SamplingSection = SamplingSection()
    loss: LossCard


class SSPSection(Section):
    prompts: CardPath = str(Path(__file__).parent / "prompts" / "ssp")  # proposer, solver, rag, judge, examples .txt
    train: Literal["both", "solver", "proposer"] = "both"  # SSP §4.3
    update_order: tuple[Literal["solver", "proposer"], ...] = ("solver", "proposer")  # Algorithm 1; the code: reversed
    proposer_warmup_steps: int = Field(default=0, ge=0)  # the solver does not learn in them; SSP Table 4: off
    proposer: RoleSection = RoleSection(  # Eq. (5): sum over tokens, mean over episodes, no baseline, no KL
        samples=1,
        loss=LossCard(
            advantage="none",
            aggregation="constant",
            constant_length=1,
            kl="none",
            clip_high=0.285,
            mini_batches=2,
        ),
    )
    solver: RoleSection = RoleSection(samples=5, loss=LossCard(advantage="group-mean", clip_high=0.285, mini_batches=2))
    # what counts as keeping to the format (SSP A.2): tags closed, not nested, none of another role or of the tool;
    # "think" also wants every turn to begin with <think>; "lenient" only needs the final tag (released code)
    format: Literal["well-formed", "think", "lenient"] = "well-formed"
    # rules for a question (SSP §3.3; the figures are the released code's)
    min_chars: int = 10
    max_chars: int = 1000
    min_words: int = 0  # released code: 10
    min_distinct_searches: int = Field(default=1, ge=1)  # released code: 2
    reject_repeated_search: bool = False  # released code: True
    reject_answer_in_search: bool = False  # released code: an option, off
    # RAG verification (SSP §4.4)
    verify: Literal["policy", "judge", "off"] = "policy"
    verify_temperature: float = Field(default=1.0, ge=0)
    verify_max_tokens: int = Field(default=512, gt=0)
    noise_documents: int = Field(default=4, ge=0)
    noise_unit: Literal["document", "trajectory"] = "document"  # released code: all results of another trajectory
    # filling the slots of invalid questions (SSP App. B.1)
    fill: Literal["dummy", "resample", "replay", "replay-reset"] = "replay-reset"
    replay_reset_every: int = Field(default=10, gt=0)
    replay_keep_reused: bool = False  # released code: True, a reused question enters the pool once more
    max_resamples: int = Field(default=5, ge=0)
    dummy: Literal["rollout", "skip"] = "rollout"  # a dummy slot is played with reward 0, or left out of the batch
    invalid_reward: float = 0.0  # -0.1 is the punitive reward of App. B.3
    proposer_reward: Literal["one-minus-mean", "intermediate"] = "one-minus-mean"
    intermediate_left: float = 0.0  # "intermediate": 4 (left + s)(right - s) for 0 < s < 1, else 0 (released code)
    intermediate_right: float = 1.0
    # who says that an answer is right (r in Algorithm 1)
    grader: Literal["exact-match", "judge", "exact-match-then-judge"] = "exact-match-then-judge"

    @model_validator(mode="before")
    @classmethod
    def _roles(cls, table: Any) -> Any:
        """A role's table in a card changes the keys it names and keeps the game's defaults for the others."""
        if not isinstance(table, dict):
            return table
        merged = dict(table)
        for role in ("proposer", "solver"):
            if isinstance(given := merged.get(role), dict):
                merged[role] = _over(cls.model_fields[role].default.model_dump(), given)
        return merged

    @model_validator(mode="after")
    def _orders(self) -> SSPSection:
        if sorted(self.update_order) != ["proposer", "solver"]:
            raise ValueError("update_order names each of solver and proposer once")
        return self


# ------------------------------------------------------------------------------------------------------------ SCOPE
class ThinkingRule(Section):
    """What counts as a turn with a thought: a closed pair, an opening tag, or a turn that starts with the tag."""

    think: Literal["paired", "opening", "starts"] = "paired"  # App. F; released code: opening, solver starts


class ChallengerRewardSection(ThinkingRule):
    """Eq. (4), Eq. (5), App. F.1."""

    format: float = 0.5  # lambda_fmt, Table 9
    difficulty: float = 1.0  # lambda_diff, Table 9
    target: float = Field(default=0.5, gt=0, lt=1)  # tau, Table 9
    subtract_malformed: bool = False  # turns with a broken search count against the tool reward; released code: True
    require_question: bool = False  # a <task> needs a <question> inside (App. F.1); neither prompt nor code has one
    failure_zeroes_format: bool = False  # no task or no rubrics: no format reward either; released code: True


class SolverRewardSection(ThinkingRule):
    """Eq. (6), Eq. (7), App. F.2."""

    rubric: float = 1.0  # lambda_acc, Table 9
    format: float = 0.5  # lambda_fmt, Table 9
    search: float = 0.1  # lambda_search, Table 9
    searches: int = Field(default=3, gt=0)  # at which the search reward is full, Table 9
    length_penalty: bool = True  # False: the ablation of Figure 2
    soft_limit: int = Field(default=1024, ge=0)  # tokens of an answer, Table 9
    hard_limit: int = Field(default=2048, gt=0)
    floor: float = Field(default=0.05, ge=0, le=1)  # ell_min, Table 9
    zero_beyond_double: bool = False  # above twice the hard limit the factor is 0; released code: True

    @model_validator(mode="after")
    def _limits_in_order(self) -> SolverRewardSection:
        if self.hard_limit <= self.soft_limit:
            raise ValueError("hard_limit must be larger than soft_limit")
        return self


class AskSection(Section):
    """One of the judge's jobs: done by the frozen base, or by the model behind `endpoint`."""

    temperature: float = Field(ge=0)
    max_tokens: int = Field(gt=0)
    endpoint: EndpointSection | None = None


SCOPE_CARD = LossCard(advantage="group-zscore", aggregation="token-mean", kl="k3", kl_coef=1e-3)


class ScopeSection(Section):
    """Defaults are the paper's; where it is silent, the released code's."""

    prompts: CardPath = str(Path(__file__).parent / "prompts" / "scope")
    mode: Literal["self-play", "curated"] = "self-play"  # curated: the baseline GRPO_data on rows of data.prompts
    iterations: int = Field(default=3, ge=1)  # Table 9
    steps_per_iteration: int = Field(default=20, ge=1)  # of each role, Table 9
    challenger_batch: int = Field(default=64, ge=1)  # documents of one update, Table 9
    solver_batch: int = Field(default=256, ge=1)  # tasks of one update, Table 9
    freeze_challenger_after: int | None = Field(default=None, ge=0)  # iterations in which it learns; None: in all
    challenger: RoleSection = RoleSection(samples=8, max_turns=10, loss=SCOPE_CARD)
    solver: RoleSection = RoleSection(samples=8, max_turns=5, loss=SCOPE_CARD)
    # what the challenger is asked for
    document_tokens: int = Field(default=256, ge=1)  # of a source document; released code
    task_types: dict[str, float] = {"long_form_qa": 1.0, "summarization": 1.0, "planning": 1.0, "writing": 1.0}
    search_turns: tuple[float, ...] = (4, 3, 2)  # shares of tasks with 1, 2, 3 ... expected searches, App. G
    dynamic_turns: bool = True  # each result says how many searches are left; released code
    solver_stops_at_search: bool = True  # False: a turn goes on after a search, and ends by itself; released code
    # the solver's rollouts that measure a task, and the creation of tasks (App. G)
    n_train: int = Field(default=8, ge=1)  # N in stage 1
    n_filter: int = Field(default=4, ge=1)  # N in the filter
    estimate: SamplingSection = SamplingSection(temperature=0.7, top_p=0.9)  # in stage 1; released code
    creation: SamplingSection = SamplingSection()  # both roles, while tasks are made; released code
    window: tuple[float, float] = (0.2, 0.8)  # of the mean score, bounds included
    target_tasks: int = Field(default=5120, ge=1)
    generation_batch: int = Field(default=500, ge=1)  # documents at a time
    max_batches: int = Field(
        default=80, ge=1
    )  # then the solver learns from the tasks there are; code: 40,000 documents
    # the judge
    quality_gates: bool = True  # False: the ablation of Figure 2
    gates_first: bool = True  # False: rubrics are written before the gates are asked (released code)
    gates: AskSection = AskSection(temperature=0.0, max_tokens=256)  # released code; Qwen3: 1024
    rubric_writer: AskSection = AskSection(temperature=0.0, max_tokens=8192)  # Table 9
    grader: AskSection = AskSection(temperature=0.6, max_tokens=16384)  # Table 9
    min_rubrics: int = Field(default=3, ge=1)  # Table 9
    max_rubrics: int = Field(default=5, ge=1)  # section 3; released code: 10
    rubric_weights: dict[str, float] = {"critical": 1.0, "important": 1.0, "bonus": 1.0}  # w_k by priority, section 4.1
    ungraded: Literal["leave-out", "zero"] = "leave-out"  # a criterion without a verdict; released code: zero
    min_graded: float = Field(default=0.5, ge=0, le=1)  # share of verdicts below which a rollout has no score
    missing_answer: Literal["zero", "exclude"] = "zero"  # in the mean score of a task; released code: exclude
    cut_answer: bool = False  # the grader reads an answer up to the hard limit only; released code: True
    challenger_reward: ChallengerRewardSection = ChallengerRewardSection()
    solver_reward: SolverRewardSection = SolverRewardSection()

    @model_validator(mode="before")
    @classmethod
    def _tables(cls, table: Any) -> Any:
        """A table in a card changes the keys it names and keeps the game's defaults for the others."""
        if not isinstance(table, dict):
            return table
        merged = dict(table)
        for key, given in table.items():
            default = cls.model_fields[key].default if key in cls.model_fields else None
            if isinstance(given, dict) and isinstance(default, BaseModel | dict):
                merged[key] = _over(default if isinstance(default, dict) else default.model_dump(), given)
        return merged

    @model_validator(mode="after")
    def _consistent(self) -> ScopeSection:
        if self.min_rubrics > self.max_rubrics:
            raise ValueError("min_rubrics must not be larger than max_rubrics")
        if self.window[0] > self.window[1]:
            raise ValueError("window is (lowest, highest) mean score of a task")
        for name in ("task_types", "rubric_weights"):
            weights = getattr(self, name)
            if min(weights.values()) < 0 or sum(weights.values()) <= 0:
                raise ValueError(f"{name} must hold weights of 0 or more, at least one of them above 0")
        if not self.search_turns or min(self.search_turns) < 0 or sum(self.search_turns) <= 0:
            raise ValueError("search_turns must hold shares of 0 or more, at least one of them above 0")
        return self


class Config(Section):
    """One experiment."""

    system: Literal["ssp", "scope"]
    seed: int = 0
    model: ModelSection
    mesh: MeshSection = MeshSection()
    retrieval: RetrievalSection
    rollout: RolloutSection = RolloutSection()
    learner: LearnerSection = LearnerSection()
    optimizer: OptimizerSection = OptimizerSection()
    data: DataSection
    evaluate: EvalSection = EvalSection()
    train: TrainSection
    judge: JudgeSection | None = None
    launch: LaunchSection = LaunchSection()
    ssp: SSPSection = SSPSection()
    scope: ScopeSection = ScopeSection()

    @model_validator(mode="after")
    def _ssp_is_complete(self) -> Config:
        if self.system != "ssp":
            return self
        if self.data.answers is None:
            raise ValueError("data.answers is missing; SSP needs a file of ground-truth answers")
        if self.train.steps is None:
            raise ValueError("train.steps is missing; SSP goes on until the card ends it")
        if self.judge is None and ("judge" in self.ssp.grader or self.ssp.verify == "judge"):
            raise ValueError(
                "the card asks for a judge (ssp.grader or ssp.verify) but has no [judge] table: "
                'add one, or set ssp.grader = "exact-match" and ssp.verify = "policy"'
            )
        return self

    @model_validator(mode="after")
    def _scope_is_complete(self) -> Config:
        if self.system != "scope":
            return self
        if self.scope.mode == "curated" and self.data.prompts is None:
            raise ValueError(
                'data.prompts is missing; scope.mode = "curated" learns from a file of prompts with rubrics'
            )
        if not self.scope.solver_stops_at_search and self.model.turns == "raw":
            raise ValueError('scope.solver_stops_at_search = false needs model.turns = "chat" or "chat-trimmed"')
        if self.scope.mode == "self-play" and self.data.documents is None and self.retrieval.corpus is None:
            raise ValueError(
                "data.documents is missing; with a search server SCOPE needs a file of documents of its own"
            )
        return self


# ---------------------------------------------------------------------------------------------------------- loading
def _set(table: dict[str, Any], override: str) -> None:
    key, sep, text = override.partition("=")
    if not sep or not key.strip():
        raise CardError(f"--set {override!r} is not of the form a.b=value")
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    *parents, leaf = key.strip().split(".")
    for name in parents:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise CardError(f"--set {override!r}: {name!r} is a value, not a table")
    table[leaf] = value


def _sentence(where: str, error: ValidationError) -> str:
    lines = []
    for item in error.errors():
        key = ".".join(str(part) for part in item["loc"]) or "the card"
        match item["type"]:
            case "extra_forbidden":
                lines.append(f"unknown key `{key}`; remove it or correct its name")
            case "missing":
                lines.append(f"key `{key}` is missing; add it")
            case _:
                lines.append(f"`{key}`: {item['msg'].removeprefix('Value error, ')}")
    return f"{where}: " + "; ".join(lines) + "."


def parse_config(table: dict[str, Any], where: str) -> Config:
    """A `Config` from plain data; raises `CardError` that names `where` and every offending key."""
    try:
        return Config.model_validate(table)
    except ValidationError as error:
        raise CardError(_sentence(where, error)) from None


def load_card(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The config of a card file with `a.b=value` overrides applied (values in TOML syntax, bare text allowed)."""
    path = Path(path)
    if not path.is_file():
        raise CardError(f"{path}: no such card; give the path of a TOML file, for example configs/ssp/atlas.toml.")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CardError(f"{path}: not valid TOML: {error}.") from None
    for override in overrides:
        _set(table, override)
    return parse_config(table, str(path) if not overrides else f"{path} with --set {' '.join(overrides)}")
