"""Keeps what a run of the real model has measured, as soon as it ends.

    python -m benchmarks.real_model.record TASK RUN [--to FILE] [--code COMMIT] [--seed SEED]

FILE (default: benchmarks/real_model/results.json) gets, under the task and the run's seed, the commit, the mean reward
and the seconds of each step, and of each exam the score of every row in the order of its set: figures from which
`bootstrap` computes errors, and no text. RUN is a folder of `scope-jax train`, or one of `trl_run`, whose seed is
given; its code are the versions of TRL, transformers and torch.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.real_model.bootstrap import exams
from scope_jax.games import load_card
from scope_jax.run.files import METRICS, read_records

FILE = Path("benchmarks/real_model/results.json")
CURVE = "curve.json"  # of trl_run


def measured(run: Path, commit: str) -> dict[str, Any]:
    """What is kept of a run; of an exam the measure that its game has for it."""
    cfg = load_card(run / "config.toml")
    steps = [record for record in read_records(run / METRICS) if "time/play" in record]
    names = sorted({name for record in steps for name in record if name.endswith("/reward")})
    seconds = [sum(record.get(f"time/{phase}", 0.0) for phase in ("play", "learn")) for record in steps]
    sets: dict[str, dict[str, list[float]]] = {}
    measure = "score" if cfg.system == "spiral" else "accuracy"
    for one in cfg.evaluate.sets:
        sets[one.name] = {
            str(step): [round(score, 4) for score in scores.values()]
            for step, scores in exams(run, one.name, measure).items()
        }
    return {
        "code": commit,
        "steps": {name: [round(record[name], 4) for record in steps if name in record] for name in names},
        "seconds": [round(each, 1) for each in seconds],
        "measure": measure,
        "exams": sets,
    }


def measured_by_trl(curve: Path) -> dict[str, Any]:
    """The same of a run of `trl_run`, with the seconds of generation by themselves."""
    record = json.loads(curve.read_text(encoding="utf-8"))
    steps = record["steps"]
    return {
        "code": " ".join(f"{name} {number}" for name, number in record["versions"].items()),
        "steps": {"policy/reward": [round(step["reward"], 4) for step in steps]},
        "seconds": [round(step["seconds"], 1) for step in steps],
        "seconds_of_generation": [round(step["generation"], 1) for step in steps],
        "measure": "accuracy",
        "exams": record["exams"],
    }


def kept(file: Path, task: str, seed: int, figures: Mapping[str, Any]) -> None:
    """Adds a run to the file."""
    results = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    results.setdefault(task, {})[str(seed)] = figures
    file.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task")
    parser.add_argument("run", type=Path)
    parser.add_argument("--to", type=Path, default=FILE)
    parser.add_argument("--code", help="the commit of the run, if that is not the one here")
    parser.add_argument("--seed", type=int, help="of a run of trl_run")
    given = parser.parse_args()
    if (given.run / CURVE).exists():
        kept(given.to, given.task, given.seed, measured_by_trl(given.run / CURVE))
        return
    here = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True)
    seed = load_card(given.run / "config.toml").seed
    kept(given.to, given.task, seed, measured(given.run, given.code or here.stdout.strip()))


if __name__ == "__main__":
    main()
