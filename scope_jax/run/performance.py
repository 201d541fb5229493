"""Measures a training loop: how fast its steps are, which phase is running, and a trace of a chosen step.

The metrics are called `time/…` (seconds) and `perf/…`. They differ between runs of one card and never enter the
training.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import jax

from scope_jax.learner.batching import has_term
from scope_jax.learner.types import Episode, Metrics
from scope_jax.models import flops
from scope_jax.models.config import ModelConfig
from scope_jax.run.compiling import programs
from scope_jax.run.meshes import divided_devices
from scope_jax.run.phases import Phases
from scope_jax.run.profiling import Traced
from scope_jax.run.watchdog import Watchdog
from scope_jax.run.world import World
from scope_jax.sharding.chips import GIB, chip_of

PHASES = ("play", "learn", "wait", "evaluate", "checkpoint")
# Every name but those of the phases; of a game without searches, an unknown device or a CPU, some are missing.
NAMES = (
    "time/publish",
    "time/search_wait",
    "perf/generated_tokens_per_second",
    "perf/trained_tokens_per_second",
    "perf/mfu",
    "perf/device_memory_peak_gib",
    "perf/programs_compiled",
    "perf/programs_loaded",
    "perf/search_calls",
    "perf/search_queries",
)


@dataclass(frozen=True)
class _Counts:
    """What has been counted so far."""

    compiled: int
    loaded: int
    generated: int
    publishing: float
    search_calls: int
    searches: int
    search_wait: float


class Meter:
    """Measures the steps of a run by what counters have gained."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._devices = jax.local_devices()
        self._chip = chip_of(str(self._devices[0].device_kind))
        self._before = self._counted()

    def _counted(self) -> _Counts:
        tool, sampler, made = self._world.lookup, self._world.sampler, programs()
        searches = (0, 0, 0.0) if tool is None else (tool.batches, tool.texts, tool.waited)
        return _Counts(made.compiled, made.loaded, sampler.generated, sampler.publishing, *searches)

    def begin(self) -> None:
        """A step begins: what an evaluation generated before it does not count, only its programs do."""
        made = {"compiled": self._before.compiled, "loaded": self._before.loaded}
        self._before = replace(self._counted(), **made)

    def step(self, episodes: Sequence[Episode], phases: Phases) -> Metrics:
        """The metrics of the step whose episodes these are, after its phases `play` and `learn`."""
        playing, learning = phases.seconds("play"), phases.seconds("learn")
        before, self._before = self._before, self._counted()
        now = self._before
        rows = self._rows(episodes)
        found: Metrics = {
            "time/publish": now.publishing - before.publishing,
            "perf/generated_tokens_per_second": (now.generated - before.generated) / playing,
            "perf/programs_compiled": now.compiled - before.compiled,
            "perf/programs_loaded": now.loaded - before.loaded,
        }
        if rows:
            found["perf/trained_tokens_per_second"] = sum(length for length, _ in rows) / learning
        if self._world.lookup is not None:
            found["time/search_wait"] = now.search_wait - before.search_wait
            found["perf/search_calls"] = now.search_calls - before.search_calls
            found["perf/search_queries"] = now.searches - before.searches
        if rows and self._chip is not None and self._chip.peak is not None:
            peak = self._chip.peak * len(divided_devices(self._world.cfg, jax.devices())[0])
            found["perf/mfu"] = (
                trained_flops(self._world.model, rows, self._world.cfg.model.adapter is not None) / learning / peak
            )
        stats = [device.memory_stats() for device in self._devices]
        peaks = [one["peak_bytes_in_use"] for one in stats if one and "peak_bytes_in_use" in one]
        if peaks:
            found["perf/device_memory_peak_gib"] = max(peaks) / GIB
        return found

    def _rows(self, episodes: Sequence[Episode]) -> list[tuple[int, int]]:
        """(tokens, trained tokens) of every row that the step's updates put through the model."""
        return [
            (len(datum.ids_T), int(datum.sampled_T.sum()))
            for update in self._world.game.updates(self._world.cfg)
            for e in episodes
            if e.policy == update.policy and e.role in {share.role for share in update.roles}
            if e.trained and has_term(e, update.card)
            for datum in e.datums
            if datum.sampled_T.any()
        ]


def trained_flops(model: ModelConfig, rows: Sequence[tuple[int, int]], frozen: bool = False) -> float:
    """FLOPs of forward and backward of rows with (tokens, trained tokens): 6 N D and attention, or with frozen weights
    4 N D; no scoring, nothing computed twice, no padding."""
    return sum(flops.update_flops(model, 1, length, trained, frozen) for length, trained in rows)


class Instruments:
    """The meter, the watchdog and the profiler of a training loop, which marks its steps and phases with them.

    profile, first, last: as for `Traced`.
    """

    def __init__(self, world: World, run: Path, profile: int | None, *, first: int, last: int | None) -> None:
        self._traced = Traced(profile, run, first=first, last=last)
        self._meter, self._phases = Meter(world), Phases()
        self._step = first - 1
        card, tool = world.cfg.train, world.lookup

        def progress() -> tuple[object, ...]:
            return world.local.progress, world.sampler.generated, None if tool is None else (tool.batches, tool.waited)

        self._watchdog = None
        if card.stall_timeout is not None:
            self._watchdog = Watchdog(self._phases, progress, card.stall_timeout, card.stall_action, run)

    def step(self, number: int) -> AbstractContextManager[None]:
        """The generation and the updates of step `number`."""
        self._step = number
        self._meter.begin()
        return self._traced.step(number)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """A phase of the current step."""
        return self._phases.phase(name, self._step)

    def beside(self, name: str) -> AbstractContextManager[None]:
        """Work in another thread, while a phase is running."""
        return self._phases.beside(name)

    def metrics(self, episodes: Sequence[Episode]) -> Metrics:
        """Those of the current step, whose episodes these are, after its phases `play` and `learn`."""
        return self._meter.step(episodes, self._phases) | self.times()

    def times(self) -> Metrics:
        """`time/<phase>` of the phases since the last call."""
        return self._phases.take()

    def stop(self) -> None:
        """Ends the watchdog."""
        if self._watchdog is not None:
            self._watchdog.stop()
