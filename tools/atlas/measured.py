"""Measures how well weights play the roles: the share of demonstrations that greedy decoding reproduces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scope_jax.learner.types import Datum
from scope_jax.models.decoder import transformer
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.kernels.masks import ends_of
from scope_jax.sharding.collectives import LOCAL

LENGTH, ROWS = 512, 8  # one compiled shape for all


@partial(jax.jit, static_argnames=("model",))
def _likeliest(model: ModelConfig, params: Any, ids_BT: jax.Array, lengths_B: jax.Array) -> jax.Array:
    """The most likely next token at every position, [B, T]."""
    positions_BT = jnp.broadcast_to(jnp.arange(ids_BT.shape[1]), ids_BT.shape)
    ends_BT = ends_of(lengths_B, ids_BT.shape[1])
    hidden_BTD = transformer.hidden(
        model, params, ids_BT, positions_BT, ends_BT, shards=LOCAL, remat="none", compute_dtype=jnp.float32
    )
    return jnp.argmax(hidden_BTD @ params["embed"]["table_VD"].T, axis=-1)


def greedy_accuracy(model: ModelConfig, params: Any, rows: Sequence[Datum]) -> tuple[float, float]:
    """(share of rows, share of tokens) where the most likely token is the demonstrated one, over sampled tokens only.

    A row counts if all its sampled tokens do, i.e. if greedy decoding reproduces it. Raises ValueError for a row of
    more than LENGTH tokens.
    """
    whole, right, sampled = 0, 0, 0
    for start in range(0, len(rows), ROWS):
        part = rows[start : start + ROWS]
        ids_BT = np.zeros((ROWS, LENGTH), np.int32)
        for place, row in enumerate(part):
            if len(row.ids_T) > LENGTH:
                raise ValueError(f"a demonstration has {len(row.ids_T)} tokens; at most {LENGTH} are measured")
            ids_BT[place, : len(row.ids_T)] = row.ids_T
        lengths_B = np.asarray([len(row.ids_T) for row in part] + [1] * (ROWS - len(part)), np.int32)
        guess_BT = np.asarray(_likeliest(model, params, ids_BT, lengths_B))
        for place, row in enumerate(part):
            said_T = row.sampled_T[1:]
            hits_T = guess_BT[place, : len(said_T)][said_T] == row.ids_T[1:][said_T]
            whole, right, sampled = whole + bool(hits_T.all()), right + int(hits_T.sum()), sampled + len(hits_T)
    return whole / len(rows), right / sampled
