"""Small published weights, where the shared data has them: recorded greedy continuations, and an old folder."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.models.decoder import transformer
from scope_jax.models.decoder.config import Dense, ModelConfig
from scope_jax.models.files.weights import load_hf
from scope_jax.models.kernels.rope import Rope
from scope_jax.sharding.collectives import LOCAL
from tests.shapes import uniform


def half_split(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows (output features) of a projection for interleaved RoPE, reordered for RoPE over two halves."""
    pairs = rows.reshape(-1, head_dim // 2, 2, rows.shape[-1])
    return pairs.transpose(0, 2, 1, 3).reshape(rows.shape)


def read_llama2c(path: Path, theta: float, eps: float) -> tuple[ModelConfig, dict]:
    """(config, weights) of llama2.c's first file format: seven int32, then float32 matrices of all layers by kind."""
    data = path.read_bytes()
    D, F, L, H, K, V, length = struct.unpack("7i", data[:28])
    assert V > 0  # a positive sign means that the output table is the embedding table
    h = D // H
    cfg = uniform("llama", V, L, D, H, K, h, F, Rope(theta), eps, True, "none", False, False, max_positions=length)
    values, at = np.frombuffer(data, "<f4", offset=28), 0

    def take(*shape: int) -> np.ndarray:
        nonlocal at
        at += int(np.prod(shape))
        return values[at - int(np.prod(shape)) : at].reshape(shape)

    table_VD, attn_norm = take(V, D), take(L, D)
    q, k, v, o = take(L, H * h, D), take(L, K * h, D), take(L, K * h, D), take(L, D, H * h)
    ffn_norm, gate, down, up, final = take(L, D), take(L, F, D), take(L, D, F), take(L, F, D), take(D)
    layers = {
        "attn_norm_D": attn_norm,
        "q_D_Hh": np.stack([half_split(m, h).T for m in q]),
        "k_D_Kh": np.stack([half_split(m, h).T for m in k]),
        "v_D_Kh": v.swapaxes(1, 2),
        "o_Hh_D": o.swapaxes(1, 2),
        "ffn_norm_D": ffn_norm,
        "gate_DF": gate.swapaxes(1, 2),
        "up_DF": up.swapaxes(1, 2),
        "down_FD": down.swapaxes(1, 2),
    }
    params = {"embed": {"table_VD": table_VD}, "layers": layers, "final_norm": {"scale_D": final}}
    return cfg, jax.tree.map(jnp.asarray, params)


def logits(cfg: ModelConfig, params: dict, ids_BT: jax.Array) -> jax.Array:
    positions_BT = jnp.broadcast_to(jnp.arange(ids_BT.shape[1]), ids_BT.shape)
    hidden_BTD = transformer.hidden(
        cfg,
        params,
        ids_BT,
        positions_BT,
        jnp.full_like(ids_BT, ids_BT.shape[1]),
        shards=LOCAL,
        remat="none",
        compute_dtype=jnp.float32,
    )
    return hidden_BTD @ transformer.output_table(cfg, params).T


def test_a_trained_llama_continues_as_recorded(shared_data):
    """Each recorded token is the most probable one after its prefix."""
    folder = shared_data / "weights" / "stories260K"
    if not folder.is_dir():
        pytest.skip("no stories260K in the shared data")
    recorded = json.loads((folder / "expected_greedy.json").read_text())
    cfg, params = read_llama2c(folder / "stories260K.bin", recorded["rope_theta"], recorded["norm_eps"])
    sizes = recorded["config"]
    assert (cfg.width, cfg.layers[0].feed, cfg.num_layers) == (
        sizes["dim"],
        Dense(sizes["hidden_dim"]),
        sizes["n_layers"],
    )
    ids = recorded["greedy_from_bos_ids"]
    chosen = jnp.argmax(jax.jit(logits, static_argnums=0)(cfg, params, jnp.asarray([ids])), axis=-1)[0]
    assert len(ids) > 50
    assert chosen[:-1].tolist() == ids[1:]


def test_a_llama_folder_of_transformers_4_loads(shared_data):
    folder = shared_data / "weights" / "tiny_llama_hf_arith"
    if not folder.is_dir():
        pytest.skip("no tiny_llama_hf_arith in the shared data")
    cfg, params = load_hf(folder)
    assert (cfg.architecture, cfg.layers[0].attention.head_dim, cfg.layers[0].attention.rope) == (
        "llama",
        32,
        Rope(10000.0),
    )
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    ids = np.random.default_rng(0).integers(0, cfg.vocab_size, (2, 16))
    with torch.no_grad():
        theirs = model(torch.tensor(ids)).logits.numpy()
    ours = np.asarray(jax.jit(logits, static_argnums=0)(cfg, params, jnp.asarray(ids)))
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()
