"""A small card of RLVR, with rows and a policy that follows a script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scope_jax.config import Config
from scope_jax.data.problems import problems
from scope_jax.games import parse_config
from tests.games.harness import LONG, ScriptedTools, TurnContext


def card(**rlvr: Any) -> Config:
    """`rlvr` goes into its [rlvr] table; `tables` into the card."""
    tables = rlvr.pop("tables", {})
    table = {
        "system": "rlvr",
        "model": {"checkpoint": "none"},
        "data": {"problems": "none"},
        "train": {"steps": 1, "batch_size": 2},
        "rlvr": LONG | {"samples": 2} | rlvr,
    }
    return parse_config(table | tables, "the test's card")


def rows(*given: dict[str, Any]) -> list[dict[str, Any]]:
    return [problems(row, f"rows.jsonl, line {number}", {}) for number, row in enumerate(given, start=1)]


ROWS = rows({"question": "1 + 1", "answer": "2"}, {"question": "2 + 2", "answer": "4"})


def replying(*replies: Sequence[str]) -> Any:
    """A script: the turns of each sample, for every prompt."""

    def script(ctx: TurnContext) -> str:
        return replies[ctx.sample][ctx.turn]

    return script


def world(*replies: Sequence[str], **fields: Any) -> ScriptedTools:
    return ScriptedTools(replying(*replies), **fields)
