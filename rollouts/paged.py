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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from scope_jax.errors import UserError
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.delta import RowBounds
from scope_jax.models.decoder.kinds import kept_bytes
from scope_jax.models.decoder.pages import (
    PAGE,
    Implementation,
    Loop,
    Where,
    arrays,
    layer_groups,
    page_shapes,
    pages_for,
    pages_touched,
    picks_bytes,
    picks_group,
    tables_in_smem,
)
from scope_jax.models.decoder.transformer import Params
from scope_jax.rollouts.engine import PageBudget
from scope_jax.rollouts.pages import (
    CHUNK,
    Chunk,
    Counts,
    OutOfPages,
    PagedState,
    Pool,
    Snapshots,
    Unfinished,
    snapshots_for,
)
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
from scope_jax.sharding.program import AbstractProgram, name_of
from scope_jax.sharding.rules import decode_rules


def page_bytes(model: ModelConfig, dtype: Any, tensor: int, picks: bool = False) -> tuple[int, ...]:
    """Bytes of one page of each shape on each of the `tensor` devices that share its heads, all layers of a group
    together. picks: with the picked experts, which each device has whole."""
    of_shape, size = arrays(model), 2 * PAGE * jnp.dtype(dtype).itemsize
    shapes = enumerate(page_shapes(model))
    found = [size * of_shape.count(shape) * max(1, heads // tensor) * dim for shape, (heads, dim) in shapes]
    if picks:
        found[arrays(model, picks)[-1]] += PAGE * picks_bytes(model)
    return tuple(found)


def pages_within(model: ModelConfig, config: EngineConfig, mesh: Mesh, limit: float) -> tuple[int, ...]:
    """Pages of each shape that take `limit` bytes of a device together: what an episode of max_length needs, and the
    rest in the proportion of what all slots need.

    But shapes of which every group has a window get all that the slots need, up to half of the rest: it grows with the
    episodes, which may be shorter than max_length, up to the window alone.
    """
    sizes = np.asarray(page_bytes(model, config.compute_dtype, mesh.shape["tensor"], config.picks))
    if len(sizes) == 1:
        return (int(limit) // int(sizes[0]),)
    needs = _Needs(model, config, row_shards(mesh))
    least, more = needs.least * sizes, (needs.enough - needs.least) * sizes + 1
    rest = max(0.0, float(limit - least.sum()))
    share = more * rest / more.sum()
    bounded = np.asarray([all(needs.windows[group] for group in own) for own in needs.groups])
    if rest < more.sum() and bounded.any() and not bounded.all():
        part = min(more[bounded].sum(), rest / 2)
        room = np.where(bounded, part, rest - part)
        share = more * room / np.where(bounded, more[bounded].sum(), more[~bounded].sum())
    total = least + share if rest else least * limit / least.sum()
    return tuple((total // sizes).astype(int).tolist())


def least_bytes(model: ModelConfig, config: EngineConfig, tensor: int) -> int:
    """Bytes of the pages that one episode of max_length needs, on each of `tensor` devices."""
    sizes = page_bytes(model, config.compute_dtype, tensor, config.picks)
    return int(np.dot(_Needs(model, config, 1).least, sizes))


class _Needs:
    """What a model's episodes need of pages. windows: of the groups. groups: those of each shape. least: with which one
    episode of max_length can be computed. enough: for all slots of a row shard."""

    def __init__(self, model: ModelConfig, config: EngineConfig, shards: int) -> None:
        groups = layer_groups(model)
        self.windows = tuple(group.window for group in groups)
        self.shapes = tuple(group.shape for group in groups)
        self.groups = [
            [number for number, group in enumerate(groups) if group.shape == shape]
            for shape in range(len(page_shapes(model)))
        ]
        self.of_shape = np.asarray(list(map(len, self.groups)))
        self.chunks = max(1, config.prefill_tokens // CHUNK)  # per dispatch and shard
        self._span = max(self.chunks * CHUNK, config.decode_steps)
        columns = pages_for(config.max_length)
        self.least = 1 + self.of_shape * (columns + 1 + pages_for(config.decode_steps))
        self.enough = np.maximum(self.least, 1 + config.slots // shards * self.of_tokens(config.max_length))

    def of_tokens(self, tokens: int) -> Counts:
        """Most pages that a prompt of so many tokens takes, at any time, with a row of its own."""
        seen = [tokens if window is None else window + self._span - 1 for window in self.windows]
        needed = [1 + min(pages_for(tokens), pages_touched(count)) for count in seen]
        return np.asarray([sum(needed[group] for group in own) for own in self.groups])


def state_bytes(model: ModelConfig, dtype: Any, slots: int, tensor: int) -> int:
    """Bytes of the states of so many slots of a shard, and of their snapshots, on each of `tensor` devices."""
    return (slots + snapshots_for(slots)) * kept_bytes(model, jnp.dtype(dtype).itemsize) // tensor


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
    """Their contents in this order, for each shape, by array."""
    states: Any = ()
    """What layers with states keep."""
    begun: Any = ()
    """The same when the turn began; () if it cannot be cut."""
    said: tuple[int, ...] = ()
    """Tokens since then, of a model with states."""
    picks: np.ndarray | None = None
    """As `Engine.picks` gives them, with `EngineConfig.picks`."""


class PagedEngine:
    """`rollouts.engine.PagingEngine` over `config.pages` pages of each shape on each row shard.

    how: layout of the pages and attention over them; None: the loop that runs everywhere. Raises UserError if slots or
    heads cannot be sharded over the mesh, or if an episode of max_length can never fit.
    """

    keeps_prompts = True

    def __init__(self, model: ModelConfig, config: EngineConfig, mesh: Mesh, how: Implementation | None = None) -> None:
        self.model, self.config, self.mesh = model, config, mesh
        shards = row_shards(mesh)
        self._needs = needs = _Needs(model, config, shards)
        self.windows, self.chunks = needs.windows, needs.chunks
        self.columns = pages_for(config.max_length)  # of a page table
        pages = needs.enough if config.pages is None else np.broadcast_to(config.pages, needs.enough.shape)
        for own, least in zip(pages.tolist(), needs.least.tolist(), strict=True):
            if own < least:
                raise UserError(
                    f"a shard of the rollout engine has {own} pages of {PAGE} tokens, but one episode of "
                    f"rollout.max_length = {config.max_length} (or evaluate.max_length, if that is longer) needs "
                    f"{least}; raise the budget or lower it."
                )
        self.pages = tuple(pages.tolist())
        tensor, dtype = mesh.shape["tensor"], config.compute_dtype
        states = state_bytes(model, dtype, config.slots // shards, tensor)
        sizes = page_bytes(model, dtype, tensor, config.picks)
        self.budget = PageBudget(self.pages, tuple(needs.least.tolist()), sizes, states)
        self.weights = EngineWeights(model, config, mesh, decode_rules(model.num_experts, mesh.shape))
        self.jitted = PagedPrograms(self.weights, Loop() if how is None else how, self.pages)
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
        pools = [Pool(shard, self.pages, self.windows, self._needs.shapes) for shard in range(self.row_shards)]
        count = self.jitted.snapshots
        snapshots = [Snapshots(self.slots, count) for _ in range(self.row_shards)] if count else []
        return PagedState(self.jitted.init(), pools, self.config.slots, self.columns, snapshots)

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
            left[shard] = left[shard] - self._with_dispatch(len(prompt))
            if (left[shard] < 0).any():
                return count
        return len(asked)

    def fits(self, state: PagedState, aside: Aside, kept: int, more: int, slot: int) -> bool:
        columns = pages_for(kept)
        grown = self._needs.of_shape * (pages_for(kept + more + self.config.decode_steps) - columns)
        needed = np.maximum(state.counted(aside.held), state.counted(aside.held[:, :columns]) + grown)
        return bool((self._left(state, slot // self.slots) >= needed).all())

    def insert(self, state: PagedState, prefix: Prompts, placements: Sequence[Placement]) -> PagedState:
        """Slots decode when `advance` has computed their prompts; equal prompts are computed once on each shard."""
        for placement in placements:
            stop_row(placement.params)
        for placement in placements:
            ids, last = np.split(prefix[placement.row], [-1])
            pages = self._with_dispatch(len(ids))
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
            missing = sum((state.missing(e.slot, length) for e, length in own), np.zeros_like(self._needs.of_shape))
            if (missing > state.spare(shard)).any():
                raise OutOfPages(shard)
        for e, length in zip(extensions, lengths, strict=True):
            ids, last = np.split(np.asarray(e.ids, np.int32), [-1])
            pages = self._needs.of_shape * pages_for(length + self.config.decode_steps)
            chunks = (state.again if state.snapshots else state.chunks)(e.slot, e.length, ids)
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
                if state.unfinished[shard] and (state.missing(slot, ahead) > state.spare(shard)).any():
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
            if state.snapshots:
                state.said[slot] += result.tokens_NS[: result.counts_S[slot], slot].tolist()
        return result

    def pause(self, state: PagedState, slots: Sequence[int]) -> PagedState:
        paused = np.zeros(self.config.slots, bool)
        paused[list(slots)] = True
        state.device = self.jitted.pause(state.device, paused)
        for slot in slots:
            state.live[slot] = False
        return state

    def picks(self, state: PagedState, slot: int) -> Callable[[], np.ndarray]:
        pages = state.on_devices(state.table[slot])[picks_group(self.model), : pages_for(state.length[slot])]
        return self.jitted.picks(state.device.cache, slot // self.slots, pages)

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
        cache, begun = state.device.cache, state.begun[slot]
        table = state.on_devices(state.table[slot])
        pages = self.jitted.contents(cache, shard, [table[own] for own in state.by_shape(slot, held)])
        aside = Aside(
            *(state.length[slot], state.turn[slot], held, pages),
            self.jitted.states_of(cache, shard, slot - shard * self.slots),
            () if begun is None else self.jitted.states_of(cache, shard, begun),
            tuple(state.said[slot]),
            self.picks(state, slot)() if self.config.picks else None,
        )
        self.release(state, [slot])
        return aside

    def bring_back(
        self, state: PagedState, aside: Aside, slot: int, token: int, placement: Placement, *, live: bool
    ) -> PagedState:
        shard = slot // self.slots
        parts = state.by_shape(slot, aside.held)
        if any(own.sum() > state.pools[shard].available(shape) for shape, own in enumerate(parts)):
            raise OutOfPages(shard)
        for shape, own in enumerate(parts):
            state.table[slot][own] = state.pools[shard].take(int(own.sum()), shape)
        table = state.on_devices(state.table[slot])
        pages = [table[own].tolist() for own in parts]
        cache = self.jitted.written(state.device.cache, shard, pages, aside.pages)
        cache = self.jitted.with_states(cache, shard, slot - shard * self.slots, aside.states)
        if aside.begun:
            state.begun[slot] = row = state.snapshots[shard].take()
            cache = self.jitted.with_states(cache, shard, row, aside.begun)
        state.device = state.device._replace(cache=cache)
        state.columns[slot], state.length[slot] = pages_for(aside.length), aside.length
        state = self._begin(state, [placement], [token])
        state.turn[slot], state.said[slot] = aside.turn, list(aside.said)
        return state if live else self.pause(state, [slot])

    def compile(self, params: Params, state: PagedState, *, extends: bool) -> PagedState:
        """Runs every program for no slot and no page."""
        rows, slots = self.row_shards * self.chunks, self.config.slots
        nothing, table = np.zeros(rows, np.int32), np.zeros((rows, *state.table.shape[1:]), np.int32)
        begins = RowBounds(nothing, nothing, nothing) if state.snapshots else None
        where = Where(table, nothing, nothing, rows=begins)
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

    def most_programs(self) -> dict[str, int]:
        own = self.jitted
        return {name_of(program): 1 for program in (own.append, own.start, own.resume, own.generate)}

    # -------------------------------------------------------------------------------------------------------- plans
    @property
    def full_rows(self) -> int:
        rows = (np.asarray(self.pages) - 1) // self._needs.of_tokens(self.config.max_length)
        return min(self.slots, int(rows.min())) * self.row_shards

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

    def _left(self, state: PagedState, shard: int) -> Counts:
        """Pages of a shard that its live slots do not need for the next dispatch."""
        left = state.spare(shard)
        for slot in range(shard * self.slots, (shard + 1) * self.slots):
            if state.live[slot]:
                left = left - state.missing(slot, self._ahead(state, slot))
        return left

    def _with_dispatch(self, tokens: int) -> Counts:
        """Most pages of a prompt of so many tokens, and of the first dispatch after it."""
        return self._needs.of_tokens(tokens) + self._needs.of_shape * pages_for(self.config.decode_steps)

    # -------------------------------------------------------------------------------------------------- dispatches
    def _append_chunks(self, params: Params, state: PagedState, drawn: Sequence[Sequence[Chunk]]) -> None:
        """Computes chunks of each shard in one dispatch."""
        if not any(drawn):
            return
        rows = self.row_shards * self.chunks
        ids = np.zeros((rows, CHUNK), np.int32)
        table = np.zeros((rows, *state.table.shape[1:]), np.int32)
        starts, counts, policies = (np.zeros(rows, np.int32) for _ in range(3))
        begins = RowBounds(*(np.zeros(rows, np.int32) for _ in range(3))) if state.snapshots else None
        for shard, chunks in enumerate(drawn):
            for row, chunk in enumerate(chunks, start=shard * self.chunks):
                counts[row], starts[row] = len(chunk.ids), chunk.start
                table[row] = state.on_devices(state.table[chunk.slot])
                policies[row] = state.policy[chunk.slot]
                ids[row, : len(chunk.ids)] = chunk.ids
                if begins is not None:
                    own = chunk.slot - shard * self.slots
                    begins.sources_R[row] = own if chunk.source is None else chunk.source
                    begins.targets_R[row], begins.copies_R[row] = own, own if chunk.copy is None else chunk.copy
        where = Where(table, starts, counts, rows=begins)
        cache = self.jitted.append(params, state.device.cache, ids, where, policies)
        state.device = state.device._replace(cache=cache)
        for chunk in (chunk for chunks in drawn for chunk in chunks):
            state.pass_by(chunk.slot, chunk.start + len(chunk.ids))

    def _begin_decoding(self, state: PagedState, finished: Sequence[Unfinished]) -> None:
        """Makes slots decode whose tokens are in the cache."""
        copies, shared, placed, resumed = [], [], [], []
        for one in finished:
            state.length[one.slot] = one.length
            state.said[one.slot] = [one.token]
            if isinstance(one.start, Extension):
                resumed.append((one.start, one.token))
                continue
            placed.append((one.start, one.token))
            if one.length % PAGE:  # the page with a prompt's last tokens is shared: each row gets a copy
                column, pool = slice(pages_for(one.length) - 1, pages_for(one.length)), state.pool(one.slot)
                before = state.table[one.slot, :, column].copy()
                state.table[one.slot, :, column] = pool.columns(1)
                pairs = (state.on_devices(pages)[:, 0].tolist() for pages in (before, state.table[one.slot, :, column]))
                copies += [(one.slot // self.slots, *pair) for pair in zip(pool.shapes, *pairs, strict=True)]
                shared.append((pool, before[:, 0].tolist()))
        state.device = state.device._replace(cache=self.jitted.copied(state.device.cache, copies))
        for pool, pages in shared:
            pool.drop(pages)
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
