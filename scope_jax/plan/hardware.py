"""Accelerators by their published figures, and the devices that a plan is for: a TPU slice or GPU node that need not be
here, or those of this machine."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scope_jax.errors import UserError
from scope_jax.run import host_memory
from scope_jax.sharding.chips import CHIPS, GIB, KINDS, Chip, chip_of, lists_tpu

__all__ = ["ABSENT", "CHIPS", "GIB", "Absent", "Chip", "Hardware", "gpu_devices", "hardware", "prepare", "tpu_devices"]

THIS_MACHINE = "this machine"
GPU_FILES = Path("/proc/driver/nvidia/gpus")  # of NVIDIA's driver, a folder for each GPU


# Slices, or nodes, of the same size may stand before it: 2xv6e:8x8, 4x8xH100.
TPU = re.compile(r"(?:([1-9]\d*)x)?(v5e|v5p|v6e|v7x):([1-9]\d*(?:x[1-9]\d*){1,2})")
GPUS = re.compile(r"(?:([1-9]\d*)x)?([1-9]\d*)x(A100|H100|H200|GB200|B200|B300)")
PLANAR = ("v5e", "v6e")  # a torus of two dimensions; the others have three
MOST_DEVICES = 2**17  # of a plan: more than any cluster, few enough for memory
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
    "GB200": ((10, 0), 152, 233472, 232448, 126, 2.06),
    "B300": ((10, 3), 148, 233472, 232448, 126, 1.92),
}


@dataclass(frozen=True)
class Absent:
    """Stands for a device that nothing is compiled for: it has a place in a mesh, so that shapes can be sharded. TPUs
    have a place in a torus, too."""

    id: int
    platform: str
    device_kind: str
    process_index: int = 0
    client: None = None
    coords: tuple[int, ...] | None = None
    core_on_chip: int = 0
    slice_index: int | None = None


@dataclass(frozen=True)
class Hardware:
    """The devices of a plan. platform: "tpu", "gpu" or "cpu". devices: of JAX, or `Absent` ones, those of one slice or
    node together. domains: the number of slices or nodes, between which they communicate over the network. host: bytes
    of this machine's memory that are available to a run; None of devices that are not here, and of CPUs, whose own it
    is."""

    name: str
    platform: str
    chip: Chip
    devices: Sequence[Any]
    domains: int = 1
    host: float | None = None

    @property
    def compiles(self) -> bool:
        """Whether programs are compiled for it here."""
        return not isinstance(self.devices[0], Absent)

    def tracing(self) -> AbstractContextManager[None]:
        """The context in which programs are traced for it."""
        if not self.compiles or self.chip.name not in CUDA:
            return nullcontext()
        from scope_jax.multihost.runtime import gpus_of  # imports JAX

        return gpus_of(CUDA[self.chip.name][0])


def prepare() -> None:
    """Prepares the environment for plans of devices that are not here, or not to be started; to be called before JAX
    is imported. Variables already set stay."""
    for name, value in ABSENT.items():
        os.environ.setdefault(name, value)


def tpu_devices(topology: str, slices: int = 1) -> list[Any]:
    """The devices of slices of a TPU topology such as v5p:4x4x4, for ahead-of-time compilation. Raises UserError if
    libtpu is not installed or does not know the topology."""
    from jax.errors import JaxRuntimeError
    from jax.experimental import topologies

    if find_spec("libtpu") is None:
        raise UserError(f"a plan for {topology} needs the TPU compiler; pip install libtpu (no TPU is needed).")
    try:
        name, several = topology.replace("v7x", "tpu7x"), {"num_slices": slices} if slices > 1 else {}
        return list(topologies.get_topology_desc(name, platform="tpu", **several).devices)
    except JaxRuntimeError as error:
        raise UserError(
            f"the TPU compiler does not know the topology {topology}: {str(error).splitlines()[0]}"
        ) from error


def absent_tpu_devices(chip: Chip, topology: str, slices: int = 1) -> list[Absent]:
    """The same, but nothing can be compiled for them."""
    sizes = [int(size) for size in topology.split("x")]
    places = itertools.product(*map(range, (sizes + [1])[:3]))
    cores = 2 if chip.name == "v7x" else 1
    kind = next(kind for kind, name in KINDS.items() if name == chip.name)
    one = [(place, core) for place in places for core in range(cores)]
    return [
        Absent(number * len(one) + place, "tpu", kind, number, None, coords, core, number)
        for number in range(slices)
        for place, (coords, core) in enumerate(one)
    ]


def cuda_compiler() -> bool:
    """Whether JAX's CUDA plugin and cuDNN are installed: they compile for a GPU that is not here."""
    return _cuda_plugin() and find_spec("nvidia") is not None and find_spec("nvidia.cudnn") is not None


