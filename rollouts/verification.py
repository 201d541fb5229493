"""Drafted tokens in the rows of slots that are not under way: which row computes which token, and what is accepted.

A step computes a row for every slot, whether it is under way or not; of a few slots, as many as a draft needs. Where
drafts are verified, the rows that are free have the drafted tokens that may follow: with the page table, key and
settings of the slot that they are drafted for, which is on the same row shard. Each row samples, with the request's
key, the token behind its own (Leviathan et al. 2023, for drafts that are certain); a slot takes its rows' tokens up to
the first that was not the next row's draft. As a row's numbers do not depend on the other rows, and every step is the
same program, tokens and log-probs do not depend on what was drafted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from scope_jax.errors import UserError
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.rollouts.slots import DecodeState, DecodeStep, Draw, Forward, Result

Drafts = Mapping[int, Sequence[int]]  # by slot: tokens that may follow its last one


class DraftRows(NamedTuple):
    """Which token each row of a step computes; leaves are int32 arrays, or their shardings. Slots and rows are numbers
    on their shard."""

    slot_R: Any
    """Whose page table, key and settings the row has; the number of slots: the row computes nothing."""
    offset_R: Any
    """How far the token is behind the slot's last one; 0: it is that one."""
    token_R: Any
    """The drafted token; without meaning where the offset is 0."""
    row_SJ: Any
    """The row of each slot and offset; the number of rows: there is none."""
    steps: Any
    """Most steps of the dispatch, a scalar."""

    def of_slot(self, x_S: jax.Array) -> jax.Array:
        """By row, what its slot has."""
        return x_S.at[self.slot_R].get(mode="clip")


def check_drafts(count: int, cascade: int, model: ModelConfig) -> None:
    """Raises UserError for drafts with what they do not work with."""
    if count and len(model.attention_layers) < model.num_layers:
        raise UserError(
            f"rollout.draft_tokens is {count}, but layers of the model keep a state, from which a rejected token "
            "cannot be removed; set it to 0."
        )
    if count and cascade:
        raise UserError(
            f"rollout.draft_tokens is {count} and rollout.cascade is {cascade}, which do not work together; set one of "
            "them to 0."
        )


class BatchShape(NamedTuple):
    """Of a step on each row shard."""

    slots: int
    rows: int
    """At least as many as slots: those beyond them are for drafts alone."""
    most: int
    """Most drafted tokens of a slot."""

    @property
    def slots_in_order(self) -> np.ndarray:
        """The slot whose next token each row computes when nothing is drafted; `slots`: none."""
        return np.minimum(np.arange(self.rows, dtype=np.int32), self.slots)


def free_rows(live: Sequence[bool], shape: BatchShape) -> list[list[int]]:
    """Of each shard, the rows that no live slot needs for its next token."""
    shards = [live[first : first + shape.slots] for first in range(0, len(live), shape.slots)]
    beyond = range(shape.slots, shape.rows)
    return [[*(row for row, on in enumerate(own) if not on), *beyond] for own in shards]


