"""Threads of a run that gather beside the one that owns the devices, and what the owners of all processes do together.

Each thread has a channel, in which it gathers as often as the threads of the same name elsewhere. What is too large for
the coordination service goes through the devices, so the owners do it: process 0 says which channel is next, and the
others follow. In the same order it says when all have come to the end of what they run until then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from scope_jax.multihost import distributed, payloads

LATE = 1800.0  # seconds that a process waits for the others, after which something must be wrong
END = "end"  # in place of a channel: all go on with what follows
_NEXT, _READY = "channels/next", "channels/ready"


@dataclass(eq=False)
class _Exchange:
    """A payload that waits for the owner of the devices."""

    payload: bytes
    sizes: list[int]
    parts: list[bytes] = field(default_factory=list)
    """Of all processes, once it is over."""
    over: threading.Event = field(default_factory=threading.Event)


class Channels:
    """The channels of this process, and its place in the order that process 0 gives. Nothing is sent in a run of one
    process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, _Exchange] = {}
        self._entries = 0  # of the order, that were done
        self._ends = 0  # of these, how many were ends
        self._old: list[str] = []  # keys of process 0 that everybody has read when the next end is over
        self._read: list[str] = []
        self._said: int | None = None  # what the others know of this process
        self._since: float | None = None  # it is ready

    @contextmanager
    def channel(self, name: str) -> Iterator[None]:
        """In this block, in one thread of each process, `distributed.gather` has a sequence of its own. name: not used
        before."""

        def exchange(payload: bytes, sizes: list[int]) -> list[bytes]:
            one = _Exchange(payload, sizes)
            with self._lock:
                self._waiting[name] = one
            one.over.wait()
            return one.parts

        token = distributed.CHANNEL.set(distributed.Channel(f"{name}/", exchange))
        try:
            yield
        finally:
            distributed.CHANNEL.reset(token)

    def proceed(self, ready: int | None, wanted: int, patient: bool = False) -> bool:
        """Does what is next in the order, if anything is; whether that was the end. Called again and again, until it
        is, by the thread that owns the devices.

        ready: None until this process has come to the end; then a number, which may still grow. wanted: what those of
        all processes add up to at the end. patient: others may have far to go until they are ready. Raises
        ConnectionError after LATE seconds in which this process was ready, and others were not.
        """
        if distributed.count() == 1:
            return ready == wanted
        self._say(ready)
        entry = self._chosen(wanted) if distributed.index() == 0 else self._followed()
        if entry is None:
            self._check(patient)
            return False
        self._entries += 1
        if entry != END:
            with self._lock:
                one = self._waiting.pop(entry)
            one.parts = payloads.through_devices(one.payload, one.sizes)
            one.over.set()
            return False
        self._finish()
        return True

    def _say(self, ready: int | None) -> None:
        if ready is None:
            self._since = None
        elif self._since is None:
            self._since = time.monotonic()
        if ready is not None and ready != self._said:
            self._said = ready
            distributed.put(f"{_READY}/{self._ends}/{distributed.index()}", str(ready))

    def _chosen(self, wanted: int) -> str | None:
        """What process 0 lets all do next; None if there is nothing."""
        with self._lock:
            entry = min(self._waiting, default=None)
        if entry is None and self._since is not None:
            numbers = _entries_under(f"{_READY}/{self._ends}")
            if len(numbers) == distributed.count() and sum(map(int, numbers.values())) == wanted:
                entry = END
        if entry is not None:
            key = f"{_NEXT}/{self._entries}/0"
            distributed.put(key, entry)
            self._read.append(key)
        return entry

    def _followed(self) -> str | None:
        """What process 0 has said, if this one has come to it, too."""
        if not self._waiting and self._since is None:
            return None
        entry = _entries_under(f"{_NEXT}/{self._entries}").get(0)
        here = self._since is not None if entry == END else entry in self._waiting
        return entry if here else None

    def _check(self, patient: bool) -> None:
        if self._since is None or time.monotonic() - self._since < LATE:
            return
        there = _entries_under(f"{_READY}/{self._ends}")
        missing = next((number for number in range(distributed.count()) if number not in there), None)
        if missing is None:
            raise ConnectionError(
                f"all processes have come to the end of the step, but {LATE / 60:g} minutes later not all rows of the "
                "schedule were computed: it is of a run with another card, seed or record."
            )
        if not patient:
            raise ConnectionError(
                f"process {missing} has not come to the end of the step within {LATE / 60:g} minutes, although its "
                "rollouts are over; see what keeps it, then run the same command again, which goes on from the last "
                "checkpoint."
            )

    def _finish(self) -> None:
        """All have come to the end: what was said before the end before is forgotten."""
        if distributed.index() == 0:
            for key in self._old:
                distributed.client().key_value_delete(key)
            ready = [f"{_READY}/{self._ends}/{number}" for number in range(distributed.count())]
            self._old, self._read = [*self._read, *ready], []
        self._ends += 1
        self._said = self._since = None


def _entries_under(place: str) -> dict[int, str]:
    """What processes have put under a key with their number at its end, by process. Raises ConnectionError if somebody
    else has."""
    texts: dict[int, str] = {}
    for key, message in distributed.client().key_value_dir_get(place):
        number = int(key.rpartition("/")[2])
        text = distributed.read(f"{place}/{number}", message)
        if text is None:
            raise distributed.stranger(number)
        texts[number] = text
    return texts
