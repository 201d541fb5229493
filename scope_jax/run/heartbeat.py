"""A line now and then while long work goes on, so that a first step that compiles for minutes is not silent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY = 30.0  # seconds


@contextmanager
def heartbeat(say: Callable[[str], None], what: str, done: Callable[[], str], every: float = EVERY) -> Iterator[None]:
    """Says "what: 60 s, DONE" every so many seconds of the block; nothing if it is shorter. done: called each time."""
    began, over = time.monotonic(), threading.Event()

    def beat() -> None:
        while not over.wait(every):
            say(f"{what}: {time.monotonic() - began:.0f} s, {done()}")

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
