"""The meta-harness: the schema of its JSON (Listing 3), what makes one valid, its refresh by rules, its memory.

The schema is strict: unknown keys and numbers in quotes are errors. A harness must also fit the card: it may only name
dimensions of the card's pool, and may not require more searches than an assessment has turns for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scope_jax.config import CardError, Config
from scope_jax.games.score.options import ScoreHarnessSection, options
from scope_jax.grading.rewards import mean
from scope_jax.learner.types import Reply
from scope_jax.play.step import Memory
from scope_jax.text import objects, parsing
from scope_jax.text.strict_json import STRICT_JSON, is_text

LARGEST = 1 << 16  # characters of a reply with a harness
Limit = Annotated[float, Field(ge=0, le=10)]
Names = Annotated[tuple[str, ...], Field(strict=False, max_length=256)]


class HarnessError(ValueError):
    """There is no valid harness; the message gives the reason."""


class _HarnessTable(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class DimensionConstraints(_HarnessTable):
    """What a rubric may be."""

    k: int = Field(ge=1, le=256)
    """Number of its dimensions, the base included."""
    must_include: Names
    """The base dimension, then others that every rubric must contain."""
    weight_min: Limit
    """Lowest weight of a dimension other than the base."""
    weight_max: Limit
    """Highest weight."""


class ProcessConstraints(_HarnessTable):
    """What an assessment must have."""

    require_gap_analysis: bool
    """A section on what the report lacks."""
    require_verification: bool
    """A section on what was verified."""
    citation_cross_check: bool
    """A verdict on each citation."""
    min_number_of_tool_call: int = Field(ge=0, le=1000)
    """Least number of searches."""
    require_search: bool = False
    """At least one search."""


class Harness(_HarnessTable):
    """Constraints on rubrics and assessments."""

    dimension_constraints: DimensionConstraints
    """What a rubric may be."""
    process_constraints: ProcessConstraints
    """What an assessment must have."""
    notes: str = Field(max_length=2000)
    """Instructions for the evaluator."""
    dimension_pool: Names = ()
    """The dimensions of rubrics; () stands for the card's, which `validate` fills in."""

    @property
    def base(self) -> str:
        """The dimension whose score multiplies the others."""
        return self.dimension_constraints.must_include[0]

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return self.model_dump(mode="json")


def default(cfg: Config) -> Harness:
    """M_default, the harness that a run starts with. Raises CardError if the card's values contradict each other."""
    card = options(cfg).harness
    limits = card.model_dump(include=set(DimensionConstraints.model_fields))
    process = card.model_dump(include=set(ProcessConstraints.model_fields))
    process["min_number_of_tool_call"] = card.min_tool_calls
    value = {"dimension_constraints": limits, "process_constraints": process, "notes": card.notes}
    try:
        return validate(cfg, value)
    except HarnessError as error:
        raise CardError(f"score.harness: a run cannot begin with this harness: {error}; correct it.") from None


def validate(cfg: Config, value: Any) -> Harness:
    """A harness from JSON data, with its pool filled in. Raises HarnessError with the first fault."""
    try:
        harness = Harness.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))[:80] or "the harness"
        printable = "".join(sign if sign.isprintable() else "?" for sign in key)
        raise HarnessError(f"{printable}: {first['msg']}") from None
    pool = harness.dimension_pool or options(cfg).pool
    limits, searches = harness.dimension_constraints, harness.process_constraints.min_number_of_tool_call
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
        ("min_number_of_tool_call leaves no turn for the scores", searches >= options(cfg).evaluator.max_turns),
        ("notes holds half of a character", not is_text(harness.notes)),
    )
    if reason := next((reason for reason, wrong in checks if wrong), None):
        raise HarnessError(reason)
    return harness.model_copy(update={"dimension_pool": pool})


def parse(cfg: Config, reply: str) -> Harness:
    """The harness in the JSON object that a model's reply ends with. Raises HarnessError."""
    if len(reply) > LARGEST:
        raise HarnessError(f"the reply has {len(reply)} characters, more than {LARGEST}")
    value = objects.last_object(parsing.without_thinking(reply))
    if value is None:
        raise HarnessError("the reply does not end with a JSON object")
    return validate(cfg, value)


# ------------------------------------------------------------------------------------------------------- its refreshes
@dataclass(frozen=True)
class Refresh:
    """The outcome of an attempt to refresh the meta-harness."""

    at: int
    """Number of steps done."""
    harness: Harness | None = None
    """The new one; None: the one in force stays."""
    problem: str = ""
    """Why there was no valid harness, "" if there was one, which may equal the one in force."""
    reply: Reply | None = None
    """The external model's, if it was asked and replied."""


