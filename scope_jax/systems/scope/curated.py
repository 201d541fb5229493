"""Tasks with rubrics that people or other models wrote: rows of a JSONL file.

    {"question": "…", "rubric": [{"criterion": "…", "weight": 2}, …]}

`weight` is 1 where it is left out. Also read are the forms of public sets: `points` for `weight` (HealthBench;
items with negative points are left out, as w_k ≥ 0 in Eq. (1)), `explanation` behind a criterion, and a `dimension`
whose share in the row's `dimension_weight` multiplies the weight (DeepResearch Bench). A conversation in `messages`
replaces `question`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scope_jax.data import DataError
from scope_jax.systems.scope.records import Criterion, Problem

FIELDS = ("rubric",)


def problem(row: Mapping[str, Any], name: str) -> Problem:
    """The task of a row, named `name`. Raises DataError with the row's question if it cannot be graded."""
    question = _question(row)
    shares = row.get("dimension_weight") or {}  # a Parquet file writes None for what a row lacks
    criteria = []
    for item in row["rubric"] or []:
        if not isinstance(item, Mapping) or not isinstance(item.get("criterion"), str) or not item["criterion"].strip():
            raise _error(question, "an item of its rubric has no `criterion`")
        weight = next((item[key] for key in ("weight", "points") if item.get(key) is not None), 1.0)
        if not isinstance(weight, int | float):
            raise _error(question, f"a criterion has the weight {weight!r}, which is no number")
        if weight > 0:
            text = ": ".join(item[key].strip() for key in ("criterion", "explanation") if item.get(key))
            share = shares.get(item.get("dimension"))
            criteria.append(Criterion(text, float(weight) * (1.0 if share is None else share)))
    if sum(criterion.weight for criterion in criteria) <= 0:
        raise _error(question, "no criterion of its rubric has a positive weight")
    return Problem(name, question, tuple(criteria))


def _question(row: Mapping[str, Any]) -> str:
    if row.get("messages"):
        return "\n\n".join(f"{message['role']}: {message['content']}" for message in row["messages"])
    question = row.get("question")
    if not isinstance(question, str) or not question.strip():
        raise DataError("A row with a rubric has no `question`; every row needs one.")
    return question


def _error(question: str, what: str) -> DataError:
    return DataError(f"The row with the question {question[:80]!r} cannot be graded: {what}; mend or remove it.")
