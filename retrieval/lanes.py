"""Work that holds Python's lock, such as parsing, off the event loop: in few threads, and bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from scope_jax.retrieval.web import Refusal

SMALL = 16_384  # bytes of a body that does not wait for larger ones
LONGEST_REST = 1.0  # seconds
WAITING = {True: 1024, False: 32}  # small bodies, larger ones

Result = TypeVar("Result")


class Lanes:
    """A thread for small bodies and one for all others, so that large ones, which take long, delay no small one."""

    def __init__(self) -> None:
        self._threads = {small: ThreadPoolExecutor(1, f"bodies-{'small' if small else 'large'}") for small in WAITING}
        self._count = dict.fromkeys(WAITING, 0)
        self._rest = 0.0  # when the next large body may begin

    async def run(self, size: int, work: Callable[[], Result]) -> Result:
        """What `work` returns, for a body of `size` bytes; it is dropped if the caller is cancelled before it begins.
        Raises Refusal if too many wait."""
        small = size <= SMALL
        if self._count[small] >= WAITING[small]:
            raise Refusal(f"{WAITING[small]} requests of this size are waiting; try again later.", 503)
        self._count[small] += 1
        try:
            call = work if small else partial(self._rested, work)
            return await asyncio.wrap_future(self._threads[small].submit(call))
        finally:
            self._count[small] -= 1

    def _rested(self, work: Callable[[], Result]) -> Result:
        """What `work` returns, begun only when half of the time since the large body before has gone to others."""
        time.sleep(max(0.0, self._rest - time.monotonic()))
        began = time.monotonic()
        try:
            return work()
        finally:
            ended = time.monotonic()
            self._rest = ended + min(ended - began, LONGEST_REST)

    def close(self) -> None:
        """Drops what has not begun."""
        for thread in self._threads.values():
            thread.shutdown(wait=False, cancel_futures=True)
