"""The [ssp] table."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from scope_jax.config.base import CardPath, Count, GameSection, Temperature, Whole, prompts_of
from scope_jax.config.experiment import Config
from scope_jax.config.learner import LossCard
from scope_jax.config.tables import FormatRule, GradingRule, RoleSection

NoiseUnit = Literal["document", "trajectory"]


class SSPSection(GameSection):
    prompts: CardPath = prompts_of("ssp")  # proposer, solver, rag, judge, examples .txt
    train: Literal["both", "solver", "proposer"] = "both"  # SSP §4.3
    # Algorithm 1; released code: reversed
    update_order: tuple[Literal["solver", "proposer"], ...] = Field(default=("solver", "proposer"), strict=False)
    proposer_warmup_steps: Whole = 0  # steps in which the solver is not trained; SSP Table 4: off
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
    # the required format (SSP A.2): tags closed, not nested, none of another role or of the tool; "think" also
    # requires every turn to begin with <think>; "lenient" only requires the final tag (released code)
    format: FormatRule = "well-formed"
    # rules for a question (SSP §3.3; the numbers are the released code's)
    min_chars: Whole = 10
    max_chars: Whole = 1000
    min_words: Whole = 0  # released code: 10
    min_distinct_searches: Count = 1  # released code: 2
    reject_repeated_search: bool = False  # released code: True
    reject_answer_in_search: bool = False  # released code: an option, off
    # RAG verification (SSP §4.4)
    verify: Literal["policy", "judge", "off"] = "policy"
    verify_temperature: Temperature = 1.0
    verify_max_tokens: Count = 512
    noise_documents: Whole = 4
    noise_unit: NoiseUnit = "document"  # released code: all results of another trajectory
    # filling the slots of invalid questions (SSP App. B.1)
    fill: Literal["dummy", "resample", "replay", "replay-reset"] = "replay-reset"
    replay_reset_every: Count = 10
    replay_keep_reused: bool = False  # released code: True, a reused question is added to the pool again
    max_resamples: Whole = 5
    dummy: Literal["rollout", "skip"] = "rollout"  # whether a dummy slot counts in 1/B or is left out of the batch
    invalid_reward: float = Field(default=0.0, ge=-100, le=1)  # -0.1 is the punitive reward of App. B.3
    proposer_reward: Literal["one-minus-mean", "intermediate"] = "one-minus-mean"
    # "intermediate": 4 (left + s)(right - s) for 0 < s < 1, else 0 (released code)
    intermediate_left: float = Field(default=0.0, ge=-1, le=1)
    intermediate_right: float = Field(default=1.0, ge=-1, le=2)
    # how answers are graded (r in Algorithm 1)
    grader: GradingRule = "exact-match-then-judge"

    @model_validator(mode="after")
    def _consistent(self) -> SSPSection:
        if sorted(self.update_order) != ["proposer", "solver"]:
            raise ValueError("update_order must list solver and proposer once each")
        if self.min_chars > self.max_chars:
            raise ValueError(f"min_chars must be at most max_chars, {self.max_chars}")
        return self


def options(cfg: Config) -> SSPSection:
    """The card's [ssp] table."""
    return cfg.options(SSPSection)


def check(cfg: Config) -> None:
    """Raises ValueError unless [ssp] and the card's other tables go together."""
    card = options(cfg)
    if cfg.data.answers is None:
        raise ValueError("data.answers is missing; SSP needs a file of ground-truth answers")
    if cfg.data.max_searches >= card.proposer.max_turns:
        raise ValueError(
            f"data.max_searches is {cfg.data.max_searches}, which with the question takes "
            f"{cfg.data.max_searches + 1} turns; lower it or raise ssp.proposer.max_turns"
        )
    if card.verify == "policy" and card.verify_max_tokens >= cfg.rollout.max_length:
        raise ValueError(
            f"ssp.verify_max_tokens is {card.verify_max_tokens}, which leaves nothing of rollout.max_length = "
            f"{cfg.rollout.max_length} for the question and its documents; lower it"
        )
    if cfg.judge is None and ("judge" in card.grader or card.verify == "judge"):
        raise ValueError(
            "the card uses a judge (ssp.grader or ssp.verify) but has no [judge] table: "
            'add one, or set ssp.grader = "exact-match" and ssp.verify = "policy"'
        )
