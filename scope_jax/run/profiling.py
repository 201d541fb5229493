"""A trace of one training step, for XProf, TensorBoard or Perfetto."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax

from scope_jax.errors import UserError


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
