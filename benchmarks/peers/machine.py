"""How much of the machine others used during a run, from Linux's /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LIMIT = 0.05  # share of all cores used by others above which a run does not count
TICK = 1.0 / os.sysconf("SC_CLK_TCK")  # seconds


def cores() -> int:
    """Cores of the machine."""
    return os.cpu_count() or 1


@dataclass(frozen=True)
class Usage:
    """A moment: seconds on the clock, CPU seconds so far of the whole machine and of one tree of processes."""

    clock: float
    machine: float
    own: float


def busy_ticks(stat: str) -> int:
    """Ticks of all cores in /proc/stat that were not idle: user, nice, system, irq, softirq, and stolen by the host."""
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, stat.splitlines()[0].split()[1:9])
    return user + nice + system + irq + softirq + steal


def process_ticks(stat: str) -> tuple[int, int]:
    """(parent, CPU ticks of the process and of its children that have ended) in /proc/PID/stat."""
    fields = stat.rpartition(")")[2].split()  # the name before may hold spaces and brackets
    return int(fields[1]), sum(map(int, fields[11:15]))


def tree_ticks(processes: Mapping[int, tuple[int, int]], root: int) -> int:
    """CPU ticks of a process and of everything below it; processes: (parent, ticks) by number."""
    ticks = processes[root][1] if root in processes else 0
    return ticks + sum(tree_ticks(processes, child) for child, (parent, _) in processes.items() if parent == root)


def usage(root: int) -> Usage:
    """Usage now, of the machine and of the tree below process `root`."""
    processes = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            processes[int(folder.name)] = process_ticks((folder / "stat").read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
    machine = busy_ticks(Path("/proc/stat").read_text())
    return Usage(time.perf_counter(), machine * TICK, tree_ticks(processes, root) * TICK)


def others_share(before: Usage, after: Usage, cores: int) -> float:
    """Share of all cores' time between two moments that was used outside the tree, at least 0."""
    others = (after.machine - before.machine) - (after.own - before.own)
    return max(0.0, others / ((after.clock - before.clock) * cores))
