"""Keeps what a run of the real model has measured, as soon as it ends.

    python -m benchmarks.real_model.record TASK RUN [--to FILE] [--code COMMIT]

FILE (default: benchmarks/results/real_model.json) gets, under the task and the run's seed, the commit, the mean reward
and the seconds of each step, and of each exam the score of every row in the order of its set: figures from which
`bootstrap` computes errors, and no text.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.real_model.bootstrap import exams
from scope_jax.games import load_card
from scope_jax.run.files import METRICS, read_records

FILE = Path("benchmarks/results/real_model.json")


def measured(run: Path) -> dict[str, Any]:
    """What is kept of a run; of an exam the measure that its game has for it."""
    cfg = load_card(run / "config.toml")
    steps = [record for record in read_records(run / METRICS) if "time/play" in record]
    names = sorted({name for record in steps for name in record if name.endswith("/reward")})
    seconds = [sum(record.get(f"time/{phase}", 0.0) for phase in ("play", "learn")) for record in steps]
    sets: dict[str, dict[str, list[float]]] = {}
    for one in cfg.evaluate.sets:
        measure = "score" if cfg.system == "spiral" else "accuracy"
        sets[one.name] = {
            str(step): [round(score, 4) for score in scores.values()]
            for step, scores in exams(run, one.name, measure).items()
        }
    return {
        "steps": {name: [round(record[name], 4) for record in steps if name in record] for name in names},
        "seconds": [round(each, 1) for each in seconds],
        "exams": sets,
    }


def kept(file: Path, task: str, run: Path, commit: str) -> None:
    """Adds a run to the file."""
    results = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    seed = load_card(run / "config.toml").seed
    results.setdefault(task, {})[str(seed)] = {"code": commit} | measured(run)
    file.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("run", type=Path)
    parser.add_argument("--to", type=Path, default=FILE)
    parser.add_argument("--code", help="the commit of the run, if that is not the one here")
    given = parser.parse_args()
    here = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True)
    kept(given.to, given.task, given.run, given.code or here.stdout.strip())


if __name__ == "__main__":
    main()
