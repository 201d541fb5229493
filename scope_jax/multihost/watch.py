"""Ends this process when another one of the run has ended: a thread that looks at the signs of life of the others.

Every process counts up under a key of its own in the coordination service. Process 0 looks at all counts, the others
at that of process 0 and at a list of those that are over, which process 0 completes, and in which a process that ends
early puts itself. So the traffic grows with the number of processes only.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from scope_jax.multihost import distributed

BEAT = 2.0  # seconds between two signs of life
LOST = 25.0  # seconds without one, after which a process is gone
ALIVE, OVER = "watch/alive/", "watch/over/"


class PeerWatch:
    """Watches from its creation until `leave`. end(sentence): called once, in the thread, when another process is over;
    the sentence says which and why."""

    def __init__(self, end: Callable[[str], None]) -> None:
        self._end = end
        self._over = threading.Event()
        self._counts: dict[int, tuple[str, float]] = {}  # by process, its last count and when it was new
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self._thread.start()

    def leave(self, reason: str | None) -> None:
        """Stops watching. reason: what the others say about the early end of this process, None for a regular end."""
        self._over.set()
        self._thread.join(BEAT)
        if reason is not None:
            distributed.put(f"{OVER}{distributed.index()}", reason)

    def wait(self) -> None:
        """Returns after the time in which the thread would have noticed that another process is gone."""
        time.sleep(LOST + 2 * BEAT)

    def _watch(self) -> None:
        beat, heard = 0, time.monotonic()
        while True:
            began = time.monotonic()
            if self._over.wait(BEAT):
                return
            stopped = time.monotonic() - began - BEAT  # with its machine or job: nobody else has been silent so long
            if stopped > BEAT:
                heard += stopped
                self._began += stopped
                self._counts = {number: (value, since + stopped) for number, (value, since) in self._counts.items()}
            try:
                beat += 1
                self._look(str(beat))
                heard = time.monotonic()
            except RuntimeError:  # of the coordination service
                if time.monotonic() - heard > LOST and not self._over.is_set():
                    self._say(0, "cannot be reached")

    def _look(self, beat: str) -> None:
        store, me = distributed.client(), distributed.index()
        store.key_value_set(f"{ALIVE}{me}/beat", beat, True)
        over = {key.rpartition("/")[2]: message for key, message in store.key_value_dir_get(OVER)}
        for number in range(distributed.count()):
            reason = distributed.read(f"{OVER}{number}", over.get(str(number), ""))
            if reason is not None and number != me:
                return self._say(number, reason)
        others, place = (range(1, distributed.count()), ALIVE) if me == 0 else (range(1), f"{ALIVE}0/")
        counts = {key.rpartition("/")[0].rpartition("/")[2]: beat for key, beat in store.key_value_dir_get(place)}
        now = time.monotonic()
        for number in others:
            value = counts.get(str(number), "")
            known, since = self._counts.get(number, ("", self._began))
            if value != known:
                self._counts[number] = (value, now)
            elif now - since > LOST:
                reason = f"is gone (no sign of life for {LOST:g} s)"
                distributed.put(f"{OVER}{number}", reason)
                return self._say(number, reason)

    def _say(self, number: int, reason: str) -> None:
        if not self._over.is_set():
            self._over.set()
            self._end(f"process {number} {reason}")
