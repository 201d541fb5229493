"""Faults of the machine: disks, folders, clocks, damaged files. Each leaves a run that ends with the undisturbed bits.

A fault is a function of a folder that is empty but for `whole`, the undisturbed run; it returns the outcome
in words, with the number of tries if there were several.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random

from scope_jax.models.files.seal import SEAL
from tests.torture import lives
from tests.torture.table import Tried
from tests.train import runs

GAME = "ssp"
NOBODY = 65534
JUMPS = (timedelta(days=-400), timedelta(hours=-1), timedelta(seconds=3), timedelta(days=3650))


class NotPossible(Exception):
    """The fault cannot be caused on this machine; the message says why."""


def ended(folder: Path, run: Path, *, before: str, code: int = 2) -> str:
    """The last line of a life that ends with this code, after lines of its usual kind; it contains `before`."""
    *_, last = lives.Life(lives.words(GAME, run), folder / "life.log").end(code)
    assert before in last and last.startswith("scope-jax: ") and last.endswith("."), last
    return last


def compared(folder: Path, run: Path) -> None:
    """The same command again ends with the undisturbed bits."""
    lives.Life(lives.words(GAME, run), folder / "again.log").end()
    runs.same(folder / "whole", run)


# ----------------------------------------------------------------------------------------------------------- full disk
@contextmanager
def disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system in memory of that size."""
    place = folder / "disk"
    place.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place]).returncode:
        raise NotPossible("mounting is not allowed")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)
        place.rmdir()


