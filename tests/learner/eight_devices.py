"""One update on 8 fake CPU devices against one device, for test_eight_devices.py."""

import os
from dataclasses import replace
from functools import cache, partial
from typing import Any

from tests.flags import fake_devices

os.environ["XLA_FLAGS"] = fake_devices(8)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.learner.learner import Learner
from scope_jax.learner.logprobs import token_logprobs_and_entropy, vocabulary_block
from scope_jax.models.decoder import stacks
from scope_jax.sharding.collectives import LOCAL, Shards
from scope_jax.sharding.mesh import AXES, MeshConfig, make_mesh
from tests.learner.conftest import TINY, random_episodes, weights_of
from tests.shapes import like

MESHES = {"fsdp4_tensor2": (1, 4, 2), "data2_fsdp2_tensor2": (2, 2, 2), "fsdp2x2_tensor2": (1, 2, 2, 1, 2)}
CARD = LossCard(kl="k3", kl_coef=0.1, mini_batches=2)
# Ratio and weight of whole sequences, which span devices and micro-batches; entropy bonus over the tensor group.
SEQUENCE_CARD = LossCard(
    ratio="sequence",
    clip_low=0.02,
    clip_high=0.02,
    kl="none",
    rollout_cap=2.0,
    rollout_weight="sequence",
    entropy_coef=0.05,
    mini_batches=2,
)
# Of three mini-batches the first has episodes without a term in the loss, the last nothing else.
IDLE_CARD = LossCard(kl="none", aggregation="constant", constant_length=8, mini_batches=3)


def run(sizes: tuple[int, ...], params, compute_dtype, micro_batch_rows=4, card=CARD, model=TINY, **options):
    """(gradient of the first step from Adam's moment, weights after one update, metrics of its mini-batches)."""
    devices = jax.devices()[: int(np.prod(sizes))]
    several = len(sizes) == len(AXES)  # stages of fsdp, as on a TPU
    mesh = Mesh(np.array(devices).reshape(sizes), AXES) if several else make_mesh(MeshConfig(*sizes), devices)
    optimizer = OptimizerSection(learning_rate=1e-3, warmup_steps=1, max_grad_norm=0.5, eps=1e-3)
    section = LearnerSection(buckets=(32,), micro_batch_rows=micro_batch_rows, logprob_chunk=8, **options)
    learner = Learner(model, mesh, optimizer, section, param_dtype=jnp.float32, compute_dtype=compute_dtype)
    state = learner.init_state(params)
    state = state.replace(ref_params=jax.tree.map(lambda w: w * 1.1, state.ref_params))
    change = list if card is CARD else partly_idle if card is IDLE_CARD else split_in_two
    episodes = change(random_episodes(24, 6))
    grads, state, measured = stepped(learner, state, episodes, card)
    table = stacks.split(model, state.params["layers"])[-1]["o_Hh_D"]
    return grads, jax.device_get(state.params), measured, table.addressable_shards[0].data.size / table.size


def stepped(learner: Learner, state, episodes, card):
    """(gradient of the first step from Adam's moment, state after a step for each mini-batch, metrics of each)."""
    batches = learner.pack(episodes, card)
    scores = [learner.score(state, batch) for batch in batches]
    measured = []
    for batch, scored in zip(batches, scores, strict=True):
        state, metrics = learner.step(state, batch, scored, card)
        measured.append({name: float(value) for name, value in metrics.items()})
        if len(measured) == 1:
            grads = jax.tree.map(lambda mu: np.asarray(mu) / 0.1, state.opt_state[0].mu)
    return grads, state, measured


def split_in_two(episodes):
    """Every second episode as two datums, which end up in different rows."""
    return [replace(e, datums=e.datums * 2) if number % 2 else e for number, e in enumerate(episodes)]


def partly_idle(episodes):
    """Of six groups, the first and the last two have advantages of 0."""
    return [e.with_advantage(0.0) if e.group in ("g0", "g4", "g5") else e for e in episodes]


def worst(measured, base) -> float:
    """Largest relative difference of any metric of any step that does not measure the layout of the rows."""
    layout = {"row_padding", "slot_padding", "shared_tokens"}
    pairs = [(a[key], b[key]) for a, b in zip(measured, base, strict=True) for key in b.keys() - layout]
    return max(abs(a - b) / max(abs(b), 1e-3) for a, b in pairs)


