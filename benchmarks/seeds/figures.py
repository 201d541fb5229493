"""Results of a run: for each metric one value before and one after training, read from the run's own files.

For an exam's metric (`eval/…`) these are the values of the first and the last exam. Any other metric is logged in all
or some steps: before is the mean of the first half of its values, after the mean of the rest, the middle one included.
`DERIVED` holds the metrics that are not in metrics.jsonl.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from scope_jax.games import load_card
from scope_jax.games.scope.options import options
from scope_jax.grading.rewards import mean
from scope_jax.run.files import read_records
from tools.atlas.facts import load_world
from tools.atlas.questions import chain_question, chains
from tools.atlas.tasks import Entity, entities

Values = Sequence[float]
Ends = tuple[float | None, float | None]


def halves(values: Values) -> Ends:
    """(mean of the first half, mean of the rest); None for an empty half."""
    middle = len(values) // 2
    return (
        mean(values[:middle]) if values[:middle] else None,
        mean(values[middle:]) if values[middle:] else None,
    )


def ends(values: Values) -> Ends:
    """(first, last); a single exam counts as before."""
    return (values[0] if values else None, values[-1] if len(values) > 1 else None)


def before_after(run: Path, metric: str) -> Ends:
    """(before, after) of one metric of one run; None where the run has no value."""
    records = list(read_records(run / "metrics.jsonl"))
    logged = [record[metric] for record in records if record.get(metric) is not None]
    values = DERIVED[metric](run, records) if metric in DERIVED else logged
    return ends(values) if metric.startswith("eval/") else halves(values)


# ---------------------------------------------------------------------------------------------------------- derived
def mean_accuracy(run: Path, records: Sequence[Mapping[str, Any]]) -> Values:
    """For each exam, the mean of the accuracies of its sets."""
    exams = [[value for name, value in one.items() if re.fullmatch("eval/[^/]+/accuracy", name)] for one in records]
    return [mean(values) for values in exams if values]


def step_seconds(run: Path, records: Sequence[Mapping[str, Any]]) -> Values:
    """Seconds of each step, without exams and checkpoints."""
    return [record["time/play"] + record["time/learn"] for record in records if "time/play" in record]


def off_target(run: Path, records: Sequence[Mapping[str, Any]]) -> Values:
    """For each iteration of SCOPE: distance of the solver's mean rubric score from the challenger's target."""
    target = options(load_card(run / "config.toml")).challenger_reward.target
    return [abs(record["iteration/task_score"] - target) for record in records if "iteration/task_score" in record]


def drift(run: Path, records: Sequence[Mapping[str, Any]]) -> Values:
    """For each iteration of SCOPE on Atlas: share of the accepted drafts of task generation that drifted."""
    iterations = {int(record["step"]): record["iteration"] for record in records if "iteration" in record}
    sources = {entity.row["id"]: entity for entity in entities(load_world()).values()}
    found: dict[float, list[float]] = defaultdict(list)
    for episode in list(read_records(run / "episodes.jsonl")):
        text = episode["text"]
        if episode["role"] != "challenger" or episode["trained"] or not text["task"] or text["rejected"]:
            continue
        away = drifted(text["task"], sources[text["document"]])
        found[iterations[episode["step"]]].append(float(away))
    return [mean(found[iteration]) for iteration in sorted(found)]


def drifted(task: str, source: Entity) -> bool:
    """True if the task names neither the source nor anything its document mentions."""
    return not source.names & set(task.replace(".", " ").split())


def right_answers(run: Path, records: Sequence[Mapping[str, Any]], trained: str) -> Values:
    """For each step of Dr. Zero on Atlas that trains a policy: share of its pairs whose question is one about the facts
    and whose answer is the right one."""
    truth = {chain_question(chain): chain[-1].value for hops in (1, 2) for chain in chains(load_world(), hops)}
    found: dict[int, dict[tuple[str, ...], bool]] = defaultdict(dict)
    for number, episode in enumerate(list(read_records(run / "episodes.jsonl"))):
        text = episode["text"]
        if episode["role"] == trained and episode["trained"]:
            name = str(number) if trained == "proposer" else episode["group"]  # a pair is attempted several times
            found[episode["step"]][name, text["question"]] = truth.get(text["question"]) == text["answer"]
    return [mean([float(right) for right in found[step].values()]) for step in sorted(found)]


DERIVED: dict[str, Callable[[Path, Sequence[Mapping[str, Any]]], Values]] = {
    "eval/mean/accuracy": mean_accuracy,
    "time/step": step_seconds,
    "scope/off_target": off_target,
    "scope/drift": drift,
    "dr_zero/right_proposals": partial(right_answers, trained="proposer"),
    "dr_zero/right_pairs": partial(right_answers, trained="solver"),
}
