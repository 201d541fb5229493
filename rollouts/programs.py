"""The compiled programs of the engine: one for decoding, one for prompts, and those that move pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from scope_jax.errors import UserError
from scope_jax.models.decoder import stacks
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.delta import RowBounds
from scope_jax.models.decoder.pages import feed, init_pages, init_states
from scope_jax.models.decoder.paging import (
    Implementation,
    Pages,
    Stateful,
    Tables,
    Where,
    arrays,
    copy_pages,
    layer_groups,
)
from scope_jax.models.decoder.transformer import Params, logits_of, output_table, with_wide_norms
from scope_jax.models.kernels.cascade import Tiles, tile_count
from scope_jax.models.kernels.writes import put
from scope_jax.rollouts.pages import CHUNK, snapshots_for
from scope_jax.rollouts.sampling import Sampling, draw
from scope_jax.rollouts.slots import (
    DecodeState,
    Result,
    no_slots,
    one_token,
    resumed,
    sample_tokens,
    started,
)
from scope_jax.rollouts.verification import BatchShape, DraftRows, check_drafts, verifying
from scope_jax.rollouts.weights import EngineWeights
from scope_jax.sharding.collectives import Shards
from scope_jax.sharding.mesh import ROWS, row_shards
from scope_jax.sharding.program import AbstractProgram, placed
from scope_jax.sharding.rules import expert_axes

MOVED = 8  # pages per dispatch when they are copied, or moved to the host or back, where they are not the slots'


def check_cascade(lanes: int, model: ModelConfig) -> None:
    """Raises UserError for cascade attention in a model that has no layer for it."""
    if lanes and None not in model.windows:
        raise UserError(f"rollout.cascade is {lanes}, but every layer has a window; set it to 0.")


class PagedPrograms:
    """One jitted shard_map for each operation that touches pages; compiled when it is first called.

    how: layout of the pages and attention over them. pages: of one row shard, of each shape, as the arrays have them.
    Raises UserError if the configuration asks for cascade attention and `how` or the model has none.
    """

    def __init__(self, weights: EngineWeights, how: Implementation, pages: Sequence[int]) -> None:
        model, config, mesh = weights.model, weights.config, weights.mesh
        self.weights, self.how, self.pages = weights, how, tuple(pages)
        self._of_shape = arrays(model, how.paging, config.picks)
        self.model, self.config, self.mesh = model, config, mesh
        self.row_shards = row_shards(mesh)
        self.slots = config.slots // self.row_shards  # of one shard
        self.shape = BatchShape(self.slots, max(self.slots, config.draft_tokens + 1), config.draft_tokens)
        self._copied = self.slots if how.paging.by_slot else MOVED  # pages per dispatch
        self._moved = 1 if how.paging.by_slot else MOVED
        self.lanes = config.cascade  # slots of a tile
        check_cascade(self.lanes, model)
        check_drafts(config.draft_tokens, self.lanes, model)
        if self.lanes and not how.cascade:
            raise UserError(
                f"rollout.cascade is {self.lanes}, but JAX's kernel for TPUs does not give the sums; set it to 0."
            )
        self._shards = Shards(
            fsdp=(),
            tensor="tensor" if mesh.shape["tensor"] > 1 else None,
            data=(),
            experts=expert_axes(model.num_experts, mesh.shape),
        )
        rows = PartitionSpec(ROWS)
        counts = [self.row_shards * count for count in self.pages]
        self.states = len(model.attention_layers) < model.num_layers
        self.snapshots = snapshots_for(self.slots) if self.states else 0  # of one shard

        def empty() -> Pages | Stateful:
            pages = init_pages(model, how, counts, config.cache_dtype, mesh.shape["tensor"], config.picks)
            if not self.states:
                return pages
            count = self.row_shards * (self.slots + self.snapshots)
            return Stateful(pages, init_states(model, count, config.compute_dtype))

        split = PartitionSpec(ROWS, *[None] * (how.heads_axis - 1), "tensor")
        cache = jax.tree.map(lambda _: split, jax.eval_shape(empty))
        pages_alone, states = cache.pages if self.states else cache, ()
        if config.picks:
            pages_alone = *pages_alone[:-1], rows
        if self.states:
            states = jax.tree.map(lambda _: PartitionSpec(ROWS, "tensor"), cache.kept)
        cache = Stateful(pages_alone, states) if self.states else pages_alone
        specs = jax.tree.map(lambda sharding: sharding.spec, weights.shardings)
        params = {**specs, "layers": stacks.each(model, specs["layers"], lambda spec, _: PartitionSpec(*spec[1:]))}
        state = DecodeState(cache, rows, rows, rows, rows, rows, rows, Sampling(*(rows,) * 5))
        self.state_sharding = whole = jax.tree.map(partial(NamedSharding, mesh), state)
        steps = PartitionSpec(None, ROWS)
        result = Result(steps, steps, rows, rows, steps if config.entropies else None)

        def mapped(body: Any, takes: Any, gives: Any, donate: int | None = None) -> Any:
            program = jax.shard_map(body, mesh=mesh, in_specs=takes, out_specs=gives, check_vma=False)
            return jax.jit(program, donate_argnums=() if donate is None else donate)

        def init() -> DecodeState:
            return no_slots(empty(), config.slots)

        self.init = jax.jit(init, out_shardings=whole)
        where = Where(rows, rows, rows, rows=RowBounds(rows, rows, rows) if self.states else None)
        self.append = mapped(self._append_body, (params, cache, rows, where, rows), cache, 1)
        some = (rows,) * len(self.pages)
        copied = partial(_copied, how, self._of_shape, config.picks)
        self.copy = mapped(copied, (pages_alone, some, some, some), pages_alone, 0)
        self.read = mapped(partial(_read, self._of_shape), (pages_alone, some), pages_alone)
        if config.picks:
            self.read_picks = mapped(_read_rows, (rows, rows), rows)
        self.write = mapped(partial(_written, self._of_shape), (pages_alone, some, pages_alone), pages_alone, 0)
        self.read_states = mapped(_read_rows, (states, rows), states)
        self.write_states = mapped(_written_rows, (states, rows, states), states, 0)
        tables = Tables(rows, Tiles(rows, rows, rows) if self.lanes else None)
        drafts = DraftRows(rows, rows, rows, rows, PartitionSpec()) if config.draft_tokens else None
        takes = (params, state, tables, PartitionSpec(), drafts)
        self.generate = mapped(self._generate_body, takes, (state, result), 1)
        self.start = jax.jit(started, donate_argnums=0, out_shardings=whole)
        self.resume = jax.jit(resumed, donate_argnums=0, out_shardings=whole)
        self.pause = jax.jit(
            lambda state, paused_S: state._replace(live_S=state.live_S & ~paused_S),
            donate_argnums=0,
            out_shardings=whole,
        )

    def patience(self, slots: int) -> np.int32:
        """Finished slots of those that step together, of so many in all."""
        together = math.prod(self.mesh.shape[name] for name in self._shards.token_axes)
        return np.int32(-(-slots // self.row_shards) * together)

    # ------------------------------------------------------------------------------------------------- moving pages
    def copied(self, cache: Pages | Stateful, copies: Sequence[tuple[int, int, int, int, int]]) -> Pages | Stateful:
        """The cache, consumed, after copies of pages (shard, shape, from, to, tokens)."""
        if isinstance(cache, Stateful):
            return cache._replace(pages=self.copied(cache.pages, copies))
        queues: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for shard, shape, source, target, tokens in copies:
            queues.setdefault((shard, shape), []).append((source, target, tokens))
        count = self._copied
        for first in range(0, max(map(len, queues.values()), default=0), count):
            sources, targets, lengths = self._first(count), self._past(count), self._first(count)
            for (shard, shape), queue in queues.items():
                for place, (source, target, tokens) in enumerate(queue[first : first + count]):
                    sources[shape][shard, place], targets[shape][shard, place] = source, target
                    lengths[shape][shard, place] = tokens
            cache = self.copy(cache, sources, targets, lengths)
        return cache

    def contents(self, cache: Pages | Stateful, shard: int, pages: Sequence[np.ndarray]) -> Any:
        """Pages of a shard in host memory, for each shape in their order, by array; () if there are none."""
        parts, cache, moved = [], cache.pages if isinstance(cache, Stateful) else cache, self._moved
        for first in range(0, max(map(len, pages)), moved):
            where = self._first(moved)
            for own, some in zip(where, pages, strict=True):
                part = some[first : first + moved]
                own[shard, : len(part)] = part
            read = jax.device_get(self.read(cache, where))
            counts = [len(pages[shape][first : first + moved]) for shape in self._of_shape]
            ranges = [slice(shard * moved, shard * moved + count) for count in counts]
            parts.append(
                tuple(jax.tree.map(lambda x, own=own: x[own], layer) for layer, own in zip(read, ranges, strict=True))
            )
        return jax.tree.map(lambda *some: np.concatenate(some), *parts) if parts else ()

    def picks(self, cache: Pages | Stateful, shard: int, pages: np.ndarray) -> Callable[[], np.ndarray]:
        """Launches the reading of the picked experts in pages of a shard; its result waits for them, [tokens, L, k]."""
        array, parts, moved = (cache.pages if isinstance(cache, Stateful) else cache)[-1], [], self._moved
        for first in range(0, len(pages), moved):
            at, part = np.zeros((self.row_shards, moved), np.int32), pages[first : first + moved]
            at[shard, : len(part)] = part
            parts.append(self.read_picks(array, at))
        own, sizes = slice(shard * moved, (shard + 1) * moved), array.shape[2:]
        nothing = np.zeros((0, *sizes), array.dtype)  # of a row without a token in the cache
        return lambda: np.concatenate([nothing, *(np.asarray(part)[own].reshape(-1, *sizes) for part in parts)])

    def written(
        self, cache: Pages | Stateful, shard: int, pages: Sequence[Sequence[int]], contents: Any
    ) -> Pages | Stateful:
        """The cache, consumed, with these contents in pages of a shard."""
        if isinstance(cache, Stateful):
            return cache._replace(pages=self.written(cache.pages, shard, pages, contents))
        moved = self._moved
        for first in range(0, max(map(len, pages)), moved):
            where = self._past(moved)
            for own, some in zip(where, pages, strict=True):
                part = some[first : first + moved]
                own[shard, : len(part)] = part

            def block(x: np.ndarray, first: int = first) -> np.ndarray:
                out, part = np.zeros((self.row_shards * moved, *x.shape[1:]), x.dtype), x[first : first + moved]
                out[shard * moved : shard * moved + len(part)] = part
                return out

            cache = self.write(cache, where, jax.tree.map(block, contents))
        return cache

    def states_of(self, cache: Pages | Stateful, shard: int, row: int) -> Any:
        """What a row of a shard keeps, in host memory; () of a model without states."""
        if not isinstance(cache, Stateful):
            return ()
        at = np.zeros((self.row_shards, 1), np.int32)
        at[shard] = row
        return jax.tree.map(lambda x: x[shard : shard + 1], jax.device_get(self.read_states(cache.kept, at)))

    def with_states(self, cache: Pages | Stateful, shard: int, row: int, states: Any) -> Pages | Stateful:
        """The cache, consumed, with this kept in a row of a shard."""
        if not isinstance(cache, Stateful):
            return cache
        at = np.full((self.row_shards, 1), self.slots + self.snapshots, np.int32)
        at[shard] = row

        def placed(x: np.ndarray) -> np.ndarray:
            out = np.zeros((self.row_shards, *x.shape[1:]), x.dtype)
            out[shard] = x[0]
            return out

        return cache._replace(kept=self.write_states(cache.kept, at, jax.tree.map(placed, states)))

    def run_for_nothing(self, cache: Pages | Stateful) -> Pages | Stateful:
        """The cache, consumed, after the programs that move pages have moved none: to compile them."""
        if isinstance(cache, Stateful):
            cache = cache._replace(pages=self.run_for_nothing(cache.pages))
            return self.with_states(cache, 0, self.slots + self.snapshots, self.states_of(cache, 0, 0))
        read = jax.device_get(self.read(cache, self._first(self._moved)))
        nothing = self._first(self._copied)
        cache = self.copy(cache, nothing, self._past(self._copied), nothing)
        return self.write(cache, self._past(self._moved), read)

    def _first(self, count: int) -> tuple[np.ndarray, ...]:
        """For each shape [row shards, count] of page 0."""
        return tuple(np.zeros((self.row_shards, count), np.int32) for _ in self.pages)

    def _past(self, count: int) -> tuple[np.ndarray, ...]:
        """The same of the page past the end: nothing is written."""
        return tuple(np.full((self.row_shards, count), pages, np.int32) for pages in self.pages)

    # ---------------------------------------------------------------------------------------------- abstract values
    def abstract_state(self) -> DecodeState:
        """Shapes and shardings of the state on the devices."""
        return placed(jax.eval_shape(self.init), self.state_sharding)

    def abstract_tables(self) -> Tables:
        """Shapes and shardings of the decode program's page tables and tiles."""
        slots, paging = self.config.slots, self.how.paging
        pages = self._rows(slots, len(layer_groups(self.model, paging)), paging.count(self.config.max_length))
        if not self.lanes:
            return Tables(pages, None)
        tiles = self.row_shards * tile_count(self.slots, self.lanes)
        return Tables(pages, Tiles(self._rows(tiles, self.lanes), self._rows(tiles), self._rows(slots)))

    def programs(self, chunks: int) -> list[AbstractProgram]:
        """Decoding and computing prompts. chunks: blocks of CHUNK tokens on each shard."""
        weights, state, tables = self.weights.abstract(), self.abstract_state(), self.abstract_tables()
        patience = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(self.mesh, PartitionSpec()))
        rows = self._rows(self.row_shards * chunks)
        ids, table = self._rows(*rows.shape, CHUNK), self._rows(*rows.shape, *tables.table.shape[1:])
        begins = RowBounds(rows, rows, rows) if self.states else None
        prompts = weights, state.cache, ids, Where(table, rows, rows, rows=begins), rows
        tokens = weights, state, tables, patience, self._abstract_drafts()
        return [
            AbstractProgram("decode", "decode", self.generate, tokens, resident=(weights, state)),
            AbstractProgram("prefill", "prefill", self.append, prompts, resident=(weights, state.cache)),
        ]

    def _abstract_drafts(self) -> DraftRows | None:
        if not self.shape.most:
            return None
        steps = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(self.mesh, PartitionSpec()))
        by_row = self._rows(self.row_shards * self.shape.rows)
        return DraftRows(by_row, by_row, by_row, self._rows(self.config.slots, self.shape.most + 1), steps)

    def compile_later(self, program: Any, on_devices: Any, *others: Any) -> Callable[[], object]:
        """What compiles a program for these arguments, in whatever thread: a call with the like finds it. on_devices:
        the first ones, of which only the shapes are kept."""

        def shape(x: jax.Array) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)

        shapes = jax.tree.map(shape, on_devices)
        return lambda: program.lower(*shapes, *others).compile()

    def _rows(self, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=NamedSharding(self.mesh, PartitionSpec(ROWS)))

    # ------------------------------------------------------------------------------------------------------- bodies
    def _append_body(
        self, params: Params, cache: Pages | Stateful, ids_RQ: jax.Array, where: Where, policy_R: jax.Array
    ) -> Pages | Stateful:
        params = self.weights.gated(params, policy_R)
        return feed(self.model, self.how, params, cache, ids_RQ, where, self._shards)[1]

    def _generate_body(
        self, params: Params, state: DecodeState, tables: Tables, patience: jax.Array, drafts: DraftRows | None
    ) -> tuple[DecodeState, Result]:
        table_VD = output_table(self.model, params)
        policy_R, table = state.policy_S, tables.table
        if drafts is not None:
            policy_R, table = drafts.of_slot(policy_R), drafts.of_slot(table)
        params = with_wide_norms(self.weights.gated(params, policy_R))

        def forward(cache: Pages | Stateful, token_S: jax.Array, length_S: jax.Array, live_S: jax.Array) -> Any:
            where = Where(table, length_S, live_S.astype(jnp.int32), tables.tiles)
            hidden_S1D, cache = feed(self.model, self.how, params, cache, token_S[:, None], where, self._shards)
            return logits_of(hidden_S1D[:, 0], table_VD, self.model.final_softcap), cache

        if drafts is None:
            step, steps = one_token(forward, self._draw), self.config.decode_steps
        else:
            step, steps = verifying(forward, state, drafts, self._draw), drafts.steps
        return sample_tokens(
            *(step, state, steps, patience, self.config.most_tokens),
            entropies=self.config.entropies,
            together=self._shards.token_axes,
        )

    def _draw(
        self, logits_SV: jax.Array, how: Sampling, index_S: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """`sampling.draw` on this device's part of the vocabulary: each device of a tensor group collects the logits of
        its share of the slots, or of all slots if they cannot be divided."""
        axis, size = self._shards.tensor, self.mesh.shape["tensor"]
        drawn_from = partial(draw, entropies=self.config.entropies, vocab=self.model.vocab_size)
        if axis is None:
            return drawn_from(logits_SV, how, index_S)
        if self.shape.rows % size:
            return drawn_from(lax.all_gather(logits_SV, axis, axis=1, tiled=True), how, index_S)
        share = self.shape.rows // size

        def own(x_S: jax.Array) -> jax.Array:
            return lax.dynamic_slice_in_dim(x_S, lax.axis_index(axis) * share, share)

        own_sV = lax.all_to_all(logits_SV, axis, split_axis=0, concat_axis=1, tiled=True)
        drawn = drawn_from(own_sV, jax.tree.map(own, how), own(index_S))
        return jax.tree.map(lambda x_s: lax.all_gather(x_s, axis, tiled=True), drawn)


def _read_rows(states: Any, at: jax.Array) -> Any:
    return jax.tree.map(lambda x: x[at[0]], states)


def _written_rows(states: Any, target: jax.Array, values: Any) -> Any:
    return jax.tree.map(lambda x, new: put(x, target[0], new), states, values)


Some = tuple[jax.Array, ...]  # pages [1, n] of each shape


def _read(of_shape: tuple[int, ...], cache: Pages, at: Some) -> Pages:
    return tuple(_read_rows(layer, at[shape]) for shape, layer in zip(of_shape, cache, strict=True))


def _written(of_shape: tuple[int, ...], cache: Pages, target: Some, values: Pages) -> Pages:
    layers = zip(of_shape, cache, values, strict=True)
    return tuple(_written_rows(layer, target[shape], new) for shape, layer, new in layers)


def _copied(
    how: Implementation, of_shape: tuple[int, ...], picks: bool, cache: Pages, source: Some, target: Some, tokens: Some
) -> Pages:
    ways = [how.copy] * (len(cache) - picks) + [copy_pages] * picks
    layers = zip(ways, of_shape, cache, strict=True)
    return tuple(copy(layer, source[s][0], target[s][0], tokens[s][0]) for copy, s, layer in layers)
