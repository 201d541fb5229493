"""JAX's distributed runtime, whose public form starts all of it at once, and what it asks of GPUs for cuDNN: with
`models.kernels.cudnn` the files that use private names of JAX.

tests/sharding/test_runtime.py calls each of them with the JAX that is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jax._src.clusters import ClusterEnv
from jax._src.cudnn import fused_attention_stablehlo
from jax._src.distributed import global_state
from jax._src.lib import _jax


def clusters() -> list[Any]:
    """The kinds of clusters that JAX detects; each has a name, is_env_present() and what a process asks."""
    return list(ClusterEnv._cluster_types)


def state() -> Any:
    """What `jax.distributed` knows of this process: coordinator_address, process_id, num_processes, client."""
    return global_state


def client(address: str, index: int, init_timeout: int, heartbeat_timeout: int) -> Any:
    """A client of the coordination service at host:port for process `index`, not yet connected; timeouts in seconds.

    Its `connect` raises RuntimeError if not all are there in time: without a callback jaxlib ends the process with a
    C++ stack trace instead.
    """
    return _jax.get_distributed_runtime_client(
        address,
        index,
        init_timeout=init_timeout,
        heartbeat_timeout=heartbeat_timeout,
        missed_heartbeat_callback=lambda status: None,
        use_compression=True,
    )


def service(address: str, processes: int, heartbeat_timeout: int) -> Any:
    """The coordination service at host:port. A process that is gone is not its business (recoverable), but that of
    `multihost.watch`. Raises RuntimeError if the port cannot be opened, where jaxlib 0.10 now and then ends the process
    with a segmentation fault instead: `multihost.coordinator` is a process of its own."""
    return _jax.get_distributed_runtime_service(
        address, processes, heartbeat_timeout=heartbeat_timeout, shutdown_timeout=1, recoverable=True
    )


@contextmanager
def gpus_of(capability: tuple[int, int]) -> Iterator[None]:
    """While programs are traced for GPUs of this compute capability that are not here: JAX would ask this machine's
    devices, and without any refuse heads wider than 128."""
    asked = fused_attention_stablehlo.check_compute_capability
    fused_attention_stablehlo.check_compute_capability = lambda least: capability >= tuple(map(int, least.split(".")))
    try:
        yield
    finally:
        fused_attention_stablehlo.check_compute_capability = asked
