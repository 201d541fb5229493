"""The [absolute_zero] table."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from scope_jax.config.base import CardPath, Count, GameSection, Whole, prompts_of
from scope_jax.config.experiment import Config
from scope_jax.config.learner import LossCard
from scope_jax.config.tables import SamplingSection

Kind = Literal["deduction", "abduction", "induction"]  # which asks for the output, an input, the program
MODULES = ("logging", "random", "multiprocessing", "pebble", "subprocess", "threading", "datetime", "time", "calendar")
NAMES = ("hashlib", "hmac", "bcrypt", "os.sys", "os.path", "os.environ", "sys.exit")


class AbsoluteZeroSection(GameSection):
    """In a step, `train.batch_size` tasks of each kind are proposed, and as many are solved."""

    prompts: CardPath = prompts_of("absolute_zero")
    """Folder with `propose_TASK.txt` and `solve_TASK.txt` for each task. Default: the package's."""
    tasks: tuple[Kind, ...] = Field(default=("deduction", "abduction", "induction"), min_length=1, strict=False)
    """The kinds of tasks; `induction` needs another one, whose programs it is about."""
    train: Literal["both", "solver"] = "both"
    """The roles that are trained; with `solver` the proposer only writes tasks."""
    references: Whole = 6
    """Earlier tasks in a proposer's prompt; 0: none but the program of an induction."""
    inputs: int = Field(default=10, ge=2, le=100)
    """Inputs of an induction task; the first half is shown with its outputs, the rest is hidden."""
    estimates: Count = 8
    """Answers to each valid task that only estimate how often it is solved; they are not trained."""
    seeds: Count = 256
    """Tasks of each kind that the base writes before the first step, from the identity function."""
    buffer: Count = 16384
    """Most tasks of a kind that are remembered; the oldest are forgotten (released code: the newest)."""
    solve: Literal["updated", "earlier"] = "updated"
    """Problems come from the buffers with this step's tasks (paper), or as they were before (released code)."""
    banned: tuple[str, ...] = Field(default=(*MODULES, *NAMES), strict=False)
    """What a program may not import or use: modules, and names of modules, with all below them."""
    several_functions: bool = False
    """A program may define several functions: the one called `f` counts, without one the last; else only one."""
    extreme_reward: float = Field(default=0.0, ge=-1, le=1)
    """Reward of a valid task that is always or never solved (released code: -0.5)."""
    max_prompt_tokens: Count = 6144
    """Most tokens of a prompt; references that do not fit are left out."""
    sampling: SamplingSection = SamplingSection(max_tokens=8096, max_response_tokens=8096)
    """How proposals, estimates and answers are sampled."""
    loss: LossCard = LossCard(advantage="batch-zscore", aggregation="token-mean", kl="none", mini_batches=3)
    """The loss; advantages are of each role by itself (TRR++): `batch-zscore`, or `token-whiten` (released code)."""


def options(cfg: Config) -> AbsoluteZeroSection:
    """The card's [absolute_zero] table."""
    return cfg.options(AbsoluteZeroSection)


def check(cfg: Config) -> None:
    """Raises ValueError for tasks that cannot be played."""
    kinds = options(cfg).tasks
    if len({*kinds}) < len(kinds) or kinds == ("induction",):
        raise ValueError("absolute_zero.tasks needs deduction or abduction, and each task once; correct the list")
