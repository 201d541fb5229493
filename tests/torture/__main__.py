"""Tortures small runs of the five games on Atlas, and writes what happened into a table (docs/reliability.md).

    python -m tests.torture                                     everything: about two hours of one core
    python -m tests.torture --game ssp --kills 20               kills in one game
    python -m tests.torture --faults --hostile --kills 0        the machine's faults; servers and documents
    python -m tests.torture --attacks --kills 0                 what strangers put into folders, names and networks
    python -m tests.torture --only "the clock jumps"            one row
    python -m tests.torture --only "random texts through all parsers" --texts 1000000
    python -m tests.torture ... --out tests/torture/outcomes.json      the rows of this table that were run are replaced

An outcome that is not what the table's reader expects is an AssertionError, and ends the command.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path

import jax

from scope_jax.cli import quiet_libtpu
from tests.torture import attacks, crowds, deletions, faults, games, hostile, lives, spaces, stops, stores, table, texts
from tests.torture.table import Tried
from tests.train import runs

Row = Callable[[Path], Tried | str]  # words alone: tried once


def kills(game: str, count: int, seed: int, seconds: float, folder: Path) -> Tried:
    """SIGKILL at random moments of the small run of a game."""
    found = lives.killed(game, count, seed, folder, seconds)
    where = ", ".join(f"{found[name]} {name}" for name in lives.MOMENTS if found[name])
    every = "one run, which ends" if found["runs"] == 1 else f"{found['runs']} runs, which all end"
    return Tried(found["kills"], f"{where}: in {every} with the bits of an undisturbed one")


@cache
def _undisturbed() -> tempfile.TemporaryDirectory[str]:
    """The undisturbed run, in a folder that lasts as long as this process."""
    folder = tempfile.TemporaryDirectory()
    lives.train(faults.GAME, Path(folder.name) / "whole")
    return folder


def with_whole(fault: Row, folder: Path) -> Tried | str:
    """A fault that needs the undisturbed run."""
    shutil.copytree(Path(_undisturbed().name) / "whole", folder / "whole")
    return fault(folder)


def rows(given: argparse.Namespace) -> Iterator[tuple[str, Row]]:
    """What was asked for, by its name in the table."""
    every = not (given.game or given.faults or given.hostile or given.attacks or given.only)
    if given.kills:
        for game in given.game or (games.SETS if every or given.only else ()):
            yield (
                f"{game.upper()}: killed at random moments",
                partial(kills, game, given.kills, given.seed, given.seconds),
            )
    if every or given.faults or given.only:
        of_the_machine = faults.faults(given.damages, given.seed) | stops.stops(given.seed) | deletions.deletions()
        for name, fault in of_the_machine.items():
            yield name, partial(with_whole, fault)
        yield from spaces.spaces().items()
    if every or given.hostile or given.only:
        yield from hostile.hostile(given.seed).items()
        yield from crowds.crowds().items()
        yield from stores.stores(given.seed).items()
    if every or given.attacks or given.only:
        yield from attacks.attacks().items()
    if given.texts and (every or given.only):
        yield texts.row(given.first, given.texts, given.seed, given.seconds)


def _settle() -> None:
    """For the processes that are forked, which start JAX later: CPUs, all programs are kept, servers are on this
    machine. This process only reads checkpoints."""
    quiet_libtpu()
    jax.config.update("jax_platforms", "cpu")
    logging.getLogger("absl").setLevel(logging.ERROR)
    os.environ |= {"JAX_PLATFORMS": "cpu", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(runs.ROOT / ".cache" / "jax"))


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line. Raises SystemExit for a wrong one."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--game", nargs="+", choices=games.SETS, help="kills in these games")
    options.add_argument("--kills", type=int, default=20, help="kills in each game")
    options.add_argument("--seconds", type=float, default=float("inf"), help="no new kill, or text, after this time")
    options.add_argument("--faults", action="store_true", help="faults of the machine")
    options.add_argument("--damages", type=int, default=10, help="copies that are damaged in each way")
    options.add_argument("--hostile", action="store_true", help="hostile servers and documents")
    options.add_argument("--attacks", action="store_true", help="folders, names and networks of strangers")
    options.add_argument("--texts", type=int, default=100_000, help="random texts through all parsers")
    options.add_argument("--first", type=int, default=0, help="number of the first of them, for runs in parts")
    options.add_argument("--only", nargs="+", metavar="ROW", help="rows of the table, by their names")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--out", type=Path, help="JSON file with the table")
    given = options.parse_args(argv)
    if unknown := set(given.only or ()) - {name for name, _ in rows(given)}:
        options.error(f"no row is called {', '.join(unknown)}")
    return given


def main(argv: Sequence[str] | None = None) -> None:
    given = parsed(argv)
    _settle()
    chosen = [(name, row) for name, row in rows(given) if not given.only or name in given.only]
    for name, row in chosen:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = row(Path(folder))
            except faults.NotPossible as reason:
                found = Tried(0, f"not run: {reason}")
        tried = found if isinstance(found, Tried) else Tried(1, found)
        took = time.monotonic() - began
        print(f"{name}: {tried.tries:,} tries: {tried.outcome} ({took:.0f} s)", file=sys.stderr, flush=True)
        if given.out is not None:
            table.put(given.out, name, tried)


if __name__ == "__main__":
    main()
