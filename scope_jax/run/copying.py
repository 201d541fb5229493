"""Copies of the arrays of a checkpoint in host memory, on their way to disk.

An update may overwrite the arrays as soon as they are copied. As many are copied at a time as the host has room for; if
that is less than all, the next ones follow when those have been written.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint._src.serialization.types import DefaultSerializationStatusCallback, TransferPriority
from orbax.checkpoint.type_handlers import ArrayHandler, create_type_handler_registry

GB = 10**9
HOURS = 12  # after which a write counts as failed
LEAST = 2 * GB  # for arrays that are copied at a time; a larger array is alone
SHARE = 0.25  # of the free memory of the host; tensorstore holds as much again, compressed, before it writes
# Of the 64 GB that XLA pins of a GPU's host, unless this variable has another number.
PINNED, PINNED_GB, PINNED_SHARE = "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", 64, 0.75


def room(processes: int) -> int:
    """Bytes of host memory for copies. processes: of the run on this machine."""
    table = Path("/proc/meminfo")
    lines = table.read_text().splitlines() if table.is_file() else []
    free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)
    most = SHARE * free / processes
    if jax.devices()[0].platform == "gpu":
        most = min(most, PINNED_SHARE * GB * float(os.environ.get(PINNED) or PINNED_GB))
    return max(LEAST, int(most))


class Copying(DefaultSerializationStatusCallback):
    """Has arrays copied in the background (orbax's default is all of them before a save returns), and says when the
    last one has been: `done` is set then. A save that has ended with an error sets it, too."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self._left = 0

    def begin(self, arrays: int) -> None:
        """A save of so many arrays begins."""
        self.done.clear()
        self._left = arrays
        if not arrays:
            self.done.set()

    def key_priority(self, _: Any) -> TransferPriority:
        return TransferPriority.ASYNCHRONOUS_PRIORITIZED

    def on_transfer_end(self, _: Any) -> None:
        self._left -= 1  # by the one thread that transfers
        if not self._left:
            self.done.set()


def writer(most: int, copying: Copying, before_commit: Callable[[], None]) -> ocp.AsyncCheckpointer:
    """Writes asynchronously. most: bytes of arrays that are in host memory at a time."""
    states = ocp.PyTreeCheckpointHandler(
        save_device_host_concurrent_gb=most / GB,  # pyright: ignore[reportArgumentType]: it is multiplied by 10⁹
        enable_pinned_host_transfer=True,  # otherwise JAX keeps the copies as long as the arrays
        type_handler_registry=create_type_handler_registry((jax.Array, ArrayHandler(callback=copying))),
    )
    return ocp.AsyncCheckpointer(
        ocp.CompositeCheckpointHandler(
            states=states, memory=ocp.JsonCheckpointHandler(), meta=ocp.JsonCheckpointHandler()
        ),
        async_options=ocp.options.AsyncOptions(timeout_secs=HOURS * 3600, post_finalization_callback=before_commit),
    )
