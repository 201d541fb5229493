"""Whether two checkouts train the same bits: short runs of every game, each killed and resumed.

    python -m benchmarks.same_bits BEFORE AFTER --out runs/same-bits [--cases ssp poker-adapters]

The cases are the ten games of Atlas, so long that each phase has trained once, supervised training, preferences and
distillation, poker of two policies with whole weights and with adapters, steps that are played ahead, and an exam.
Compared are metrics (times aside, and those that only one side has, which are listed), episodes, answers of exams and
exported weights; one line a case, exit code 1 if any differ. Runs that are already in `--out` are not repeated.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMED = ("time/", "perf/")
SHORT = ("train.save_every=1", "train.stall_timeout=3600")
Line = dict[str, Any]
NO_EXAM = ("evaluate.sets=[]",)


@dataclass(frozen=True)
class Case:
    """A card, and what makes its run short."""

    card: str
    """Relative to the checkout."""
    sets: Sequence[str]
    """Keys of the card with other values."""
    steps: int = 2
    """Steps in all; the process is killed after the first half of them."""
    devices: int = 1
    """CPU devices."""
    exam: bool = False
    """Whether the card's exams are taken."""

    def arguments(self, run: Path, teacher: Path) -> list[str]:
        """The command that trains, and resumes."""
        values = (
            *(value.replace("{ssp}", str(teacher)) for value in self.sets),
            *SHORT,
            *(() if self.exam else NO_EXAM),
            f"train.steps={self.steps}",
        )
        overrides = [word for value in values for word in ("--set", value)]
        return command("train", self.card, "--run", str(run), *overrides)


EXAM = 'evaluate.sets=[{name="held_out", path="assets/atlas/questions_held_out.jsonl", limit=24}]'
TEACHER = 'teachers.teacher.checkpoint="{ssp}"'  # what the case ssp of BEFORE has exported
TWO = 'spiral.policies=["first_player", "second_player"]'
CASES = {
    "ssp": Case("configs/ssp/atlas.toml", ["train.batch_size=4"]),
    "ssp-exam": Case("configs/ssp/atlas.toml", ["train.batch_size=4", EXAM, "evaluate.every=1"], exam=True),
    "scope": Case(  # a step of the challenger, then the solver's on its tasks
        "configs/scope/atlas.toml",
        ["scope.challenger_batch=4", "scope.solver_batch=4", "scope.steps_per_iteration=1", "scope.target_tasks=8"],
        steps=3,
    ),
    "spice": Case("configs/spice/atlas.toml", ["train.batch_size=4"]),
    "spell": Case("configs/spell/atlas.toml", ["spell.groups=4"]),
    "score": Case("configs/score/atlas.toml", ["train.batch_size=3"]),
    "r_zero": Case(  # the challenger, the pool, the solver
        "configs/r_zero/atlas.toml",
        ["r_zero.challenger_steps=1", "r_zero.challenger_batch=4", "r_zero.pool=32", "r_zero.solver_batch=4"],
        steps=4,
    ),
    "dr_zero": Case(  # the proposer, then the solver
        "configs/dr_zero/atlas.toml", ["train.batch_size=8", "dr_zero.steps=1", "dr_zero.partition=16"], steps=3
    ),
    "absolute_zero": Case(
        "configs/absolute_zero/atlas.toml", ["train.batch_size=4", "absolute_zero.seeds=4", "sandbox.workers=1"]
    ),
    "spiral": Case("configs/spiral/atlas.toml", ["spiral.turns=64"]),
    "poker-two-policies": Case("configs/spiral/atlas.toml", ["spiral.turns=64", TWO]),
    "poker-adapters": Case("configs/spiral/atlas.toml", ["spiral.turns=64", TWO, "model.adapter.rank=4"]),
    "ahead": Case(
        "configs/spice/atlas.toml",
        ["train.batch_size=4", "train.one_step_off_policy=true", "rollout.devices=1"],
        steps=4,
        devices=2,
    ),
    "rlvr": Case("configs/rlvr/atlas.toml", ["train.batch_size=4"], steps=4),
    "sft": Case("configs/sft/atlas.toml", ["train.batch_size=8"], steps=4),
    "dpo": Case("configs/dpo/atlas.toml", ["train.batch_size=8"], steps=4),
    "distillation": Case("examples/distillation.toml", ["train.batch_size=4", TEACHER]),
}


