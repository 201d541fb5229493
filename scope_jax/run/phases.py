"""The phases of a training step: how long each takes, and which one is running."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """A phase that is running. step: the number of the step that it belongs to, counted from 1."""

    name: str
    step: int
    since: float  # time.monotonic()


class Phases:
    """Measures phases that follow each other (play, learn, wait, evaluate, checkpoint), and work beside them."""

    def __init__(self) -> None:
        self.running: Phase | None = None
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str, step: int) -> Iterator[None]:
        """The phase `name` of a step."""
        self.running = Phase(name, step, time.monotonic())
        try:
            with self.beside(name):
                yield
        finally:
            self.running = None

    @contextmanager
    def beside(self, name: str) -> Iterator[None]:
        """Work in a thread of its own while another phase is running; counted like a phase."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - began

    def seconds(self, name: str) -> float:
        """How long the phase has taken since the last `take`."""
        return self._seconds[name]

    def take(self) -> dict[str, float]:
        """`time/<phase>` in seconds since the last call."""
        seconds, self._seconds = self._seconds, {}
        return {f"time/{name}": value for name, value in seconds.items()}
