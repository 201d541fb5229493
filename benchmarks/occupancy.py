"""How many decoding steps the rollouts of a step take, and how many slots decode in them: what phases leave empty.

    PYTHONPATH=CHECKOUT python benchmarks/occupancy.py CARD [--steps N] [--set KEY=VALUE …]

Trains a card for some steps in the checkout, without exams, and prints by what was played (a role, or the items of
several roles) and for all: decoding steps (of a token in each slot) and slots in use, means a step. A decoding step
takes about as long however many slots decode in it, so that fewer are a shorter step where decoding takes most of it.
Every thread gets the time to reply before the next dispatch, as where these are long: counts do not depend on the
machine.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from scope_jax.cli import run as command_line
from scope_jax.rollouts import tools
from scope_jax.rollouts.engine import Engine
from scope_jax.run.activity import Activity

PATIENCE = 5.0  # seconds, at most, that threads get to reply


class Counts:
    """Of decoding steps and of the tokens of slots in them, by what was played."""

    def __init__(self) -> None:
        self.now = ""
        self.steps: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Counts in this block."""
        read, called = Engine.read, Activity.__call__

        def reading(engine: Engine, state: Any, result: Any, slots: Sequence[int]) -> Any:
            here = read(engine, state, result, slots)
            counts = [int(here.counts_S[slot]) for slot in slots]
            self.steps[self.now] += max(counts, default=0)
            self.tokens[self.now] += sum(counts)
            return here

        def watched(activity: Activity, what: str) -> AbstractContextManager[None]:
            if what.startswith(("sampling", "playing")):  # not what is searched or asked meanwhile
                self.now = what
            return called(activity, what)

        with (
            patch.object(Engine, "read", reading),
            patch.object(Activity, "__call__", watched),
            patch.object(tools, "SETTLE", PATIENCE),
        ):
            yield


def main() -> None:
    """Prints a line for each part of a step, and one for all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("card")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--set", action="append", default=[])
    given = parser.parse_args()
    counts = Counts()
    sets = ("evaluate.sets=[]", f"train.steps={given.steps}", f"train.save_every={given.steps}", *given.set)
    with TemporaryDirectory() as folder:
        overrides = [word for one in sets for word in ("--set", one)]
        sys.argv = ["scope-jax", "train", given.card, "--run", str(Path(folder) / "run"), *overrides]
        with counts.watching(), suppress(SystemExit):
            command_line()
    for name in (*counts.steps, "all"):
        steps = counts.steps.total() if name == "all" else counts.steps[name]
        tokens = counts.tokens.total() if name == "all" else counts.tokens[name]
        print(f"{name:<40} {steps / given.steps:7.0f} decoding steps, {tokens / steps:6.1f} slots in use")


if __name__ == "__main__":
    main()