def command(*arguments: str) -> list[str]:
    """A command of scope-jax, by this interpreter."""
    return [sys.executable, "-m", "scope_jax", *arguments]


def train(checkout: Path, case: Case, run: Path, teacher: Path) -> None:
    """Trains a case; the process is killed once half of its steps are in metrics.jsonl, and the run is resumed."""
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    if case.devices > 1:
        environment["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={case.devices}"
    arguments = case.arguments(run, teacher)
    with run.with_suffix(".log").open("w") as log:
        process = subprocess.Popen(arguments, cwd=checkout, env=environment, stdout=log, stderr=log)
        while process.poll() is None and trained(run) < max(case.steps // 2, 1):
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for repeated in (arguments, command("export", str(run), str(run / "out"))):
            subprocess.run(repeated, cwd=checkout, env=environment, stdout=log, stderr=log, check=True)


def trained(run: Path) -> int:
    """The last step in metrics.jsonl, 0 without one."""
    return max((line.get("step", 0) for line in lines(run / "metrics.jsonl")), default=0)


def lines(path: Path) -> list[Line]:
    """The complete lines of a file of JSON Lines without their check sums; [] if it does not exist."""
    if not path.exists():
        return []
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    whole = [json.loads(line) for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
    return [{key: value for key, value in line.items() if key != "sum"} for line in whole]


def contents(run: Path) -> dict[str, Any]:
    """What two runs are compared by."""
    metrics = [{k: v for k, v in line.items() if not k.startswith(TIMED)} for line in lines(run / "metrics.jsonl")]
    weights = {str(path.relative_to(run)): path.read_bytes() for path in sorted((run / "out").rglob("*.safetensors"))}
    return {
        "metrics": metrics,
        "episodes": lines(run / "episodes.jsonl"),
        "exams": lines(run / "exams.jsonl.gz"),
        "weights": weights,
    }


def only_in(before: list[Line], after: list[Line]) -> tuple[set[str], set[str]]:
    """(names of metrics that only the first side has, names that only the second has)."""
    names = [{name for line in side for name in line} for side in (before, after)]
    return names[0] - names[1], names[1] - names[0]


def without(metrics: list[Line], names: set[str]) -> list[Line]:
    """The metrics without those of these names."""
    return [{name: value for name, value in line.items() if name not in names} for line in metrics]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    given = parser.parse_args()
    out = given.out.absolute()
    teacher = out / "before" / "ssp" / "out"
    names: list[str] = list(given.cases)
    if any(TEACHER in CASES[name].sets for name in names):
        names = ["ssp", *(name for name in names if name != "ssp")]
    wrong = 0
    for name in names:
        found = []
        for side, checkout in (("before", given.before), ("after", given.after)):
            run = out / side / name
            run.parent.mkdir(parents=True, exist_ok=True)
            if not (run / "out").exists():
                train(checkout.absolute(), CASES[name], run, teacher)
            found.append(contents(run))
        gone, new = only_in(found[0]["metrics"], found[1]["metrics"])
        found = [one | {"metrics": without(one["metrics"], gone | new)} for one in found]
        differing = [part for part in found[0] if found[0][part] != found[1][part]]
        counts = ", ".join(f"{len(found[0][part])} {part}" for part in found[0])
        roles = sorted({episode["role"] for episode in found[0]["episodes"]})
        verdict = f"differ: {', '.join(differing)}" if differing else "the same"
        print(f"{name}: {verdict} ({counts}; roles {', '.join(roles)})", flush=True)
        for what, metrics in (("gone", gone), ("new", new)):
            if metrics:
                print(f"    metrics that are {what}: {', '.join(sorted(metrics))}", flush=True)
        wrong += bool(differing)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
