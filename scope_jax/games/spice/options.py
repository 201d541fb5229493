"""The [spice] table."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from scope_jax.config.base import CardPath, Count, GameSection, Seconds, prompts_of
from scope_jax.config.experiment import Config
from scope_jax.config.learner import LossCard
from scope_jax.config.tables import EndpointSection, GenerationSection, SamplingSection

ChallengerReward = Literal["variance", "absolute-zero", "threshold", "r-zero"]
AnswerType = Literal["integer", "float", "expression", "string", "boolean"]
SAMPLING = SamplingSection(max_tokens=4096, max_response_tokens=4096)  # single turns; lengths are not stated


class ChallengerSection(GenerationSection):
    """The model that writes the tasks and its sampling; samples: G, the attempts kept per document."""

    model: Literal["actor", "base"] = "actor"
    """Who writes tasks: the `actor`, or the frozen `base` model (Figure 4a: fixed challenger), which requires `train =
    "reasoner"`."""
    endpoint: EndpointSection | None = None
    """The challenger is a model behind an OpenAI-compatible endpoint (Table 1: strong challenger); temperature and
    `max_tokens` are those of `challenger.sampling`, `top_p` and the like go into `extra_body`; requires `train =
    "reasoner"`."""

    @model_validator(mode="after")
    def _one_challenger(self) -> ChallengerSection:
        if self.endpoint is None:
            return self
        if self.model == "base":
            raise ValueError('model = "base" and endpoint both name the challenger; remove one')
        if unread := self.sampling.changed("top_k", "top_p"):
            raise ValueError(
                f"sampling.{unread[0]} is not sent to an endpoint; put it into endpoint.extra_body, and remove it here"
            )
        return self


class SpiceSection(GameSection):
    """Defaults are the paper's; where it is silent, those of Oat, its framework."""

    prompts: CardPath = prompts_of("spice")
    """Folder of prompt files; default: the package's. They are `format`, `format_free_form` (with free form only),
    `multiple_choice`, `free_form`, each with a variant `…_open` for `corpus = false`, `answer_<type>`, `reasoner`, all
    `.txt`; optional system messages: `challenger.system.txt`, `reasoner.system.txt`."""
    train: Literal["both", "challenger", "reasoner"] = "both"
    """The roles that are trained: `both`, or only `challenger` or `reasoner`, while both generate episodes."""
    # the source of tasks
    corpus: bool = True
    """False: tasks are written without documents, from the prompts `…_open`; no data is read (Figure 4b)."""
    document_tokens: Count = 5992
    """Longest segment of a document, in the policy's tokens after neutralising tags (section 3.1)."""
    # the two stages of an attempt (section 2.2, App. 11): choose the format, then write the task
    formats: Literal["both", "multiple-choice", "free-form"] = "both"
    """Formats of tasks (section 2.2, App. 11, Table 3): `both`; `multiple-choice`: no first stage; `free-form`: the
    first stage chooses only the type of the answer."""
    answer_types: tuple[AnswerType, ...] = Field(default=("integer", "expression", "string"), strict=False)
    """Types of free-form answers, of `integer`, `float`, `expression`, `string`, `boolean`."""
    max_answer_words: Count = 3
    """Most words of an answer of type string (App. 11)."""
    train_stages: Literal["both", "format", "task"] = "both"
    """Which stage's tokens are trained: `both`, `format` or `task`; not stated in the paper. With `task`, an attempt
    that fails in the first stage is not trained, but its reward still counts in the group's mean."""
    max_attempts: Count = 1024
    """N, most attempts per document (section 3.1)."""
    attempts_per_round: Count = 8
    """Attempts per document in the first round; each further round has twice as many. If the challenger is not trained,
    the first round has one attempt, whatever this key says."""
    valid_wanted: Count = 1
    """Number of valid attempts at which a document is done (section 3.1: at least one). If the challenger is not
    trained, one is enough."""
    # rewards
    challenger_reward: ChallengerReward = "variance"
    """`variance`: Eq. (1); of Table 4 `absolute-zero`: 1 − p, and 0 at p = 0; `threshold`: 1 for 0 < p < 1; `r-zero`: 1
    − 2·abs(p − 1/2)."""
    reward_width: float = Field(default=0.01, gt=0, le=100)
    """τ of the variance reward (Eq. (5))."""
    invalid_reward: float = Field(default=-0.1, ge=-100, le=1)
    """ρ, reward of an invalid attempt."""
    reasoner_rollouts: Literal["reuse", "fresh"] = "reuse"
    """The reasoner is trained on the answers that measured its task (`reuse`, section 2.5), or on newly sampled ones
    (`fresh`, Algorithm 1 l. 17; only if both roles are trained)."""
    math_seconds: Seconds = 5.0
    """CPU time of one comparison of mathematical answers, in seconds, which then count as wrong."""
    # roles, and the loss of their joint update
    challenger_weight: float = Field(default=1.0, gt=0, le=100)
    """Factor of the challenger's terms in the loss of the joint update (Eq. (2) adds both roles as they are)."""
    challenger: ChallengerSection = ChallengerSection(samples=8, max_prompt_tokens=8192, sampling=SAMPLING)
    """The role that writes tasks; `samples` is G, the attempts kept per document, `max_prompt_tokens` counts document
    and instructions. Sampling lengths are not stated in the paper."""
    reasoner: GenerationSection = GenerationSection(samples=8, max_prompt_tokens=4096, sampling=SAMPLING)
    """The role that solves them; `samples` is K, the answers per task; a task with a longer prompt than
    `max_prompt_tokens` is invalid."""
    loss: LossCard = LossCard(
        advantage="group-mean",
        aggregation="constant",
        constant_length=4096,
        kl="none",
        kl_coef=0.0,
        dual_clip=0.0,
        rollout_cap=2.0,
        mini_batches=16,  # App. 8: 128 trajectories a gradient update, of the paper's 2,048
    )
    """The loss of the one update of both roles (Eq. (3), (4)): Dr. GRPO without a KL term; values not stated in the
    paper are Oat's. App. 8: 128 trajectories a gradient update, of the paper's 2,048, hence 16 mini-batches."""

    @model_validator(mode="after")
    def _consistent(self) -> SpiceSection:
        if not self.answer_types or len(set(self.answer_types)) < len(self.answer_types):
            raise ValueError("answer_types must list at least one type, each once")
        if self.train != "reasoner" and (self.challenger.model == "base" or self.challenger.endpoint is not None):
            raise ValueError(
                "the challenger is the base or an external model, which cannot be trained; "
                'set train = "reasoner", or use the actor as challenger'
            )
        if self.train != "both" and self.challenger_weight != 1.0:
            raise ValueError(f'challenger_weight balances two roles, but train = "{self.train}" trains one; remove it')
        if self.challenger_reward != "variance" and self.changed("reward_width"):
            raise ValueError(
                "reward_width is the width of the variance reward; "
                f'challenger_reward = "{self.challenger_reward}" has none: remove it'
            )
        if self.train_stages == "format" and self.formats == "multiple-choice":
            raise ValueError(
                'train_stages = "format" trains nothing with formats = "multiple-choice", which has no first stage; '
                'set train_stages = "task"'
            )
        if self.train != "reasoner" and min(self.attempts_per_round, self.max_attempts, self.challenger.samples) < 2:
            raise ValueError(
                "the challenger is trained by comparing the attempts at a document; set attempts_per_round, "
                "max_attempts and challenger.samples to at least 2"
            )
        if self.train != "reasoner" and self.reasoner.samples < 2:
            raise ValueError("one answer to a task has no variance to reward; set reasoner.samples to at least 2")
        if self.corpus and self.document_tokens >= self.challenger.max_prompt_tokens:
            raise ValueError(
                f"a document of {self.document_tokens} tokens does not fit into a prompt of "
                f"{self.challenger.max_prompt_tokens}; raise challenger.max_prompt_tokens or lower document_tokens"
            )
        return self


def options(cfg: Config) -> SpiceSection:
    """The card's [spice] table."""
    return cfg.options(SpiceSection)


def check(cfg: Config) -> None:
    """Raises ValueError unless [spice] and the card's other tables go together."""
    card = options(cfg)
    if card.corpus and cfg.data.documents is None:
        raise ValueError(
            "data.documents is missing; SPICE needs a file of documents, or spice.corpus = false to do without"
        )