def due(card: ScoreHarnessSection, step: int) -> bool:
    """t mod M = 0, where t = step + 1."""
    return card.driver != "off" and (step + 1) % card.every == 0


def by_rules(cfg: Config, before: Harness, records: Sequence[Mapping[str, Any]]) -> Harness:
    """One more dimension and search if reports score high or alike, one less of both if few could be assessed.

    Stays within the card's limits and changes nothing else. records: the statistics since the last refresh.
    """
    card, plain = options(cfg).harness, before.plain()
    limits, process = plain["dimension_constraints"], plain["process_constraints"]
    k, searches = limits["k"], process["min_number_of_tool_call"]
    assessed, base, spread = (_recent(records, name) for name in ("assessed", "base_score", "spread"))
    if assessed is not None and 1 - assessed > card.unassessed:
        limits["k"] = max(k - 1, len(limits["must_include"]), min(k, 2))
        process["min_number_of_tool_call"] = max(searches - 1, min(searches, options(cfg).min_depth))
    elif (base is not None and base >= card.saturated) or (spread is not None and spread < card.spread):
        limits["k"] = max(k, min(k + 1, card.max_k, len(before.dimension_pool)))
        most = min(card.max_tool_calls, options(cfg).evaluator.max_turns - 1)
        process["min_number_of_tool_call"] = max(searches, min(searches + 1, most))
    return validate(cfg, plain)


def _recent(records: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Mean of a statistic over the records in which it is not None."""
    values = [record[name] for record in records if record[name] is not None]
    return mean(values) if values else None


def replay(cfg: Config, before: Harness, steps: int) -> Harness:
    """The file's harness after this number of steps, or `before` if it has none. Raises HarnessError."""
    assert options(cfg).harness.file is not None  # ScoreSection sees to it
    values = [value for at, value in load_replay(options(cfg).harness.file) if at == steps]
    return validate(cfg, json.loads(values[-1])) if values else before


@lru_cache(maxsize=8)
def load_replay(path: str) -> tuple[tuple[int, str], ...]:
    """(number of steps, harness as JSON) of each entry of a file. Raises CardError for a file of any other form."""
    form = 'write a JSON list of objects {"step": 5, "harness": {…}}'
    try:
        with open(path, encoding="utf-8") as file:
            value = STRICT_JSON.decode(file.read().strip())
    except OSError as error:
        raise CardError(f"score.harness.file is {path}, which cannot be read ({error.strerror}); correct it.") from None
    except (ValueError, RecursionError):
        raise CardError(f"{path}: is not JSON; {form}.") from None
    if not isinstance(value, list):
        raise CardError(f"{path}: is not a list; {form}.")
    entries = []
    for number, entry in enumerate(value):
        step = entry.get("step") if isinstance(entry, dict) else None
        if isinstance(step, bool) or not isinstance(step, int) or set(entry) != {"step", "harness"}:
            raise CardError(f"{path}: entry {number} is not one of a step and a harness; {form}.")
        entries.append((step, json.dumps(entry["harness"])))
    return tuple(entries)


# ---------------------------------------------------------------------------------------------------------- its memory
def in_force(cfg: Config, memory: Memory) -> Harness:
    """M_{t−1}, the harness of the step that comes next."""
    return validate(cfg, memory["harness"]["value"])


def initial_state(cfg: Config) -> dict[str, Any]:
    """The harness part of a new memory.

    value: the harness in force, at first the card's; by: who set it; since: the number of steps done then. refreshed
    and invalid: the numbers of refreshes with and without a valid harness.
    """
    return {"value": default(cfg).plain(), "by": "card", "since": 0, "refreshed": 0, "invalid": 0}


def after(card: ScoreHarnessSection, state: Mapping[str, Any], refresh: Refresh) -> dict[str, Any]:
    """The harness part of the memory after an attempt to refresh it."""
    if refresh.problem:
        return {**state, "invalid": state["invalid"] + 1}
    new = {**state, "refreshed": state["refreshed"] + 1}
    if refresh.harness is None:
        return new
    return {**new, "value": refresh.harness.plain(), "by": card.driver, "since": refresh.at}


def adopt(cfg: Config, state: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """The harness part of another run's memory after `steps` steps, with the card's default in place of the other
    card's, and of a harness that is not valid here."""
    value = default(cfg).plain()
    if value == state["value"]:
        return dict(state)
    if state["by"] != "card":
        with suppress(HarnessError):
            validate(cfg, state["value"])
            return dict(state)
    return {**state, "value": value, "by": "card", "since": steps}
