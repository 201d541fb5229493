"""The commands: draw, cover, run, compare."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.environment import set_defaults
from tools.mutants.compare import compare
from tools.mutants.cover import Cover, cover
from tools.mutants.draw import draw
from tools.mutants.results import read_mutants, read_results, table, write_mutants
from tools.mutants.run import run

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Runs a command; returns its exit code."""
    arguments = parser().parse_args()
    set_defaults()  # before the libraries are imported, as in tests/conftest.py
    if arguments.command == "draw":
        write_mutants(arguments.out, draw(ROOT, arguments.seed, arguments.count))
        return 0
    if arguments.command == "cover":
        return cover(ROOT, arguments.out.absolute(), arguments.workers)
    if arguments.command == "run":
        mutants = read_mutants(arguments.mutants)
        results = run(ROOT, mutants, Cover(arguments.cover), arguments.out, arguments.workers, arguments.budget)
        print(table(results))
        return 0
    known = Cover(arguments.cover) if arguments.cover else None
    before = read_results(arguments.before)
    print(compare(ROOT, before, known, arguments.out, arguments.workers, arguments.budget).text())
    return 0


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    whole = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    commands = whole.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw", help="draw mutants over all layers")
    drawing.add_argument("--seed", type=int, default=0)
    drawing.add_argument("--count", type=int, default=300)
    covering = commands.add_parser("cover", help="run the suite once and keep which tests run which lines")
    running = commands.add_parser("run", help="run each mutant against the tests that run its line")
    running.add_argument("--mutants", type=Path, required=True, help="a file of `draw`, or of results")
    running.add_argument("--cover", type=Path, required=True, help="a file of `cover`")
    comparing = commands.add_parser("compare", help="which mutants that were killed are killed by the present suite")
    comparing.add_argument("before", type=Path, help="a file of results")
    comparing.add_argument(
        "--cover", type=Path, help="a file of `cover` of the present suite; without it nothing is run again"
    )
    comparing.add_argument(
        "--out", type=Path, default=ROOT / "build" / "mutants-again.jsonl", help="results of those run again"
    )
    for command in (drawing, covering, running):
        command.add_argument("--out", type=Path, required=True)
    for command in (covering, running, comparing):
        command.add_argument("--workers", type=int, default=2)
    for command in (running, comparing):
        command.add_argument("--budget", type=float, default=120.0, help="seconds of tests for each mutant")
    return whole


if __name__ == "__main__":
    sys.exit(main())