def max_difference(one, other) -> float:
    """Largest difference of any weight, relative to the largest entry of its own leaf."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def split_vocabulary() -> list[float]:
    """Log-probs, entropies and both gradients over a tensor group of 4, where each shard of the table (300 rows; 20 of
    the last one's are padding) is computed in three overlapping blocks of 128, against one block on one device.
    """
    rng = np.random.default_rng(0)
    hidden_ND, table_VD = (jnp.asarray(rng.normal(size=size), jnp.float32) for size in ((64, 12), (1200, 12)))
    targets_N, weight_N = jnp.arange(64) * 18 + 7, jnp.linspace(-1, 2, 64)
    assert vocabulary_block(300, 64, 12, 8) == 128

    def measured(hidden_ND, table_VD, chunk, shards, vocab):
        def loss(hidden_ND, table_VD):
            both = token_logprobs_and_entropy(
                hidden_ND, table_VD, targets_N, jnp.float32(0.7), chunk, shards, vocab, entropy_slope=True
            )
            return (weight_N * both[0] + 0.3 * both[1]).sum(), both

        grads, both = jax.grad(loss, (0, 1), has_aux=True)(hidden_ND, table_VD)
        return *both, *grads

    mesh = make_mesh(MeshConfig(1, 2, 4))
    rows, whole = PartitionSpec("tensor"), PartitionSpec()
    run = jax.shard_map(
        partial(measured, chunk=8, shards=Shards.of(mesh), vocab=1180),
        mesh=mesh,
        in_specs=(whole, rows),
        out_specs=(whole, whole, whole, rows),
        check_vma=False,
    )
    expected = list(jax.jit(partial(measured, chunk=64, shards=LOCAL, vocab=None))(hidden_ND, table_VD[:1180]))
    expected[-1] = jnp.pad(expected[-1], ((0, 20), (0, 0)))
    return [max_difference(a, b) for a, b in zip(jax.jit(run)(hidden_ND, table_VD), expected, strict=True)]


@cache
def alone() -> Any:
    """The update of one device that all meshes of CARD are compared with."""
    return run((1, 1, 1), weights_of(TINY), jnp.float32)


def compared(found, one) -> dict[str, Any]:
    """Differences of a mesh from one device, and the share of a weight that one of its devices has."""
    grads, weights, measured, share = found
    return {
        "grads": max_difference(grads, one[0]),
        "params": max_difference(weights, one[1]),
        "metrics": worst(measured, one[2]),
        "share": share,
    }


def biased() -> dict[str, Any]:
    """Each of two kv heads is shared by two devices."""
    model = like(TINY, qkv_bias=True, qk_norm="width")
    params = jax.tree.map(lambda w: w + 0.1, weights_of(model))  # no bias of zeros
    one = run((1, 1, 1), params, jnp.float32, model=model)
    return compared(run((1, 2, 4), params, jnp.float32, 8, model=model), one)


def sequence() -> dict[str, Any]:
    one, mesh = (run(sizes, weights_of(TINY), jnp.float32, rows, SEQUENCE_CARD) for sizes, rows in ONE_AND_MESH)
    return compared(mesh, one) | {"clipped": one[2][1]["clip_fraction"]}


def idle() -> dict[str, Any]:
    one, mesh = (run(sizes, weights_of(TINY), jnp.float32, rows, IDLE_CARD) for sizes, rows in ONE_AND_MESH)
    return compared(mesh, one) | {
        "idle": [step["idle_sequences"] for step in mesh[2]],
        "grad_norm": [step["grad_norm"] for step in mesh[2]],
    }


def bfloat16() -> dict[str, list[float]]:
    low = run(MESHES["fsdp4_tensor2"], weights_of(TINY), jnp.bfloat16)
    return {key: [low[2][0][key], alone()[2][0][key]] for key in ("loss", "grad_norm", "entropy")}


ONE_AND_MESH = (((1, 1, 1), 4), (MESHES["data2_fsdp2_tensor2"], 8))  # with other micro-batches
OTHERS = {
    "fsdp2_tensor4": biased,
    "sequence": sequence,
    "idle": idle,
    "split_vocabulary": split_vocabulary,
    "bfloat16": bfloat16,
}


def main(name: str) -> Any:
    """The facts of this name."""
    if name in MESHES:
        return compared(run(MESHES[name], weights_of(TINY), jnp.float32, micro_batch_rows=8), alone())
    return OTHERS[name]()
