"""Payloads of all processes by the devices' network: what is too large for the coordination service."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # a process joins before it uses JAX
    import numpy as np
    from jax.sharding import NamedSharding

SMALL = 64 * 2**10  # bytes; larger payloads go through the devices
PIECES = 32 * 2**20  # bytes exchanged at a time, of all processes and this one's own: the most that a device needs

_through: tuple[Any, ...] = ()  # the devices that exchange payloads, as many of each process; (): all


def exchange_through(devices: Sequence[Any]) -> None:
    """Large payloads go through these devices from now on, those of each process the same number: a program of others
    may run meanwhile, and on these no program waits for other processes but here.

    On a TPU they are all used, as the collectives of a part of a slice need a box of its torus; elsewhere the first of
    each process, as XLA's CPU client lets programs over several devices of a process wait for each other.
    """
    global _through
    first = {device.process_index: device for device in reversed(devices)}
    box = all(device.platform == "tpu" for device in devices)
    _through = tuple(devices) if box else tuple(first[process] for process in sorted(first))


def through_devices(payload: bytes, sizes: list[int]) -> list[bytes]:
    """The payloads of all processes, of these sizes, by the devices' network, at which all arrive together; in the
    thread that owns the devices."""
    import numpy as np

    parts = [bytearray() for _ in sizes]
    piece = 1 << (PIECES // (len(sizes) + 1)).bit_length() - 1
    for first in range(0, max(sizes), piece):
        width = min(SMALL, piece)  # a power of two, so that there are few programs
        while width < min(max(sizes) - first, piece):
            width *= 2
        own = np.zeros(width, np.uint8)
        given = np.frombuffer(payload[first : first + width], np.uint8)
        own[: len(given)] = given
        for part, row in zip(parts, _rows(own, len(sizes)), strict=True):
            part += row.tobytes()
    return [bytes(part[:size]) for part, size in zip(parts, sizes, strict=True)]


def _rows(own: np.ndarray, processes: int) -> np.ndarray:
    """The arrays of all processes, which have one shape, by index: through all devices, or those of
    `exchange_through`."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = sorted(_through or jax.devices(), key=lambda device: (device.process_index, device.id))
    mesh = Mesh(np.array(devices).reshape(processes, -1), ("process", "device"))
    rows = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("process")), own[None])
    return np.asarray(_copied(NamedSharding(mesh, PartitionSpec()))(rows).addressable_data(0))


@functools.cache
def _copied(sharding: NamedSharding) -> Any:
    """The program that gives a copy under another sharding."""
    import jax

    return jax.jit(lambda x: x, out_shardings=sharding)
