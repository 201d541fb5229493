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

    model: Literal["actor", "base"] = "actor"  # "base" is not trained; Figure 4a: fixed challenger
    endpoint: EndpointSection | None = None  # an external model instead; Table 1: strong challenger

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
    prompts: CardPath = prompts_of("spice")  # the files are listed in docs/spice.md
    train: Literal["both", "challenger", "reasoner"] = "both"
    # the source of tasks
    corpus: bool = True  # False: the challenger sees no document (Figure 4b)
    document_tokens: Count = 5992  # per document segment; section 3.1
    # the two stages of an attempt (section 2.2, App. 11): choose the format, then write the task
    formats: Literal["both", "multiple-choice", "free-form"] = "both"  # Table 3
    answer_types: tuple[AnswerType, ...] = Field(default=("integer", "expression", "string"), strict=False)
    max_answer_words: Count = 3  # for answers of type string; App. 11
    train_stages: Literal["both", "format", "task"] = "both"  # stages whose tokens are trained; not stated
    # attempts per document: rounds, each twice as large as the last, until `valid_wanted` are valid
    max_attempts: Count = 1024  # N; section 3.1
    attempts_per_round: Count = 8  # of the first round; of a challenger that is not trained, 1
    valid_wanted: Count = 1  # section 3.1: at least one valid task; of a challenger that is not trained, 1
    # rewards
    challenger_reward: ChallengerReward = "variance"  # Eq. (1); the others: Table 4
    reward_width: float = Field(default=0.01, gt=0, le=100)  # tau of Eq. (5)
    invalid_reward: float = Field(default=-0.1, ge=-100, le=1)  # rho
    reasoner_rollouts: Literal["reuse", "fresh"] = "reuse"  # section 2.5; Algorithm 1 l. 17: fresh
    math_seconds: Seconds = 5.0  # timeout per comparison of mathematical answers, which then count as unequal
    # roles, and the loss of their joint update
    challenger_weight: float = Field(default=1.0, gt=0, le=100)  # of its terms in the loss; Eq. (2): both roles alike
    challenger: ChallengerSection = ChallengerSection(samples=8, max_prompt_tokens=8192, sampling=SAMPLING)
    reasoner: GenerationSection = GenerationSection(samples=8, max_prompt_tokens=4096, sampling=SAMPLING)
    loss: LossCard = LossCard(  # Eq. (3), (4), Dr. GRPO without a KL term; values not stated in the paper as in Oat
        advantage="group-mean",
        aggregation="constant",
        constant_length=4096,
        kl="none",
        kl_coef=0.0,
        dual_clip=0.0,
        rollout_cap=2.0,
        mini_batches=16,  # App. 8: 128 trajectories a gradient update, of the paper's 2,048
    )

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
