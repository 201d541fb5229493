"""What runs of SCOPE on Atlas came to: one line of JSON for each run folder, and the tables of docs/results.md.

    python benchmarks/scope_atlas.py runs/scope-seed0 runs/no-gates ...

Everything is read from the run folders' own files. `drift` is, by iteration, the share of the tasks accepted in task
generation that name nothing of their source document.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scope_jax.atlas.facts import load_world
from scope_jax.atlas.tasks import Thing, things
from scope_jax.config import load_card
from scope_jax.play.rewards import mean
from scope_jax.run.metrics import read_lines


def by_iteration(records: Iterable[dict[str, Any]], name: str) -> list[float]:
    """The mean of a metric over the steps of each iteration that have it, in order of the iterations."""
    found: dict[float, list[float]] = defaultdict(list)
    for record in records:
        if name in record and "iteration" in record:
            found[record["iteration"]].append(record[name])
    return [mean(found[iteration]) for iteration in sorted(found)]


def drifted(task: str, source: Thing) -> bool:
    """True if the task names neither the source nor anything its document speaks of."""
    return not source.names & set(task.replace(".", " ").split())


def drift(episodes: Iterable[dict[str, Any]], iterations: dict[int, float]) -> list[float]:
    """Share of the accepted drafts of task generation that drifted, by iteration."""
    sources = {thing.row["id"]: thing for thing in things(load_world()).values()}
    found: dict[float, list[float]] = defaultdict(list)
    for episode in episodes:
        text = episode["text"]
        if episode["role"] != "challenger" or episode["trained"] or not text["task"] or text["rejected"]:
            continue
        away = drifted(text["task"], sources[text["document"]])
        found[iterations[episode["step"]]].append(float(away))
    return [mean(found[iteration]) for iteration in sorted(found)]


def summary(run: Path) -> dict[str, Any]:
    """The figures of one run."""
    records = read_lines(run / "metrics.jsonl")
    cfg = load_card(run / "config.toml")
    exams = [record for record in records if any(key.startswith("eval/") for key in record)]
    iterations = {int(record["step"]): record["iteration"] for record in records if "iteration" in record}
    figures: dict[str, Any] = {
        "run": run.name,
        "seed": cfg.seed,
        "steps": max(iterations),
        "minutes": sum(record.get("time/play", 0) + record.get("time/learn", 0) for record in records) / 60,
        "before": {key: value for key, value in exams[0].items() if key.startswith("eval/")},
        "after": {key: value for key, value in exams[-1].items() if key.startswith("eval/")},
        "iteration/task_score": [
            record["iteration/task_score"] for record in records if "iteration/task_score" in record
        ],
    }
    for name in (
        "solver/rubric",
        "solver/answer_tokens",
        "solver/length",
        "solver/searches",
        "challenger/valid",
        "gates/passed",
        "creation/gates/passed",
        "creation/solver/task_score",
        "tasks/yield",
    ):
        figures[name] = by_iteration(records, name)
    if cfg.scope.mode == "self-play":
        figures["drift"] = drift(read_lines(run / "episodes.jsonl"), iterations)
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run folders")
    for run in parser.parse_args(arguments).runs:
        print(json.dumps(summary(run)))


if __name__ == "__main__":
    main()
