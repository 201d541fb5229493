"""`scope-jax` on another machine: with delays of 0 to 50 ms in decode loop, learner and search, drawn by a seed.

python -m tests.train.delayed SEED SMALL ARGUMENT …

SMALL: bytes from which what several processes exchange goes through their devices.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from typing import Any

from scope_jax.cli import run
from scope_jax.learner.learner import Learner
from scope_jax.multihost import payloads
from scope_jax.retrieval.search import SearchTool
from scope_jax.rollouts.loop import DecodeLoop

MOST = 0.05  # seconds


def delayed(function: Callable[..., Any], draw: random.Random) -> Callable[..., Any]:
    def late(*arguments: Any, **options: Any) -> Any:
        time.sleep(MOST * draw.random())
        return function(*arguments, **options)

    return late


if __name__ == "__main__":
    draw = random.Random(int(sys.argv.pop(1)))
    payloads.SMALL = int(sys.argv.pop(1))
    for owner, name in ((DecodeLoop, "round"), (Learner, "update"), (SearchTool, "results")):
        setattr(owner, name, delayed(getattr(owner, name), draw))
    run()
