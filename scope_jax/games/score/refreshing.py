"""Harness.Generate (Algorithm 1 l.37): the next harness, by rules, from an external model, or from a file.

A failure never ends the run: the harness in force stays, the user is told, and the failure is counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from scope_jax.config import CardError, Config
from scope_jax.games.score import harness as harnesses
from scope_jax.games.score import instructions
from scope_jax.games.score.harness import Harness, HarnessError
from scope_jax.games.score.options import options
from scope_jax.games.score.statistics import Record, recent
from scope_jax.learner.types import Reply
from scope_jax.play.judge_client import JudgeError
from scope_jax.play.tools import Tools
from scope_jax.retrieval.rows import STRICT_JSON

MODEL = "harness"  # name of the external model, and of the records for the report


@dataclass(frozen=True)
class Refresh:
    """The outcome of a refresh after `at` steps.

    state: the harness part of the memory after it. problem: why there was no valid harness, "" if there was one.
    reply: the external model's, if it was asked and replied.
    """

    at: int
    state: dict[str, Any]
    problem: str = ""
    reply: Reply | None = None


def probe(cfg: Config, tools: Tools, state: Mapping[str, Any], step: int) -> Refresh | None:
    """Before the first step, with the driver "endpoint": a failed refresh if the endpoint is down; otherwise None.

    The user is told, and the run starts with the card's harness.
    """
    if step > 0 or options(cfg).harness.driver != "endpoint":
        return None
    problem = tools.probe(MODEL)
    if not problem:
        return None
    tools.tell(f"{problem.rstrip('.')}; the run starts with the meta-harness of the card.")
    return _failed(state, 0, problem)


def due(cfg: Config, step: int) -> bool:
    """t mod M = 0, where t = step + 1."""
    return options(cfg).harness.driver != "off" and (step + 1) % options(cfg).harness.every == 0


def refresh(cfg: Config, tools: Tools, state: Mapping[str, Any], records: Sequence[Record], step: int) -> Refresh:
    """M_t, from the statistics since the last refresh."""
    before = harnesses.checked(cfg, state["value"])
    reply = None
    try:
        match options(cfg).harness.driver:
            case "endpoint":
                reply = _asked(cfg, tools, before, records)
                after = harnesses.read(cfg, reply.text)
            case "replay":
                after = _replayed(cfg, before, step + 1)
            case _:
                after = by_rules(cfg, before, records)
    except HarnessError as error:
        problem, begun = str(error), f"step {state['since']}" if state["since"] else "the start"
        tools.tell(
            f"step {step + 1}: no new meta-harness: {problem.rstrip('.')}; the one in force since {begun} stays."
        )
        return _failed(state, step + 1, problem, reply)
    new = {**state, "refreshed": state["refreshed"] + 1}
    if after != before:
        new |= {"value": after.plain(), "by": options(cfg).harness.driver, "since": step + 1}
    return Refresh(step + 1, new, "", reply)


def _failed(state: Mapping[str, Any], at: int, problem: str, reply: Reply | None = None) -> Refresh:
    """The harness in force stays, and the failure is counted."""
    return Refresh(at, {**state, "invalid": state["invalid"] + 1}, problem, reply)


# --------------------------------------------------------------------------------------------------------------- rules
def by_rules(cfg: Config, before: Harness, records: Sequence[Record]) -> Harness:
    """One more dimension and search if reports score high or alike, one less of both if few could be assessed.

    Stays within the card's limits and changes nothing else.
    """
    card, plain = options(cfg).harness, before.plain()
    limits, process = plain["dimension_constraints"], plain["process_constraints"]
    k, calls = limits["k"], process["min_number_of_tool_call"]
    assessed, base, spread = (recent(records, name) for name in ("assessed", "base_score", "spread"))
    if assessed is not None and 1 - assessed > card.unassessed:
        limits["k"] = max(k - 1, len(limits["must_include"]), min(k, 2))
        process["min_number_of_tool_call"] = max(calls - 1, min(calls, options(cfg).min_depth))
    elif (base is not None and base >= card.saturated) or (spread is not None and spread < card.spread):
        limits["k"] = max(k, min(k + 1, card.max_k, len(before.pool)))
        most = min(card.max_tool_calls, options(cfg).evaluator.max_turns - 1)
        process["min_number_of_tool_call"] = max(calls, min(calls + 1, most))
    return harnesses.checked(cfg, plain)


# ------------------------------------------------------------------------------------------------------ external model
def _asked(cfg: Config, tools: Tools, before: Harness, records: Sequence[Record]) -> Reply:
    """The model's reply; raises HarnessError if there is none."""
    try:
        (reply,) = tools.judge([instructions.for_harness(cfg, before, records)], by=MODEL)
    except JudgeError as error:
        raise HarnessError(f"no reply: {error}") from None
    if reply.refused:
        raise HarnessError(f"the request was refused: {reply.refused}")
    if reply.cut:
        raise HarnessError(f"the reply was cut: {reply.cut}")
    return Reply(reply.text[: harnesses.LARGEST + 1])


# ---------------------------------------------------------------------------------------------------------------- file
def _replayed(cfg: Config, before: Harness, step: int) -> Harness:
    """The file's harness after this number of steps, or the one in force if it has none. Raises HarnessError."""
    assert options(cfg).harness.file is not None  # ScoreSection sees to it
    found = [value for at, value in load_replay(options(cfg).harness.file) if at == step]
    return harnesses.checked(cfg, json.loads(found[-1])) if found else before


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
    for place, entry in enumerate(value):
        step = entry.get("step") if isinstance(entry, dict) else None
        if isinstance(step, bool) or not isinstance(step, int) or set(entry) != {"step", "harness"}:
            raise CardError(f"{path}: entry {place} is not one of a step and a harness; {form}.")
        entries.append((step, json.dumps(entry["harness"])))
    return tuple(entries)
