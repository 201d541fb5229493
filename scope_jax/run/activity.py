"""What a run is doing, in words for those who wait for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from scope_jax.run.programs import programs


class Activity:
    """place: what the work belongs to, such as "step 3/8"; set by the training loop."""

    def __init__(self) -> None:
        self.place = ""
        self._doing: list[tuple[str, float]] = []  # with the time at which it began; what began last is shown

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """The block does this: "updating", "sampling solver"."""
        work = what, time.monotonic()
        self._doing.append(work)
        try:
            yield
        finally:
            self._doing.remove(work)  # not the last: a responder searches in a thread of its own

    def text(self, replies: Callable[[], tuple[int, int, int]] = lambda: (0, 0, 0)) -> str:
        """For example "step 3/8: sampling solver, 41 of 128 replies in 160 decoding steps, compiling program 2 of at
        most 9 for sampling: 12 s, 60 s"; "" if nothing is done.

        replies: how many of how many are sampled in the call under way, in how many decoding steps. May be called in
        any thread.
        """
        doing = self._doing[-1:]  # one operation, as the other thread goes on
        if not doing:
            return ""
        what, since = doing[0]
        done, total, steps = replies()
        parts = [f"{self.place}: {what}" if self.place else what]
        parts += [f"{done} of {total} replies in {steps} decoding steps"] if total else []
        parts += [compiling] if (compiling := programs().text()) else []
        return ", ".join([*parts, f"{time.monotonic() - since:.0f} s"])
