"""SIGSTOP and SIGCONT: what a scheduler does that suspends a job, or a laptop whose lid is closed.

Rows as in `faults`: the folder holds `whole`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from random import Random

from scope_jax.multihost.watch import BEAT, LOST
from tests.torture import lives
from tests.torture.faults import GAME
from tests.torture.table import Tried
from tests.train import runs, test_processes

SHORT = (0.2, 3.0)  # seconds of a stop
PATIENCE = 20  # seconds without progress after which the watchdog ends the process
SPICE = ("train.steps=3", "train.keep=99")
Stopped = tuple[subprocess.Popen[str], Path, list[int]]  # processes of a run, its folder, their ids


def at_random(seed: int, folder: Path) -> Tried:
    """A process is stopped again and again, once for longer than its watchdog waits."""
    run, draw, stops = folder / "run", Random(f"stops {seed}"), 0
    watched = (f"train.stall_timeout={PATIENCE}", "train.stall_action=exit")
    life = lives.Life(lives.words(GAME, run, *watched), folder / "life.log")
    while not life.ends_within(draw.uniform(0.2, 2.0)):
        long = stops == 4
        life.send(signal.SIGSTOP)
        time.sleep(PATIENCE * 1.5 if long else draw.uniform(*SHORT))
        life.send(signal.SIGCONT)
        stops += 1
    said = life.end()
    assert stops > 5 and not [line for line in said if "no progress" in line], (stops, said)
    runs.same(folder / "whole", run)
    return Tried(
        stops,
        f"of up to {SHORT[1]:g} s, and one of {PATIENCE * 1.5:g} s with a watchdog of {PATIENCE} s: no false alarm, "
        "the same bits",
    )


def _two(folder: Path, run: Path) -> Stopped:
    """A run of two processes that has a checkpoint."""
    spec = test_processes.spec("spice/atlas.toml", run, 2, *SPICE)
    process = test_processes.begin(folder, spec)
    runs.wait_for(process, lambda: bool(runs.saved(run)))
    return process, run, [int(Path(f"{spec['log']}.{number}.pid").read_text()) for number in range(2)]


def _stopped(pids: Iterable[int], seconds: float) -> None:
    for signal_, wait in ((signal.SIGSTOP, seconds), (signal.SIGCONT, 0.0)):
        for pid in pids:
            os.kill(pid, signal_)
        time.sleep(wait)


def _whole_of_two(folder: Path) -> Path:
    whole = folder / "two"
    test_processes.do(folder, test_processes.spec("spice/atlas.toml", whole, 2, *SPICE))
    return whole


def of_two(folder: Path) -> Tried:
    """One of two processes is stopped for a while, then the other, then both for longer than a silence may last."""
    whole = _whole_of_two(folder)
    process, run, pids = _two(folder, folder / "run")
    for which, seconds in ((pids[:1], LOST / 3), (pids[1:], LOST / 3), (pids, LOST + 3 * BEAT)):
        assert process.poll() is None, "it was over before it was stopped"
        _stopped(which, seconds)
    test_processes.finish(process, test_processes.spec("spice/atlas.toml", run, 2, *SPICE))
    runs.same(whole, run)
    both = LOST + 3 * BEAT
    return Tried(3, f"one of them {LOST / 3:.0f} s, both {both:.0f} s: none is taken for gone, the same bits")


def for_good(folder: Path) -> Tried:
    """Each of two processes in turn is stopped for longer than a silence may last."""
    whole = _whole_of_two(folder)
    for number in range(2):
        process, run, pids = _two(folder, folder / f"run-{number}")
        os.kill(pids[number], signal.SIGSTOP)
        log = Path(f"{run}.log.{1 - number}")
        runs.wait_for(process, lambda log=log: "scope-jax:" in log.read_text())
        os.kill(pids[number], signal.SIGCONT)
        process.communicate(timeout=runs.LIMIT)
        said = [Path(f"{run}.log.{one}").read_text() for one in range(2)]
        sentences = [[line for line in text.splitlines() if line.startswith("scope-jax:")] for text in said]
        assert [len(lines) for lines in sentences] == [1, 1] and not any("Traceback" in text for text in said), said
        assert f"process {number} is gone (no sign of life" in sentences[1 - number][0], sentences
        again = test_processes.spec("spice/atlas.toml", run, 2, *SPICE)
        test_processes.do(folder, again)
        runs.same(whole, run)
    said_by = f"after {LOST:g} s the other ends with one message, and the stopped one when it wakes"
    return Tried(2, f"{said_by}; the same command goes on, the same bits")


def stops(seed: int) -> dict[str, Callable[[Path], Tried]]:
    """Every row by its name in the table."""
    return {
        "stopped and continued at random moments": partial(at_random, seed),
        "one of two processes stopped, and both": of_two,
        "one of two processes stopped for good": for_good,
    }
