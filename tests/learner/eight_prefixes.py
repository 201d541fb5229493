"""One update with what datums begin with in a row once, against the update in which it is in every row, on up to 8 fake
CPU devices (test_prefixes.py starts it with "float32" or "float64"); prints one JSON object. Further arguments are
names of cases, without them all."""

import json
import os
import sys

from tests.flags import fake_devices

os.environ["XLA_FLAGS"] = fake_devices(8)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np

if sys.argv[1] == "float64":  # the models compute norms, scores and sums in float32; here in float64, as all else
    jax.config.update("jax_enable_x64", True)
    jnp.float32 = jnp.float64

from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.learner import batching, prefixes
from scope_jax.learner.learner import Learner
from scope_jax.models.decoder.adapter import Adapter
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from tests.learner.conftest import TINY, weights_of
from tests.learner.groups import grouped, several_turns, with_picks
from tests.shapes import like
from tests.sharding.eight_devices import CFG, EXPERTS, POST_NORM

CARD = LossCard(kl="k3", kl_coef=0.1, entropy_coef=0.05, old_logprobs="rollout")
SEQUENCE = LossCard(ratio="sequence", kl="k3", rollout_cap=2.0, rollout_weight="sequence", aggregation="token-mean")
GROUPS = grouped(6, 13, [7, 1, 5, 9], temperatures=(0.6, 1.0, 1.3))
TURNS = several_turns(8, 3)
LONG = [*grouped(2, 150, [40, 9, 60], seed=3), *grouped(3, 30, [50, 20], seed=4)]  # rows of several blocks of queries
ONE = (1, 1, 1, 1)  # data, fsdp, tensor, context
ADAPTER = Adapter(4, 8.0, ("q_proj", "v_proj", "down_proj"), base_dtype=jnp.float32)
MOE = like(EXPERTS, num_experts=8)
PICKED = with_picks(TURNS, MOE.picks[0], MOE.num_experts, MOE.picks[1])
CASES = {  # model, mesh, episodes, the rest; plain: another mesh of the update that shares nothing
    "group": (TINY, ONE, GROUPS, {}),
    "biases": (CFG, ONE, GROUPS, {"card": SEQUENCE}),
    "turns": (TINY, ONE, TURNS, {}),
    "windows": (POST_NORM, ONE, GROUPS, {}),
    "windows in blocks": (like(POST_NORM, layer_windows=(20, None)), ONE, LONG, {"buckets": (384,)}),
    "dot_product": (POST_NORM, ONE, GROUPS, {"attention": "dot_product"}),
    "experts": (EXPERTS, ONE, GROUPS, {}),
    "adapter": (TINY, ONE, TURNS, {"adapter": ADAPTER}),
    "fsdp 4, tensor 2": (TINY, (1, 4, 2, 1), GROUPS, {}),
    "data 2, fsdp 2, sequence 2": (TINY, (2, 2, 2, 1), GROUPS, {"sequence_parallel": True}),
    "ulysses": (POST_NORM, (2, 1, 1, 2), GROUPS, {}),
    "ring": (POST_NORM, (1, 2, 1, 4), GROUPS, {"context_attention": "ring"}),
    "experts, ring, sequence": (MOE, (1, 2, 2, 2), TURNS, {"sequence_parallel": True}),
    "picked, ring, sequence": (MOE, (1, 2, 2, 2), PICKED, {"sequence_parallel": True, "plain": ONE}),
}


def update(model, sizes, episodes, share, card=CARD, adapter=None, buckets=(32, 64), **section):
    """(log-probs under policy and reference, gradient from Adam's moment, loss, tokens not computed again)."""
    mesh = make_mesh(MeshConfig(*sizes), jax.devices()[: int(np.prod(sizes))])
    optimizer = OptimizerSection(learning_rate=1e-3, warmup_steps=0, max_grad_norm=1e9)
    options = LearnerSection(buckets=buckets, micro_batch_rows=8, logprob_chunk=8, share_prefixes=share, **section)
    dtypes = {"param_dtype": jnp.float32, "compute_dtype": jnp.float32}
    learner = Learner(model, mesh, optimizer, options, **dtypes, adapter=adapter)
    weights = weights_of(model)
    if adapter is None:
        state = learner.init_state(weights)
        state = state.replace(ref_params=jax.tree.map(lambda w: w * 1.1, state.ref_params))
    else:
        rng, factors = np.random.default_rng(0), learner.layout.init_factors(jax.random.key(0))
        factors = jax.tree.map(lambda w: w + 0.05 * rng.normal(size=w.shape), factors)
        state = learner.init_state(factors).replace(ref_params=weights)
    (batch,) = learner.pack(episodes, card)
    scores = [batching.unpack(batch, x) for x in jax.device_get(learner.score(state, batch)[:2])]
    after, metrics = learner.update(state, [batch], card)
    return scores, jax.device_get(after.opt_state[0].mu), metrics["loss"], metrics["shared_tokens"]


def difference(one, other) -> float:
    """Largest difference of any entry, relative to the largest entry of its own leaf."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def main(*names: str) -> None:
    prefixes.SAVING = -9.0  # the cheapest way to share, if it saves nothing, too
    facts = {}
    exact = [name for name in CASES if jnp.float32 != jnp.float64 or name != "dot_product"]  # which sums in float32
    for name in names or exact:
        model, sizes, episodes, options = CASES[name]
        options = dict(options)
        other = options.pop("plain", sizes)
        ours = update(model, sizes, episodes, "auto", **options)
        plain = update(model, other, episodes, "never", **options)
        facts[name] = {
            "scores": float(np.abs(np.subtract(ours[0], plain[0])).max()),
            "grads": difference(ours[1], plain[1]),
            "loss": abs(ours[2] - plain[2]),
            "shared": ours[3],
        }
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[2:])
