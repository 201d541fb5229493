"""The parts of gpt-oss: clamped experts with biases; the whole model on several devices."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.errors import UserError
from scope_jax.models.decoder import moe
from scope_jax.models.decoder.adapter import EXPERTS, Adapter, declare_factors
from scope_jax.models.decoder.lowrank import LowRank, merged
from scope_jax.models.files import peft
from scope_jax.sharding.collectives import LOCAL
from scope_jax.sharding.spec import init_params
from tests.models.gpt_oss import CFG, weights

ROOT = Path(__file__).resolve().parents[2]
FEED: Any = CFG.layers[0].feed


def test_the_clamped_activation_by_hand():
    """(u + 1) · g · σ(1.702 g), g at most 7, u within ±7."""
    gate, up = jnp.array([1.0, 9.0, -9.0, 7.0]), jnp.array([0.5, -9.0, 9.0, 2.0])
    found = moe.activated(FEED, gate, up)
    sigmoid = lambda x: 1 / (1 + np.exp(-1.702 * x))  # noqa: E731
    wanted = [1.5 * sigmoid(1), -6 * 7 * sigmoid(7), 8 * -9 * sigmoid(-9), 3 * 7 * sigmoid(7)]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def every_expert(w, x_BTD):
    """Each token times each expert, the weights a softmax over the picked logits."""
    logits = x_BTD @ w["router_DX"] + w["router_bias_X"]
    least = jax.lax.top_k(logits, FEED.picked)[0][..., -1:]
    share = jax.nn.softmax(jnp.where(logits >= least, logits, -jnp.inf), axis=-1)
    gate = jnp.einsum("btd,xdf->btxf", x_BTD, w["gate_XDF"]) + w["gate_bias_XF"]
    up = jnp.einsum("btd,xdf->btxf", x_BTD, w["up_XDF"]) + w["up_bias_XF"]
    gate, up = jnp.minimum(gate, 7), jnp.clip(up, -7, 7)
    hidden = (up + 1) * gate * jax.nn.sigmoid(1.702 * gate)
    out = jnp.einsum("btxf,xfd->btxd", hidden, w["down_XFD"]) + w["down_bias_XD"]
    return jnp.einsum("btx,btxd->btd", share, out)


def of_experts() -> dict[str, Any]:
    """The weights of the first layer's experts and their router."""
    layers = weights(CFG)["layers"]
    return {name: x[0] for name, x in layers.items() if "router" in name or "X" in name.split("_")[-1]}


def with_gradients(layer, w, x, ct):
    out, pull = jax.vjp(layer, w, x)
    return out, pull(ct)


def test_experts_and_every_gradient():
    w = {name: x * (20 if name.startswith(("gate_X", "up_X")) else 1) for name, x in of_experts().items()}
    assert len(w) == 8
    x, ct = (jax.random.normal(jax.random.key(seed), (2, 9, CFG.width)) for seed in (1, 2))
    gate = jnp.einsum("btd,xdf->btxf", x, w["gate_XDF"])
    assert 0.01 < jnp.mean(gate > 7) < 0.5, "some are clamped"
    ours, gradients = jax.jit(partial(with_gradients, partial(moe.moe_layer, FEED, shards=LOCAL)))(w, x, ct)
    wanted, others = jax.jit(partial(with_gradients, every_expert))(w, x, ct)
    np.testing.assert_allclose(ours, wanted, atol=2e-5)
    for one, other in zip(jax.tree.leaves(gradients), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5 * float(jnp.abs(other).max()))


def test_adapters_of_experts_have_no_form_in_pefts_files(tmp_path):
    adapter = Adapter(2, 4.0, ("experts",))
    factors = init_params(declare_factors(CFG, adapter), jax.random.key(0))
    with pytest.raises(UserError, match=r"\(mlp.experts.\w+\) have no form in PEFT's files; export with"):
        peft.save(tmp_path / "out", CFG, adapter, factors, "base")


def test_adapted_experts_equal_merged_ones():
    w = of_experts()
    x = jax.random.normal(jax.random.key(1), (2, 9, CFG.width))

    def low_rank(name: str) -> LowRank:
        count, rows, columns = w[name].shape
        a, b = (jax.random.normal(jax.random.key(len(name) + n), s) for n, s in enumerate(((rows, 2), (2, columns))))
        return LowRank(w[name], jnp.stack([a] * count), jnp.stack([b] * count), 0.1)

    adapted = w | {name: low_rank(name) for name in EXPERTS}
    whole = w | {name: merged(adapted[name]) for name in EXPERTS}
    run = jax.jit(lambda w: moe.moe_layer(FEED, w, x, LOCAL))
    ours, wanted = run(adapted), run(whole)
    np.testing.assert_allclose(ours, wanted, atol=2e-5 * float(jnp.abs(wanted).max()))
    assert jnp.abs(wanted - run(w)).max() > 0.1


def on_eight_devices(what: str) -> Any:
    command = [sys.executable, str(Path(__file__).with_name("eight_gpt_oss.py")), what]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_an_update_equals_that_of_one_device():
    facts = on_eight_devices("learner")
    assert set(facts) == {"tensor", "sequence", "ring", "ulysses"}
    for name, found in facts.items():
        assert found["grads"] < 1e-5 and found["params"] < 1e-5 and found["metrics"] < 1e-4, (name, found)


@pytest.mark.slow
def test_greedy_tokens_equal_those_of_one_device():
    """25 of each of nine requests."""
    facts = on_eight_devices("engines")
    assert facts["one"] == facts["data4_tensor2"] and [len(ids) for ids in facts["one"]] == [25] * 9
