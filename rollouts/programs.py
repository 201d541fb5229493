"""The compiled programs of the paged engine: one for decoding, one for prompts, and those that move pages."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from scope_jax.errors import UserError
from scope_jax.models.cascade import Tiles, tile_count
from scope_jax.models.config import ModelConfig
from scope_jax.models.pages import Implementation, Loop, Pages, Tables, Where, feed, init_pages, layer_groups, pages_for
from scope_jax.models.transformer import Params, output_table, with_wide_norms
from scope_jax.models.writes import put
from scope_jax.rollouts.sampling import Sampling, draw
from scope_jax.rollouts.slots import (
    DecodeState,
    EngineConfig,
    Result,
    no_slots,
    resumed,
    sample_tokens,
    started,
)
from scope_jax.rollouts.weights import EngineWeights
from scope_jax.sharding.collectives import Shards
from scope_jax.sharding.mesh import ROWS, row_shards
from scope_jax.sharding.rules import decode_rules, expert_axes
from scope_jax.sharding.spec import partition_specs


class PagedPrograms(EngineWeights):
    """One jitted shard_map for each operation that touches pages; compiled when it is first called.

    how: layout of the pages and attention over them. pages: of one row shard. Raises ValueError if the configuration
    asks for cascade attention and `how` or the model has none.
    """

    def __init__(
        self, model: ModelConfig, config: EngineConfig, mesh: Mesh, how: Implementation | None, pages: int
    ) -> None:
        self._rules = decode_rules(model.num_experts, mesh.shape)
        super().__init__(model, config, mesh, self._rules)
        self._how = Loop() if how is None else how
        self.pages = pages
        self.row_shards = row_shards(mesh)
        self.slots = config.slots // self.row_shards  # of one shard
        self.lanes = config.cascade  # slots of a tile
        if self.lanes and not (self._how.cascade and None in model.layer_windows):
            reason = "every layer has a window" if self._how.cascade else "JAX's kernel for TPUs does not give the sums"
            raise UserError(f"rollout.cascade is {self.lanes}, but {reason}; set it to 0.")
        self._shards = Shards(
            fsdp=(),
            tensor="tensor" if mesh.shape["tensor"] > 1 else None,
            data=(),
            experts=expert_axes(model.num_experts, mesh.shape),
        )
        self._programs()

    def _patience(self, slots: int) -> np.int32:
        """Finished slots of those that step together, of so many in all."""
        together = math.prod(self.mesh.shape[name] for name in self._shards.token_axes)
        return np.int32(-(-slots // self.row_shards) * together)

    def _programs(self) -> None:
        model, how, config = self.model, self._how, self.config
        rows = PartitionSpec(ROWS)
        empty = partial(init_pages, model, how, self.row_shards * self.pages, config.compute_dtype)
        split = PartitionSpec(ROWS, *[None] * (how.heads_axis - 1), "tensor")
        pages = jax.tree.map(lambda _: split, jax.eval_shape(empty))
        specs = partition_specs(self.declared, self._rules)
        each = jax.tree.map(lambda s: PartitionSpec(*s[1:]), specs["layers"])
        weights = {**specs, "layers": tuple(each for _ in range(model.num_layers))}
        state = DecodeState(pages, rows, rows, rows, rows, rows, rows, Sampling(*(rows,) * 5))
        self.state_sharding = placed = jax.tree.map(partial(NamedSharding, self.mesh), state)
        steps = PartitionSpec(None, ROWS)
        result = Result(steps, steps, rows, rows, steps if config.entropies else None)

        def mapped(body: Any, takes: Any, gives: Any, donate: int | None = None) -> Any:
            program = jax.shard_map(body, mesh=self.mesh, in_specs=takes, out_specs=gives, check_vma=False)
            return jax.jit(program, donate_argnums=() if donate is None else donate)

        def init() -> DecodeState:
            return no_slots(empty(), config.slots)

        self._init = jax.jit(init, out_shardings=placed)
        self._append = mapped(self._append_body, (weights, pages, rows, Where(rows, rows, rows), rows), pages, 1)
        self._copy = mapped(_copied, (pages, rows, rows), pages, 0)
        self._read = mapped(lambda cache, at: jax.tree.map(lambda x: x[at[0]], cache), (pages, rows), pages)
        self._write = mapped(_written, (pages, rows, pages), pages, 0)
        tables = Tables(rows, Tiles(rows, rows, rows) if self.lanes else None)
        takes = (weights, state, tables, PartitionSpec())
        self._generate = mapped(self._generate_body, takes, (state, result), 1)
        self._start = jax.jit(started, donate_argnums=0, out_shardings=placed)
        self._continue = jax.jit(resumed, donate_argnums=0, out_shardings=placed)
        self._pause = jax.jit(
            lambda state, paused_S: state._replace(live_S=state.live_S & ~paused_S),
            donate_argnums=0,
            out_shardings=placed,
        )

    def abstract_tables(self) -> Tables:
        """Shapes and shardings of the decode program's page tables and tiles."""
        rows = NamedSharding(self.mesh, PartitionSpec(ROWS))

        def table(*shape: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=rows)

        slots = self.config.slots
        pages = table(slots, len(layer_groups(self.model)), pages_for(self.config.max_length))
        if not self.lanes:
            return Tables(pages, None)
        tiles = self.row_shards * tile_count(self.slots, self.lanes)
        return Tables(pages, Tiles(table(tiles, self.lanes), table(tiles), table(slots)))

    def _append_body(self, params: Params, cache: Pages, ids_RQ: jax.Array, where: Where, policy_R: jax.Array) -> Pages:
        params = self.gated(params, policy_R)
        return feed(self.model, self._how, params, cache, ids_RQ, where, self._shards)[1]

    def _generate_body(
        self, params: Params, state: DecodeState, tables: Tables, patience: jax.Array
    ) -> tuple[DecodeState, Result]:
        table_VD = output_table(self.model, params)
        params = with_wide_norms(self.gated(params, state.policy_S))

        def forward(cache: Pages, token_S: jax.Array, length_S: jax.Array, live_S: jax.Array) -> Any:
            where = Where(tables.table, length_S, live_S.astype(jnp.int32), tables.tiles)
            hidden_S1D, cache = feed(self.model, self._how, params, cache, token_S[:, None], where, self._shards)
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
