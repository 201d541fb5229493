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
    """Defaults are the paper's; where it is silent, the released code's."""

    prompts: CardPath = prompts_of("ssp")
    """Folder with `proposer.txt`, `solver.txt`, `rag.txt`, `judge.txt` (with a judge), `examples.txt` (a question a
    line, if the proposer's prompt uses `{example1}` …); in the first two, `{search}` and `{results}` are the dialect's
    descriptions of a search and of where its results appear; optional system messages: `proposer.system.txt`,
    `solver.system.txt`. Default: the package's."""
    train: Literal["both", "solver", "proposer"] = "both"
    """The roles that are trained (SSP §4.3): `both`, or only `solver` or `proposer`, while both generate episodes."""
    update_order: tuple[Literal["solver", "proposer"], ...] = Field(default=("solver", "proposer"), strict=False)
    """Order of the two updates (Algorithm 1; released code: reversed)."""
    proposer_warmup_steps: Whole = 0
    """Number of initial steps that train only the proposer (SSP Table 4: off)."""
    proposer: RoleSection = RoleSection(
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
    """The role that writes questions; its loss is Eq. (5): sum over tokens, mean over episodes, no baseline, no KL."""
    solver: RoleSection = RoleSection(samples=5, loss=LossCard(advantage="group-mean", clip_high=0.285, mini_batches=2))
    """The role that answers them, attempting each question `samples` times. Its `max_prompt_tokens` also applies to
    verification prompts: a question that exceeds it is dropped (`too_long`)."""
    format: FormatRule = "well-formed"
    """Format required for any reward (SSP A.2): `well-formed` (tags closed, not nested, none of another role or of the
    tool), `think` (also thinking at the start of each turn), `lenient` (only the final tag; released code)."""
    # rules for a question (SSP §3.3; the numbers are the released code's)
    min_chars: Whole = 10
    """Fewest characters of a question (SSP §3.3; this and the next are the released code's)."""
    max_chars: Whole = 1000
    """Most characters of a question."""
    min_words: Whole = 0
    """Fewest words of a question (released code: 10)."""
    min_distinct_searches: Count = 1
    """Distinct queries that a proposer must have run (released code: 2)."""
    reject_repeated_search: bool = False
    """Drop questions of a proposer that ran a query twice (released code: true)."""
    reject_answer_in_search: bool = False
    """Drop questions of a proposer that searched for the answer itself (released code: an option, off)."""
    # RAG verification (SSP §4.4)
    verify: Literal["policy", "judge", "off"] = "policy"
    """Who answers from what the proposer read (SSP §4.4): `policy`, the external `judge` model, or nobody (`off`)."""
    verify_temperature: Temperature = 1.0
    """Temperature of that answer, if the policy writes it."""
    verify_max_tokens: Count = 512
    """Most tokens of that answer."""
    noise_documents: Whole = 4
    """Documents mixed in from other episodes (SSP Table 3)."""
    noise_unit: NoiseUnit = "document"
    """What `noise_documents` counts: each `document`, or each `trajectory`, with all its results (released code)."""
    # filling the slots of invalid questions (SSP App. B.1)
    fill: Literal["dummy", "resample", "replay", "replay-reset"] = "replay-reset"
    """What fills the slots of dropped questions (SSP App. B.1): `dummy` problems, `resample` (new proposals), `replay`
    (earlier questions), `replay-reset` (the same, with a pool that is emptied)."""
    replay_reset_every: Count = 10
    """Steps between two times that the pool is emptied (`replay-reset`)."""
    replay_keep_reused: bool = False
    """True: a reused question enters the pool again (released code)."""
    max_resamples: Whole = 5
    """Further attempts per slot (`resample`); a slot that still fails gets a dummy."""
    dummy: Literal["rollout", "skip"] = "rollout"
    """`rollout`: a dummy is sampled and counts in the divisor 1/B of the solver's loss, but adds no term; `skip`: it is
    not sampled, and the loss is divided by the real questions only."""
    invalid_reward: float = Field(default=0.0, ge=-100, le=1)
    """The proposer's reward for a dropped question, whatever fills its slot; App. B.3: -0.1, punitive."""
    proposer_reward: Literal["one-minus-mean", "intermediate"] = "one-minus-mean"
    """`one-minus-mean`: 1 − the solver's mean reward; `intermediate`: 4 (left + s)(right − s) for a success rate 0 < s
    < 1, else 0 (released code)."""
    intermediate_left: float = Field(default=0.0, ge=-1, le=1)
    """`left` of that formula."""
    intermediate_right: float = Field(default=1.0, ge=-1, le=2)
    """`right` of that formula."""
    grader: GradingRule = "exact-match-then-judge"
    """How answers are graded (r in Algorithm 1): `exact-match`, `judge`, or `exact-match-then-judge`: the judge on
    those that do not match."""

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
