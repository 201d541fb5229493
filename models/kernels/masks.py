"""Which tokens of a row see each other.

A row holds texts one after another, and texts with a common beginning as a tree in depth-first order: the beginning
once, then each continuation. ends[u] is the place behind the last token of the row that continues token u, so that
token t sees token u if and only if u ≤ t < ends[u] (`visible`). Of a text alone it is the text's end, of padding the
next place.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

KEPT = "attention"  # of attention's results and normalisers, the name by which a layer may keep them (`transformer`)
MASKED = -1e30  # far below any score, and finite: after subtracting the maximum its exponential is exactly 0


def ends_of(lengths_B: Int[Array, " B"], width: int) -> Int[Array, "B T"]:
    """The ends of rows of one text each, followed by padding."""
    here_T = jnp.arange(width)
    return jnp.where(here_T < lengths_B[:, None], lengths_B[:, None], here_T + 1)


def visible(
    t: Any, u: Any, end_u: Any, window: int | None = None, position_t: Any = None, position_u: Any = None
) -> Any:
    """True where the token at place t sees the one at place u: u ≤ t < end_u, and with a window its position in the
    text is fewer than `window` before that of t. (A token sees `window` tokens, itself included.)

    The arguments are arrays that broadcast; positions are needed with a window only. Every token sees itself, so no
    softmax is empty, not even in padding.
    """
    seen = (u <= t) & (t < end_u)
    return seen if window is None else seen & (position_t - position_u < window)


def visible_mask(
    ends_BT: Int[Array, "B T"],
    positions_BT: Int[Array, "B T"] | None = None,
    window: int | None = None,
    queries: slice = slice(None),
    keys: slice = slice(None),
) -> Bool[Array, "B Q U"]:
    """`visible` for these queries and keys of whole rows."""
    here_T = jnp.arange(ends_BT.shape[1])
    positions = () if positions_BT is None else (positions_BT[:, queries, None], positions_BT[:, None, keys])
    return visible(here_T[queries, None], here_T[keys], ends_BT[:, None, keys], window, *positions)


def live_blocks(
    ends_BT: Int[Array, "B T"], positions_BT: Int[Array, "B T"] | None, window: int | None, queries: int, keys: int
) -> Bool[Array, "B I J"]:
    """Whether any token of a block of `queries` sees any of a block of `keys`. The blocks divide the row."""
    rows, width = ends_BT.shape
    first_I, here_T = jnp.arange(0, width, queries), jnp.arange(width)
    seen_BIT = (here_T < first_I[:, None] + queries) & (first_I[:, None] < ends_BT[:, None, :])
    if window is not None:
        assert positions_BT is not None
        # The first tokens of the block, up to the last that continues token u, are those that may see it from outside.
        nearest_BIq = lax.cummin(positions_BT.reshape(rows, -1, queries), axis=2)
        last_BIT = jnp.clip(ends_BT[:, None, :] - 1 - first_I[:, None], 0, queries - 1)
        behind_BIT = jnp.take_along_axis(nearest_BIq, last_BIT, axis=2) - positions_BT[:, None, :]
        seen_BIT &= (behind_BIT < window) | (here_T >= first_I[:, None])
    return seen_BIT.reshape(rows, len(first_I), -1, keys).any(-1)
