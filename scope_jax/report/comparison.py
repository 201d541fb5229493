"""The comparison of several runs: one page with overlaid curves, paired exam results and the cards' differences."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scope_jax.config import GAMES, Config
from scope_jax.errors import UserError
from scope_jax.play.measures import standard_error
from scope_jax.play.rewards import mean
from scope_jax.report.curves import COLOURS, draw_together
from scope_jax.report.page import environment, inline, opened, policy, replace_page
from scope_jax.report.panels import OWN_GAME, panels_of
from scope_jax.run import answers
from scope_jax.run.metrics import flattened

MOST = len(COLOURS)  # runs, each with its colour


@dataclass(frozen=True)
class Result:
    """The last value of a measure in a run, and its difference from the first run's.

    error, difference_error: standard errors. pairs: number of questions that both runs answered in their last
    evaluation, whose differences give the error; 0: not recorded, the two means are taken as independent. Values that
    do not exist are None.
    """

    value: float | None
    error: float | None
    difference: float | None = None
    difference_error: float | None = None
    pairs: int = 0


def titles(runs: Sequence[Path]) -> list[str]:
    """A name for every run: its folder's, with as many parents as make all different."""
    places = [run.resolve().parts for run in runs]
    if len(set(places)) < len(places):
        raise UserError("a run is given twice; give different run folders to compare.")
    for depth in range(1, max(map(len, places)) + 1):
        found = ["/".join(place[-depth:]) for place in places]
        if len(set(found)) == len(found):
            return found
    raise AssertionError("different paths have different parts")


def differences(cards: Sequence[Config]) -> list[tuple[str, list[str]]]:
    """(key, its value in each card as JSON) of every key that the cards do not agree in.

    Tables of games that none of them plays are left out.
    """
    idle = tuple(f"{game}." for game in GAMES if game not in {card.system for card in cards})
    tables = [flattened(card.model_dump(mode="json")) for card in cards]
    keys = sorted(key for key in set().union(*tables) if not key.startswith(idle))
    rows = [(key, [_shown(table.get(key)) for table in tables]) for key in keys]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def _shown(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False)


def results(lines: Sequence[Sequence[Mapping[str, Any]]], runs: Sequence[Path]) -> dict[str, list[Result]]:
    """By `<set>/<measure>`, the results of every run, for the measures with a standard error."""
    last = [next((line for line in reversed(own) if _measured(line)), {}) for own in lines]
    names = sorted({name for line in last for name in _measured(line)})
    questions = [answers.last(run / answers.NAME) for run in runs]
    return {
        name.removeprefix("eval/"): [_result(name, last, questions, at) for at in range(len(runs))] for name in names
    }


def _measured(line: Mapping[str, Any]) -> list[str]:
    return [name for name in line if name.startswith("eval/") and f"{name}_se" in line]


def _result(
    name: str, last: Sequence[Mapping[str, Any]], questions: Sequence[Mapping[str, answers.Questions]], at: int
) -> Result:
    value, error = last[at].get(name), last[at].get(f"{name}_se")
    first, first_error = last[0].get(name), last[0].get(f"{name}_se")
    if at == 0 or value is None or first is None:
        return Result(value, error)
    exam, _, measure = name.removeprefix("eval/").rpartition("/")
    theirs, ours = (
        {key: measures[measure] for key, measures in questions[place].get(exam, {}).items() if measure in measures}
        for place in (0, at)
    )
    apart = [ours[key] - theirs[key] for key in ours if key in theirs]
    if len(apart) > 1:
        return Result(value, error, mean(apart), standard_error(apart), len(apart))
    independent = None if error is None or first_error is None else math.hypot(first_error, error)
    return Result(value, error, value - first, independent)


def write_comparison(runs: Sequence[Path], path: Path) -> Path:
    """Writes the page that compares the runs, the first of which the others are compared with; returns its path.

    Raises UserError for a run given twice or too many runs, FileNotFoundError as `write_report`.
    """
    if len(runs) > MOST:
        raise UserError(f"{len(runs)} runs are too many for one page; give at most {MOST}.")
    names = titles(runs)
    cards, lines = zip(*map(opened, runs), strict=True)
    panels = panels_of(cards[0]) if len({card.system for card in cards}) == 1 else OWN_GAME
    picture, style = path.with_suffix(".png"), inline("page.css")
    path.parent.mkdir(parents=True, exist_ok=True)
    draw_together(dict(zip(names, lines, strict=True)), panels, picture)
    page = (
        environment()
        .get_template("comparison.html")
        .render(
            names=names,
            style=style,
            policy=policy(style),
            picture=base64.b64encode(picture.read_bytes()).decode(),
            systems=[card.system for card in cards],
            seeds=[card.seed for card in cards],
            steps=[own[-1]["step"] for own in lines],
            results=results(lines, runs),
            differences=differences(cards),
        )
    )
    replace_page(path, page)
    return path
