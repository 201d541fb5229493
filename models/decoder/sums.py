"""Operations whose gradient is a sum over all tokens, in float32 at least, whatever the dtype of the tokens."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def with_bias(y_BTn: jax.Array, bias_n: jax.Array) -> jax.Array:
    """y + bias, the same bits as in their own dtype. The addition is in float32 for the bias's gradient, a sum over all
    tokens: one in bfloat16 stops growing once it is 256 times as large as what is added."""
    return (y_BTn + bias_n.astype(jnp.promote_types(bias_n.dtype, jnp.float32))).astype(y_BTn.dtype)


@jax.custom_vjp
def rows_of(table_VD: jax.Array, ids_BT: jax.Array) -> jax.Array:
    """Rows of a table. A row's gradient is summed over all tokens that have its id, in float32 at least: in bfloat16
    that of a token that occurs 20,000 times came out as a sixteenth of itself."""
    return table_VD[ids_BT]


def _backward(saved: tuple[jax.Array, jax.Array], ct_BTD: jax.Array) -> tuple[jax.Array, None]:
    table_VD, ids_BT = saved
    zeros_VD = jnp.zeros(table_VD.shape, jnp.promote_types(table_VD.dtype, jnp.float32))
    return zeros_VD.at[ids_BT].add(ct_BTD.astype(zeros_VD.dtype)).astype(table_VD.dtype), None


rows_of.defvjp(lambda table_VD, ids_BT: (rows_of(table_VD, ids_BT), (table_VD, ids_BT)), _backward)
