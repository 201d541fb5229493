"""The comparison of several runs: one page with overlaid curves, paired exam results and the cards' differences."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scope_jax.config import Config
from scope_jax.errors import UserError
from scope_jax.evaluation import evaluations
from scope_jax.evaluation.metrics import standard_error
from scope_jax.grading.rewards import mean
from scope_jax.report.charts import COLOURS, charts_together
from scope_jax.report.page import environment, inline, opened, policy, replace_page
from scope_jax.report.panels import GENERAL, LEARNING, once, panels_of
from scope_jax.run.config_file import flattened
from scope_jax.run.files import EXAMS, read_records
from scope_jax.run.records import Questions, last_questions

MOST = COLOURS  # runs, each with its colour


@dataclass(frozen=True)
class MeasureResult:
    """The last value of a measure in a run, of this step, and its difference from the first run's.

    error, difference_error: standard errors. pairs: number of questions that both runs answered in their last
    evaluation, whose differences give the error; 0: not recorded, the two means are taken as independent. Values that
    do not exist are None.
    """

    value: float | None
    error: float | None
    step: int | None = None
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
    """(key, its value in each card as JSON) of every key that the cards do not agree in."""
    tables = [flattened(card.model_dump(mode="json")) for card in cards]
    rows = [(key, [_shown(table.get(key)) for table in tables]) for key in sorted(set().union(*tables))]
    return [(key, values) for key, values in rows if len(set(values)) > 1]


def _shown(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class _Measured:
    """A measure in one run: mean and standard error at a step, and the measure of each question."""

    value: float
    error: float
    step: int
    questions: Mapping[tuple[int, str], float]


def results(lines: Sequence[Sequence[Mapping[str, Any]]], runs: Sequence[Path]) -> dict[str, list[MeasureResult]]:
    """By `<set>/<measure>`, the results of every run's last evaluation during training, for the measures with a
    standard error."""
    found: list[dict[str, _Measured]] = []
    for own, run in zip(lines, runs, strict=True):
        last = next((line for line in reversed(own) if any(name.startswith("eval/") for name in line)), {"step": 0})
        values = {name.removeprefix("eval/"): value for name, value in last.items() if name.startswith("eval/")}
        questions = last_questions(read_records(run / EXAMS))
        sets = {name.rpartition("/")[0] for name in values}
        found.append(_measured(values, {name: (last["step"], questions.get(name, {})) for name in sets}))
    return _compared(found)


def exam_results(runs: Sequence[Path]) -> dict[str, list[MeasureResult]]:
    """The same of what `scope-jax eval` last measured in every run."""
    found: list[dict[str, _Measured]] = []
    for run in runs:
        last = evaluations.last(run)
        values = {f"{name}/{key}": value for name, of_set in last.items() for key, value in of_set.metrics.items()}
        found.append(_measured(values, {name: (of_set.step, of_set.questions) for name, of_set in last.items()}))
    return _compared(found)


def _measured(values: Mapping[str, Any], sets: Mapping[str, tuple[int, Questions]]) -> dict[str, _Measured]:
    """By `<set>/<measure>`; values: also with `<set>/<measure>_se`; sets: step and questions by name of the set."""
    found = {}
    for name in [name for name in values if values.get(f"{name}_se") is not None]:
        of_set, _, measure = name.rpartition("/")
        step, questions = sets[of_set]
        by_question = {key: measures[measure] for key, measures in questions.items() if measure in measures}
        found[name] = _Measured(values[name], values[f"{name}_se"], step, by_question)
    return found


def _compared(runs: Sequence[Mapping[str, _Measured]]) -> dict[str, list[MeasureResult]]:
    names, first = sorted(set().union(*runs)), runs[0]
    return {
        name: [_result(run.get(name), first.get(name) if at else None) for at, run in enumerate(runs)] for name in names
    }


def _result(ours: _Measured | None, first: _Measured | None) -> MeasureResult:
    """The result of a run beside the first run's; first: None for the first run itself or if it lacks the measure."""
    if ours is None:
        return MeasureResult(None, None)
    own = MeasureResult(ours.value, ours.error, ours.step)
    if first is None:
        return own
    apart = [value - first.questions[key] for key, value in ours.questions.items() if key in first.questions]
    if len(apart) > 1:
        return replace(own, difference=mean(apart), difference_error=standard_error(apart), pairs=len(apart))
    independent = math.hypot(first.error, ours.error)
    return replace(own, difference=ours.value - first.value, difference_error=independent)


def write_comparison(runs: Sequence[Path], path: Path) -> Path:
    """Writes the page that compares the runs, the first of which the others are compared with; returns its path.

    Raises UserError for a run given twice or too many runs, FileNotFoundError as `write_report`.
    """
    if len(runs) > MOST:
        raise UserError(f"{len(runs)} runs are too many for one page; give at most {MOST}.")
    names = titles(runs)
    cards, lines = zip(*map(opened, runs), strict=True)
    panels = panels_of(runs[0], cards[0].system) if len({card.system for card in cards}) == 1 else GENERAL
    every = [line for own in lines for line in own]
    curves = charts_together(dict(zip(names, lines, strict=True)), once(every, (*panels, *LEARNING)))
    style, script = inline("page.css"), inline("charts.js")
    path.parent.mkdir(parents=True, exist_ok=True)
    page = (
        environment()
        .get_template("comparison.html")
        .render(
            names=names,
            style=style,
            script=script,
            policy=policy(style, script),
            charts=curves,
            systems=[card.system for card in cards],
            seeds=[card.seed for card in cards],
            steps=[own[-1]["step"] for own in lines],
            results=results(lines, runs),
            exams=exam_results(runs),
            differences=differences(cards),
        )
    )
    replace_page(path, page)
    return path
