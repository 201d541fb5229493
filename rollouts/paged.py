"""The engine over a paged KV cache: memory follows the tokens that are there, and equal beginnings are computed once.

The operations are those of `rollouts.engine.PagingEngine`. Prompts and observations are computed by `advance`; episodes
that are set aside and brought back are the same, bit for bit.
Every program has one shape, whatever the lengths: `slots` rows when decoding, blocks of CHUNK tokens for
prompts and observations, as many per dispatch as `prefill_tokens` allows. Row shards of the mesh (data × fsdp) have
slots and pages of their own and never communicate, unless experts are distributed over them; a tensor group splits the
heads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from scope_jax.errors import UserError
from scope_jax.models.config import ModelConfig
from scope_jax.models.kinds import head_dim, kv_heads
from scope_jax.models.pages import (
    PAGE,
    Implementation,
    Loop,
    Where,
    layer_groups,
    pages_for,
    pages_touched,
    tables_in_smem,
)
from scope_jax.models.transformer import Params
from scope_jax.rollouts.engine import PageBudget
from scope_jax.rollouts.pages import CHUNK, Chunk, OutOfPages, PagedState, Pool, Unfinished
from scope_jax.rollouts.programs import PagedPrograms
from scope_jax.rollouts.slots import (
    DecodeState,
    EngineConfig,
    Extension,
    Placement,
    Result,
    past_the_end,
    rows_of,
    stop_row,
)
from scope_jax.rollouts.weights import EngineWeights
from scope_jax.sharding.mesh import row_shards
from scope_jax.sharding.program import AbstractProgram
from scope_jax.sharding.rules import decode_rules


def page_bytes(model: ModelConfig, dtype: Any, tensor: int) -> int:
    """Bytes of one page on each of the `tensor` devices that share its heads, all layers of a group together."""
    heads, layers = kv_heads(model, tensor), len(layer_groups(model)[0].layers)
    return 2 * layers * heads * head_dim(model) * PAGE * jnp.dtype(dtype).itemsize


Prompts = tuple[np.ndarray, ...]  # token ids


@dataclass(frozen=True)
class Aside:
    """An episode in host memory."""

    length: int
    """Its tokens in the cache."""
    turn: int | None
    """Where its turn began, see PagedState."""
    held: np.ndarray
    """bool [groups, columns], True where it has a page."""
    pages: Any
    """Their contents in this order, by layer."""


class PagedEngine:
    """`rollouts.engine.PagingEngine` over `config.pages` pages on each row shard.

    how: layout of the pages and attention over them; None: the loop that runs everywhere. Raises UserError if slots or
    heads cannot be sharded over the mesh, or if an episode of max_length can never fit.
    """

    keeps_prompts = True

    def __init__(self, model: ModelConfig, config: EngineConfig, mesh: Mesh, how: Implementation | None = None) -> None:
        self.model, self.config, self.mesh = model, config, mesh
        self.windows = tuple(group.window for group in layer_groups(model))
        self.columns = pages_for(config.max_length)  # of a page table
        self.chunks = max(1, config.prefill_tokens // CHUNK)  # per dispatch and shard
        self._span = max(self.chunks * CHUNK, config.decode_steps)
        least = 1 + len(self.windows) * (self.columns + 1 + pages_for(config.decode_steps))
        shards = row_shards(mesh)
        enough = max(least, 1 + config.slots // shards * self._needed(config.max_length))
        pages = enough if config.pages is None else config.pages
        if pages < least:
            raise UserError(
                f"a shard of the rollout engine has {pages} pages of {PAGE} tokens, but one episode of "
                f"rollout.max_length = {config.max_length} (or evaluate.max_length, if that is longer) needs {least}; "
                "raise the budget or lower it."
            )
        self.pages = pages
        self.budget = PageBudget(pages, least, page_bytes(model, config.compute_dtype, mesh.shape["tensor"]))
        self.weights = EngineWeights(model, config, mesh, decode_rules(model.num_experts, mesh.shape))
        self.jitted = PagedPrograms(self.weights, Loop() if how is None else how, pages)
        self.row_shards, self.slots = shards, self.jitted.slots  # slots: of one shard
        self._check_tables("slots", self.slots)
        self._check_tables("prefill_tokens", self.chunks)

    def _check_tables(self, setting: str, rows: int) -> None:
        """Raises ValueError if the page tables of so many rows are too large for the kernel over pages."""
        most = self.jitted.how.table_bytes
        columns = max(
            self.columns if window is None else min(self.columns, pages_touched(window + CHUNK - 1))
            for window in self.windows
        )
        if most is not None and (needed := tables_in_smem(rows, columns)) > most:
            raise UserError(
                f"rollout.{setting} = {getattr(self.config, setting)} is too much for episodes of "
                f"{self.config.max_length} tokens: the page tables of {rows} rows take {needed / 2**20:.2f} MiB of the "
                f"scalar memory of a TPU core, which has room for {most / 2**20:.2f}; lower rollout.{setting} or "
                "rollout.max_length, or give [rollout.mesh] more row shards (data or fsdp)."
            )

    # ------------------------------------------------------------------------------------------------------ weights
    def load_params(self, params: Params) -> Params:
        return self.weights.load_params(params)

    def take_params(self, params: Params) -> Params:
        return self.weights.take_params(params)

    def load_adapter(self, params: Params, policy: str, factors: Params) -> Params:
        return self.weights.load_adapter(params, policy, factors)

    def number(self, policy: str | None) -> int:
        return self.weights.number(policy)

    # --------------------------------------------------------------------------------------------------- operations
    def init_decode_state(self) -> PagedState:
        pools = [Pool(shard, self.pages, self.windows) for shard in range(self.row_shards)]
        return PagedState(self.jitted.init(), pools, self.config.slots, self.columns)

    def prefill(
        self, params: Params, prompts: Sequence[Sequence[int] | np.ndarray], policies: Sequence[int] = ()
    ) -> Prompts:
        """The prompts as they are; `advance` computes what no page holds yet, under the policies of the placements.
        Raises ValueError if one is empty or too long."""
        longest = self.config.max_length - 1
        for prompt in prompts:
            if not 0 < len(prompt) <= longest:
                raise ValueError(f"A prompt has {len(prompt)} tokens; the engine takes 1 to {longest}.")
        return tuple(np.asarray(prompt, np.int32) for prompt in prompts)

    def room(self, state: PagedState, asked: Sequence[tuple[np.ndarray, int]]) -> int:
        """So many that all live slots still decode for one dispatch."""
        left = [self._left(state, shard) for shard in range(self.row_shards)]
        for count, (prompt, slot) in enumerate(asked):
            shard = slot // self.slots
            left[shard] -= self._needed(len(prompt)) + len(self.windows) * pages_for(self.config.decode_steps)
            if left[shard] < 0:
                return count
        return len(asked)

    def fits(self, state: PagedState, aside: Aside, kept: int, more: int, slot: int) -> bool:
        columns = pages_for(kept)
        grown = len(self.windows) * (pages_for(kept + more + self.config.decode_steps) - columns)
        needed = max(int(aside.held.sum()), int(aside.held[:, :columns].sum()) + grown)
        return self._left(state, slot // self.slots) >= needed

    def insert(self, state: PagedState, prefix: Prompts, placements: Sequence[Placement]) -> PagedState:
        """Slots decode when `advance` has computed their prompts; equal prompts are computed once on each shard."""
        for placement in placements:
            stop_row(placement.params)
        for placement in placements:
            ids, last = np.split(prefix[placement.row], [-1])
            pages = self._needed(len(ids)) + len(self.windows) * pages_for(self.config.decode_steps)
            chunks = state.place(ids, placement)
            state.queue(Unfinished(placement.slot, len(ids), chunks, pages, placement, int(last[0])))
        return state

    def extend(self, params: Params, state: PagedState, extensions: Sequence[Extension]) -> PagedState:
        """Slots decode again when `advance` has computed the tokens."""
        for e in extensions:
            state.keep(e.slot, e.length)
        lengths = [e.length + len(e.ids) - 1 for e in extensions]
        for shard in range(self.row_shards):
            own = [pair for pair in zip(extensions, lengths, strict=True) if pair[0].slot // self.slots == shard]
            if sum(state.missing(e.slot, length) for e, length in own) > state.spare(shard):
                raise OutOfPages(shard)
        for e, length in zip(extensions, lengths, strict=True):
            ids, last = np.split(np.asarray(e.ids, np.int32), [-1])
            pages = len(self.windows) * pages_for(length + self.config.decode_steps)
            chunks = state.chunks(e.slot, e.length, ids)
            state.queue(Unfinished(e.slot, length, chunks, pages, e, int(last[0])))
        return state

    def advance(self, params: Params, state: PagedState, most: int | None = None) -> tuple[PagedState, list[int]]:
        """Computes prompts and observations in the order of `insert` and `extend`, up to `prefill_tokens` per dispatch
        and shard. What windows have passed is given back after each, so that no page has two rows in one."""
        while any(state.unfinished) and most != 0:
            drawn = [state.draw(shard, self.chunks) for shard in range(self.row_shards)]
            self._append_chunks(params, state, [chunks for chunks, _ in drawn])
            self._begin_decoding(state, [one for _, finished in drawn for one in finished])
            most = None if most is None else most - 1
        return state, [one.slot for queue in state.unfinished for one in queue]

    def generate(
        self, params: Params, state: PagedState, longest: int | None = None, patience: int | None = None
    ) -> tuple[PagedState, Result]:
        """May be called again before the result is read: pages are reserved for all that has not been. `longest` is not
        needed."""
        for slot, live in enumerate(state.live):
            if live:
                turn = state.turn[slot]
                state.pass_by(slot, state.length[slot] if turn is None else turn)
                ahead, shard = self._ahead(state, slot), slot // self.slots
                if state.unfinished[shard] and state.missing(slot, ahead) > state.spare(shard):
                    raise OutOfPages(shard)  # there may be pages, but prompts need them
                state.grow(slot, ahead)
        patience = self.config.slots if patience is None else patience
        tables = state.tables(self.config.cascade)
        state.device, result = self.jitted.generate(params, state.device, tables, self.jitted.patience(patience))
        for slot, live in enumerate(state.live):
            state.unread[slot] += live * self.config.decode_steps
        return state, result

    def read(self, state: PagedState, result: Result, slots: Iterable[int]) -> Result:
        """Updates the lengths of these slots."""
        result = jax.device_get(result)
        for slot in slots:
            state.length[slot] += int(result.counts_S[slot])
            state.unread[slot] -= self.config.decode_steps
            state.live[slot] = bool(result.live_S[slot])
        return result

    def pause(self, state: PagedState, slots: Sequence[int]) -> PagedState:
        paused = np.zeros(self.config.slots, bool)
        paused[list(slots)] = True
        state.device = self.jitted.pause(state.device, paused)
        for slot in slots:
            state.live[slot] = False
        return state

    def release(self, state: PagedState, slots: Iterable[int]) -> PagedState:
        """Gives back their pages; prompts of theirs are not computed any further."""
        for slot in slots:
            shard = slot // self.slots
            state.unfinished[shard] = deque(one for one in state.unfinished[shard] if one.slot != slot)
            state.keep(slot, 0)
        return state

    def set_aside(self, state: PagedState, slot: int) -> Aside:
        state.keep(slot, state.length[slot])
        held, shard = state.table[slot] > 0, slot // self.slots
        pages = self.jitted.contents(state.device.cache, shard, state.table[slot][held])
        aside = Aside(state.length[slot], state.turn[slot], held, pages)
        self.release(state, [slot])
        return aside

    def bring_back(
        self, state: PagedState, aside: Aside, slot: int, token: int, placement: Placement, *, live: bool
    ) -> PagedState:
        shard = slot // self.slots
        pages = state.pools[shard].take(int(aside.held.sum()))
        state.device = state.device._replace(cache=self.jitted.written(state.device.cache, shard, pages, aside.pages))
        state.table[slot][aside.held] = pages
        state.columns[slot], state.length[slot] = pages_for(aside.length), aside.length
        state = self._begin(state, [placement], [token])
        state.turn[slot] = aside.turn
        return state if live else self.pause(state, [slot])

    def compile(self, params: Params, state: PagedState, *, extends: bool) -> PagedState:
        """Runs every program for no slot and no page."""
        rows, slots = self.row_shards * self.chunks, self.config.slots
        nothing, table = np.zeros(rows, np.int32), np.zeros((rows, *state.table.shape[1:]), np.int32)
        where = Where(table, nothing, nothing)
        cache = self.jitted.append(params, state.device.cache, np.zeros((rows, CHUNK), np.int32), where, nothing)
        cache = self.jitted.run_for_nothing(cache)
        number, limits, *how = rows_of([past_the_end(slots)], slots)
        nowhere = np.zeros_like(limits)
        state.device = self.jitted.start(state.device._replace(cache=cache), number, nowhere, nowhere, limits, *how)
        if extends:
            self._resume(state, [], [])
        state, _ = self.generate(params, self.pause(state, []))
        jax.block_until_ready(state.device)
        return state

    # -------------------------------------------------------------------------------------------------------- plans
    @property
    def full_rows(self) -> int:
        return min(self.slots, (self.pages - 1) // self._needed(self.config.max_length)) * self.row_shards

    def with_model(self, model: ModelConfig) -> PagedEngine:
        config = replace(self.config, pages=self.pages)
        return PagedEngine(model, config, self.mesh, self.jitted.how)

    def abstract_weights(self) -> Params:
        return self.weights.abstract()

    def abstract_state(self) -> DecodeState:
        return self.jitted.abstract_state()

    def programs(self) -> list[AbstractProgram]:
        return self.jitted.programs(self.chunks)

    # -------------------------------------------------------------------------------------------------------- pages
    def _ahead(self, state: PagedState, slot: int) -> int:
        """Tokens that may be in the slot's cache after the next dispatch."""
        most = state.length[slot] + state.unread[slot] + self.config.decode_steps
        return min(most, max(state.limit[slot], state.length[slot] + 1))

    def _left(self, state: PagedState, shard: int) -> int:
        """Pages of a shard that its live slots do not need for the next dispatch."""
        own = range(shard * self.slots, (shard + 1) * self.slots)
        return state.spare(shard) - sum(
            state.missing(slot, self._ahead(state, slot)) for slot in own if state.live[slot]
        )

    def _needed(self, tokens: int) -> int:
        """Most pages that a prompt of so many tokens takes, at any time, with a row of its own."""
        seen = [tokens if window is None else window + self._span - 1 for window in self.windows]
        return sum(1 + min(pages_for(tokens), pages_touched(count)) for count in seen)

    # -------------------------------------------------------------------------------------------------- dispatches
    def _append_chunks(self, params: Params, state: PagedState, drawn: Sequence[Sequence[Chunk]]) -> None:
        """Computes chunks of each shard in one dispatch."""
        if not any(drawn):
            return
        rows = self.row_shards * self.chunks
        ids = np.zeros((rows, CHUNK), np.int32)
        table = np.zeros((rows, *state.table.shape[1:]), np.int32)
        starts, counts, policies = (np.zeros(rows, np.int32) for _ in range(3))
        for shard, chunks in enumerate(drawn):
            for row, chunk in enumerate(chunks, start=shard * self.chunks):
                counts[row], starts[row], table[row] = len(chunk.ids), chunk.start, state.table[chunk.slot]
                policies[row] = state.policy[chunk.slot]
                ids[row, : len(chunk.ids)] = chunk.ids
        cache = self.jitted.append(params, state.device.cache, ids, Where(table, starts, counts), policies)
        state.device = state.device._replace(cache=cache)
        for chunk in (chunk for chunks in drawn for chunk in chunks):
            state.pass_by(chunk.slot, chunk.start + len(chunk.ids))

    def _begin_decoding(self, state: PagedState, finished: Sequence[Unfinished]) -> None:
        """Makes slots decode whose tokens are in the cache."""
        copies, placed, resumed = [], [], []
        for one in finished:
            state.length[one.slot] = one.length
            if isinstance(one.start, Extension):
                resumed.append((one.start, one.token))
                continue
            placed.append((one.start, one.token))
            if one.length % PAGE:  # the page with a prompt's last tokens is shared: each row gets a copy
                tails = state.table[one.slot, :, pages_for(one.length) - 1]
                shared = tails.tolist()
                tails[:] = state.pool(one.slot).take(len(shared))
                copies += [(one.slot // self.slots, a, b) for a, b in zip(shared, tails.tolist(), strict=True)]
        state.device = state.device._replace(cache=self.jitted.copied(state.device.cache, copies))
        for shard, shared, _ in copies:
            state.pools[shard].drop([shared])
        if placed:
            self._begin(state, *zip(*placed, strict=True))
        if resumed:
            self._resume(state, *zip(*resumed, strict=True))

    def _begin(self, state: PagedState, placements: Sequence[Placement], tokens: Sequence[int]) -> PagedState:
        for p in placements:
            state.limit[p.slot], state.live[p.slot] = p.limit, True
            state.turn[p.slot] = state.length[p.slot] if p.may_be_cut else None
            state.policy[p.slot] = p.policy
            state.grouped[p.slot] = p.grouped // PAGE
        slots, limits, stops, policies, sampling = rows_of(placements, self.config.slots)
        token, length = np.zeros_like(limits), np.zeros_like(limits)
        token[: len(tokens)], length[: len(tokens)] = tokens, [state.length[p.slot] for p in placements]
        state.device = self.jitted.start(state.device, slots, token, length, limits, stops, policies, sampling)
        return state

    def _resume(self, state: PagedState, extensions: Sequence[Extension], tokens: Sequence[int]) -> None:
        slots, first, lengths, limits = (np.zeros(self.config.slots, np.int32) for _ in range(4))
        slots[:] = self.config.slots  # padding is dropped
        keys = np.zeros((self.config.slots, 2), np.uint32)
        for row, (e, token) in enumerate(zip(extensions, tokens, strict=True)):
            state.limit[e.slot], state.live[e.slot], state.turn[e.slot] = e.limit, True, state.length[e.slot]
            slots[row], first[row], lengths[row], limits[row], keys[row] = (
                e.slot,
                token,
                state.length[e.slot],
                e.limit,
                e.key,
            )
        state.device = self.jitted.resume(state.device, slots, first, lengths, limits, keys)
