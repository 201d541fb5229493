"""Measures and watches a training loop: how fast its steps are, which phase is running, a trace of a chosen step, and
whether it hangs.

The metrics are called `time/…` (seconds) and `perf/…`. They differ between runs of one card and never enter the
training.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import jax

from scope_jax.errors import UserError
from scope_jax.learner.splitting import has_term
from scope_jax.learner.types import Episode, Metrics
from scope_jax.models.decoder import flops
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.transformer import Remat
from scope_jax.rollouts.drafter import DraftCounts
from scope_jax.run import host_memory
from scope_jax.run.device_memory import memory_of
from scope_jax.run.meshes import divided_devices
from scope_jax.run.programs import programs
from scope_jax.run.world import World
from scope_jax.sharding.chips import GIB, chip_of

PHASES = ("play", "learn", "wait", "evaluate", "checkpoint")
# Every name but those of the phases; without searches or drafts, on an unknown device or a CPU, some are missing.
NAMES = (
    "time/publish",
    "time/search_wait",
    "perf/generated_tokens_per_second",
    "perf/trained_tokens_per_second",
    "perf/mfu",
    "perf/hfu",
    "perf/device_memory_peak_gib",
    "perf/process_memory_peak_gib",
    "perf/programs_compiled",
    "perf/programs_loaded",
    "perf/search_calls",
    "perf/search_queries",
    "perf/drafted_tokens",
    "perf/accepted_tokens",
    "perf/tokens_per_draft",
)


# --------------------------------------------------------------------------------------------------------------- phases
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
        """Work in a thread of its own while another phase is running; counted like a phase. Raises DeviceMemoryError if
        a device runs out of memory in it."""
        began = time.monotonic()
        try:
            with memory_of(name):
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


# -------------------------------------------------------------------------------------------------------------- a trace
class Traced:
    """Records step number `step` (counted from 1; None: no step) in <run>/profile.

    first, last: the steps that this process is going to take; last None: not known. Raises UserError if `step` is not
    one of them.
    """

    def __init__(self, step: int | None, run: Path, *, first: int, last: int | None) -> None:
        self._step, self._folder = step, run / "profile"
        if step is not None and (step < first or (last is not None and step > last)):
            steps = f"steps {first} to {last}" if last is not None and last >= first else f"steps from {first} on"
            missing = "no step is left" if last is not None and last < first else f"it takes {steps}"
            raise UserError(f"--profile {step}: the run in {run} does not take this step now, {missing}; give another.")

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """The block of step `number`: traced, if it is the chosen one."""
        if number != self._step:
            yield
            return
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # every Python call of a step would be most of the trace
        jax.profiler.start_trace(str(self._folder), profiler_options=options)
        try:
            with jax.profiler.StepTraceAnnotation("step", step_num=number):
                yield
        finally:
            jax.profiler.stop_trace()


# --------------------------------------------------------------------------------------------------------------- a hang
Action = Literal["report", "exit"]
EXIT_CODE = 124  # of a process that the watchdog ends, as that of timeout(1)


class Watchdog:
    """Watches a training loop until it is stopped.

    phases: those of the loop. progress: any value that changes as long as the running phase gets on. limit: seconds
    without a change after which a phase counts as hanging. action: "report" says so once and goes on; "exit" also ends
    the process with EXIT_CODE, from which the run resumes as from any kill. run: the folder for the stacks.
    """

    def __init__(
        self, phases: Phases, progress: Callable[[], Hashable], limit: float, action: Action, run: Path
    ) -> None:
        self._phases, self._progress, self._limit, self._action, self._run = phases, progress, limit, action, run
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        seen, idle, reported = None, 0.0, False
        pause = min(self._limit / 4, 5.0)
        while not self._over.wait(pause):
            running = self._phases.running
            now = (running, self._progress())
            if running is None or now != seen:
                seen, idle, reported = now, 0.0, False
                continue
            idle += pause  # not by the clock, which goes on while the process is stopped
            if not reported and idle > self._limit:
                reported = True
                self._report(running.name, running.step, idle)

    def _report(self, phase: str, step: int, seconds: float) -> None:
        number = jax.process_index()
        stacks = self._run / f"stacks-{number}.txt"
        try:
            with stacks.open("a", encoding="utf-8") as file:
                file.write(f"step {step}, phase {phase}, {seconds:.0f} seconds without progress\n")
                file.flush()
                faulthandler.dump_traceback(file, all_threads=True)
            where = f"in {stacks}"
        except OSError as error:  # a full disk may be why nothing goes on
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
            where = f"above, as {stacks} cannot be written ({error.strerror})"
        ends = "; the process ends, and the same command resumes the run" if self._action == "exit" else ""
        sentence = (
            f"scope-jax: process {number} of {jax.process_count()} on {socket.gethostname()} has made no progress for "
            f"{seconds:.0f} seconds in the phase {phase} of step {step}; its stacks are {where}{ends}."
        )
        print(sentence, file=sys.stderr, flush=True)
        if self._action == "exit":
            os._exit(EXIT_CODE)


# ------------------------------------------------------------------------------------------------------------- measures
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
    drafts: DraftCounts


class Meter:
    """Measures the steps of a run by what counters have gained. remat: the learner's."""

    def __init__(self, world: World, remat: Remat) -> None:
        self._world = world
        self._remat: Remat = remat
        self._devices = jax.local_devices()
        self._chip = chip_of(str(self._devices[0].device_kind))
        self._before = self._counted()

    def _counted(self) -> _Counts:
        tool, sampler, made = self._world.lookup, self._world.sampler, programs()
        searches = (0, 0, 0.0) if tool is None else (tool.batches, tool.texts, tool.waited)
        drafter = self._world.local.drafter
        drafts = DraftCounts() if drafter is None else drafter.counts
        return _Counts(made.compiled, made.loaded, sampler.generated, sampler.publishing, *searches, drafts)

    def begin(self) -> None:
        """A step begins: what an evaluation generated before it does not count, only its programs do."""
        made = {"compiled": self._before.compiled, "loaded": self._before.loaded}
        self._before = replace(self._counted(), **made)

    def step(self, episodes: Sequence[Episode], phases: Phases) -> Metrics:
        """The metrics of the step whose episodes these are, after its phases `play` and `learn`."""
        learning = phases.seconds("learn")
        before, self._before = self._before, self._counted()
        now = self._before
        rows = self._rows(episodes)
        found: Metrics = {
            "time/publish": now.publishing - before.publishing,
            "perf/generated_tokens_per_second": (now.generated - before.generated) / self._generating(phases),
            "perf/programs_compiled": now.compiled - before.compiled,
            "perf/programs_loaded": now.loaded - before.loaded,
        }
        if rows:
            found["perf/trained_tokens_per_second"] = sum(length for length, _ in rows) / learning
        if self._world.lookup is not None:
            found["time/search_wait"] = now.search_wait - before.search_wait
            found["perf/search_calls"] = now.search_calls - before.search_calls
            found["perf/search_queries"] = now.searches - before.searches
        if self._world.local.drafter is not None:
            new = now.drafts - before.drafts
            found |= {"perf/drafted_tokens": new.drafted, "perf/accepted_tokens": new.accepted}
            if new.drafts:
                found["perf/tokens_per_draft"] = 1 + new.accepted / new.drafts
        if rows and self._chip is not None and self._chip.peak is not None:
            most = learning * self._chip.peak * len(divided_devices(self._world.cfg, jax.devices())[0])
            model, frozen = self._world.model, self._world.cfg.model.adapter is not None
            splash = self._devices[0].platform == "tpu"
            found["perf/mfu"] = trained_flops(model, rows, frozen) / most
            found["perf/hfu"] = computed_flops(model, rows, self._remat, frozen=frozen, splash=splash) / most
        stats = [device.memory_stats() for device in self._devices]
        peaks = [one["peak_bytes_in_use"] for one in stats if one and "peak_bytes_in_use" in one]
        if peaks:
            found["perf/device_memory_peak_gib"] = max(peaks) / GIB
        if most := host_memory.peak():
            found["perf/process_memory_peak_gib"] = most / GIB
        return found

    def _generating(self, phases: Phases) -> float:
        """Seconds in which the tokens of the step were sampled; where steps overlap, in which those of several were."""
        train, apart = self._world.cfg.train, self._world.cfg.rollout.devices is not None
        if not train.max_staleness:
            return phases.seconds("play")
        return phases.seconds("play") + phases.seconds("wait" if apart else "learn")

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


def computed_flops(model: ModelConfig, rows: Sequence[tuple[int, int]], remat: Remat, **how: bool) -> float:
    """FLOPs that updates of the same rows execute: `trained_flops`, and what they compute again. how: of
    `flops.executed_flops`."""
    return sum(flops.executed_flops(model, length, trained, remat, **how).total for length, trained in rows)


class Instruments:
    """The meter, the watchdog and the profiler of a training loop, which marks its steps and phases with them.

    profile, first, last: as for `Traced`. remat: as for `Meter`.
    """

    def __init__(
        self, world: World, remat: Remat, run: Path, profile: int | None, *, first: int, last: int | None
    ) -> None:
        self._traced = Traced(profile, run, first=first, last=last)
        self._meter, self._phases = Meter(world, remat), Phases()
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