def _cuda_plugin() -> bool:
    """Whether JAX would use an NVIDIA GPU of this machine."""
    if find_spec("jax_plugins") is None:
        return False
    return any(find_spec(f"jax_plugins.xla_cuda{major}") for major in (12, 13))


def gpu_devices(chip: Chip, count: int, nodes: int = 1, compiled: bool = True) -> list[Any]:
    """The GPUs of nodes of `count` each, for ahead-of-time compilation; `Absent` ones without the compiler."""
    if not compiled or not cuda_compiler():
        return [Absent(number, "gpu", chip.name, number // count) for number in range(nodes * count)]
    from jax.experimental import topologies

    shape = f"1x{nodes}x{count}"  # slices, hosts, devices of a host
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


def hardware(on: str | None, compiled: bool = True) -> Hardware:
    """The hardware that a name stands for: v5p:4x4x4, 8xH100, several of them (2xv6e:8x8, 4x8xH100), or None for the
    devices of this machine. compiled: programs can be compiled for it, where the compilers are installed; False: no
    device is started.

    Raises UserError for a name of another form, and as `tpu_devices` and `_unstarted`.
    """
    if on is None:
        return _this_machine() if compiled else _unstarted()
    if found := TPU.fullmatch(on):
        slices, chip, sides = int(found[1] or 1), CHIPS[found[2]], [int(side) for side in found[3].split("x")]
        _countable(on, slices, *sides)
        _linked(on, chip.name, sides)
        devices = tpu_devices(f"{found[2]}:{found[3]}", slices) if compiled else []
        return Hardware(on, "tpu", chip, devices or absent_tpu_devices(chip, found[3], slices), slices)
    if found := GPUS.fullmatch(on):
        nodes, chip = int(found[1] or 1), CHIPS[found[3]]
        _countable(on, nodes, int(found[2]))
        return Hardware(on, "gpu", chip, gpu_devices(chip, int(found[2]), nodes, compiled), nodes)
    if on in CUDA:
        raise UserError(f"--on {on} does not say how many; give --on 1x{on} for one, 8x{on} for a node of eight.")
    raise UserError(
        f"--on {on} is not known hardware; give a TPU topology such as v5p:4x4x4, v5e:8x8, v6e:4x4 or v7x:2x2x1, a GPU "
        "node such as 8xH100 (A100, H100, H200, B200, B300, GB200), several of either such as 2xv6e:8x8 or 4x8xH100, "
        "or leave it out for this machine."
    )


def _countable(on: str, *sizes: int) -> None:
    """Raises UserError for more devices than a plan lists."""
    if math.prod(sizes) > MOST_DEVICES:
        raise UserError(f"--on {on} has {math.prod(sizes):,} devices, and a plan at most {MOST_DEVICES:,}; give fewer.")


def _linked(on: str, chip: str, sides: Sequence[int]) -> None:
    """Raises UserError for a topology in other dimensions than its chips are linked in."""
    if chip in PLANAR and sides[2:] not in ([], [1]):
        raise UserError(f"--on {on}: chips of {chip} are linked in a plane; give two sides, as {chip}:4x4.")
    if chip not in PLANAR and len(sides) != 3:
        raise UserError(
            f"--on {on}: chips of {chip} are linked in three directions; give three sides, as {chip}:4x4x4."
        )


def _this_machine() -> Hardware:
    """Raises UserError if the memory of its accelerator is not known."""
    import jax

    if (here := started()) is None:
        raise _unknown(str(jax.devices()[0].device_kind))
    return here


def started() -> Hardware | None:
    """This machine with its devices; None if the memory of its accelerator is not known."""
    import jax

    devices = jax.devices()
    platform, kind = devices[0].platform, str(devices[0].device_kind)
    if platform == "cpu":
        return Hardware(THIS_MACHINE, platform, _processor(kind, len(devices)), devices)
    limit = (devices[0].memory_stats() or {}).get("bytes_limit")
    known = chip_of(kind)
    if limit is None and known is None:
        return None
    base = known or Chip(kind, 0.0, None, None)
    chip = base if limit is None else replace(base, hbm=float(limit))
    domains = len({_domain(device) for device in devices})
    return Hardware(THIS_MACHINE, platform, chip, devices, domains, host_memory.free())


def without_compiler(on: Hardware) -> Hardware:
    """The same hardware, for plans by arithmetic."""
    stand_ins = [
        Absent(
            device.id,
            device.platform,
            device.device_kind,
            device.process_index,
            None,
            getattr(device, "coords", None),
            getattr(device, "core_on_chip", 0),
            getattr(device, "slice_index", None),
        )
        for device in on.devices
    ]
    return replace(on, devices=stand_ins)


def _unknown(kind: str) -> UserError:
    return UserError(f"the memory of {kind} is not known; name its kind with --on, for example --on 8xH100.")


def _processor(kind: str, devices: int) -> Chip:
    """What JAX calls the devices of a CPU: each has its part of the memory that is available."""
    return Chip(kind, host_memory.free() / devices, None, None)


def _unstarted() -> Hardware:
    """This machine by what its operating system lists: the GPUs that JAX would use, else the CPU.

    Raises UserError for a TPU, whose kind is known only when it has been started, and for a GPU whose memory is not
    known.
    """
    wanted = os.environ.get("JAX_PLATFORMS", "").lower().split(",")
    gpus = [] if wanted == ["cpu"] or not _cuda_plugin() else _listed_gpus()
    if gpus:
        if (chip := chip_of(gpus[0])) is None:
            raise _unknown(gpus[0])
        devices = gpu_devices(chip, len(gpus), compiled=False)
        return Hardware(THIS_MACHINE, "gpu", chip, devices, host=host_memory.free())
    if wanted != ["cpu"] and find_spec("libtpu") is not None and lists_tpu():
        raise UserError(
            "which TPU this machine has is known only when it has been started; name it with --on, for example --on "
            "v5e:2x4, or leave out --quick."
        )
    forced = re.search(r"--xla_force_host_platform_device_count=(\d+)", os.environ.get("XLA_FLAGS", ""))
    stated = os.environ.get("JAX_NUM_CPU_DEVICES") or (forced[1] if forced else "1")
    if not (stated.isdecimal() and 0 < int(stated) <= MOST_DEVICES):
        raise UserError(f"{stated[:20]} is no number of CPU devices; correct JAX_NUM_CPU_DEVICES or XLA_FLAGS.")
    count = int(stated)
    devices = [Absent(number, "cpu", "cpu") for number in range(count)]
    return Hardware(THIS_MACHINE, "cpu", _processor("cpu", count), devices)


def _listed_gpus() -> list[str]:
    """The names of the NVIDIA GPUs that a process sees, from the driver's files."""
    names = []
    for file in sorted(GPU_FILES.glob("*/information")):
        found = re.search(r"^Model:\s*(.+)$", file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        names.append(found[1].strip() if found else "this machine's GPU")
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return names if seen is None else names[: len([one for one in seen.split(",") if one.strip() not in ("", "-1")])]


def _domain(device: Any) -> int:
    """The slice of a TPU, the process of another device."""
    return device.slice_index if getattr(device, "slice_index", None) is not None else device.process_index
