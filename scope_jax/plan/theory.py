"""Collectives of a training step in closed form, to compare with those that the compiler has made."""

from __future__ import annotations

import jax
from jax.sharding import PartitionSpec

from models.config import ModelConfig
from models.transformer import declare
from sharding.collectives import mesh_axes
from sharding.rules import TRAIN
from sharding.spec import partition_specs


def step_collectives(model: ModelConfig, fsdp: tuple[str, ...], recomputed: bool) -> dict[str, int]:
    """All-gathers and reduce-scatters of the gradient of one micro-batch.

    Every weight with rows sharded over fsdp is gathered once per axis of `fsdp` (those of more than one device), and
    again where layers are recomputed; its gradient is scattered once per axis. XLA gathers the table of a tied model
    once for both of its uses.
    """
    specs = partition_specs(declare(model), TRAIN)

    def stages(tree: object) -> int:
        leaves = jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
        return sum(name in fsdp for spec in leaves for entry in spec for name in mesh_axes(entry))

    layers = model.num_layers * stages(specs["layers"])
    tables = (1 if model.tie_embeddings else 2) * stages(specs["embed"])
    return {"all-gather": (2 if recomputed else 1) * layers + tables, "reduce-scatter": layers + tables}
