"""The engine over a paged KV cache: memory follows the tokens that are there, and equal beginnings are computed once.

The operations are those of `rollouts.engine`. `room` says how many prompts can be placed, `release` gives back the
pages of slots that have ended, `set_aside` and `bring_back` move an episode to host memory and return it, bit for bit.
Every program has one shape, whatever the lengths: `slots` rows when decoding, blocks of CHUNK tokens for
prompts and observations, as many per dispatch as `prefill_tokens` allows. Row shards of the mesh (data × fsdp) have
slots and pages of their own and never communicate, unless experts are distributed over them; a tensor group splits the
heads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from scope_jax.errors import UserError
from scope_jax.models.config import ModelConfig
from scope_jax.models.pages import (
    PAGE,
    Implementation,
    Where,
    layer_groups,
    pages_for,
    pages_touched,
    tables_in_smem,
)
from scope_jax.models.transformer import Params
from scope_jax.rollouts.pages import Chunk, OutOfPages, PagedState, Pool, Unfinished, parts_of
from scope_jax.rollouts.programs import PagedPrograms
from scope_jax.rollouts.slots import EngineConfig, Extension, Placement, Result, past_the_end, rows_of, stop_row
from scope_jax.sharding.mesh import row_shards

CHUNK = 32  # tokens of one row that are computed together; divides PAGE, so that shared pages have the same bits
MOVED = 8  # pages per dispatch when an episode is moved to the host or back


def page_bytes(model: ModelConfig, dtype: Any, tensor: int) -> int:
    """Bytes of one page on each of the `tensor` devices that share its heads, all layers of a group together."""
    heads, layers = model.num_kv_heads // tensor, len(layer_groups(model)[0].layers)
    return 2 * layers * heads * model.head_dim * PAGE * jnp.dtype(dtype).itemsize


Prompts = tuple[np.ndarray, ...]  # token ids


@dataclass(frozen=True)
class Aside:
    """An episode in host memory.

    length: its tokens in the cache. turn: where its turn began, see PagedState. held: [groups, columns], True where it
    has a page. pages: their contents in this order, by layer.
    """

    length: int
    turn: int | None
    held: np.ndarray
    pages: Any


class PagedEngine(PagedPrograms):
    """The operations, over `config.pages` pages on each row shard.

    how: layout of the pages and attention over them. Raises ValueError if slots or heads cannot be sharded over the
    mesh, or if an episode of max_length can never fit.
    """

    keeps_prompts = True  # in the state, as long as the weights are the same

    def __init__(self, model: ModelConfig, config: EngineConfig, mesh: Mesh, how: Implementation | None = None) -> None:
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
        super().__init__(model, config, mesh, how, pages)
        self._check_tables("slots", self.slots)
        self._check_tables("prefill_tokens", self.chunks)

    def _check_tables(self, setting: str, rows: int) -> None:
        """Raises ValueError if the page tables of so many rows are too large for the kernel over pages."""
        most = self._how.table_bytes
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

    # -------------------------------------------------------------------------------------------------- operations
    def init_decode_state(self) -> PagedState:
        """A state in which no slot decodes and no page is used."""
        pools = [Pool(shard, self.pages, self.windows) for shard in range(self.row_shards)]
        return PagedState(self._init(), pools, self.config.slots, self.columns)

    def prefill(
        self, params: Params, prompts: Sequence[Sequence[int] | np.ndarray], policies: Sequence[int] = ()
    ) -> Prompts:
        """Prompts for `insert`; `advance` computes what no page holds yet, under the policies of the placements. Raises
        ValueError if one is empty or too long."""
        longest = self.config.max_length - 1
        for prompt in prompts:
            if not 0 < len(prompt) <= longest:
                raise ValueError(f"A prompt has {len(prompt)} tokens; the engine takes 1 to {longest}.")
        return tuple(np.asarray(prompt, np.int32) for prompt in prompts)

    def room(self, state: PagedState, asked: Sequence[tuple[np.ndarray, int]]) -> int:
        """How many of these (prompt, slot), from the first on, can be placed, and all live slots still decode for one
        dispatch."""
        left = [self._left(state, shard) for shard in range(self.row_shards)]
        for count, (prompt, slot) in enumerate(asked):
            shard = slot // self.slots
            left[shard] -= self._needed(len(prompt)) + len(self.windows) * pages_for(self.config.decode_steps)
            if left[shard] < 0:
                return count
        return len(asked)

    def fits(self, state: PagedState, aside: Aside, kept: int, more: int, slot: int) -> bool:
        """Whether an episode in host memory can return to a slot, keep the first `kept` of its tokens there and be
        extended by `more`, and all live slots still decode for one dispatch."""
        columns = pages_for(kept)
        grown = len(self.windows) * (pages_for(kept + more + self.config.decode_steps) - columns)
        needed = max(int(aside.held.sum()), int(aside.held[:, :columns].sum()) + grown)
        return self._left(state, slot // self.slots) >= needed

    def insert(self, state: PagedState, prefix: Prompts, placements: Sequence[Placement]) -> PagedState:
        """Places episodes in slots, which decode when `advance` has computed their prompts; equal prompts are computed
        once on each shard.

        The caller has made sure that there is `room`. Raises ValueError if a placement has too many stop ids.
        """
        for placement in placements:
            stop_row(placement.params)
        for placement in placements:
            ids, last = np.split(prefix[placement.row], [-1])
            pages = self._needed(len(ids)) + len(self.windows) * pages_for(self.config.decode_steps)
            chunks = self._place(state, ids, placement)
            self._queue(state, Unfinished(placement.slot, len(ids), chunks, pages, placement, int(last[0])))
        return state

    def extend(self, params: Params, state: PagedState, extensions: Sequence[Extension]) -> PagedState:
        """Appends tokens to paused slots, which decode again when `advance` has computed them. Raises OutOfPages before
        anything is appended."""
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
            chunks = self._chunks(state, e.slot, e.length, ids)
            self._queue(state, Unfinished(e.slot, length, chunks, pages, e, int(last[0])))
        return state

    def advance(self, params: Params, state: PagedState, most: int | None = None) -> tuple[PagedState, list[int]]:
        """Computes prompts and observations, in the order of `insert` and `extend`, with at most `most` dispatches
        (None: all). Slots whose last token has been computed decode from now on; returns the others.

        A dispatch computes up to `prefill_tokens` on each shard. What windows have passed is given back after each, so
        that no page has two rows in one.
        """
        while any(state.unfinished) and most != 0:
            drawn = [self._draw_chunks(state, shard) for shard in range(self.row_shards)]
            self._append_chunks(params, state, [chunks for chunks, _ in drawn])
            self._begin_decoding(state, [one for _, finished in drawn for one in finished])
            most = None if most is None else most - 1
        return state, [one.slot for queue in state.unfinished for one in queue]

    def generate(
        self, params: Params, state: PagedState, longest: int | None = None, patience: int | None = None
    ) -> tuple[PagedState, Result]:
        """Samples up to decode_steps tokens for every live slot; see `Engine.generate`. `longest` is not needed.

        May be called again before the result is read; pages are reserved for all that has not been read. Raises
        OutOfPages, before anything has changed but for pages already reserved.
        """
        for slot, live in enumerate(state.live):
            if live:
                turn = state.turn[slot]
                state.pass_by(slot, state.length[slot] if turn is None else turn)
                ahead, shard = self._ahead(state, slot), slot // self.slots
                if state.unfinished[shard] and state.missing(slot, ahead) > state.spare(shard):
                    raise OutOfPages(shard)  # there may be pages, but prompts need them
                state.grow(slot, ahead)
        patience = self.config.slots if patience is None else patience
        state.device, result = self._generate(params, state.device, state.tables(self.lanes), self._patience(patience))
        for slot, live in enumerate(state.live):
            state.unread[slot] += live * self.config.decode_steps
        return state, result

    def read(self, state: PagedState, result: Result, slots: Iterable[int]) -> Result:
        """See `Engine.read`; updates the lengths of these slots."""
        result = jax.device_get(result)
        for slot in slots:
            state.length[slot] += int(result.counts_S[slot])
            state.unread[slot] -= self.config.decode_steps
            state.live[slot] = bool(result.live_S[slot])
        return result

    def pause(self, state: PagedState, slots: Sequence[int]) -> PagedState:
        """Pauses slots; their pages are kept."""
        paused = np.zeros(self.config.slots, bool)
        paused[list(slots)] = True
        state.device = self._pause(state.device, paused)
        for slot in slots:
            state.live[slot] = False
        return state

    def release(self, state: PagedState, slots: Iterable[int]) -> PagedState:
        """Gives back the pages of slots that do not decode; prompts of theirs are not computed any further."""
        for slot in slots:
            shard = slot // self.slots
            state.unfinished[shard] = deque(one for one in state.unfinished[shard] if one.slot != slot)
            state.keep(slot, 0)
        return state

    def set_aside(self, state: PagedState, slot: int) -> Aside:
        """Moves the tokens of a paused slot to host memory, and gives back its pages."""
        state.keep(slot, state.length[slot])
        held, shard = state.table[slot] > 0, slot // self.slots
        pages, aside = state.table[slot][held], Aside(state.length[slot], state.turn[slot], held, ())
        parts = []
        for first in range(0, len(pages), MOVED):
            some = pages[first : first + MOVED]
            where = np.zeros((self.row_shards, MOVED), np.int32)
            where[shard, : len(some)] = some
            read = jax.device_get(self._read(state.device.cache, where))
            parts.append(jax.tree.map(lambda x, n=len(some): x[shard * MOVED : shard * MOVED + n], read))
        whole = jax.tree.map(lambda *some: np.concatenate(some), *parts) if parts else ()
        self.release(state, [slot])
        return replace(aside, pages=whole)

    def bring_back(
        self, state: PagedState, aside: Aside, slot: int, token: int, placement: Placement, *, live: bool
    ) -> PagedState:
        """Returns an episode to a slot of any shard. token: the input of its next step. live: it decodes on; otherwise
        it waits for `extend`. Raises OutOfPages before anything has changed."""
        shard = slot // self.slots
        pages = state.pools[shard].take(int(aside.held.sum()))
        for first in range(0, len(pages), MOVED):
            some = pages[first : first + MOVED]
            where = np.full((self.row_shards, MOVED), self.pages, np.int32)  # past the end: nothing is written
            where[shard, : len(some)] = some

            def block(x: np.ndarray, first: int = first, count: int = len(some)) -> np.ndarray:
                out = np.zeros((self.row_shards * MOVED, *x.shape[1:]), x.dtype)
                out[shard * MOVED : shard * MOVED + count] = x[first : first + count]
                return out

            cache = self._write(state.device.cache, where, jax.tree.map(block, aside.pages))
            state.device = state.device._replace(cache=cache)
        state.table[slot][aside.held] = pages
        state.columns[slot], state.length[slot] = pages_for(aside.length), aside.length
        state = self._begin(state, [placement], [token])
        state.turn[slot] = aside.turn
        return state if live else self.pause(state, [slot])

    def compile(self, params: Params, state: PagedState, *, extends: bool) -> PagedState:
        """Compiles every program by running it for no slot and no page. extends: that of `extend` as well. No slot of
        `state` decodes."""
        rows, slots = self.row_shards * self.chunks, self.config.slots
        nothing, table = np.zeros(rows, np.int32), np.zeros((rows, *state.table.shape[1:]), np.int32)
        some = np.zeros((self.row_shards, MOVED), np.int32)
        past = np.full_like(some, self.pages)
        where = Where(table, nothing, nothing)
        cache = self._append(params, state.device.cache, np.zeros((rows, CHUNK), np.int32), where, nothing)
        read = jax.device_get(self._read(cache, some))
        cache = self._write(self._copy(cache, some, past), past, read)
        number, limits, *how = rows_of([past_the_end(slots)], slots)
        nowhere = np.zeros_like(limits)
        state.device = self._start(state.device._replace(cache=cache), number, nowhere, nowhere, limits, *how)
        if extends:
            self._resume(state, [], [])
        state, _ = self.generate(params, self.pause(state, []))
        jax.block_until_ready(state.device)
        return state

    # ------------------------------------------------------------------------------------------------------- pages
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
    def _queue(self, state: PagedState, one: Unfinished) -> None:
        state.unfinished[one.slot // self.slots].append(one)

    def _place(self, state: PagedState, ids: np.ndarray, placement: Placement) -> Iterator[Chunk]:
        """Gives a slot the pages of its prompt, those in the index and new ones, and yields what is to be computed. The
        prompt is looked for when the pages of those before it have been entered; a page is entered with its last chunk,
        so that one whose row is given up half-way is not found."""
        slot, pool, parts = placement.slot, state.pool(placement.slot), parts_of(ids)
        found = pool.find(ids, placement.policy)
        state.policy[slot] = placement.policy
        state.columns[slot] = found.table.shape[1]
        state.table[slot, :, : state.columns[slot]] = found.table
        state.prompt_tokens += len(ids)
        state.computed_tokens += len(ids) - found.computed
        serial = found.serial
        for chunk in self._chunks(state, slot, found.computed, ids[found.computed :]):
            end = chunk.start + len(chunk.ids)
            if end % PAGE == 0 or end == len(ids):
                column = chunk.start // PAGE
                serial = pool.enter(serial, parts[column], state.table[slot, :, column].tolist())
            yield chunk

    def _chunks(self, state: PagedState, slot: int, start: int, ids: np.ndarray) -> Iterator[Chunk]:
        """The tokens in blocks of CHUNK; before each, the slot gets the pages that it needs."""
        for first in range(0, len(ids), CHUNK):
            some = ids[first : first + CHUNK]
            state.grow(slot, start + first + len(some))
            yield Chunk(slot, start + first, some)

    def _draw_chunks(self, state: PagedState, shard: int) -> tuple[list[Chunk], list[Unfinished]]:
        """The next chunks of a shard, as many as a dispatch computes, and what is finished with them."""
        chunks: list[Chunk] = []
        finished: list[Unfinished] = []
        queue = state.unfinished[shard]
        while queue and len(chunks) < self.chunks:
            chunk = next(queue[0].chunks, None)
            if chunk is not None:
                chunks.append(chunk)
            if chunk is None or chunk.start + len(chunk.ids) == queue[0].length:
                finished.append(queue.popleft())
        return chunks, finished

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
        cache = self._append(params, state.device.cache, ids, Where(table, starts, counts), policies)
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
        self._copy_pages(state, copies)
        for shard, shared, _ in copies:
            state.pools[shard].drop([shared])
        if placed:
            self._begin(state, *zip(*placed, strict=True))
        if resumed:
            self._resume(state, *zip(*resumed, strict=True))

    def _copy_pages(self, state: PagedState, copies: Sequence[tuple[int, int, int]]) -> None:
        """Copies (shard, from, to)."""
        queues = [[copy[1:] for copy in copies if copy[0] == shard] for shard in range(self.row_shards)]
        for first in range(0, max(map(len, queues), default=0), MOVED):
            source = np.zeros((self.row_shards, MOVED), np.int32)
            target = np.full((self.row_shards, MOVED), self.pages, np.int32)
            for shard, queue in enumerate(queues):
                for place, (a, b) in enumerate(queue[first : first + MOVED]):
                    source[shard, place], target[shard, place] = a, b
            state.device = state.device._replace(cache=self._copy(state.device.cache, source, target))

    def _begin(self, state: PagedState, placements: Sequence[Placement], tokens: Sequence[int]) -> PagedState:
        for p in placements:
            state.limit[p.slot], state.live[p.slot] = p.limit, True
            state.turn[p.slot] = state.length[p.slot] if p.may_be_cut else None
            state.policy[p.slot] = p.policy
            state.grouped[p.slot] = p.grouped // PAGE
        slots, limits, stops, policies, sampling = rows_of(placements, self.config.slots)
        token, length = np.zeros_like(limits), np.zeros_like(limits)
        token[: len(tokens)], length[: len(tokens)] = tokens, [state.length[p.slot] for p in placements]
        state.device = self._start(state.device, slots, token, length, limits, stops, policies, sampling)
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
        state.device = self._continue(state.device, slots, first, lengths, limits, keys)
