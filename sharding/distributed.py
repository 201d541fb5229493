"""Joins this process to a multi-host run."""

from __future__ import annotations

import jax


def start(coordinator: str | None, process_id: int | None, num_processes: int | None) -> None:
    """Starts jax.distributed; a second call does nothing.

    coordinator: "host:port" of process 0. If all three are None, JAX detects them from the cluster environment (TPU
    pod, SLURM, ...). Must run before any device is used. Raises ValueError if only some of the three are given.
    """
    given = [value is not None for value in (coordinator, process_id, num_processes)]
    if any(given) and not all(given):
        raise ValueError(
            "Give coordinator, process_id and num_processes together, or none of them to detect the cluster."
        )
    if jax.distributed.is_initialized():
        return
    jax.distributed.initialize(coordinator, num_processes, process_id)
