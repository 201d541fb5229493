"""The [rlvr] table."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from scope_jax.config import Config, EvalSet, LossCard
from scope_jax.config.base import CardPath, Count, GameSection, Seconds
from scope_jax.config.tables import RoleSection

Grader = Literal["math", "exact-match", "same-text", "cover-exact-match", "numeric", "choice", "json", "f1", "function"]
Place = Literal["whole", "last-line", "boxed", "tag"]
PLACES: dict[Grader, Place] = {"math": "boxed", "numeric": "last-line"}  # of others the whole reply
HELD_OUT = "held_out"


class RLVRSection(GameSection, RoleSection):
    """How prompts are answered, graded and learned from."""

    samples: Count = 8
    """Replies to a prompt, which are one group."""
    max_turns: Count = 1
    """Most turns of a reply; more than one with `tools`: n turns allow n − 1 with calls, and the answer."""
    loss: LossCard = LossCard(
        advantage="group-zscore", aggregation="sequence-mean", dual_clip=0.0, kl="k3-plain", kl_coef=0.04
    )
    """The loss; by default GRPO's. docs/rlvr.md#algorithms has others."""
    grader: Grader = "math"
    """How a reply is graded against the row's answers: by a measure (`math`, `exact-match`, `same-text`,
    `cover-exact-match`, `numeric`, `choice`, `json`, `f1`; docs/evaluation.md#measures), or by the `function`."""
    answer_in: Place | None = None
    """Where the answer stands in the last turn: `whole`, `last-line`, `boxed` (the last `\\boxed{}`), `tag` (the last
    `<answer>`); default: `boxed` for `math`, `last-line` for `numeric`, else `whole`. A function gets all of it."""
    instruction: str = ""
    """Follows the prompt on a line of its own, for example how the answer is to be written."""
    function: CardPath | None = None
    """Python file with `reward(prompt, completion, answer, **row) -> float`, for `grader = "function"`
    (docs/rlvr.md#a-reward-of-your-own)."""
    function_seconds: Seconds = 10.0
    """Seconds for a call of the function; a later one scores 0 and is counted in `function/late`."""
    tools: tuple[Literal["python", "search"], ...] = Field(default=(), strict=False)
    """What turns may call: `python` (in the `[sandbox]`), `search` (in `[retrieval]`)."""

    @property
    def place(self) -> Place:
        """Where the answer stands."""
        return self.answer_in or PLACES.get(self.grader, "whole")

    @model_validator(mode="after")
    def _fits_together(self) -> RLVRSection:
        if (self.grader == "function") != (self.function is not None):
            raise ValueError(
                'grader = "function" and `function`, the path of a Python file, belong together; give both, or none'
            )
        if bool(self.tools) != (self.max_turns > 1):
            raise ValueError(
                f"max_turns is {self.max_turns}, with {len(self.tools)} tools; calls and the answer are turns of their "
                "own: set max_turns above 1 with tools, or neither"
            )
        if len(set(self.tools)) < len(self.tools):
            raise ValueError("tools names a tool twice; remove one")
        return self


def options(cfg: Config) -> RLVRSection:
    """The card's [rlvr] table."""
    return cfg.options(RLVRSection)


def completed(cfg: Config) -> Config:
    """The card with an evaluation set, if it says nothing of sets: the part of its rows that is held out."""
    data = cfg.data
    if "sets" in cfg.evaluate.model_fields_set or data.problems is None:
        return cfg
    held_out = EvalSet(
        name=HELD_OUT,
        path=data.problems,
        part="held-out",
        columns=data.columns,
        split=data.split,
        hub_config=data.hub_config,
    )
    return cfg.model_copy(update={"evaluate": cfg.evaluate.model_copy(update={"sets": (held_out,)})})


def holds_out(cfg: Config) -> bool:
    """Whether an evaluation set of the card is the held-out part of a file, so that training leaves that part out."""
    return any(one.part == "held-out" for one in cfg.evaluate.sets)
