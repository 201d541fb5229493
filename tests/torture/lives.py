"""Lives of one run: `scope-jax train` in processes that are begun, killed at random moments, and begun again.

A process is forked from a server that has imported the libraries, and no more: no devices, no files of the run. So a
life begins in a second instead of twelve, and its end is a real SIGKILL of a real process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.torture import games
from tests.train import runs

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.torture.preloaded"])
LIMIT = 600  # seconds for a life that nobody ends
MOMENTS = (
    "starting",
    "in the first step of a life",
    "in a later step",
    "between a step's metrics and its checkpoint",
    "writing a checkpoint",
)
Change = Callable[[], Any]  # called in a life before its command


def _live(words: Sequence[str], output: str, change: Change | None) -> None:
    """One process of the command line."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.chdir(runs.ROOT)
    sys.argv = ["scope-jax", *words]
    if change is not None:
        change()
    from scope_jax.cli import run

    run()


class Life:
    """A process that trains; `output` is what it printed."""

    def __init__(self, words: Sequence[str], output: Path, change: Change | None = None) -> None:
        self._output = output
        self._process = CONTEXT.Process(target=_live, args=(list(words), str(output), change))
        self._process.start()

    def ends_within(self, seconds: float) -> bool:
        self._process.join(seconds)
        return self._process.exitcode is not None

    def send(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self._process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def code(self) -> int | None:
        """Its exit code, once it has ended."""
        assert self.ends_within(LIMIT), self.output
        return self._process.exitcode

    def end(self, code: int = 0) -> list[str]:
        """Its lines, once it has ended; asserts its exit code."""
        if not self.ends_within(LIMIT):
            self.kill()
            raise AssertionError(f"it did not end within {LIMIT} s:\n{self.output}")
        assert self._process.exitcode == code, (self._process.exitcode, self.output)
        assert "Traceback" not in self.output, self.output
        return self.output.splitlines()

    @property
    def output(self) -> str:
        return self._output.read_text(encoding="utf-8", errors="replace") if self._output.is_file() else ""


def words(game: str, run: Path, *more: str, card: str | None = None) -> list[str]:
    """The command's arguments."""
    return runs.command(card or games.card(game), run, games.sets(game, *more))[3:]


def train(game: str, run: Path, *more: str, change: Change | None = None, code: int = 0) -> list[str]:
    """A life that ends by itself with this code; its lines."""
    return Life(words(game, run, *more), run.with_suffix(".log"), change).end(code)


def moment(run: Path, output: str) -> str:
    """What a process was doing when it was killed, by what it had printed and what lies in its folder."""
    steps = len(re.findall(r"^step \d+(?:/\d+)?  ", output, re.MULTILINE))
    names = [path.name for path in (run / "checkpoints").glob("*")]
    if any(not name.isdigit() for name in names):
        return MOMENTS[4]
    recorded = runs.lines(run, "metrics.jsonl") if (run / "metrics.jsonl").is_file() else []
    if recorded and steps and recorded[-1]["step"] > max(map(int, names), default=0):
        return MOMENTS[3]
    if "the first step compiles" not in output:
        return MOMENTS[0]
    return MOMENTS[2] if steps else MOMENTS[1]


def killed(game: str, count: int, seed: int, folder: Path, seconds: float = float("inf")) -> dict[str, Any]:
    """Runs of a game, killed `count` times in all at random moments; every one ends with the undisturbed run's bits.

    A life that is not over by then is killed after a time that is uniform between 0 and one and a half lengths of the
    undisturbed run; nothing is killed after `seconds`. Returns the numbers of kills by moment, and of compared runs.
    """
    whole, second = folder / "whole", folder / "second"
    train(game, whole)
    began = time.monotonic()
    train(game, second)  # its programs are compiled by now
    length = time.monotonic() - began
    runs.same(whole, second)
    draw, found, compared = Random(f"{game} {seed}"), Counter[str](), 0
    while found.total() < count and time.monotonic() - began < seconds:
        run = folder / f"run-{compared}"
        while True:
            life = Life(words(game, run), run.with_suffix(".log"))
            kills = found.total() < count and time.monotonic() - began < seconds
            if life.ends_within(draw.uniform(0, 1.5 * length) if kills else LIMIT):
                life.end()
                break
            life.kill()
            if not kills:
                raise AssertionError(f"{game}: a life did not end within {LIMIT} s:\n{life.output}")
            found[moment(run, life.output)] += 1
        runs.same(whole, run)
        compared += 1
        shutil.rmtree(run)
    shutil.rmtree(second)
    return {"kills": found.total(), "runs": compared, **{name: found[name] for name in MOMENTS}}