def trimmed(drafts: Drafts, live: Sequence[bool], shape: BatchShape) -> dict[int, list[int]]:
    """What of the drafts there are rows for. The free rows of a shard are dealt in rounds, one to each slot that has
    more drafted tokens, in the order of the slots."""
    kept: dict[int, list[int]] = {}
    for shard, rows in enumerate(free_rows(live, shape)):
        slots, left = [slot for slot in sorted(drafts) if slot // shape.slots == shard], len(rows)
        for place in range(max((len(drafts[slot]) for slot in slots), default=0)):
            for slot in slots:
                if left and place < len(drafts[slot]):
                    kept.setdefault(slot, []).append(drafts[slot][place])
                    left -= 1
    return kept


def arranged(drafts: Drafts, live: Sequence[bool], shape: BatchShape, steps: int) -> DraftRows:
    """The rows of a dispatch of so many steps, or of one with drafts, which are `trimmed`."""
    shards = len(live) // shape.slots
    slot_R = np.tile(shape.slots_in_order, (shards, 1))
    offset_R, token_R = np.zeros_like(slot_R), np.zeros_like(slot_R)
    row_SJ = np.full((len(live), shape.most + 1), shape.rows, np.int32)
    row_SJ[:, 0] = np.arange(len(live)) % shape.slots
    free = free_rows(live, shape)
    for slot, tokens in drafts.items():
        shard, own = divmod(slot, shape.slots)
        for offset, token in enumerate(tokens, start=1):
            row = free[shard].pop()
            slot_R[shard, row], offset_R[shard, row], token_R[shard, row] = own, offset, token
            row_SJ[slot, offset] = row
    slot_R, offset_R, token_R = (x_R.reshape(-1) for x_R in (slot_R, offset_R, token_R))
    return DraftRows(slot_R, offset_R, token_R, row_SJ, np.int32(1 if drafts else steps))


def verifying(forward: Forward, state: DecodeState, rows: DraftRows, draw: Draw) -> DecodeStep:
    """A step of `sample_tokens` whose rows are these. state: of the beginning; forward and draw get rows in the place
    of slots."""
    offset_R = rows.offset_R
    how_R, stops_RN, limit_R = jax.tree.map(rows.of_slot, (state.sampling, state.stops_SN, state.limit_S))
    there_SJ = rows.row_SJ < len(offset_R)

    def by_slot(x_R: jax.Array) -> jax.Array:
        return x_R.at[rows.row_SJ].get(mode="clip")

    drafted_SJ = by_slot(rows.token_R)

    def step(_: jax.Array, state: DecodeState, result: Result) -> tuple[DecodeState, Result]:
        token_R = jnp.where(offset_R == 0, rows.of_slot(state.token_S), rows.token_R)
        length_R = rows.of_slot(state.length_S) + offset_R
        live_R = rows.of_slot(state.live_S) & (rows.slot_R < len(state.live_S))
        logits_RV, cache = forward(state.cache, token_R, length_R, live_R)
        drawn_R, *measured_R = draw(logits_RV, how_R, length_R + 1)
        ended_R = jnp.any(drawn_R[:, None] == stops_RN, axis=1) | (length_R + 2 >= limit_R)
        drawn_SJ, ended_SJ = by_slot(drawn_R), by_slot(ended_R)
        right_SJ = there_SJ[:, 1:] & (drafted_SJ[:, 1:] == drawn_SJ[:, :-1]) & ~ended_SJ[:, :-1]
        first_S1 = jnp.ones_like(ended_SJ[:, :1])
        taken_SJ = state.live_S[:, None] & jnp.cumprod(jnp.concatenate([first_S1, right_SJ], axis=1), axis=1).astype(
            bool
        )
        counts_S = jnp.sum(taken_SJ, axis=1, dtype=jnp.int32)

        def last(x_SJ: jax.Array) -> jax.Array:
            return jnp.take_along_axis(x_SJ, jnp.maximum(counts_S - 1, 0)[:, None], axis=1)[:, 0]

        state = state._replace(
            cache=cache,
            token_S=jnp.where(state.live_S, last(drawn_SJ), state.token_S),
            length_S=state.length_S + counts_S,
            live_S=state.live_S & ~last(ended_SJ),
        )
        return state, _with_tokens(
            result, taken_SJ, drawn_SJ, *(x_R if x_R is None else by_slot(x_R) for x_R in measured_R)
        )

    return step


def _with_tokens(result: Result, taken_SJ: jax.Array, drawn_SJ: jax.Array, logprob_SJ: Any, entropy_SJ: Any) -> Result:
    """The result with the tokens that were taken behind those of each slot."""
    slots, width = taken_SJ.shape
    behind_SJ = jnp.where(taken_SJ, result.counts_S[:, None], len(result.tokens_NS)) + jnp.arange(width)
    at = behind_SJ, jnp.broadcast_to(jnp.arange(slots)[:, None], taken_SJ.shape)

    def written(old_NS: jax.Array, new_SJ: jax.Array) -> jax.Array:
        return old_NS.at[at].set(new_SJ, mode="drop", unique_indices=True)

    return result._replace(
        tokens_NS=written(result.tokens_NS, drawn_SJ),
        logprobs_NS=written(result.logprobs_NS, logprob_SJ),
        counts_S=result.counts_S + jnp.sum(taken_SJ, axis=1, dtype=jnp.int32),
        entropies_NS=None if entropy_SJ is None else written(result.entropies_NS, entropy_SJ),
    )
