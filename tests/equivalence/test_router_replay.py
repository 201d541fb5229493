"""The experts that engines pick, and learners that take given ones, against transformers' routers (float32, eager).

Picks are equal, each token's best first. With random experts in the place of the routers' choice, logits are as close
as in test_families, and so are the gradients of every weight, those of the routers included.
"""

from __future__ import annotations

from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.peers.cases import Numbers
from scope_jax.models.decoder import transformer
from scope_jax.models.decoder.columns import Columns
from scope_jax.models.decoder.moe import picked_dtype
from scope_jax.models.decoder.pages import Loop
from scope_jax.models.files.weights import load_hf
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.local import LocalRollouts
from scope_jax.rollouts.slots import EngineConfig
from scope_jax.rollouts.types import Request, SamplingParams
from scope_jax.sharding.collectives import LOCAL
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from tests.equivalence.test_families import (
    LENGTH,
    VOCAB,
    assert_gradients,
    gradients,
    logits,
    tolerance_of,
    torch_gradients,
    torch_logits,
    torch_model,
)

torch = pytest.importorskip("torch")
ROWS = 2


@pytest.fixture(
    scope="module",
    params=["qwen3_moe", *(pytest.param(c, marks=pytest.mark.slow) for c in ("gpt_oss", "qwen3_5_moe", "gemma4_moe"))],
)
def pair(request, tmp_path_factory):
    """(torch model, our config, our weights)."""
    model, folder = torch_model(request.param), tmp_path_factory.mktemp("hf")
    model.save_pretrained(folder)
    return model, *load_hf(folder)


@contextmanager
def routers(choose):
    """Lets choose(layer, scores, picks) say what the routers pick, which is all that they take from torch.topk."""
    real, calls = torch.topk, []

    def topk(scores, k, dim=-1):
        picked = choose(len(calls), scores, real(scores, k, dim=dim).indices)
        calls.append(picked)
        return scores.gather(dim, picked), picked

    torch.topk = topk
    try:
        yield calls
    finally:
        torch.topk = real


@pytest.mark.slow
@pytest.mark.parametrize("how", [Columns(128), Loop()], ids=["columns", "pages"])
def test_picks_of_the_engine(pair, how):
    """24 tokens after prompts of different lengths."""
    model, cfg, params = pair
    plain = {"decode_steps": 8, "compute_dtype": jnp.float32, "prefill_tokens": 64}
    config = EngineConfig(slots=4, max_length=128, picks=True, **plain)
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    rollouts = LocalRollouts(Engine(cfg, config, mesh, how), Numbers(), seed=0, threads=1, ahead=False)
    rollouts.load_params(params)
    rng = np.random.default_rng(0)
    sampling = SamplingParams(1.0, 0, 1.0, 24, (), (), False)
    prompts = [rng.integers(0, VOCAB, length).tolist() for length in (3, 17, 40)]
    for one in rollouts.run([Request(p, sampling, None, None, 1, None, picks=True) for p in prompts]):
        (row,) = one.rows
        ids_T = np.concatenate([row.prompt_ids, row.ids_T])
        with routers(lambda layer, scores, picks: picks) as theirs:
            torch_logits(model, ids_T[None, :-1])
        wanted_TLk = np.stack([picked.numpy() for picked in theirs], axis=1)
        assert wanted_TLk.shape == (len(ids_T) - 1, len(cfg.expert_layers), cfg.picks[1])
        assert row.picked_TLk is not None and np.array_equal(row.picked_TLk[:-1], wanted_TLk)


def test_logits_and_gradients_with_given_picks(pair):
    model, cfg, params = pair
    rng = np.random.default_rng(1)
    ids_BT = rng.integers(0, VOCAB, (ROWS, LENGTH)).astype(np.int32)
    count, picks = cfg.picks
    order = rng.random((ROWS, LENGTH, count, cfg.num_experts)).argsort(axis=-1)
    picked_BTLk = order[..., :picks].astype(picked_dtype(cfg.num_experts))
    picked = jnp.asarray(picked_BTLk)

    def given(layer, scores, _):
        return torch.tensor(picked_BTLk[:, :, layer % count].reshape(-1, picks).astype(np.int64))

    def ours(params, ids_BT):
        positions_BT = jnp.broadcast_to(jnp.arange(LENGTH), ids_BT.shape)
        arrays = jnp.asarray(ids_BT), positions_BT, jnp.full_like(ids_BT, LENGTH)
        how = {"shards": LOCAL, "remat": "full", "compute_dtype": jnp.float32, "picked_BTLk": picked}
        return logits(cfg, params, transformer.hidden(cfg, params, *arrays, **how))

    free = torch_logits(model, ids_BT)
    with routers(given):
        theirs, their_gradients = torch_logits(model, ids_BT), torch_gradients(model, ids_BT)
    assert np.abs(theirs - free).max() > 0.1
    assert np.abs(np.asarray(jax.jit(ours)(params, ids_BT)) - theirs).max() <= tolerance_of(cfg)
    found = gradients(ours, params, ids_BT)
    assert_gradients(cfg, found, their_gradients)
    routed = [grad for name, grad in their_gradients.items() if "router" in name or name.endswith("mlp.gate.weight")]
    assert routed and all(np.abs(grad).max() > 1e-4 for grad in routed)
