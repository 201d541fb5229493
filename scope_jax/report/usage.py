"""What a run used beside what its plan by arithmetic said on the machine where it started last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from scope_jax.report.panels import words
from scope_jax.run.files import METRICS, read_json, read_records

PLAN = "plan.json"  # in the run folder: `plan.command.outline`
MEMORY = {  # the first of them that was measured counts: on CPUs the process has the devices' memory
    "perf/device_memory_peak_gib": "memory of a device",
    "perf/process_memory_peak_gib": "memory of the process",
}
SPEEDS = {"time/play": "generated_tokens_per_second", "time/learn": "trained_tokens_per_second"}  # of a plan, in perf/
PHASES = (*SPEEDS, "time/wait", "time/checkpoint")
LEAST = 0.05  # seconds of a phase that is told of

Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Usage:
    """A row of the table."""

    what: str
    planned: str
    """"": the plan does not say."""
    used: str


def usage(run: Path, lines: Lines) -> list[Usage]:
    """Memory, and seconds of a phase: medians of the steps after the first, which compiles."""
    plan: Any = read_json(run / PLAN, "remove it: the report then has no plan") if (run / PLAN).is_file() else {}
    return [*_memory(plan, lines), *_seconds(plan, lines[1:] if len(lines) > 1 else lines)]


def _memory(plan: Mapping[str, Any], lines: Lines) -> Iterable[Usage]:
    for name, what in MEMORY.items():
        if found := [line[name] for line in lines if line.get(name) is not None]:
            planned = f"{plan['peak_gib']:.2f} GiB in the phase {plan['phase']}" if plan else ""
            return [Usage(what, planned, f"{max(found):.2f} GiB")]
    return []


def _seconds(plan: Mapping[str, Any], lines: Lines) -> Iterable[Usage]:
    for phase in PHASES:
        if not (found := [line[phase] for line in lines if line.get(phase) is not None]):
            continue
        speed = plan.get(SPEEDS.get(phase, ""))
        tokens = [
            line[phase] * line[f"perf/{SPEEDS[phase]}"]
            for line in lines
            if phase in SPEEDS and line.get(phase) is not None and line.get(f"perf/{SPEEDS[phase]}") is not None
        ]
        planned = f"{median(tokens) / speed:.1f} s" if speed and tokens else ""
        if planned or median(found) >= LEAST:
            yield Usage(words(phase), planned, f"{median(found):.1f} s")


def used(run: Path) -> str:
    """The same as a line."""
    rows = usage(run, [line for line in read_records(run / METRICS) if "time/play" in line])
    told = (f"{row.what} {row.used}" + (f" (planned {row.planned})" if row.planned else "") for row in rows)
    return f"used: {', '.join(told)} of a step" if rows else "nothing was measured"
