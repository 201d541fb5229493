"""The [r_zero] table."""

from typing import Literal

from pydantic import Field

from scope_jax.config.base import CardPath, Count, GameSection, Share, Weight, Whole, prompts_of
from scope_jax.config.experiment import Config
from scope_jax.config.learner import LossCard
from scope_jax.config.tables import RoleSection, SamplingSection

SAMPLING = SamplingSection(top_p=0.99, max_tokens=4096, max_response_tokens=4096)
GRPO = LossCard(advantage="group-zscore", kl="k3-plain", kl_bound=10.0, clip_high=0.3, mini_batches=4)


class RZeroSection(GameSection):
    """Defaults are the paper's; where it is silent, the released code's."""

    prompts: CardPath = prompts_of("r_zero")
    """Folder with `challenger.txt` and `solver.txt` (`{question}`), and `….system.txt` of each. Default: ours."""
    iterations: Count = 3
    """Number of iterations, which may be raised when a run has ended (released code: 5)."""
    policies: Literal["separate", "shared"] = "separate"
    """`separate`: a policy for each role; `shared`: one, the `actor`, which both phases train (Table 6)."""
    reference: Literal["phase", "base"] = "phase"
    """Reference of the KL terms: the weights with which the `phase` began (released code), or the `base`."""
    challenger_steps: Whole = 5
    """Updates of the challenger in an iteration; 0: it is never trained (Table 1)."""
    challenger_batch: Count = 512
    """Prompts of a challenger's step, all alike, each with `challenger.samples` questions (released code)."""
    challenger: RoleSection = RoleSection(samples=4, max_prompt_tokens=2048, sampling=SAMPLING, loss=GRPO)
    """The role that writes questions."""
    pool: Count = 8000
    """Questions that the challenger writes for the solver, in one step after its phase (N)."""
    pool_sampling: SamplingSection = SAMPLING.model_copy(update={"top_p": 0.95})
    """Sampling of these questions (released code)."""
    window: tuple[Share, Share] = Field(default=(0.25, 0.75), strict=False)
    """Range of p in which they are kept, bounds included (released code: 0.3, 0.8); 0, 1: no filter (Table 3)."""
    solver_steps: Count = 15
    """Updates of the solver in an iteration."""
    solver_batch: Count = 512
    """Questions of a solver's step (released code); all, if fewer are kept."""
    solver: RoleSection = RoleSection(samples=5, max_prompt_tokens=2048, sampling=SAMPLING, loss=GRPO)
    """The role that answers them; a question that exceeds its `max_prompt_tokens` is invalid."""
    votes: Count = 10
    """Answers to a question of the challenger's phase (m); p is the share of the majority, which is the label."""
    pool_votes: Count = 10
    """The same for a question of the pool (released code: 9)."""
    vote_sampling: SamplingSection = SamplingSection(top_k=40, max_tokens=4096, max_response_tokens=4096)
    """Sampling of these answers (released code)."""
    unanswered_agree: bool = False
    """Answers without a box agree with each other, for p (released code: true)."""
    uncertainty_weight: Weight = 1.0
    """Factor of 1 − 2 |p − ½| (released code: 0.5, which makes it min(p, 1 − p))."""
    repetition_weight: Weight = 1.0
    """λ, factor of the share of the step's replies in the cluster of a question; 0: no penalty (Table 3)."""
    repetition_distance: Share = 0.5
    """τ: clusters closer than this mean of 1 − BLEU are one."""
    floor: bool = True
    """The challenger's reward is at least 0 (released code: false)."""
    invalid_reward: float = Field(default=0.0, ge=-100, le=0)
    """Its reward for a reply without a question, before the penalty (released code: -1)."""
    format_weight: Share = 0.0
    """w of the solver's reward (1 − w) · correct + w · format: `<think>…</think>`, then a box (released code: 0.1)."""


def options(cfg: Config) -> RZeroSection:
    """The card's [r_zero] table."""
    return cfg.options(RZeroSection)


def check(cfg: Config) -> None:
    """Raises ValueError unless the values of [r_zero] and the card's other tables go together."""
    card = options(cfg)
    if card.floor and card.invalid_reward:
        raise ValueError(
            "r_zero.invalid_reward has no effect below a floor of 0; set r_zero.floor = false, or remove it"
        )
    if cfg.model.adapter is not None and card.reference == "phase":
        raise ValueError('adapters have their base as reference; set r_zero.reference = "base"')
