"""The table of Search Self-play."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from scope_jax.config.base import PROMPTS, CardPath, GameSection
from scope_jax.config.tables import LossCard, RoleSection


class SSPSection(GameSection):
    prompts: CardPath = str(PROMPTS / "ssp")  # proposer, solver, rag, judge, examples .txt
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
    dummy: Literal["rollout", "skip"] = "rollout"  # a dummy slot counts in 1/B, or is left out of the batch
    invalid_reward: float = 0.0  # -0.1 is the punitive reward of App. B.3
    proposer_reward: Literal["one-minus-mean", "intermediate"] = "one-minus-mean"
    intermediate_left: float = 0.0  # "intermediate": 4 (left + s)(right - s) for 0 < s < 1, else 0 (released code)
    intermediate_right: float = 1.0
    # who says that an answer is right (r in Algorithm 1)
    grader: Literal["exact-match", "judge", "exact-match-then-judge"] = "exact-match-then-judge"

    @model_validator(mode="after")
    def _orders(self) -> SSPSection:
        if sorted(self.update_order) != ["proposer", "solver"]:
            raise ValueError("update_order names each of solver and proposer once")
        return self
