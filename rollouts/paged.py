"""The engine over a paged KV cache: memory follows the tokens that are there, and equal beginnings are computed once.

The operations are those of `rollouts.engine`. `room` says how many prompts can be placed, `release` gives back the
pages of slots that have ended, `set_aside` and `bring_back` move an episode to host memory and return it, bit for bit.
Every program has one shape, whatever the lengths: `slots` rows when decoding, blocks of CHUNK tokens for
prompts and observations, as many per dispatch as `prefill_tokens` allows. Row shards of the mesh (data × fsdp) have
slots and pages of their own and never communicate; a tensor group splits the heads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models.config import ModelConfig
from models.pages import PAGE, Implementation, Loop, Pages, Where, feed, init_pages, pages_for
from models.transformer import Params, declare, output_table
from rollouts.pages import OutOfPages, PagedState, Pool, needed
from rollouts.sampling import Sampling, sample
from rollouts.slots import (
    ROWS,
    DecodeState,
    EngineConfig,
    EngineWeights,
    Extension,
    Placement,
    Result,
    no_slots,
    resumed,
    rows_of,
    sample_tokens,
    started,
)
from sharding.collectives import Shards
from sharding.rules import DECODE
from sharding.spec import partition_specs

CHUNK = 32  # tokens of one row that are computed together; divides PAGE, so that shared pages have the same bits
MOVED = 8  # pages per dispatch when an episode is moved to the host or back


def page_bytes(model: ModelConfig, dtype: Any, tensor: int) -> int:
    """Bytes of one page on each of the `tensor` devices that share its heads, all layers together."""
    heads = model.num_kv_heads // tensor
    return 2 * model.num_layers * heads * model.head_dim * PAGE * jnp.dtype(dtype).itemsize


@dataclass(frozen=True)
class Prompts:
    """Prompts to be placed, and the weights to compute them with."""

    params: Params
    prompts: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Aside:
    """An episode in host memory: the contents of its pages by layer, and its tokens in the cache."""

    pages: tuple[Any, ...]
    length: int


@dataclass(frozen=True)
class _Piece:
    """Consecutive tokens of one row, from position `start` on."""

    shard: int
    table: Sequence[int]
    start: int
    ids: np.ndarray


class PagedEngine(EngineWeights):
    """Compiled programs for one model and mesh, over `config.pages` pages on each row shard.

    how: layout of the pages and attention over them. Raises ValueError if slots or heads cannot be sharded over the
    mesh, or if an episode of max_length can never fit.
    """

    keeps_prompts = True  # in the state, as long as the weights are the same

    def __init__(self, model: ModelConfig, config: EngineConfig, mesh: Mesh, how: Implementation | None = None) -> None:
        super().__init__(model, config, mesh)
        self._how = Loop() if how is None else how
        self.row_shards = mesh.shape["data"] * mesh.shape["fsdp"]
        self.slots = config.slots // self.row_shards  # of one shard
        self.columns = pages_for(config.max_length)  # of a page table
        self.pages = self.slots * (self.columns + 1) + 1 if config.pages is None else config.pages
        self.chunks = max(1, config.prefill_tokens // CHUNK)
        least = self.columns + 2 + pages_for(config.decode_steps)
        if self.pages < least:
            raise ValueError(
                f"a shard of the rollout engine has {self.pages} pages of {PAGE} tokens, but one episode of "
                f"rollout.max_length = {config.max_length} needs {least}; raise the budget or lower it."
            )
        self._shards = Shards(fsdp=(), tensor="tensor" if mesh.shape["tensor"] > 1 else None, data=())
        self._programs()

    # -------------------------------------------------------------------------------------------------- operations
    def init_decode_state(self) -> PagedState:
        """A state in which no slot decodes and no page is used."""
        pools = [Pool(shard, self.pages) for shard in range(self.row_shards)]
        return PagedState(self._init(), pools, self.config.slots)

    def prefill(self, params: Params, prompts: Sequence[Sequence[int] | np.ndarray]) -> Prompts:
        """Prompts for `insert`, which computes what no page holds yet; ValueError if one is empty or too long."""
        longest = self.config.max_length - 1
        for prompt in prompts:
            if not 0 < len(prompt) <= longest:
                raise ValueError(f"A prompt has {len(prompt)} tokens; the engine takes 1 to {longest}.")
        return Prompts(params, tuple(np.asarray(prompt, np.int32) for prompt in prompts))

    def room(self, state: PagedState, asked: Sequence[tuple[np.ndarray, int]]) -> int:
        """How many of these (prompt, slot), from the first on, can be placed, and all live slots still decode for one
        dispatch."""
        left = []
        for pool in state.pools:
            own = range(pool.shard * self.slots, (pool.shard + 1) * self.slots)
            left.append(pool.available() - sum(self._missing(state, slot) for slot in own if state.live[slot]))
        for count, (prompt, slot) in enumerate(asked):
            shard = slot // self.slots
            left[shard] -= needed(prompt) + pages_for(self.config.decode_steps)
            if left[shard] < 0:
                return count
        return len(asked)

    def insert(self, state: PagedState, prefix: Prompts, placements: Sequence[Placement]) -> PagedState:
        """Starts episodes in slots; several may have the same prompt, which is computed once on each shard.

        The caller has made sure that there is `room`. Raises ValueError if a placement has too many stop ids.
        """
        pieces, copies, held = [], [], []
        for placement in placements:
            pool = state.pools[placement.slot // self.slots]
            ids = prefix.prompts[placement.row]
            where = pool.place(ids)
            length = len(ids) - 1
            state.prompt_tokens += length
            state.computed_tokens += length - where.computed
            pages = [*where.full, *([] if where.tail is None else [where.tail])]
            if where.computed < length:
                pieces.append(_Piece(pool.shard, pages, where.computed, ids[where.computed : length]))
            own = list(where.full)
            if where.tail is not None:
                own += pool.take(1)
                copies.append((pool.shard, where.tail, own[-1]))
                held.append((pool, where.tail))
            state.pages[placement.slot] = own
            state.length[placement.slot], state.limit[placement.slot] = length, placement.limit
            state.live[placement.slot] = True
        self._compute(prefix.params, state, pieces)
        self._copy_pages(state, copies)
        for pool, page in held:
            pool.drop([page])
        last = [int(prefix.prompts[p.row][-1]) for p in placements]
        return self._begin(state, placements, last)

    def extend(self, params: Params, state: PagedState, extensions: Sequence[Extension]) -> PagedState:
        """Appends tokens to paused slots, which then resume decoding. Raises OutOfPages before anything is appended."""
        pieces = []
        for e in extensions:
            state.keep(e.slot, e.length)
        for shard in {e.slot // self.slots for e in extensions}:
            wanted = sum(
                pages_for(e.length + len(e.ids) - 1) - len(state.pages[e.slot])
                for e in extensions
                if e.slot // self.slots == shard
            )
            if wanted > state.pools[shard].available():
                raise OutOfPages(shard)
        for e in extensions:
            new = np.asarray(e.ids[:-1], np.int32)
            state.grow(e.slot, e.length + len(new))
            pieces.append(_Piece(e.slot // self.slots, state.pages[e.slot], e.length, new))
            state.length[e.slot], state.limit[e.slot], state.live[e.slot] = e.length + len(new), e.limit, True
        self._compute(params, state, [piece for piece in pieces if len(piece.ids)])
        self._resume(
            state,
            [(e.slot, int(e.ids[-1]), state.length[e.slot], e.limit, np.asarray(e.key, np.uint32)) for e in extensions],
        )
        return state

    def generate(
        self, params: Params, state: PagedState, longest: int | None = None, patience: int | None = None
    ) -> tuple[PagedState, Result]:
        """Samples up to decode_steps tokens for every live slot; see `Engine.generate`. `longest` is not needed.

        Raises OutOfPages, before anything has changed but for pages already reserved.
        """
        for slot, live in enumerate(state.live):
            if live:
                state.grow(slot, self._ahead(state, slot))
        table = np.zeros((self.config.slots, self.columns), np.int32)
        for slot, pages in enumerate(state.pages):
            if state.live[slot]:
                table[slot, : len(pages)] = pages
        patience = self.config.slots if patience is None else patience
        state.device, result = self._generate(params, state.device, table, np.int32(-(-patience // self.row_shards)))
        result = jax.device_get(result)
        for slot, count in enumerate(result.counts_S.tolist()):
            state.length[slot] += count
            state.live[slot] = bool(result.live_S[slot])
        return state, result

    def pause(self, state: PagedState, slots: Sequence[int]) -> PagedState:
        """Pauses slots; their pages are kept."""
        paused = np.zeros(self.config.slots, bool)
        paused[list(slots)] = True
        state.device = self._pause(state.device, paused)
        for slot in slots:
            state.live[slot] = False
        return state

    def release(self, state: PagedState, slots: Iterable[int]) -> PagedState:
        """Gives back the pages of slots that do not decode."""
        for slot in slots:
            state.keep(slot, 0)
        return state

    def set_aside(self, state: PagedState, slot: int) -> Aside:
        """Moves the tokens of a paused slot to host memory, and gives back its pages."""
        state.keep(slot, state.length[slot])
        length, shard, pages = state.length[slot], slot // self.slots, state.pages[slot]
        parts = []
        for first in range(0, len(pages), MOVED):
            some = pages[first : first + MOVED]
            where = np.zeros((self.row_shards, MOVED), np.int32)
            where[shard, : len(some)] = some
            read = jax.device_get(self._read(state.device.cache, where))
            parts.append(jax.tree.map(lambda x, n=len(some): x[shard * MOVED : shard * MOVED + n], read))
        whole = jax.tree.map(lambda *some: np.concatenate(some), *parts) if parts else ()
        self.release(state, [slot])
        return Aside(whole, length)

    def bring_back(
        self, state: PagedState, aside: Aside, slot: int, token: int, placement: Placement, *, live: bool
    ) -> PagedState:
        """Returns an episode to a slot of any shard. token: the input of its next step. live: it decodes on; otherwise
        it waits for `extend`. Raises OutOfPages before anything has changed."""
        shard = slot // self.slots
        pages = state.pools[shard].take(pages_for(aside.length))
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
        state.pages[slot], state.length[slot] = pages, aside.length
        state.limit[slot], state.live[slot] = placement.limit, True
        state = self._begin(state, [placement], [token])
        return state if live else self.pause(state, [slot])

    # ------------------------------------------------------------------------------------------------------- pages
    def _ahead(self, state: PagedState, slot: int) -> int:
        """Tokens that may be in the slot's cache after the next dispatch."""
        return min(state.length[slot] + self.config.decode_steps, max(state.limit[slot], state.length[slot] + 1))

    def _missing(self, state: PagedState, slot: int) -> int:
        return max(0, pages_for(self._ahead(state, slot)) - len(state.pages[slot]))

    # -------------------------------------------------------------------------------------------------- dispatches
    def _compute(self, params: Params, state: PagedState, pieces: Sequence[_Piece]) -> None:
        """Feeds the tokens of all pieces in blocks of CHUNK, in order, as many per dispatch and shard as fit."""
        queues: list[list[tuple[_Piece, int]]] = [[] for _ in range(self.row_shards)]
        for piece in pieces:
            queues[piece.shard] += [(piece, first) for first in range(0, len(piece.ids), CHUNK)]
        for first in range(0, max(map(len, queues), default=0), self.chunks):
            rows = self.row_shards * self.chunks
            ids = np.zeros((rows, CHUNK), np.int32)
            table = np.zeros((rows, self.columns), np.int32)
            starts, counts = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
            for shard, queue in enumerate(queues):
                for row, (piece, at) in enumerate(queue[first : first + self.chunks], start=shard * self.chunks):
                    some = piece.ids[at : at + CHUNK]
                    ids[row, : len(some)], counts[row], starts[row] = some, len(some), piece.start + at
                    table[row, : len(piece.table)] = piece.table
            cache = self._append(params, state.device.cache, ids, Where(table, starts, counts))
            state.device = state.device._replace(cache=cache)

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
        slots, limits, stops, sampling = rows_of(placements, self.config.slots)
        token, length = np.zeros_like(limits), np.zeros_like(limits)
        token[: len(tokens)], length[: len(tokens)] = tokens, [state.length[p.slot] for p in placements]
        state.device = self._start(state.device, slots, token, length, limits, stops, sampling)
        return state

    def _resume(self, state: PagedState, rows: Sequence[tuple[int, int, int, int, np.ndarray]]) -> None:
        pad = self.config.slots - len(rows)
        slots, tokens, lengths, limits = (
            np.asarray([*(row[place] for row in rows), *[fill] * pad], np.int32)
            for place, fill in enumerate((self.config.slots, 0, 0, 0))
        )
        keys = np.stack([*(row[4] for row in rows), *[np.zeros(2, np.uint32)] * pad])
        state.device = self._continue(state.device, slots, tokens, lengths, limits, keys)

    # ---------------------------------------------------------------------------------------------------- programs
    def _programs(self) -> None:
        """Compiles nothing yet: one jitted shard_map for each operation that touches pages."""
        model, how, config = self.model, self._how, self.config
        rows = PartitionSpec(ROWS)
        layer = jax.eval_shape(partial(how.empty, 1, model.num_kv_heads, model.head_dim, config.compute_dtype))
        split = PartitionSpec(ROWS, *[None] * (how.heads_axis - 1), "tensor")
        one = jax.tree.map(lambda _: split, layer)
        pages = tuple(one for _ in range(model.num_layers))
        specs = partition_specs(declare(model), DECODE)
        each = jax.tree.map(lambda s: PartitionSpec(*s[1:]), specs["layers"])
        weights = {**specs, "layers": tuple(each for _ in range(model.num_layers))}
        state = DecodeState(pages, rows, rows, rows, rows, rows, Sampling(*(rows,) * 5))
        self.state_sharding = placed = jax.tree.map(partial(NamedSharding, self.mesh), state)
        result = Result(PartitionSpec(None, ROWS), PartitionSpec(None, ROWS), rows, rows)

        def mapped(body: Any, takes: Any, gives: Any, donate: int | None = None) -> Any:
            program = jax.shard_map(body, mesh=self.mesh, in_specs=takes, out_specs=gives, check_vma=False)
            return jax.jit(program, donate_argnums=() if donate is None else donate)

        def init() -> DecodeState:
            cache = init_pages(model, how, self.row_shards * self.pages, config.compute_dtype)
            return no_slots(cache, config.slots)

        self._init = jax.jit(init, out_shardings=placed)
        self._append = mapped(self._append_body, (weights, pages, rows, Where(rows, rows, rows)), pages, 1)
        self._copy = mapped(_copied, (pages, rows, rows), pages, 0)
        self._read = mapped(lambda cache, at: jax.tree.map(lambda x: x[at[0]], cache), (pages, rows), pages)
        self._write = mapped(_written, (pages, rows, pages), pages, 0)
        takes = (weights, state, rows, PartitionSpec())
        self._generate = mapped(self._generate_body, takes, (state, result), 1)
        self._start = jax.jit(started, donate_argnums=0, out_shardings=placed)
        self._continue = jax.jit(resumed, donate_argnums=0, out_shardings=placed)
        self._pause = jax.jit(
            lambda state, paused_S: state._replace(live_S=state.live_S & ~paused_S),
            donate_argnums=0,
            out_shardings=placed,
        )

    def _append_body(self, params: Params, cache: Pages, ids_RQ: jax.Array, where: Where) -> Pages:
        return feed(self.model, self._how, params, cache, ids_RQ, where, self._shards)[1]

    def _generate_body(
        self, params: Params, state: DecodeState, table_Sb: jax.Array, patience: jax.Array
    ) -> tuple[DecodeState, Result]:
        table_VD = output_table(self.model, params)

        def forward(cache: Pages, token_S: jax.Array, length_S: jax.Array, live_S: jax.Array) -> Any:
            where = Where(table_Sb, length_S, live_S.astype(jnp.int32))
            hidden_S1D, cache = feed(self.model, self._how, params, cache, token_S[:, None], where, self._shards)
            logits_SV = jnp.einsum("SD,VD->SV", hidden_S1D[:, 0], table_VD, preferred_element_type=jnp.float32)
            return logits_SV, cache

        return sample_tokens(forward, state, self.config.decode_steps, patience, self._draw)

    def _draw(self, logits_SV: jax.Array, how: Sampling, index_S: jax.Array) -> tuple[jax.Array, jax.Array]:
        """`sample` on this device's part of the vocabulary: each device of a tensor group collects the logits of its
        share of the slots, or of all slots if they cannot be divided."""
        axis, size = self._shards.tensor, self.mesh.shape["tensor"]
        if axis is None:
            return sample(logits_SV, how, index_S)
        if self.slots % size:
            return sample(lax.all_gather(logits_SV, axis, axis=1, tiled=True), how, index_S)
        share = self.slots // size

        def own(x_S: jax.Array) -> jax.Array:
            return lax.dynamic_slice_in_dim(x_S, lax.axis_index(axis) * share, share)

        own_sV = lax.all_to_all(logits_SV, axis, split_axis=0, concat_axis=1, tiled=True)
        token_s, logprob_s = sample(own_sV, jax.tree.map(own, how), own(index_S))
        return lax.all_gather(token_s, axis, tiled=True), lax.all_gather(logprob_s, axis, tiled=True)


def _copied(cache: Pages, source: jax.Array, target: jax.Array) -> Pages:
    return jax.tree.map(lambda x: x.at[target[0]].set(x[source[0]], mode="drop"), cache)


def _written(cache: Pages, target: jax.Array, values: Pages) -> Pages:
    return jax.tree.map(lambda x, new: x.at[target[0]].set(new, mode="drop"), cache, values)
