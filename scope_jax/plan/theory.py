"""Collectives of a training step in closed form, to compare with those that the compiler has made."""

from __future__ import annotations

import jax
from jax.sharding import PartitionSpec

from scope_jax.models.decoder import stacks
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.transformer import declare
from scope_jax.sharding.collectives import mesh_axes
from scope_jax.sharding.rules import TRAIN
from scope_jax.sharding.spec import partition_specs


def step_collectives(
    model: ModelConfig,
    fsdp: tuple[str, ...],
    recomputed: bool,
    context: int = 1,
    how: str = "ulysses",
    sequence: bool = False,
) -> dict[str, int]:
    """All-gathers and reduce-scatters of the gradient of one micro-batch; with a context axis of more than one device
    also all-to-alls ("ulysses") or collective-permutes ("ring"). Compiled updates of small models have as many, on TPUs
    and GPUs (tests/plan/test_collectives.py), and so have those of the shipped cards that were compiled for GPUs.

    Every weight with rows sharded over fsdp is gathered once per axis of `fsdp` (those of more than one device), and
    again where layers are recomputed; its gradient is scattered once per axis. XLA gathers the table of a tied model
    once for both of its uses. The table of layers' vectors is not gathered: ids are, sums of rows are scattered and
    their gradients gathered.

    With a context axis, which is one of `fsdp` too, one more all-gather has ends and positions of whole rows. A layer
    with a state moves six arrays by all-to-alls, and the ends once more for all of them. Ulysses
    moves queries, keys, values and results of every layer, again where it is recomputed, and their gradients. A ring of
    C devices passes keys and values on C − 1 times, again where recomputed; in the backward pass once more, together
    with their gradients, which take one step more to come home.

    With sequence parallelism attention and feed-forward layer each gather their tokens and scatter their sums; the
    backward pass does the reverse, and only the last sum of a layer is not computed again. An expert layer gathers its
    routing too, and scatters the gradient of its weights. The embedding's sums are scattered and gathered back, the
    last hidden states gathered and their gradients scattered.
    """
    specs = partition_specs(declare(model), TRAIN)

    def stages(tree: object) -> int:
        leaves = jax.tree.leaves(tree, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
        return sum(name in fsdp for spec in leaves for entry in spec for name in mesh_axes(entry))

    own = zip(stacks.split(model, specs["layers"]), stacks.stacks(model), strict=True)
    layers = sum(len(numbers) * stages(stack) for stack, numbers in own)
    tables = (1 if model.tie_embeddings else 2) * stages(specs["embed"])
    passes = 2 if recomputed else 1  # forward
    found = {"all-gather": passes * layers + tables, "reduce-scatter": layers + tables}
    if "inputs" in specs:
        rows, project = (stages(specs["inputs"][name]) for name in ("table_V_Lp", "project_D_Lp"))
        found["all-gather"] += 2 * rows + project + (1 if sequence else 0)
        found["reduce-scatter"] += rows + project + (1 if sequence else 0)
    if sequence:
        routed = 1 if model.num_experts else 0
        found["all-gather"] += model.num_layers * (passes * (2 + 2 * routed) + 2) + 2
        found["reduce-scatter"] += model.num_layers * (2 * passes - (1 if recomputed else 0) + 2 + routed) + 2
    if context == 1:
        return found
    attention = len(model.attention_layers)
    states = model.num_layers - attention
    found["all-gather"] += 2 if states else 1
    moved = {"all-to-all": 6 * states * (passes + 1)} if states else {}
    if how == "ulysses":
        return found | {"all-to-all": moved.get("all-to-all", 0) + attention * 4 * (passes + 1)}
    return found | moved | {"collective-permute": attention * ((passes + 2) * (context - 1) + 1)}
