"""The meshes of a card: of the learner, over the devices of all processes, and of this process's engine and search.

With `rollout.devices` the last devices of each process generate and search, the others learn; otherwise all do both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import jax
from jax.sharding import Mesh

from scope_jax.config import Config, ServedModel
from scope_jax.errors import UserError
from scope_jax.multihost import distributed
from scope_jax.sharding.mesh import MeshConfig, make_mesh, resolve_sizes, slices, torus, without_context

C = TypeVar("C", bound=Config | ServedModel)


def all_generate(cfg: C) -> C:
    """The card for a command that does not learn: without `rollout.devices`, and with whole weights and cache."""
    whole = {"devices": None, "quantization": None, "kv_cache_dtype": None}
    return cfg.model_copy(update={"rollout": cfg.rollout.model_copy(update=whole)})


def divided_devices(cfg: Config | ServedModel, devices: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """(the devices that learn, those that generate): two disjoint parts with `rollout.devices`, otherwise all twice.

    Raises ValueError if a process has no device left to learn, or if a part is not a box of the TPU's torus.
    """
    count = cfg.rollout.devices
    if count is None:
        return list(devices), list(devices)
    owners: dict[int, list[Any]] = {}
    for device in devices:
        owners.setdefault(device.process_index, []).append(device)
    fewest = min(map(len, owners.values()))
    if fewest <= count:
        raise UserError(
            f"rollout.devices is {count}, but a process has {fewest} devices, of which at least one must learn; lower "
            "it, or remove it for an engine on the learner's devices."
        )
    learning = [device for own in owners.values() for device in own[:-count]]
    generating = [device for own in owners.values() for device in own[-count:]]
    pieces = [piece for part in (learning, generating) for piece in slices(part)]
    if any(box and math.prod(box) != len(piece) for piece in pieces for box in [torus(piece)]):
        raise UserError(
            f"rollout.devices is {count}, but on this slice the last {count} chips of all hosts, or the others, are no "
            "box of the torus, which their collectives need; choose another number or slice."
        )
    return learning, generating


def card_mesh(cfg: Config | ServedModel, devices: Sequence[Any] | None = None) -> Mesh:
    """The card's mesh over those of these devices that learn, or of all devices of all processes."""
    return make_mesh(_sizes(cfg), divided_devices(cfg, jax.devices() if devices is None else devices)[0])


def rollout_mesh(cfg: Config | ServedModel, devices: Sequence[Any]) -> Mesh:
    """The mesh of search and engine (unless it has its own) over those of these devices that generate.

    The card's mesh without its context axis, whose devices generate for rows of their own; over devices of their own,
    tensor groups of the card's size.
    """
    if cfg.rollout.devices is None:
        return without_context(card_mesh(cfg, devices))
    learning, generating = divided_devices(cfg, devices)
    return _in_groups(cfg, generating, resolve_sizes(_sizes(cfg), len(learning))[-1])


def own_mesh(cfg: Config | ServedModel) -> Mesh:
    """`process_mesh` of this process."""
    return process_mesh(cfg, jax.devices(), distributed.index())


def process_mesh(cfg: Config | ServedModel, devices: Sequence[Any], process: int) -> Mesh:
    """`rollout_mesh` of a process; of several processes, each has the rows of its own devices, in tensor groups as in
    the card. devices: of all processes.

    With [rollout.mesh], which divides these devices for the engine, the tensor groups may span several processes.
    Otherwise raises ValueError if they do.
    """
    own = [device for device in devices if device.process_index == process]
    if len(own) == len(devices):
        return rollout_mesh(cfg, devices)
    learning, _ = divided_devices(cfg, devices)
    _, generating = divided_devices(cfg, own)
    return _in_groups(cfg, generating, resolve_sizes(_sizes(cfg), len(learning))[-1])


def _sizes(cfg: Config | ServedModel) -> MeshConfig:
    return MeshConfig(**cfg.mesh.model_dump())


def _in_groups(cfg: Config | ServedModel, devices: Sequence[Any], tensor: int) -> Mesh:
    """A mesh of tensor groups, with rows of their own; without groups if [rollout.mesh] has them."""
    tensor = 1 if cfg.rollout.mesh is not None else tensor
    if len(devices) % tensor:
        raise UserError(
            f"mesh.tensor is {tensor}, but a process generates on {len(devices)} devices, and on these alone; give the "
            "engine a mesh of its own with [rollout.mesh]."
        )
    return make_mesh(replace(_sizes(cfg), data=1, fsdp=-1, tensor=tensor, context=1), devices)
