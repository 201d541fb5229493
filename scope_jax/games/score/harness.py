"""The meta-harness: the schema of its JSON (Listing 3) and its validation.

The schema is strict: unknown keys and numbers in quotes are errors. A harness must also fit the card: it may only name
dimensions of the card's pool, and may not require more searches than an assessment has turns for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scope_jax.config import CardError, Config
from scope_jax.games.score.options import options
from scope_jax.play.game import Memory
from scope_jax.retrieval.rows import is_text
from scope_jax.text import objects, parsing

LARGEST = 1 << 16  # characters of a reply with a harness
Limit = Annotated[float, Field(ge=0, le=10)]
Names = Annotated[tuple[str, ...], Field(strict=False, max_length=256)]


class HarnessError(ValueError):
    """There is no valid harness; the message gives the reason."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class DimensionConstraints(_Table):
    """must_include: the base dimension, then others that every rubric must contain."""

    k: int = Field(ge=1, le=256)
    must_include: Names
    weight_min: Limit
    weight_max: Limit


class ProcessConstraints(_Table):
    require_gap_analysis: bool
    require_verification: bool
    citation_cross_check: bool
    min_number_of_tool_call: int = Field(ge=0, le=1000)
    require_search: bool = False


class Harness(_Table):
    """Constraints on rubrics and assessments. dimension_pool: () stands for the card's pool."""

    dimension_constraints: DimensionConstraints
    process_constraints: ProcessConstraints
    notes: str = Field(max_length=2000)
    dimension_pool: Names = ()

    @property
    def base(self) -> str:
        """The dimension whose score multiplies the others."""
        return self.dimension_constraints.must_include[0]

    @property
    def pool(self) -> tuple[str, ...]:
        return self.dimension_pool

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return self.model_dump(mode="json")


def default(cfg: Config) -> Harness:
    """M_default, the harness that a run starts with. Raises CardError if the card's values contradict each other."""
    try:
        return checked(cfg, _of_card(cfg))
    except HarnessError as error:
        raise CardError(f"score.harness: a run cannot begin with this harness: {error}; correct it.") from None


def _of_card(cfg: Config) -> dict[str, Any]:
    card = options(cfg).harness
    return {
        "dimension_constraints": {
            "k": card.k,
            "must_include": list(card.must_include),
            "weight_min": card.weight_min,
            "weight_max": card.weight_max,
        },
        "process_constraints": {
            "require_gap_analysis": card.require_gap_analysis,
            "require_verification": card.require_verification,
            "citation_cross_check": card.citation_cross_check,
            "min_number_of_tool_call": card.min_tool_calls,
            "require_search": card.require_search,
        },
        "notes": card.notes,
    }


def checked(cfg: Config, value: Any) -> Harness:
    """A harness from JSON data, with its pool filled in. Raises HarnessError with the first fault."""
    try:
        harness = Harness.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))[:80] or "the harness"
        printable = "".join(sign if sign.isprintable() else "?" for sign in key)
        raise HarnessError(f"{printable}: {first['msg']}") from None
    pool = harness.dimension_pool or options(cfg).pool
    limits, calls = harness.dimension_constraints, harness.process_constraints.min_number_of_tool_call
    names = limits.must_include
    checks = (
        ("dimension_pool names a dimension that the card does not have", not set(pool) <= set(options(cfg).pool)),
        ("dimension_pool names a dimension twice", len(set(pool)) < len(pool)),
        ("must_include is empty", not names),
        ("must_include names a dimension that is not in the pool", not set(names) <= set(pool)),
        ("must_include names a dimension twice", len(set(names)) < len(names)),
        ("k is below the number of dimensions in must_include", limits.k < len(names)),
        ("k is above the number of dimensions in the pool", limits.k > len(pool)),
        ("weight_min is above weight_max", limits.weight_min > limits.weight_max),
        ("min_number_of_tool_call leaves no turn for the scores", calls >= options(cfg).evaluator.max_turns),
        ("notes holds half of a character", not is_text(harness.notes)),
    )
    if reason := next((reason for reason, wrong in checks if wrong), None):
        raise HarnessError(reason)
    return harness.model_copy(update={"dimension_pool": pool})


def read(cfg: Config, reply: str) -> Harness:
    """The harness in the JSON object that a model's reply ends with. Raises HarnessError."""
    if len(reply) > LARGEST:
        raise HarnessError(f"the reply has {len(reply)} characters, more than {LARGEST}")
    value = objects.last_object(parsing.without_thinking(reply))
    if value is None:
        raise HarnessError("the reply does not end with a JSON object")
    return checked(cfg, value)


def in_force(cfg: Config, memory: Memory) -> Harness:
    """M_{t−1}, the harness of the step that comes next."""
    return checked(cfg, memory["harness"]["value"])


def initial_state(cfg: Config) -> dict[str, Any]:
    """The harness part of a new memory.

    value: the harness in force, at first the card's; by: who set it; since: the number of steps done then. refreshed
    and invalid: the numbers of refreshes with and without a valid harness.
    """
    return {"value": default(cfg).plain(), "by": "card", "since": 0, "refreshed": 0, "invalid": 0}


def adopted(cfg: Config, state: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """The harness part of another run's memory after `steps` steps, with the card's default in place of the other
    card's, and of a harness that is not valid here."""
    own = default(cfg).plain()
    if own == state["value"] or (state["by"] != "card" and _valid(cfg, state["value"])):
        return dict(state)
    return {**state, "value": own, "by": "card", "since": steps}


def _valid(cfg: Config, value: Any) -> bool:
    try:
        checked(cfg, value)
    except HarnessError:
        return False
    return True
