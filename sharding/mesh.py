"""The device mesh: named axes, sizes from a config."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh

from scope_jax.errors import UserError

FSDP = ("fsdp", "fsdp_inner")  # the axes of fsdp, outermost first; gathers and reduce-scatters take one at a time
ROWS = ("data", *FSDP)  # axes that the rows of a batch, and the slots of an engine, are divided over
SHARDED = (*FSDP, "context")  # axes that the rows of the weights are divided over while training
TOKENS = (*ROWS, "context")  # axes that the tokens of a batch are divided over
AXES = (*TOKENS, "tensor")


@dataclass(frozen=True)
class MeshConfig:
    """Sizes of the mesh axes; one of them may be -1, which means "all remaining devices".

    data: replicas of the weights, each with different rows (pure data parallelism).
    fsdp: devices that share one sharded copy of the weights, each with different rows.
    tensor: devices that share the same rows: heads, ffn and vocabulary are split over them (tensor parallelism).
    context: devices that share the same rows: the tokens of each are divided over them (context parallelism, in
    training only). They share one sharded copy of the weights, as those of fsdp do.
    """

    data: int
    fsdp: int
    tensor: int
    context: int = 1


def resolve_sizes(cfg: MeshConfig, num_devices: int) -> tuple[int, int, int, int]:
    """Axis sizes (data, fsdp, context, tensor) with -1 filled in.

    Raises ValueError if a size is neither -1 nor positive, if more than one is -1, or if the product is not
    num_devices.
    """
    sizes = [cfg.data, cfg.fsdp, cfg.context, cfg.tensor]
    asked = f"mesh data={cfg.data}, fsdp={cfg.fsdp}, tensor={cfg.tensor}"
    if cfg.context != 1:
        asked += f", context={cfg.context}"
    if any(size < 1 and size != -1 for size in sizes):
        raise UserError(f"{asked}: every size must be a positive number or -1 (the remaining devices).")
    if sizes.count(-1) > 1:
        raise UserError(f"{asked}: only one size may be -1.")
    known = math.prod(size for size in sizes if size != -1)
    if -1 in sizes:
        if num_devices % known:
            raise UserError(f"{asked}: {num_devices} devices are not divisible by {known}; change the sizes.")
        sizes[sizes.index(-1)] = num_devices // known
    elif known != num_devices:
        raise UserError(
            f"{asked} needs {known} devices but there are {num_devices}; change the sizes or use -1 in one."
        )
    data, fsdp, context, tensor = sizes
    return data, fsdp, context, tensor


def row_shards(mesh: Mesh) -> int:
    """The number of devices, or groups of tensor and context, that the rows of a batch are divided over."""
    return math.prod(mesh.shape[name] for name in ROWS)


def torus(devices: Sequence[Any]) -> tuple[int, ...]:
    """Devices along each dimension of the smallest box of a TPU torus that holds these, and of a chip where it is
    several devices; () for other devices."""
    if any(getattr(device, "coords", None) is None for device in devices):
        return ()
    places = [(*device.coords, getattr(device, "core_on_chip", 0)) for device in devices]  # GPUs have none
    *box, cores = (max(along) - min(along) + 1 for along in zip(*places, strict=True))
    return (*box, cores) if cores > 1 else tuple(box)


def slices(devices: Sequence[Any]) -> list[list[Any]]:
    """The devices of each TPU slice; other devices are one."""
    found: dict[int, list[Any]] = {}
    for device in devices:
        found.setdefault(getattr(device, "slice_index", None) or 0, []).append(device)
    return list(found.values())


def stages(fsdp: int, torus: tuple[int, ...]) -> tuple[int, int]:
    """Sizes (fsdp, fsdp_inner) whose product is `fsdp`, such that fsdp_inner is along one dimension of the torus.

    XLA turns a gather or reduce-scatter over all dimensions of a TPU torus into an all-reduce of the whole array; over
    one dimension, and over the two that remain of three, it is a native one (compiled for v5p, v5e and v6e). Two
    dimensions of which one is 2 form a ring and need no stages.
    """
    wide = sorted(size for size in torus if size > 1)
    if len(wide) == 2 and wide[0] == 2:
        return fsdp, 1
    inner = math.gcd(fsdp, max(torus, default=1))
    return fsdp // inner, inner


def make_mesh(cfg: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """Mesh with axes AXES over the given devices (all devices if None).

    tensor is the innermost axis: its devices communicate most and should be closest; then context. On TPU fsdp is
    factored by `stages`; elsewhere fsdp_inner is 1. Several slices are along data, or as far as it is too small, along
    the outer fsdp. Raises ValueError as resolve_sizes does, and if data · fsdp is not a multiple of the slices.
    """
    devices = list(jax.devices() if devices is None else devices)
    data, fsdp, context, tensor = resolve_sizes(cfg, len(devices))
    parts = slices(devices)
    replicas = math.gcd(data, len(parts))
    shards = len(parts) // replicas
    if fsdp % shards or len({len(part) for part in parts}) > 1:
        raise UserError(
            f"mesh data={data}, fsdp={fsdp} does not divide {len(parts)} slices of {len(parts[0])} devices; "
            "choose sizes whose product is a multiple of the slices."
        )
    shape = (data // replicas, *stages(fsdp // shards, torus(parts[0])), context, tensor)
    if len(parts) == 1:
        grid = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
    else:
        across = (replicas, shards, 1, 1, 1)
        grid = mesh_utils.create_hybrid_device_mesh(shape, across, devices, allow_split_physical_axes=True)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def without_context(mesh: Mesh) -> Mesh:
    """The same devices in the same order with those of a context group as further row shards, for generation."""
    data, fsdp, inner, context, tensor = mesh.devices.shape
    if context == 1:
        return mesh
    return Mesh(mesh.devices.reshape(data, fsdp, inner * context, 1, tensor), AXES, axis_types=mesh.axis_types)
