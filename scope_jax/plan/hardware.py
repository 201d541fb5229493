"""Accelerators by their published figures, and the devices that a plan is for: a TPU slice or GPU node that need not be
here, or those of this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from scope_jax.errors import UserError
from scope_jax.sharding.chips import CHIPS, GIB, Chip, chip_of

__all__ = ["ABSENT", "CHIPS", "GIB", "Absent", "Chip", "Hardware", "gpu_devices", "hardware", "prepare", "tpu_devices"]

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


# What NVIDIA publishes of the GPUs and XLA's compiler asks for: compute capability, multiprocessors, each one's shared
# memory and a block's share of it in bytes, second-level cache in MiB, clock in GHz. All have 65,536 registers and
# 2,048 threads per multiprocessor.
CUDA = {
    "A100": ((8, 0), 108, 167936, 166912, 40, 1.41),
    "H100": ((9, 0), 132, 233472, 232448, 50, 1.98),
    "H200": ((9, 0), 132, 233472, 232448, 50, 1.98),
    "B200": ((10, 0), 148, 233472, 232448, 126, 1.97),
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


def cuda_compiler() -> bool:
    """Whether JAX's CUDA plugin and cuDNN are installed: they compile for a GPU that is not here."""
    from importlib.util import find_spec

    if find_spec("jax_plugins") is None or find_spec("nvidia") is None or find_spec("nvidia.cudnn") is None:
        return False
    return any(find_spec(f"jax_plugins.xla_cuda{major}") for major in (12, 13))


def gpu_devices(chip: Chip, count: int) -> list[Any]:
    """`count` GPUs of one node, for ahead-of-time compilation; `Absent` ones without the compiler."""
    if not cuda_compiler():
        return [Absent(number, "gpu", chip.name) for number in range(count)]
    from jax.experimental import topologies

    shape = f"1x1x{count}"  # slices, hosts, devices of a host
    return list(
        topologies.get_topology_desc(shape, platform="cuda", topology=shape, target_config=cuda_target(chip)).devices
    )


def cuda_target(chip: Chip) -> str:
    """XLA's description of a GPU (`GpuTargetConfigProto` as text)."""
    (major, minor), cores, shared, optin, cache, clock = CUDA[chip.name]
    feature = "feature_extension: ACCELERATED_FEATURES" if major >= 9 else ""
    return f"""
        gpu_device_info {{
          threads_per_block_limit: 1024  threads_per_warp: 32  threads_per_core_limit: 2048
          shared_memory_per_block: 49152  shared_memory_per_core: {shared}  shared_memory_per_block_optin: {optin}
          core_count: {cores}  fpus_per_core: 128  clock_rate_ghz: {clock}
          registers_per_core_limit: 65536  registers_per_block_limit: 65536
          block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
          thread_dim_limit_x: 1024  thread_dim_limit_y: 1024  thread_dim_limit_z: 64
          memory_bandwidth: {chip.bandwidth:.0f}  device_memory_size: {chip.hbm:.0f}  l2_cache_size: {cache * 2**20}
          cuda_compute_capability {{ major: {major} minor: {minor} {feature} }}
          device_vendor: "NVIDIA Corporation"  name: "NVIDIA {chip.name}"  dnn_version: "9.10.0"
          driver_version: "12.8.0"  runtime_version: "12.8.0"  compile_time_toolkit_version: "12.8.0"
        }}
        platform_name: "CUDA"  device_description_str: "NVIDIA {chip.name}"
        dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
    """


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
        return Hardware(on, "gpu", CHIPS[found[2]], gpu_devices(CHIPS[found[2]], int(found[1])))
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
    chip = base if limit is None else replace(base, hbm=float(limit))
    return Hardware(THIS_MACHINE, platform, chip, devices)
