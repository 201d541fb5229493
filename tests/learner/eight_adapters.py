"""Adapters on 8 fake CPU devices against one device: an update, and the engine's log-probs (test_adapters.py
starts it); prints one JSON object."""

import json
from dataclasses import replace

from tests.learner.eight_devices import CARD, MESHES, TINY, max_difference, stepped, worst  # isort: skip  # prepares JAX

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from scope_jax.config import LearnerSection, OptimizerSection
from scope_jax.learner.learner import Learner
from scope_jax.models.decoder.adapter import Adapter, combined, declare_factors
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.local import LocalRollouts
from scope_jax.rollouts.slots import EngineConfig
from scope_jax.sharding.mesh import AXES, MeshConfig, make_mesh
from scope_jax.sharding.spec import init_params
from tests.learner.conftest import random_episodes, weights_of
from tests.rollouts.world import ByteTokenizer, request, trainer_logprobs
from tests.shapes import like
from tests.sharding.eight_devices import EXPERTS

ADAPTER = Adapter(rank=4, alpha=8.0, targets=("all-linear",), base_dtype=jnp.float32)
MOE = like(EXPERTS, num_experts=8)
CASES = {
    **{name: (TINY, sizes, ADAPTER) for name, sizes in MESHES.items()},
    "experts_fsdp4_tensor2": (MOE, (1, 4, 2), replace(ADAPTER, targets=("all-linear", "experts"))),
    "sequence_tensor2": (TINY, (1, 1, 2), ADAPTER),
}


def mesh_of(sizes: tuple[int, ...]) -> Mesh:
    devices = jax.devices()[: int(np.prod(sizes))]
    if len(sizes) == len(AXES):  # stages of fsdp, as on a TPU
        return Mesh(np.array(devices).reshape(sizes), AXES)
    return make_mesh(MeshConfig(*sizes), devices)


def factors_of(model, adapter):
    factors = init_params(declare_factors(model, adapter), jax.random.key(1))
    rng = np.random.default_rng(2)
    return jax.tree.map(lambda x: x + 0.1 * rng.normal(size=x.shape).astype(np.float32), factors)


def run(model, sizes, adapter, base, micro_batch_rows, sequence=False):
    """(gradient of the first step from Adam's moment, factors after two steps, metrics, share of one device of A)."""
    optimizer = OptimizerSection(learning_rate=1e-3, warmup_steps=1, max_grad_norm=0.5, eps=1e-3)
    section = LearnerSection(
        buckets=(32,), micro_batch_rows=micro_batch_rows, logprob_chunk=8, sequence_parallel=sequence
    )
    kinds = {"param_dtype": jnp.float32, "compute_dtype": jnp.float32}
    learner = Learner(model, mesh_of(sizes), optimizer, section, **kinds, adapter=adapter)
    placed = jax.device_put(base, learner.layout.state_shardings(True).ref_params)
    state = learner.init_state(factors_of(model, adapter)).replace(ref_params=placed)
    grads, state, measured = stepped(learner, state, random_episodes(24, 6), CARD)
    a = state.params["layers"]["q_D_Hh"]["a"]
    return grads, jax.device_get(state.params), measured, a.addressable_shards[0].data.size / a.size


def engine_mismatch(model, sizes, adapter, base) -> float:
    """Largest difference between the log-probs of an engine on a mesh and the training forward pass."""
    config = EngineConfig(8, 96, 4, jnp.float32, 128, None, adapter, ("challenger", "solver"))
    rollouts = LocalRollouts(Engine(model, config, mesh_of(sizes)), ByteTokenizer(), seed=0, threads=1, ahead=False)
    rollouts.load_params(base)
    factors = factors_of(model, adapter)
    rollouts.load_adapter("solver", factors)
    prompts = [(np.arange(5 + 3 * i) % 60).tolist() for i in range(6)]
    asked = [
        replace(request(ids, key=i, max_tokens=6, stop_ids=()), policy=("solver", None)[i % 2])
        for i, ids in enumerate(prompts)
    ]
    trees = (combined(model, base, factors, adapter.scale), base)
    return max(
        float(np.abs(c.logprobs_T - trainer_logprobs(trees[i % 2], c, cfg=model, length=96)).max())
        for i, c in enumerate(rollouts.run(asked))
    )


def main() -> None:
    facts = {}
    for name, (model, sizes, adapter) in CASES.items():
        base = weights_of(model)
        one = run(model, (1, 1, 1), adapter, base, 4)
        grads, factors, measured, share = run(model, sizes, adapter, base, 8, name.startswith("sequence"))
        facts[name] = {
            "grads": max_difference(grads, one[0]),
            "params": max_difference(factors, one[1]),
            "metrics": worst(measured, one[2]),
            "share": share,
        }
    facts["engine"] = {
        "dense model": engine_mismatch(TINY, (1, 4, 2), ADAPTER, weights_of(TINY)),
        "experts": engine_mismatch(MOE, (1, 4, 2), CASES["experts_fsdp4_tensor2"][2], weights_of(MOE)),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
