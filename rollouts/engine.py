"""The engine: compiled programs for one model and mesh, and the operations that a decode loop (`rollouts.loop`) calls.

It holds neither weights nor state: both are arguments of the operations, and a state that an operation returns replaces
the one it was given. `insert` and `extend` say what is to be computed, `advance` computes it; episodes that are set
aside and brought back are the same, bit for bit.

Keys and values lie in pages. Where pages are shared, memory follows the tokens that are there, and equal beginnings are
computed once; where gathering pages is slow each slot has one, as long as the longest episode, and equal prompts are
computed once and copied (`models.decoder.paging.Paging`).
Every program has one shape, whatever the lengths: `slots` rows when decoding, blocks of CHUNK tokens for
prompts and observations, as many per dispatch as `prefill_tokens` allows. Row shards of the mesh (data × fsdp) have
slots and pages of their own and never communicate, unless experts are distributed over them; a tensor group splits the
heads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from scope_jax.errors import UserError
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.delta import RowBounds
from scope_jax.models.decoder.pages import Loop
from scope_jax.models.decoder.paging import Implementation, Where, page_shapes, picks_group, tables_in_smem
from scope_jax.models.decoder.transformer import Params
from scope_jax.rollouts.budget import PageBudget, PageNeeds, page_bytes, state_bytes
from scope_jax.rollouts.paged_state import Chunk, PagedState, Unfinished
from scope_jax.rollouts.pages import CHUNK, Counts, OutOfPages, Pool, Snapshots
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
from scope_jax.rollouts.verification import DraftRows, Drafts, arranged, free_rows, trimmed
from scope_jax.rollouts.weights import EngineWeights
from scope_jax.sharding.mesh import row_shards
from scope_jax.sharding.program import AbstractProgram, name_of


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


class Engine:
    """An engine over `config.pages` pages of each shape on each row shard.

    how: layout of the pages and attention over them; None: the loop that runs everywhere. Raises UserError if slots or
    heads cannot be sharded over the mesh, or if an episode of max_length can never fit, and ValueError for a number of
    pages that belong to slots or are shorter than max_length.
    """

    def __init__(self, model: ModelConfig, config: EngineConfig, mesh: Mesh, how: Implementation | None = None) -> None:
        self.model, self.config, self.mesh = model, config, mesh
        self.how = how = Loop() if how is None else how
        self.paging = paging = how.paging
        if paging.by_slot and (config.pages is not None or paging.length < config.max_length):
            raise ValueError(
                f"each slot has one page of {paging.length} tokens; EngineConfig.pages is {config.pages}, but must be "
                f"None, and max_length {config.max_length}, but must be at most a page."
            )
        if paging.by_slot and config.draft_tokens:
            raise ValueError(
                "EngineConfig.draft_tokens needs pages that belong to no slot, as rows of others use them."
            )
        shards = row_shards(mesh)
        self._needs = needs = PageNeeds(model, config, shards, paging)
        self.windows, self.chunks = needs.windows, needs.chunks
        self.columns = paging.count(config.max_length)  # of a page table
        pages = needs.enough if config.pages is None else np.broadcast_to(config.pages, needs.enough.shape)
        for own, least in zip(pages.tolist(), needs.least.tolist(), strict=True):
            if own < least:
                raise UserError(
                    f"a shard of the rollout engine has {own} pages of {paging.length} tokens, but one episode of "
                    f"rollout.max_length = {config.max_length} (or evaluate.max_length, if that is longer) needs "
                    f"{least}; raise the budget or lower it."
                )
        self.pages = tuple(pages.tolist())
        tensor, dtype = mesh.shape["tensor"], config.compute_dtype
        states = state_bytes(model, dtype, config.slots // shards, tensor)
        sizes = page_bytes(model, config.cache_dtype, tensor, config.picks, paging)
        self.budget = PageBudget(self.pages, tuple(needs.least.tolist()), sizes, states)
        self.weights = EngineWeights(model, config, mesh)
        self.jitted = PagedPrograms(self.weights, how, [count - paging.by_slot for count in self.pages])
        self.row_shards, self.slots = shards, self.jitted.slots  # slots: of one shard
        self._check_tables("slots", self.jitted.shape.rows)
        self._check_tables("prefill_tokens", self.chunks)

    def _check_tables(self, setting: str, rows: int) -> None:
        """Raises ValueError if the page tables of so many rows are too large for the kernel over pages."""
        most = self.how.table_bytes
        columns = max(
            self.columns if window is None else min(self.columns, self.paging.touched(window + CHUNK - 1))
            for window in self.windows
        )
        kv_heads = max(kv_heads for kv_heads, _ in page_shapes(self.model))
        each = max(1, kv_heads // self.mesh.shape["tensor"]) if self.how.by_head else 1
        if most is not None and (needed := tables_in_smem(rows * each, columns)) > most:
            raise UserError(
                f"rollout.{setting} = {getattr(self.config, setting)} is too much for episodes of "
                f"{self.config.max_length} tokens: the page tables of {rows} rows take {needed / 2**20:.2f} MiB of the "
                f"scalar memory of a TPU core, which has room for {most / 2**20:.2f}; lower rollout.{setting} or "
                "rollout.max_length, or give [rollout.mesh] more row shards (data or fsdp)."
            )

    # ------------------------------------------------------------------------------------------------------ weights
    def load_params(self, params: Params) -> Params:
        """The engine's own copy of stacked weights, see `EngineWeights.load_params`."""
        return self.weights.load_params(params)

    def take_params(self, params: Params) -> Params:
        """Like load_params, but frees the source weight by weight."""
        return self.weights.take_params(params)

    def load_adapter(self, params: Params, policy: str, factors: Params) -> Params:
        """The engine's weights with a copy of this policy's factors."""
        return self.weights.load_adapter(params, policy, factors)

    def number(self, policy: str | None) -> int:
        """The policy's place among the adapters. Raises ValueError if there is no such policy."""
        return self.weights.number(policy)

    # --------------------------------------------------------------------------------------------------- operations
    def init_decode_state(self) -> PagedState:
        """A state in which no slot decodes."""
        shapes = self._needs.shapes
        pools = [Pool(shard, self.pages, self.windows, shapes, self.paging) for shard in range(self.row_shards)]
        count = self.jitted.snapshots
        snapshots = [Snapshots(self.slots, count) for _ in range(self.row_shards)] if count else []
        return PagedState(self.jitted.init(), pools, self.config.slots, self.columns, snapshots)

    def checked(self, prompt: Sequence[int] | np.ndarray) -> np.ndarray:
        """The prompt's ids. Raises ValueError if it is empty or too long."""
        longest = self.config.max_length - 1
        if not 0 < len(prompt) <= longest:
            raise ValueError(f"A prompt has {len(prompt)} tokens; the engine takes 1 to {longest}.")
        return np.asarray(prompt, np.int32)

    def room(self, state: PagedState, asked: Sequence[tuple[np.ndarray, int]]) -> int:
        """How many of these (prompt, slot), from the first on, can be placed: so many that all live slots still decode
        for one dispatch."""
        left = [self._left(state, shard) for shard in range(self.row_shards)]
        for count, (prompt, slot) in enumerate(asked):
            shard = slot // self.slots
            left[shard] = left[shard] - self._needs.with_dispatch(len(prompt))
            if (left[shard] < 0).any():
                return count
        return len(asked)

    def fits(self, state: PagedState, aside: Aside, kept: int, more: int, slot: int) -> bool:
        """Whether an episode in host memory can return to a slot, keep the first `kept` of its tokens there and be
        extended by `more`, and all live slots still decode for one dispatch."""
        columns = self.paging.count(kept)
        grown = self._needs.of_row(kept + more) - self._needs.of_shape * columns
        needed = np.maximum(state.counted(aside.held), state.counted(aside.held[:, :columns]) + grown)
        return bool((self._left(state, slot // self.slots) >= needed).all())

    def insert(self, state: PagedState, placements: Sequence[Placement]) -> PagedState:
        """Places prompts in slots, for which there is `room`: they decode when `advance` has computed them. Equal ones
        are computed once on each shard. Raises ValueError, before anything has changed, if a prompt is empty or too
        long, or a placement has too many stop ids."""
        prompts = [self.checked(placement.prompt) for placement in placements]
        for placement in placements:
            stop_row(placement.params)
        for placement, prompt in zip(placements, prompts, strict=True):
            ids, last = np.split(prompt, [-1])
            pages = self._needs.with_dispatch(len(ids))
            chunks = state.place(ids, placement)
            state.queue(Unfinished(placement.slot, len(ids), chunks, pages, placement, int(last[0])))
        return state

    def extend(self, state: PagedState, extensions: Sequence[Extension]) -> PagedState:
        """Appends tokens to paused slots, which decode again when `advance` has computed them. Raises OutOfPages before
        anything is appended."""
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
            pages = self._needs.of_row(length)
            chunks = (state.again if state.snapshots else state.chunks)(e.slot, e.length, ids)
            state.queue(Unfinished(e.slot, length, chunks, pages, e, int(last[0])))
        return state

    def advance(self, params: Params, state: PagedState, most: int | None = None) -> tuple[PagedState, list[int]]:
        """Computes prompts and observations in the order of `insert` and `extend`, up to `prefill_tokens` per dispatch
        and shard, with at most `most` dispatches (None: all). Slots whose last token has been computed decode from now
        on; returns the others. What windows have passed is given back after each dispatch, so that no page has two rows
        in one."""
        while any(state.unfinished) and most != 0:
            drawn = [state.draw(shard, self.chunks) for shard in range(self.row_shards)]
            self._append_chunks(params, state, [chunks for chunks, _ in drawn])
            self._begin_decoding(state, [one for _, finished in drawn for one in finished])
            most = None if most is None else most - 1
        return state, [one.slot for queue in state.unfinished for one in queue]

    def draft_room(self, state: PagedState) -> dict[int, int]:
        """Most tokens that may be drafted for each live slot, of those for which any may be: by its limit, and by the
        rows that its shard has free, which must be one for each live slot at least: with fewer, drafts cost more than
        they give. The results of all dispatches have been read."""
        free = [len(rows) for rows in free_rows(state.live, self.jitted.shape)]
        room: dict[int, int] = {}
        for slot, live in enumerate(state.live):
            rows, left = free[slot // self.slots], state.limit[slot] - state.length[slot] - 2
            if live and 2 * rows >= self.jitted.shape.rows and (most := min(self.config.draft_tokens, rows, left)) > 0:
                room[slot] = most
        return room

    def trimmed(self, state: PagedState, drafts: Drafts) -> dict[int, list[int]]:
        """What of drafts, of at most `draft_room` tokens each, there are rows for in one dispatch."""
        return trimmed(drafts, state.live, self.jitted.shape)

    def generate(
        self, params: Params, state: PagedState, patience: int | None = None, drafts: Drafts | None = None
    ) -> tuple[PagedState, Result]:
        """Samples up to decode_steps tokens for every live slot; the result is still to be `read`, but this may be
        called again before: pages are reserved for all that has not been.

        patience: the dispatch ends early once this many slots have finished (None: all of them), which changes no token
        or log-prob; nor do drafts, as `trimmed` gives them, with which the dispatch has one step, in which a slot takes
        one token and those before it that were drafted; they are given when everything else has been read. Raises
        OutOfPages, before anything has changed but for pages already reserved.
        """
        for slot, live in enumerate(state.live):
            if live:
                turn = state.turn[slot]
                state.pass_by(slot, state.length[slot] if turn is None else turn)
                ahead, shard = self._ahead(state, slot), slot // self.slots
                if state.unfinished[shard] and (state.missing(slot, ahead) > state.spare(shard)).any():
                    raise OutOfPages(shard)  # there may be pages, but prompts need them
                state.grow(slot, ahead)
        patience = self.config.slots if patience is None else patience
        tables, rows = state.tables(self.config.cascade), self._rows(state, drafts or {})
        state.device, result = self.jitted.generate(params, state.device, tables, self.jitted.patience(patience), rows)
        for slot, live in enumerate(state.live):
            state.unread[slot] += live * self.config.most_tokens
        return state, result

    def _rows(self, state: PagedState, drafts: Drafts) -> DraftRows | None:
        """Which token each row of a dispatch computes; None: the next one of its slot."""
        if not self.config.draft_tokens:
            return None
        return arranged(drafts, state.live, self.jitted.shape, self.config.decode_steps)

    def read(self, state: PagedState, result: Result, slots: Iterable[int]) -> Result:
        """A dispatch's result in host memory, once it has been computed. slots: those whose turn has not been ended or
        replaced since its launch, whose lengths are updated."""
        result = jax.device_get(result)
        for slot in slots:
            state.length[slot] += int(result.counts_S[slot])
            state.unread[slot] -= self.config.most_tokens
            state.live[slot] = bool(result.live_S[slot])
            if state.snapshots:
                state.said[slot] += result.tokens_NS[: result.counts_S[slot], slot].tolist()
        return result

    def pause(self, state: PagedState, slots: Sequence[int]) -> PagedState:
        """Pauses slots; their caches are kept."""
        paused = np.zeros(self.config.slots, bool)
        paused[list(slots)] = True
        state.device = self.jitted.pause(state.device, paused)
        for slot in slots:
            state.live[slot] = False
        return state

    def picks(self, state: PagedState, slot: int) -> Callable[[], np.ndarray]:
        """With `config.picks`: launches what reads the experts that were picked of the tokens in a slot's cache. Its
        result waits for them: [tokens, L, k], L in the order of `expert_layers`, and meaningless behind the slot's
        tokens."""
        columns = self.paging.count(state.length[slot])
        pages = state.on_devices(state.table[slot])[picks_group(self.model, self.paging), :columns]
        return self.jitted.picks(state.device.cache, slot // self.slots, pages)

    def release(self, state: PagedState, slots: Iterable[int]) -> PagedState:
        """Slots that do not decode have ended: gives back their pages; prompts of theirs are not computed any
        further."""
        for slot in slots:
            shard = slot // self.slots
            state.unfinished[shard] = deque(one for one in state.unfinished[shard] if one.slot != slot)
            state.keep(slot, 0)
        return state

    def set_aside(self, state: PagedState, slot: int) -> Aside:
        """Moves the tokens of a paused slot to host memory, and frees it."""
        state.keep(slot, state.length[slot])
        held, shard = state.table[slot] > 0, slot // self.slots
        cache, begun = state.device.cache, state.begun[slot]
        table = state.on_devices(state.table[slot])
        pages = self.jitted.contents(cache, shard, [table[own] for own in state.by_shape(slot, held)])
        aside = Aside(
            length=state.length[slot],
            turn=state.turn[slot],
            held=held,
            pages=pages,
            states=self.jitted.states_of(cache, shard, slot - shard * self.slots),
            begun=() if begun is None else self.jitted.states_of(cache, shard, begun),
            said=tuple(state.said[slot]),
            picks=self.picks(state, slot)() if self.config.picks else None,
        )
        self.release(state, [slot])
        return aside

    def bring_back(
        self, state: PagedState, aside: Aside, slot: int, token: int, placement: Placement, *, live: bool
    ) -> PagedState:
        """Returns an episode to a slot of any shard. token: the input of its next step. live: it decodes on; otherwise
        it waits for `extend`. Raises OutOfPages before anything has changed."""
        shard = slot // self.slots
        parts = state.by_shape(slot, aside.held)
        state.give(slot, parts)
        table = state.on_devices(state.table[slot])
        pages = [table[own].tolist() for own in parts]
        cache = self.jitted.written(state.device.cache, shard, pages, aside.pages)
        cache = self.jitted.with_states(cache, shard, slot - shard * self.slots, aside.states)
        if aside.begun:
            state.begun[slot] = row = state.snapshots[shard].take()
            cache = self.jitted.with_states(cache, shard, row, aside.begun)
        state.device = state.device._replace(cache=cache)
        state.columns[slot], state.length[slot] = self.paging.count(aside.length), aside.length
        state = self._begin(state, [placement], [token])
        state.turn[slot], state.said[slot] = aside.turn, list(aside.said)
        return state if live else self.pause(state, [slot])

    def compile(self, params: Params, state: PagedState, *, extends: bool, moves: bool = True) -> PagedState:
        """Compiles every program; those that are small by running them for no slot and no page. extends: that of
        `extend` as well. moves: those that copy pages, and move them to the host and back, which an episode that is
        alone does not need."""
        own, device, slots = self.jitted, state.device, self.config.slots
        many = self.row_shards * self.chunks
        nothing, table = np.zeros(many, np.int32), np.zeros((many, *state.table.shape[1:]), np.int32)
        begins = RowBounds(nothing, nothing, nothing) if state.snapshots else None
        where, ids = Where(table, nothing, nothing, rows=begins), np.zeros((many, CHUNK), np.int32)
        tables, patience = state.tables(self.config.cascade), own.patience(slots)
        with ThreadPoolExecutor(1) as pool:  # the largest program beside the others
            rows = self._rows(state, {})
            decoding = pool.submit(own.compile_later(own.generate, (params, device), tables, patience, rows))
            own.compile_later(own.append, (params, device.cache), ids, where, nothing)()
            cache = own.run_for_nothing(device.cache) if moves else device.cache
            number, limits, *how = rows_of([past_the_end(slots)], slots)
            nowhere = np.zeros_like(limits)
            state.device = own.start(device._replace(cache=cache), number, nowhere, nowhere, limits, *how)
            if extends:
                self._resume(state, [], [])
            state = self.pause(state, [])
            decoding.result()
        return state

    def most_programs(self) -> dict[str, int]:
        """How many programs `compile` compiles that take long, by the name of their function."""
        own = self.jitted
        return {name_of(program): 1 for program in (own.append, own.start, own.resume, own.generate)}

    # -------------------------------------------------------------------------------------------------------- plans
    @property
    def full_rows(self) -> int:
        """Episodes of max_length that the cache holds at a time, over the whole mesh."""
        rows = (np.asarray(self.pages) - 1) // self._needs.of_tokens(self.config.max_length)
        return min(self.slots, int(rows.min())) * self.row_shards

    def with_model(self, model: ModelConfig) -> Engine:
        """The same engine, with as large a cache, for a model of other layers."""
        config = self.config if self.paging.by_slot else replace(self.config, pages=self.pages)
        return Engine(model, config, self.mesh, self.how)

    def unquantized(self) -> Engine:
        """The engine, or one like it, whose matrices and cache are whole; in the same memory, so far as an episode of
        max_length fits it."""
        if not self.config.in_8_bits:
            return self
        config = replace(self.config, quantized=False, cache_in_8_bits=False)
        if config.pages is not None:
            whole = page_bytes(self.model, config.cache_dtype, self.mesh.shape["tensor"], config.picks, self.paging)
            pages = np.asarray(self.pages) * self.budget.page_bytes // np.asarray(whole)
            config = replace(config, pages=tuple(np.maximum(self._needs.least, pages).tolist()))
        return Engine(self.model, config, self.mesh, self.how)

    def abstract_weights(self) -> Params:
        """Shapes and shardings of the weights as the programs get them, one tree per layer."""
        return self.weights.abstract()

    def abstract_state(self) -> DecodeState:
        """Shapes and shardings of the `DecodeState` on the devices."""
        return self.jitted.abstract_state()

    def programs(self) -> list[AbstractProgram]:
        """Decoding, and computing prompts and observations."""
        return self.jitted.programs(self.chunks)

    # -------------------------------------------------------------------------------------------------------- pages
    def _ahead(self, state: PagedState, slot: int) -> int:
        """Tokens that may be in the slot's cache after the next dispatch."""
        most = state.length[slot] + state.unread[slot] + self.config.most_tokens
        return min(most, max(state.limit[slot], state.length[slot] + 1))

    def _left(self, state: PagedState, shard: int) -> Counts:
        """Pages of a shard that its live slots do not need for the next dispatch."""
        left = state.spare(shard)
        for slot in range(shard * self.slots, (shard + 1) * self.slots):
            if state.live[slot]:
                left = left - state.missing(slot, self._ahead(state, slot))
        return left

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
            if state.shares_last(one.slot, one.length):  # with other rows that begin so: each decodes in a copy
                shard = one.slot // self.slots
                before, pairs = state.copy_last(one.slot, one.length)
                copies += [(shard, *pair, one.length) for pair in pairs]
                shared.append((state.pool(one.slot), before))
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
            state.grouped[p.slot] = p.grouped // self.paging.length
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
