"""Work that holds Python's lock, such as parsing, off the event loop: in two threads, and bounded."""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from scope_jax.web.guard import Refusal

SMALL = 16_384  # bytes of a body that does not wait for larger ones
WAITING = {True: 1024, False: 32}  # small bodies, larger ones
LONGEST_REST = 1.0  # seconds

Result = TypeVar("Result")


class Lanes:
    """A thread for small bodies and one for all others, which take long: they delay no small one. Of those that wait
    the smallest comes first, and half of the time is left to the other threads of the process."""

    def __init__(self) -> None:
        self._lanes = {True: _Lane("small bodies", rests=False), False: _Lane("large bodies", rests=True)}

    async def run(self, size: int, work: Callable[[], Result]) -> Result:
        """What `work` returns, for a body of `size` bytes; it is dropped if the caller is cancelled before it begins.
        Raises Refusal if too many wait."""
        small = size <= SMALL
        lane, most = self._lanes[small], WAITING[small]
        if lane.waiting >= most:
            raise Refusal(f"{most} requests of this size are waiting; try again later.", 503)
        lane.waiting += 1
        try:
            return await asyncio.wrap_future(lane.put(size, work))
        finally:
            lane.waiting -= 1

    def close(self) -> None:
        """Drops what has not begun."""
        for lane in self._lanes.values():
            lane.close()


@dataclass(order=True)
class _Job:
    size: float
    number: int
    work: Callable[[], Any] | None = field(compare=False)  # None: the end
    future: Future[Any] = field(compare=False, default_factory=Future)


class _Lane:
    """A thread that does one job after the other, the smallest first. waiting: kept by the caller."""

    def __init__(self, name: str, rests: bool) -> None:
        self.waiting = 0
        self._rests = rests
        self._numbers = count()
        self._jobs: list[_Job] = []
        self._door = threading.Condition()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def put(self, size: float, work: Callable[[], Any] | None) -> Future[Any]:
        job = _Job(size, next(self._numbers), work)
        with self._door:
            heapq.heappush(self._jobs, job)
            self._door.notify()
        return job.future

    def close(self) -> None:
        self.put(-1, None)

    def _work(self) -> None:
        rest = 0.0
        while True:
            time.sleep(rest)
            with self._door:
                while not self._jobs:
                    self._door.wait()
                job = heapq.heappop(self._jobs)
            if job.work is None:
                break
            began, rest = time.monotonic(), 0.0
            if job.future.set_running_or_notify_cancel():
                try:
                    job.future.set_result(job.work())
                except BaseException as error:  # noqa: BLE001 (the caller gets it)
                    job.future.set_exception(error)
                if self._rests:
                    rest = min(time.monotonic() - began, LONGEST_REST)
        for left in self._jobs:
            left.future.cancel()