def full_disk(folder: Path) -> str:
    needed = sum(path.stat().st_size for path in (folder / "whole").rglob("*") if path.is_file())
    with disk(folder, str(needed // 2)) as place:
        ended(folder, place / "run", before="could not be written (No space left on device); free some space")
        left = runs.saved(place / "run")
        subprocess.run(["mount", "-o", "remount,size=1g", place], check=True)
        compared(folder, place / "run")
    return f"one message, checkpoints kept: {len(left)}; with more space the same command goes on, the same bits"


# ----------------------------------------------------------------------------------------------------- read-only folder
def read_only_disk(folder: Path) -> Tried:
    """The disk is read-only when a run goes on, and when one begins."""
    with disk(folder, "1g") as place:
        run = place / "run"
        life = lives.Life(lives.words(GAME, run), folder / "life.log")
        while not runs.saved(run):
            assert not life.ends_within(0.01), life.output
        life.kill()
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        ended(folder, run, before="Read-only file system")
        ended(folder, place / "other", before="Read-only file system")
        subprocess.run(["mount", "-o", "remount,rw", place], check=True)
        compared(folder, run)
    return Tried(2, "one message; once it can be written the same command goes on, the same bits")


def _without_privileges() -> None:
    """Permissions hold for this process, even if it is root's."""
    version, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(version, nothing):
        raise OSError(ctypes.get_errno(), "capset")


def forbidden_folder(folder: Path) -> str:
    """A folder that belongs to somebody else."""
    if os.geteuid():
        raise NotPossible("only root can make a folder somebody else's")
    theirs = folder / "theirs"
    theirs.mkdir(mode=0o755)
    os.chown(theirs, NOBODY, NOBODY)
    folder.chmod(0o755)
    life = lives.Life(lives.words(GAME, theirs / "run"), folder / "life.log", _without_privileges)
    last = life.end(2)[-1]
    assert "Permission denied" in last and str(theirs) in last, last
    assert not list(theirs.iterdir())
    return "one message, nothing is written"


# -------------------------------------------------------------------------------------------------------- two processes
def two_processes(folder: Path) -> Tried:
    """Five times a second process on the folder of a running one."""
    run = folder / "run"
    life = lives.Life(lives.words(GAME, run), folder / "first.log")
    while not (run / "config.toml").is_file():
        assert not life.ends_within(0.01), life.output
    refused = 0
    while refused < 5 and not life.ends_within(0):
        second = lives.Life(lives.words(GAME, run), folder / "second.log")
        if life.ends_within(0):
            second.end()
            break
        assert "another process is using" in second.end(2)[-1]
        refused += 1
    life.end()
    assert refused
    runs.same(folder / "whole", run)
    return Tried(refused, "second processes refused with one message each; the first is not disturbed")


def at_once(folder: Path) -> Tried:
    """Two processes begin at the same moment: on one run folder, of which one is refused, and on one search index and
    compilation cache, which both fill."""
    tries = 3
    for number in range(tries):
        run, logs = folder / f"run-{number}", [folder / f"{number}-{one}.log" for one in range(2)]
        both = [lives.Life(lives.words(GAME, run), log) for log in logs]
        codes = sorted(str(life.code()) for life in both)
        assert codes == ["0", "2"], [life.output for life in both]
        (refused,) = [life for life in both if life.code()]
        assert "another process is using" in refused.end(2)[-1]
        runs.same(folder / "whole", run)
    for number in range(tries):
        shared = (f"retrieval.index={folder / f'index-{number}'}", f"train.compilation_cache={folder / 'cache'}")
        places = [folder / f"{number}-{one}" for one in range(2)]
        both = [
            lives.Life(lives.words(GAME, place, *shared), place.with_suffix(".log"), _own_cache) for place in places
        ]
        for life, place in zip(both, places, strict=True):
            life.end()
            runs.same(folder / "whole", place)
    return Tried(2 * tries, "on one run: one of them refused; on one index and compilation cache: both the same bits")


def _own_cache() -> None:
    """Only the cache of the card."""
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)


# --------------------------------------------------------------------------------------------------------------- clock
def _jumping(seed: int) -> None:
    """The wall clock jumps at every hundredth look, back and forth; the monotonic clock cannot."""
    draw, real, looks, ahead = Random(seed), time.time, [0], [0.0]

    def now() -> float:
        looks[0] += 1
        if looks[0] % 100 == 1:
            ahead[0] = draw.choice(JUMPS).total_seconds()
        return real() + ahead[0]

    time.time = now
    time.time_ns = lambda: int(now() * 1e9)


def clock(folder: Path) -> Tried:
    run = folder / "run"
    life = lives.Life(lives.words(GAME, run), folder / "life.log", partial(_jumping, 0))
    while len(runs.saved(run)) < 2:
        assert not life.ends_within(0.01), life.output
    life.kill()
    lives.Life(lives.words(GAME, run), folder / "life.log", partial(_jumping, 1)).end()
    runs.same(folder / "whole", run)
    return Tried(2, "two lives with jumps by up to ten years: the same bits")


# -------------------------------------------------------------------------------------------------------------- damage
def _truncate(file: Path, draw: Random) -> None:
    os.truncate(file, draw.randrange(file.stat().st_size))


def _flip(file: Path, draw: Random) -> None:
    content = bytearray(file.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)


def _remove(file: Path, draw: Random) -> None:
    file.unlink()


def damaged(damage: Callable[[Path, Random], None], count: int, seed: int, folder: Path) -> Tried:
    """Damages one random file of the newest checkpoint, `count` times in copies of the undisturbed run.

    Not orbax's notes of the commit, which nobody reads and the seal does not list.
    """
    draw = Random(f"{damage.__name__} {seed}")
    for number in range(count):
        run = folder / "run"
        shutil.copytree(folder / "whole", run)
        newest, before = runs.saved_at(run, runs.saved(run)[-1]), runs.saved(run)[-2]
        names = sorted([*json.loads((newest / SEAL).read_text(encoding="utf-8")), SEAL])
        damage(newest / draw.choice(names), draw)
        said = lives.Life(lives.words(GAME, run), folder / f"life-{number}.log").end()
        assert any(str(newest) in line for line in said), said
        assert any(line.startswith(f"going on from step {before} ") for line in said), said
        runs.same(folder / "whole", run)
        shutil.rmtree(run)
    return Tried(count, "says which, goes on from the one before, the same bits")


def cut_records(folder: Path) -> str:
    """metrics.jsonl and episodes.jsonl cut in the middle of a line, as by a machine that lost its power."""
    run = folder / "run"
    shutil.copytree(folder / "whole", run)
    shutil.rmtree(runs.saved_at(run, runs.saved(run)[-1]))
    for name in ("metrics.jsonl", "episodes.jsonl"):
        os.truncate(run / name, (run / name).stat().st_size - 30)
    compared(folder, run)
    return "the cut lines are written again, the same bits"


def every_checkpoint(folder: Path) -> str:
    run = folder / "run"
    shutil.copytree(folder / "whole", run)
    for step in runs.saved(run):
        files = [path for path in runs.saved_at(run, step).rglob("*") if path.is_file()]
        _flip(max(files, key=lambda path: path.stat().st_size), Random(step))
    ended(folder, run, before="every checkpoint in")
    return "one message: no silent beginning from the start"


def faults(damages: int, seed: int) -> dict[str, Callable[[Path], Tried | str]]:
    """Every fault by its name in the table."""
    return {
        "the disk is full": full_disk,
        "the disk becomes read-only": read_only_disk,
        "the folder belongs to another user": forbidden_folder,
        "two processes on one folder": two_processes,
        "two processes that begin at the same moment": at_once,
        "the clock jumps": clock,
        "a truncated file in the newest checkpoint": partial(damaged, _truncate, damages, seed),
        "a flipped bit in the newest checkpoint": partial(damaged, _flip, damages, seed),
        "a file missing from the newest checkpoint": partial(damaged, _remove, damages, seed),
        "every checkpoint is damaged": every_checkpoint,
        "records cut in the middle of a line": cut_records,
    }
