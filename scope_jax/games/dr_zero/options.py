"""The [dr_zero] table."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from scope_jax.config.base import CardPath, Count, GameSection, Share, Weight, prompts_of
from scope_jax.config.experiment import Config
from scope_jax.config.learner import LossCard
from scope_jax.config.tables import RoleSection

LOSS = LossCard(advantage="group-zscore", aggregation="token-mean", kl="none")


class DrZeroSection(GameSection):
    """Defaults are the paper's; where it is silent, the released code's."""

    prompts: CardPath = prompts_of("dr_zero")
    """Folder with `proposer.txt` (`{document}`, `{hops}`) and `solver.txt` (`{question}`); in both, `{search}` and
    `{results}` are the dialect's descriptions of a search and of where its results appear; optional system messages:
    `proposer.system.txt`, `solver.system.txt`. Default: the package's."""
    iterations: Count = 3
    """Number of iterations of all phases, which may be raised when a run has ended."""
    steps: Count = 50
    """Steps of an iteration that train each role on `train.batch_size` passages or pairs (the solver: if there are)."""
    partition: Count = 33_923
    """Passages from which an iteration may write its pairs, each iteration from others (released code: a fifth of
    169,615); no more are written than the solver's steps take."""
    samples: Count = 5
    """Proposals for each of these passages, of which the first with the best format is kept (released code)."""
    question_words: Count = 50
    """Questions are cut off after this many words (released code)."""
    window: Annotated[tuple[Share, Share], Field(strict=False)] | None = None
    """Range of the share of right attempts in which a written pair is kept, bounds included, if its format score is not
    0; default: all are kept, and none is attempted (released code)."""
    document_tokens: Count = 256
    """Passages are cut off after this many tokens, at a word boundary (released code)."""
    hops: Annotated[tuple[Annotated[float, Field(gt=0, le=1e6)], ...], Field(strict=False, min_length=1)] = (4, 3, 2, 1)
    """Relative frequency of prompts that ask for 1, 2, 3, … hops."""
    attempts: Annotated[int, Field(ge=2, le=1024)] = 5
    """Attempts of the solver at a proposal, which measure its difficulty (n); sampled as in its training."""
    format: Weight = 0.5
    """Weight of the format score in a proposal's reward."""
    difficulty: Weight = 1.0
    """Weight of the difficulty in it."""
    proposer: RoleSection = RoleSection(samples=1, max_turns=5, max_prompt_tokens=1536, loss=LOSS)
    """The role that writes questions with answers. With one of its `samples` for a prompt the proposals of a batch with
    equal hops are a group (HRPO), with more those of a prompt (GRPO)."""
    solver: RoleSection = RoleSection(samples=5, max_turns=5, max_prompt_tokens=512, loss=LOSS)
    """The role that answers questions."""

    @model_validator(mode="after")
    def _consistent(self) -> DrZeroSection:
        if len(self.hops) > self.proposer.max_turns:
            raise ValueError(f"proposer.max_turns must be at least {len(self.hops)}, the turns of the most hops")
        if self.window and self.window[0] > self.window[1]:
            raise ValueError("window must be [lowest, highest] share of right attempts")
        return self


def options(cfg: Config) -> DrZeroSection:
    """The card's [dr_zero] table."""
    return cfg.options(DrZeroSection)
