"""The compiled programs of the paged engine: one for decoding, one for prompts, and those that move pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from scope_jax.errors import UserError
from scope_jax.models.cascade import Tiles, tile_count
from scope_jax.models.pages import Implementation, Pages, Tables, Where, feed, init_pages, layer_groups, pages_for
from scope_jax.models.transformer import Params, output_table, with_wide_norms
from scope_jax.models.writes import put
from scope_jax.rollouts.pages import CHUNK
from scope_jax.rollouts.sampling import Sampling, draw
from scope_jax.rollouts.slots import (
    DecodeState,
    Result,
    no_slots,
    resumed,
    sample_tokens,
    started,
)
from scope_jax.rollouts.weights import EngineWeights
from scope_jax.sharding.collectives import Shards
from scope_jax.sharding.mesh import ROWS, row_shards
from scope_jax.sharding.program import AbstractProgram, placed
from scope_jax.sharding.rules import expert_axes

MOVED = 8  # pages per dispatch when they are copied, or moved to the host or back


class PagedPrograms:
    """One jitted shard_map for each operation that touches pages; compiled when it is first called.

    how: layout of the pages and attention over them. pages: of one row shard. Raises UserError if the configuration
    asks for cascade attention and `how` or the model has none.
    """

    def __init__(self, weights: EngineWeights, how: Implementation, pages: int) -> None:
        model, config, mesh = weights.model, weights.config, weights.mesh
        self.weights, self.how, self.pages = weights, how, pages
        self.model, self.config, self.mesh = model, config, mesh
        self.row_shards = row_shards(mesh)
        self.slots = config.slots // self.row_shards  # of one shard
        self.lanes = config.cascade  # slots of a tile
        if self.lanes and not (how.cascade and None in model.windows):
            reason = "every layer has a window" if how.cascade else "JAX's kernel for TPUs does not give the sums"
            raise UserError(f"rollout.cascade is {self.lanes}, but {reason}; set it to 0.")
        self._shards = Shards(
            fsdp=(),
            tensor="tensor" if mesh.shape["tensor"] > 1 else None,
            data=(),
            experts=expert_axes(model.num_experts, mesh.shape),
        )
        rows = PartitionSpec(ROWS)
        empty = partial(init_pages, model, how, self.row_shards * pages, config.compute_dtype, mesh.shape["tensor"])
        split = PartitionSpec(ROWS, *[None] * (how.heads_axis - 1), "tensor")
        cache = jax.tree.map(lambda _: split, jax.eval_shape(empty))
        specs = jax.tree.map(lambda sharding: sharding.spec, weights.shardings)
        each = jax.tree.map(lambda s: PartitionSpec(*s[1:]), specs["layers"])
        params = {**specs, "layers": tuple(each for _ in range(model.num_layers))}
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
        self.append = mapped(self._append_body, (params, cache, rows, Where(rows, rows, rows), rows), cache, 1)
        self.copy = mapped(_copied, (cache, rows, rows), cache, 0)
        self.read = mapped(lambda cache, at: jax.tree.map(lambda x: x[at[0]], cache), (cache, rows), cache)
        self.write = mapped(_written, (cache, rows, cache), cache, 0)
        tables = Tables(rows, Tiles(rows, rows, rows) if self.lanes else None)
        takes = (params, state, tables, PartitionSpec())
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
    def copied(self, cache: Pages, copies: Sequence[tuple[int, int, int]]) -> Pages:
        """The cache, consumed, after copies of pages (shard, from, to)."""
        queues = [[copy[1:] for copy in copies if copy[0] == shard] for shard in range(self.row_shards)]
        for first in range(0, max(map(len, queues), default=0), MOVED):
            source, target = self._nowhere(0), self._nowhere(self.pages)
            for shard, queue in enumerate(queues):
                for place, (a, b) in enumerate(queue[first : first + MOVED]):
                    source[shard, place], target[shard, place] = a, b
            cache = self.copy(cache, source, target)
        return cache

    def contents(self, cache: Pages, shard: int, pages: Sequence[int] | np.ndarray) -> Any:
        """Pages of a shard in host memory, in their order, by layer; () if there are none."""
        parts = []
        for first in range(0, len(pages), MOVED):
            some = pages[first : first + MOVED]
            where = self._nowhere(0)
            where[shard, : len(some)] = some
            read = jax.device_get(self.read(cache, where))
            parts.append(jax.tree.map(lambda x, n=len(some): x[shard * MOVED : shard * MOVED + n], read))
        return jax.tree.map(lambda *some: np.concatenate(some), *parts) if parts else ()

    def written(self, cache: Pages, shard: int, pages: Sequence[int], contents: Any) -> Pages:
        """The cache, consumed, with these contents in pages of a shard."""
        for first in range(0, len(pages), MOVED):
            some = pages[first : first + MOVED]
            where = self._nowhere(self.pages)
            where[shard, : len(some)] = some

            def block(x: np.ndarray, first: int = first, count: int = len(some)) -> np.ndarray:
                out = np.zeros((self.row_shards * MOVED, *x.shape[1:]), x.dtype)
                out[shard * MOVED : shard * MOVED + count] = x[first : first + count]
                return out

            cache = self.write(cache, where, jax.tree.map(block, contents))
        return cache

    def run_for_nothing(self, cache: Pages) -> Pages:
        """The cache, consumed, after the programs that move pages have moved none: to compile them."""
        some, past = self._nowhere(0), self._nowhere(self.pages)
        read = jax.device_get(self.read(cache, some))
        return self.write(self.copy(cache, some, past), past, read)

    def _nowhere(self, page: int) -> np.ndarray:
        """[row shards, MOVED] of one page; `self.pages`, past the end: nothing is written."""
        return np.full((self.row_shards, MOVED), page, np.int32)

    # ---------------------------------------------------------------------------------------------- abstract values
    def abstract_state(self) -> DecodeState:
        """Shapes and shardings of the state on the devices."""
        return placed(jax.eval_shape(self.init), self.state_sharding)

    def abstract_tables(self) -> Tables:
        """Shapes and shardings of the decode program's page tables and tiles."""
        slots = self.config.slots
        pages = self._rows(slots, len(layer_groups(self.model)), pages_for(self.config.max_length))
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
        prompts = weights, state.cache, ids, Where(table, rows, rows), rows
        return [
            AbstractProgram(
                "decode", "decode", self.generate, (weights, state, tables, patience), resident=(weights, state)
            ),
            AbstractProgram("prefill", "prefill", self.append, prompts, resident=(weights, state.cache)),
        ]

    def _rows(self, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=NamedSharding(self.mesh, PartitionSpec(ROWS)))

    # ------------------------------------------------------------------------------------------------------- bodies
    def _append_body(self, params: Params, cache: Pages, ids_RQ: jax.Array, where: Where, policy_R: jax.Array) -> Pages:
        params = self.weights.gated(params, policy_R)
        return feed(self.model, self.how, params, cache, ids_RQ, where, self._shards)[1]

    def _generate_body(
        self, params: Params, state: DecodeState, tables: Tables, patience: jax.Array
    ) -> tuple[DecodeState, Result]:
        table_VD = output_table(self.model, params)
        params = with_wide_norms(self.weights.gated(params, state.policy_S))

        def forward(cache: Pages, token_S: jax.Array, length_S: jax.Array, live_S: jax.Array) -> Any:
            where = Where(tables.table, length_S, live_S.astype(jnp.int32), tables.tiles)
            hidden_S1D, cache = feed(self.model, self.how, params, cache, token_S[:, None], where, self._shards)
            logits_SV = jnp.einsum("SD,VD->SV", hidden_S1D[:, 0], table_VD, preferred_element_type=jnp.float32)
            return logits_SV, cache

        return sample_tokens(
            *(forward, state, self.config.decode_steps, patience, self._draw),
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
        if self.slots % size:
            return drawn_from(lax.all_gather(logits_SV, axis, axis=1, tiled=True), how, index_S)
        share = self.slots // size

        def own(x_S: jax.Array) -> jax.Array:
            return lax.dynamic_slice_in_dim(x_S, lax.axis_index(axis) * share, share)

        own_sV = lax.all_to_all(logits_SV, axis, split_axis=0, concat_axis=1, tiled=True)
        drawn = drawn_from(own_sV, jax.tree.map(own, how), own(index_S))
        return jax.tree.map(lambda x_s: lax.all_gather(x_s, axis, tiled=True), drawn)


def _copied(cache: Pages, source: jax.Array, target: jax.Array) -> Pages:
    return jax.tree.map(lambda x: put(x, target[0], x[source[0]]), cache)


def _written(cache: Pages, target: jax.Array, values: Pages) -> Pages:
    return jax.tree.map(lambda x, new: put(x, target[0], new), cache, values)
