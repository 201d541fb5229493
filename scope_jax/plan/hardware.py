"""Accelerators by their published figures, and the devices that a plan is for: a TPU slice or GPU node that need not be
here, or those of this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scope_jax.errors import UserError
from sharding.chips import CHIPS, GIB, Chip, chip_of

__all__ = ["ABSENT", "CHIPS", "GIB", "Absent", "Chip", "Hardware", "hardware", "prepare", "tpu_devices"]

THIS_MACHINE = "this machine"


TPU = re.compile(r"(v5e|v5p|v6e):(\d+(?:x\d+){1,2})")
GPUS = re.compile(r"(\d+)x(A100|H100|H200|B200)")
# The environment for compiling for devices that are not here: JAX runs on the CPU and keeps no compiled programs,
# which only the devices could load; libtpu is told what it would ask of a TPU's surroundings, and that it is not alone.
ABSENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


@dataclass(frozen=True)
class Absent:
    """Stands for a device that nothing is compiled for: it has a place in a mesh, so that shapes can be sharded."""

    id: int
    platform: str
    device_kind: str
    process_index: int = 0
    client: None = None


@dataclass(frozen=True)
class Hardware:
    """The devices of a plan. platform: "tpu", "gpu" or "cpu". devices: of JAX, or `Absent` ones."""

    name: str
    platform: str
    chip: Chip
    devices: Sequence[Any]

    @property
    def compiles(self) -> bool:
        """Whether programs are compiled for it here."""
        return not isinstance(self.devices[0], Absent)


def prepare(on: str | None) -> None:
    """Prepares the environment for `hardware(on)`; to be called before JAX is imported. Variables already set stay."""
    if on is not None:
        for name, value in ABSENT.items():
            os.environ.setdefault(name, value)


def tpu_devices(topology: str) -> list[Any]:
    """The devices of a TPU topology such as v5p:4x4x4, for ahead-of-time compilation. Raises UserError if libtpu is not
    installed or does not know the topology."""
    from importlib.util import find_spec

    from jax.errors import JaxRuntimeError
    from jax.experimental import topologies

    if find_spec("libtpu") is None:
        raise UserError(f"a plan for {topology} needs the TPU compiler; pip install libtpu (no TPU is needed).")
    try:
        return list(topologies.get_topology_desc(topology, platform="tpu").devices)
    except JaxRuntimeError as error:
        raise UserError(
            f"the TPU compiler does not know the topology {topology}: {str(error).splitlines()[0]}"
        ) from error


def hardware(on: str | None) -> Hardware:
    """The hardware that a name stands for: v5p:4x4x4, 8xH100, or None for the devices of this machine.

    Raises UserError for a name of another form, and as `tpu_devices`.
    """
    if on is None:
        return _this_machine()
    if found := TPU.fullmatch(on):
        devices = tpu_devices(on)
        return Hardware(on, "tpu", CHIPS[found[1]], devices)
    if (found := GPUS.fullmatch(on)) and int(found[1]):
        return Hardware(
            on, "gpu", CHIPS[found[2]], [Absent(number, "gpu", found[2]) for number in range(int(found[1]))]
        )
    raise UserError(
        f"--on {on} is not known hardware; give a TPU topology such as v5p:4x4x4, v5e:8x8 or v6e:4x4, a GPU node such "
        "as 8xH100 (A100, H100, H200, B200), or leave it out for this machine."
    )


def _this_machine() -> Hardware:
    import jax

    devices = jax.devices()
    platform, kind = devices[0].platform, str(devices[0].device_kind)
    if platform == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / len(devices)
        return Hardware(THIS_MACHINE, platform, Chip(kind, memory, None, None, None), devices)
    limit = (devices[0].memory_stats() or {}).get("bytes_limit")
    known = chip_of(kind)
    if limit is None and known is None:
        raise UserError(f"the memory of {kind} is not known; name its kind with --on, for example --on 8xH100.")
    base = known or Chip(kind, 0.0, None, None, None)
    chip = base if limit is None else Chip(base.name, float(limit), base.peak, base.bandwidth, base.clock)
    return Hardware(THIS_MACHINE, platform, chip, devices)
