"""Whether two checkouts train the same bits: each game of Atlas for two steps, killed between them and resumed.

    python -m benchmarks.same_bits BEFORE AFTER --out runs/same-bits

Compares metrics (times aside), episodes and exported weights, and prints one line per game; exit code 1 if any differ.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

GAMES = {  # what makes a step of a game's Atlas card short
    "ssp": ["train.batch_size=4"],
    "scope": ["scope.challenger_batch=4", "scope.solver_batch=4", "scope.steps_per_iteration=1"],
    "spice": ["train.batch_size=4"],
    "spell": ["spell.groups=4"],
    "score": ["train.batch_size=3"],
    "spiral": ["spiral.turns=64"],
    "r_zero": ["r_zero.challenger_steps=1", "r_zero.challenger_batch=4", "r_zero.pool=16"],
}
SHORT = ["train.save_every=1", "evaluate.sets=[]", "train.stall_timeout=3600"]
TIMED = ("time/", "perf/")


def command(*arguments: str) -> list[str]:
    """A command of scope-jax, by this interpreter."""
    return [sys.executable, "-m", "scope_jax", *arguments]


def train(checkout: Path, game: str, run: Path) -> None:
    """Two steps; the process is killed once the first is in metrics.jsonl, and the run is resumed."""
    sets = [word for value in (*GAMES[game], *SHORT, "train.steps=2") for word in ("--set", value)]
    arguments = command("train", f"configs/{game}/atlas.toml", "--run", str(run), *sets)
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    log = run.with_suffix(".log").open("w")
    process = subprocess.Popen(arguments, cwd=checkout, env=environment, stdout=log, stderr=log)
    while process.poll() is None and len(lines(run / "metrics.jsonl")) < 2:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    subprocess.run(arguments, cwd=checkout, env=environment, stdout=log, stderr=log, check=True)
    export = command("export", str(run), str(run / "out"))
    subprocess.run(export, cwd=checkout, env=environment, stdout=log, stderr=log, check=True)


def lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a file of JSON Lines; [] if it does not exist."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]


def contents(run: Path) -> dict[str, Any]:
    """What two runs are compared by."""
    metrics = [{k: v for k, v in line.items() if not k.startswith(TIMED)} for line in lines(run / "metrics.jsonl")]
    weights = {str(path.relative_to(run)): path.read_bytes() for path in sorted((run / "out").rglob("*.safetensors"))}
    return {"metrics": metrics, "episodes": lines(run / "episodes.jsonl"), "weights": weights}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--games", nargs="+", choices=GAMES, default=list(GAMES))
    given = parser.parse_args()
    wrong = 0
    for game in given.games:
        found = []
        for name, checkout in (("before", given.before), ("after", given.after)):
            run = given.out.absolute() / name / game
            run.parent.mkdir(parents=True, exist_ok=True)
            if not (run / "out").exists():
                train(checkout.absolute(), game, run)
            found.append(contents(run))
        parts = {part: found[0][part] == found[1][part] for part in found[0]}
        steps, episodes = len(found[0]["metrics"]), len(found[0]["episodes"])
        differing = ", ".join(part for part, same in parts.items() if not same)
        print(f"{game}: {f'differ: {differing}' if differing else 'the same'} ({steps} lines, {episodes} episodes)")
        wrong += bool(differing)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
