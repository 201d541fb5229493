"""Initial weights with an added copying circuit.

Reading an answer out of a document (in-context copying) emerges late in tiny models. It needs two kinds of heads in
consecutive layers (Olsson et al. 2022, "In-context Learning and Induction Heads"): heads that look a fixed number of
tokens back, and heads that find the earlier position whose recent tokens equal the current ones. Both can be written
down, so training starts from random weights with these two added, and the warm-up takes minutes. The circuit contains
no facts, formats or language: it only makes "what followed the last time?" cheap.

Layer 1, head j (from 0): constant query and key vectors (read from coordinate 0, which is the same in every embedding),
rotated relative to each other by j + 1 positions in RoPE's fast planes: the score Σᵢ cos(θᵢ(Δ − j − 1)) is largest for
distance Δ = j + 1. Its output is stored in a separate subspace of the residual stream.
Layer 2, head j: the query holds the current token (and the one j back), the key the token 1 (and j + 1) back, on
RoPE's slow planes, where distance hardly matters; the value is the token at that position, written out unchanged.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scope_jax.models.decoder.config import Attention, Dense, ModelConfig
from scope_jax.models.kernels.rope import Rope

FAST, SLOW = 0.06, 0.02  # radians per token: planes above carry position, planes below carry content
EMBED_STD = 0.1
CONSTANT = 0.34  # coordinate 0 of every embedding, about a third of an embedding's length
BACK_GAIN, STORE, COPY = 3.0, 0.1, 0.5  # gains of the constant query, of storing a found token, of writing it out
SHARPNESS = 2.0  # scale of queries and keys of both layers
DAMPING = 0.1  # random weights of the two layers' queries and keys, and of every ffn's output, are scaled down to this


def _orthonormal(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return np.linalg.qr(rng.normal(size=(rows, columns)))[0]


def _random(cfg: ModelConfig, rng: np.random.Generator) -> dict[str, Any]:
    mixer, feed, L, D = cfg.layers[0].attention, cfg.layers[0].feed, cfg.num_layers, cfg.width
    assert isinstance(feed, Dense)
    F = feed.width
    Hh = mixer.num_heads * mixer.head_dim

    def normal(*shape: int, std: float) -> np.ndarray:
        return std * rng.normal(size=shape)

    out = (2 * L) ** -0.5
    layers = {
        "attn_norm_D": np.ones((L, D)),
        "q_D_Hh": normal(L, D, Hh, std=D**-0.5),
        "k_D_Kh": normal(L, D, Hh, std=D**-0.5),
        "v_D_Kh": normal(L, D, Hh, std=D**-0.5),
        "o_Hh_D": normal(L, Hh, D, std=0.2 * out * Hh**-0.5),
        "ffn_norm_D": np.ones((L, D)),
        "gate_DF": normal(L, D, F, std=D**-0.5),
        "up_DF": normal(L, D, F, std=D**-0.5),
        "down_FD": normal(L, F, D, std=DAMPING * out * F**-0.5),
        "q_norm_h": np.ones((L, mixer.head_dim)),
        "k_norm_h": np.ones((L, mixer.head_dim)),
    }
    table_VD = normal(cfg.vocab_size, D, std=EMBED_STD)
    return {"embed": {"table_VD": table_VD}, "layers": layers, "final_norm": {"scale_D": np.ones(D)}}


def initial_weights(cfg: ModelConfig, seed: int) -> dict[str, Any]:
    """Float32 weights of the tree `models.decoder.transformer.declare(cfg)` with the circuit in layers 1 and 2.

    Raises ValueError for a shape that cannot hold it: fewer than two layers, grouped heads, no qk-norm, untied tables,
    biases, windows, scaled positions.
    """
    mixer, rope = cfg.layers[0].attention, cfg.layers[0].attention.rope
    plain = rope is not None and mixer == Attention(
        mixer.num_heads, mixer.num_heads, mixer.head_dim, Rope(rope.theta), qk_norm="head"
    )
    if rope is None or not plain or set(cfg.layers) != {cfg.layers[0]} or cfg.num_layers < 2 or not cfg.tie_embeddings:
        raise ValueError(
            "The copying circuit needs 2 or more layers, equal heads, qk-norm, tied tables, plain rope, no biases, no "
            "windows."
        )
    rng = np.random.default_rng(seed)
    params = _random(cfg, rng)
    layers, h, D = params["layers"], mixer.head_dim, cfg.width
    params["embed"]["table_VD"][:, 0] = CONSTANT
    speed = rope.theta ** (-np.arange(0, h, 2) / h)
    content_Dh = np.zeros((D, h))
    content_Dh[1:] = _orthonormal(rng, D - 1, h)
    stores = _look_back(layers, content_Dh, np.flatnonzero(speed > FAST), speed, mixer.num_heads, rng)
    _match(layers, content_Dh, np.flatnonzero(speed < SLOW), stores, rng)
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), params)


def _look_back(
    layers: dict[str, np.ndarray],
    content_Dh: np.ndarray,
    fast: np.ndarray,
    speed: np.ndarray,
    heads: int,
    rng: np.random.Generator,
) -> list[np.ndarray]:
    """Writes the heads of layer 1; returns for each the [h, D] directions in which it stores the token it found."""
    D, h = content_Dh.shape
    stores = []
    for head in range(heads):
        columns = slice(head * h, (head + 1) * h)
        key_h, query_h = np.zeros(h), np.zeros(h)
        key_h[fast] = 1
        query_h[fast] = np.cos(-(head + 1) * speed[fast])
        query_h[fast + h // 2] = np.sin(-(head + 1) * speed[fast])
        for name, vector in (("q_D_Hh", query_h), ("k_D_Kh", key_h)):
            layers[name][0, :, columns] *= DAMPING
            layers[name][0, 0, columns] += BACK_GAIN * vector
        layers["v_D_Kh"][0, :, columns] = content_Dh
        store_hD = _orthonormal(rng, D, h).T
        store_hD[:, 0] = 0
        layers["o_Hh_D"][0, columns] = STORE * store_hD
        stores.append(store_hD)
    layers["q_norm_h"][0] = layers["k_norm_h"][0] = SHARPNESS
    return stores


def _match(
    layers: dict[str, np.ndarray],
    content_Dh: np.ndarray,
    slow: np.ndarray,
    stores: list[np.ndarray],
    rng: np.random.Generator,
) -> None:
    """Writes the heads of layer 2: head 0 compares one token, head j two tokens, the second one j positions back."""
    D, h = content_Dh.shape
    slow = np.concatenate([slow, slow + h // 2])
    for head in range(len(stores)):
        columns = slice(head * h, (head + 1) * h)
        mixing_hh = _orthonormal(rng, h, h)
        query_Dh, key_Dh = np.zeros((D, h)), np.zeros((D, h))
        for back, planes in zip((0, head), np.array_split(slow, 2 if head else 1), strict=False):
            here_Dh = content_Dh if back == 0 else stores[back - 1].T
            query_Dh[:, planes] = here_Dh @ mixing_hh[:, : len(planes)]
            key_Dh[:, planes] = stores[back].T @ mixing_hh[:, : len(planes)]
        for name, weight in (("q_D_Hh", query_Dh), ("k_D_Kh", key_Dh)):
            layers[name][1, :, columns] = DAMPING * layers[name][1, :, columns] + weight
        value_Dh = np.zeros((D, h))
        value_Dh[1:] = _orthonormal(rng, D - 1, h)
        layers["v_D_Kh"][1, :, columns] = value_Dh
        layers["o_Hh_D"][1, columns] = COPY * value_Dh.T
    layers["q_norm_h"][1] = layers["k_norm_h"][1] = SHARPNESS
