"""The meshes of a card: of the learner, over all devices, and of this process's engine and search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import Mesh

from scope_jax.config import Config, ServedModel
from sharding import distributed
from sharding.mesh import MeshConfig, make_mesh, resolve_sizes, without_context


def card_mesh(cfg: Config | ServedModel, devices: Sequence[Any] | None = None) -> Mesh:
    """The card's mesh over these devices, or over all devices of all processes."""
    return make_mesh(MeshConfig(**cfg.mesh.model_dump()), devices)


def own_mesh(cfg: Config | ServedModel) -> Mesh:
    """The card's mesh without its context axis, whose devices generate for rows of their own; of several processes,
    each has the rows of its own devices, in tensor groups as in the card.

    With [rollout.mesh], which divides these devices for the engine, the tensor groups may span several processes.
    Otherwise raises ValueError if they do.
    """
    if distributed.count() == 1:
        return without_context(card_mesh(cfg))
    sizes = MeshConfig(**cfg.mesh.model_dump())
    devices = jax.local_devices()
    tensor = 1 if cfg.rollout.mesh is not None else resolve_sizes(sizes, jax.device_count())[-1]
    if len(devices) % tensor:
        raise ValueError(
            f"mesh.tensor is {tensor}, but a process has {len(devices)} devices and generates on these alone; "
            "give the engine a mesh of its own with [rollout.mesh]."
        )
    return make_mesh(replace(sizes, data=1, fsdp=-1, tensor=tensor, context=1), devices)
