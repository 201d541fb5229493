"""Distilling a trained solver into the base against training the base by self-play: held-out accuracy by step.

    python -m benchmarks.distillation --seeds 0 1 2 3 4 --self-play 0 --out runs/distillation \\
        [--set train.steps=4] [--workers 2]

Trains configs/ssp/atlas.toml with the seeds of --self-play, exports the last weights of the first of these runs, and
trains examples/distillation.toml with every seed and those weights as the teacher; exams after every step. The same
command resumes. See benchmarks/seeds for the folders. Prints a table.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.seeds.runner import Job, commit_of, jobs, run_all
from benchmarks.seeds.statistics import Estimate, estimate
from scope_jax.errors import UserError
from scope_jax.run.files import read_records
from scope_jax.run.stopping import listen

SELF_PLAY, STUDENT = Path("configs/ssp/atlas.toml"), Path("examples/distillation.toml")
METRIC = "eval/held_out/accuracy"
EXAMS = ("evaluate.every=1",)
NEAR = 3.0  # points from the teacher


def curve(runs: Sequence[Job]) -> dict[int, Estimate]:
    """Accuracy in per cent by step, over the runs that have it."""
    values: dict[int, list[float]] = {}
    for job in runs:
        for line in list(read_records(job.run / "metrics.jsonl")):
            if line.get(METRIC) is not None:
                values.setdefault(int(line["step"]), []).append(100 * line[METRIC])
    return {step: each for step in sorted(values) if (each := estimate(values[step])) is not None}


def first_near(found: Mapping[int, Estimate], teacher: float) -> str:
    """The first step whose mean is near the teacher's accuracy, as text."""
    near = [step for step, each in found.items() if each.mean > teacher - NEAR]
    return f"after {near[0]} steps" if near else "in no step"


def shown(each: Estimate | None) -> str:
    if each is None:
        return "–"
    return f"{each.mean:.1f}" if each.error is None else f"{each.mean:.1f} ± {each.error:.1f}"


def page(command: str, self_play: Sequence[Job], students: Sequence[Job]) -> str:
    """The command, accuracy by step, and the steps that each way takes."""
    by_play, by_teacher = curve(self_play), curve(students)
    teacher = curve(self_play[:1])
    best = teacher[max(teacher)].mean
    rows = [f"| step | self-play, n = {len(self_play)} | distillation, n = {len(students)} | from the teacher |"]
    rows.append("|---|---|---|---|")
    for step in sorted({*by_play, *by_teacher}):
        own = by_teacher.get(step)
        away = "–" if own is None else f"{own.mean - best:+.1f}"
        rows.append(f"| {step} | {shown(by_play.get(step))} | {shown(own)} | {away} |")
    said = (
        f"Held-out accuracy, %; the teacher, the last weights of self-play, has {best:.1f}. Within {NEAR:g} points of "
        f"it: distillation {first_near(by_teacher, best)}, self-play {first_near(by_play, best)}."
    )
    code = ", ".join(sorted({commit_of(job) for job in (*self_play, *students)}))
    return "\n\n".join([f"```\n{command}\n```", "\n".join(rows), said, f"Code: {code}."])


def trained(asked: Sequence[Job], workers: int) -> None:
    """Trains what is not yet trained. Raises UserError for a run that fails."""
    if failed := run_all(asked, workers, say):
        job, reason = next(iter(failed.items()))
        raise UserError(f"{job.name} {reason}")


def exported(job: Job) -> Path:
    """The folder with a run's last weights."""
    folder = job.run.with_name(f"{job.run.name}-weights")
    if not folder.is_dir():
        subprocess.run(
            [sys.executable, "-m", "scope_jax", "export", str(job.run), str(folder), "--dtype", "float32"],
            check=True,
            stdout=sys.stderr,
        )
    return folder


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, required=True, help="of the students")
    parser.add_argument("--self-play", nargs="+", type=int, required=True, help="seeds; the first is the teacher")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="overrides for the students")
    parser.add_argument("--workers", type=int, default=1, help="concurrent processes [1]")
    given = parser.parse_args(arguments)
    self_play = jobs([SELF_PLAY], given.self_play, given.out, EXAMS)
    trained(self_play, given.workers)
    teacher = f'teachers.teacher.checkpoint="{exported(self_play[0])}"'
    students = jobs([STUDENT], given.seeds, given.out, [*EXAMS, *given.set, teacher])
    trained(students, given.workers)
    words = ["--seeds", *map(str, given.seeds), "--self-play", *map(str, given.self_play), "--out", str(given.out)]
    words += ["--set", *given.set] if given.set else []
    print(page(f"python -m benchmarks.distillation {shlex.join(words)}", self_play, students))
    return 0


if __name__ == "__main__":
    listen()
    sys.exit(main())
