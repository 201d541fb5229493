"""The engine over a dense KV cache: `max_length` columns for every slot.

Every program has fixed shapes: `slots` rows when decoding, `prefill_batch` rows for prefill and extension, lengths from
a small set of buckets. A row's values therefore depend on that row alone. What differs between requests (temperature,
stop ids, limits, keys) is passed as data.

See `rollouts.engine` for the operations, `rollouts.slots` for the state of a slot and the loop that samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from scope_jax.models.decoder import cache as kv
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.delta import KeptState
from scope_jax.models.decoder.kinds import kv_heads
from scope_jax.models.decoder.transformer import Params, logits_of, output_table
from scope_jax.models.kernels.writes import put
from scope_jax.rollouts.sampling import Sampling, draw
from scope_jax.rollouts.slots import (
    DecodeState,
    EngineConfig,
    Extension,
    Placement,
    Result,
    no_slots,
    past_the_end,
    resumed,
    rows_of,
    sample_tokens,
    started,
)
from scope_jax.rollouts.weights import EngineWeights
from scope_jax.sharding.mesh import ROWS, row_shards
from scope_jax.sharding.program import AbstractProgram, name_of, placed


class Prefix(NamedTuple):
    """Prefilled prompts: keys and values of all tokens but the last, and that last token (or their shardings)."""

    cache: Any
    """kv.Cache"""
    token_P: Any
    """int32, the prompt's last token."""
    length_P: Any
    """int32, tokens in the cache: the prompt without its last token."""


class Turns(NamedTuple):
    """The cache of a model with states: they cannot be cut where a turn is, so a turn that is continued is computed
    again from its beginning (or their shardings)."""

    layers: Any
    """kv.Cache"""
    begun: Any
    """kv.Cache of the layers with states, as it was when the slot's turn began."""
    begin_S: Any
    """int32, tokens in the cache then."""
    ids_SC: Any
    """int32, the tokens in the cache since, by position."""


class DenseEngine:
    """`rollouts.engine.Engine` over columns. Raises UserError if slots or heads cannot be sharded over the mesh."""

    keeps_prompts = False
    budget = None

    def __init__(self, model: ModelConfig, config: EngineConfig, mesh: Mesh) -> None:
        self.model, self.config, self.mesh = model, config, mesh
        self.weights = EngineWeights(model, config, mesh)
        rows = row_shards(mesh)
        spread = partial(NamedSharding, mesh)
        prefill_rows = ROWS if config.prefill_batch % rows == 0 else None
        self._whole = spread(PartitionSpec())
        self._prefill_rows = spread(PartitionSpec(prefill_rows))
        split = "tensor" if kv_heads(model) % mesh.shape["tensor"] == 0 else None  # otherwise each device has them all
        heads = spread(PartitionSpec(None, split))
        slot, slot_heads = spread(PartitionSpec(ROWS)), spread(PartitionSpec(ROWS, split))
        self.states = len(model.attention_layers) < model.num_layers
        layers = (*[slot_heads] * model.num_layers, slot) if config.picks else slot_heads
        cache = Turns(layers, slot_heads, slot, slot) if self.states else layers
        self._state_sharding = DecodeState(cache, slot, slot, slot, slot, slot, slot, Sampling(*(slot,) * 5))
        heads = (*[heads] * model.num_layers, self._whole) if config.picks else heads
        self.prefix_sharding = Prefix(heads, self._whole, self._whole)
        results = Result(*(self._whole,) * 4, entropies_NS=self._whole if config.entropies else None)
        state = self._state_sharding
        self._init = jax.jit(self._init_program, out_shardings=state)
        self._prefill = jax.jit(self._prefill_program, static_argnums=0, out_shardings=self.prefix_sharding)
        self._insert = jax.jit(self._insert_program, donate_argnums=0, out_shardings=state)
        self._extend = jax.jit(self._extend_program, donate_argnums=1, out_shardings=state)
        self._generate = jax.jit(
            self._generate_program, static_argnums=0, donate_argnums=2, out_shardings=(state, results)
        )
        self._pause = jax.jit(self._pause_program, donate_argnums=0, out_shardings=state)
        self._picks = jax.jit(self._picks_program, out_shardings=self._whole)

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
    def init_decode_state(self) -> DecodeState:
        return self._init()

    def prefill(
        self, params: Params, prompts: Sequence[Sequence[int] | np.ndarray], policies: Sequence[int] = ()
    ) -> Prefix:
        """Computes keys and values of up to prefill_batch prompts. Raises ValueError if there are more, if one is empty
        or too long, or if their buckets differ."""
        rows = self.config.prefill_batch
        self._check_prompts(prompts)
        bucket = self.config.bucket(len(prompts[0]))
        ids_PT = np.zeros((rows, bucket), np.int32)
        counts_P, last_P, policy_P = (np.zeros(rows, np.int32) for _ in range(3))
        policy_P[: len(policies)] = policies
        for row, prompt in enumerate(prompts):
            ids_PT[row, : len(prompt) - 1] = prompt[:-1]
            counts_P[row], last_P[row] = len(prompt) - 1, prompt[-1]
        ids_PT, counts_P, policy_P = jax.device_put((ids_PT, counts_P, policy_P), self._prefill_rows)
        return self._prefill(kv.round_up(bucket), params, ids_PT, counts_P, last_P, policy_P)

    def insert(self, state: DecodeState, prefix: Prefix, placements: Sequence[Placement]) -> DecodeState:
        """Copies rows of a prefix into slots, which then decode. Consumes `state`."""
        slots, limits, stops, policies, sampling = rows_of(placements, self.config.slots)
        sources = np.zeros(self.config.slots, np.int32)
        sources[: len(placements)] = [p.row for p in placements]
        return self._insert(state, prefix, np.int32(len(placements)), slots, sources, limits, stops, policies, sampling)

    def extend(self, params: Params, state: DecodeState, extensions: Sequence[Extension]) -> DecodeState:
        """Computes the tokens; the slots resume decoding. Consumes `state`. Raises ValueError if there are too many
        extensions or their buckets differ."""
        rows = self.config.prefill_batch
        buckets = {self.config.bucket(len(e.ids)) for e in extensions}
        if len(extensions) > rows or len(buckets) != 1:
            raise ValueError(f"extend takes 1 to {rows} extensions of one bucket, not {len(extensions)} of {buckets}.")
        ids = np.zeros((rows, buckets.pop()), np.int32)
        slots = np.full(rows, self.config.slots, np.int32)  # padding is dropped
        starts, counts, last, limits = (np.zeros(rows, np.int32) for _ in range(4))
        keys = np.zeros((rows, 2), np.uint32)
        for row, e in enumerate(extensions):
            counts[row] = len(e.ids) - 1
            ids[row, : counts[row]] = e.ids[:-1]
            slots[row], starts[row], last[row], limits[row], keys[row] = e.slot, e.length, e.ids[-1], e.limit, e.key
        return self._extend(params, state, ids, slots, starts, counts, last, limits, keys)

    def advance(self, params: Params, state: DecodeState, most: int | None = None) -> tuple[DecodeState, Sequence[int]]:
        """Nothing: `insert` and `extend` leave nothing to be computed."""
        return state, ()

    def generate(
        self, params: Params, state: DecodeState, longest: int | None = None, patience: int | None = None
    ) -> tuple[DecodeState, Result]:
        """Consumes `state`. `longest` bounds the columns attended to."""
        config = self.config
        columns = config.capacity if longest is None else config.columns(longest + config.decode_steps)
        return self._generate(columns, params, state, np.int32(config.slots if patience is None else patience))

    def read(self, state: DecodeState, result: Result, slots: Sequence[int]) -> Result:
        return jax.device_get(result)

    def room(self, state: DecodeState, asked: Sequence[tuple[np.ndarray, int]]) -> int:
        """All of them, as every slot has room for max_length tokens."""
        return len(asked)

    def picks(self, state: DecodeState, slot: int) -> Callable[[], np.ndarray]:
        return partial(np.asarray, self._picks(state.cache, np.int32(slot)))

    def release(self, state: DecodeState, slots: Iterable[int]) -> DecodeState:
        """Nothing: their columns are overwritten by the next prompt."""
        return state

    def pause(self, state: DecodeState, slots: Sequence[int]) -> DecodeState:
        """Consumes `state`."""
        paused = np.zeros(self.config.slots, bool)
        paused[list(slots)] = True
        return self._pause(state, paused)

    def compile(self, params: Params, state: DecodeState, *, extends: bool) -> DecodeState:
        """For all lengths of prompts and all numbers of columns. Consumes `state`."""
        config, rows = self.config, self.config.prefill_batch
        slots, limits, stops, policies, sampling = rows_of([past_the_end(config.slots)], config.slots)
        sources, zeros, keys = (
            np.zeros(config.slots, np.int32),
            np.zeros(rows, np.int32),
            np.zeros((rows, 2), np.uint32),
        )
        for bucket in self._buckets:
            prefix = self.prefill(params, [np.zeros(self._longest(bucket), np.int32)])
            state = self._insert(state, prefix, np.int32(0), slots, sources, limits, stops, policies, sampling)
            if extends:
                ids, past = np.zeros((rows, bucket), np.int32), np.full(rows, config.slots, np.int32)
                state = self._extend(params, state, ids, past, zeros, zeros, zeros, zeros, keys)
        for columns in kv.widths(config.capacity):
            state, _ = self._generate(columns, params, state, np.int32(config.slots))
        return jax.block_until_ready(self.pause(state, []))

    def most_programs(self) -> dict[str, int]:
        buckets = self._buckets
        most = {self._prefill: len(buckets), self._insert: len({kv.round_up(size) for size in buckets})}
        most |= {self._extend: len(buckets), self._generate: len(kv.widths(self.config.capacity))}
        return {name_of(program): count for program, count in most.items()}

    @property
    def _buckets(self) -> list[int]:
        """The lengths in which prompts are computed."""
        sizes = sorted({*self.config.prefill_buckets, self.config.max_length})
        return [size for size in sizes if self.config.bucket(self._longest(size)) == size]

    def _longest(self, bucket: int) -> int:
        """Tokens of the longest prompt of a bucket."""
        return max(1, min(bucket, self.config.max_length - 1))

    def _check_prompts(self, prompts: Sequence[Sequence[int] | np.ndarray]) -> None:
        rows, longest = self.config.prefill_batch, self.config.max_length - 1
        if not 0 < len(prompts) <= rows:
            raise ValueError(f"prefill takes 1 to {rows} prompts, not {len(prompts)}.")
        for prompt in prompts:
            if not 0 < len(prompt) <= longest:
                raise ValueError(f"A prompt has {len(prompt)} tokens; the engine takes 1 to {longest}.")
        if len({self.config.bucket(len(prompt)) for prompt in prompts}) > 1:
            raise ValueError("The prompts of one prefill belong to one bucket.")

    # -------------------------------------------------------------------------------------------------------- plans
    @property
    def full_rows(self) -> int:
        return self.config.slots

    def with_model(self, model: ModelConfig) -> DenseEngine:
        return DenseEngine(model, self.config, self.mesh)

    def abstract_weights(self) -> Params:
        return self.weights.abstract()

    def abstract_state(self) -> DecodeState:
        return placed(jax.eval_shape(self._init), self._state_sharding)

    def programs(self) -> list[AbstractProgram]:
        """`generate` over all columns, and `prefill` of the longest bucket."""
        config, weights, state = self.config, self.abstract_weights(), self.abstract_state()
        rows, bucket = config.prefill_batch, config.bucket(config.max_length)

        def ints(shape: tuple[int, ...], sharding: NamedSharding) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=sharding)

        counts, spread = ints((rows,), self._prefill_rows), ints((rows, bucket), self._prefill_rows)
        decode = (config.capacity, weights, state, ints((), self._whole))
        prefill = (config.capacity, weights, spread, counts, ints((rows,), self._whole), counts)
        return [
            AbstractProgram("decode", "decode", self._generate, decode, resident=(weights, state)),
            AbstractProgram("prefill", "prefill", self._prefill, prefill, resident=weights),
        ]

    # ----------------------------------------------------------------------------------------------------- programs
    def _init_program(self) -> DecodeState:
        config = self.config
        cache = kv.init_cache(self.model, config.slots, config.capacity, config.compute_dtype, config.picks)
        if self.states:
            begun = jax.tree.map(jnp.copy, _states(cache))
            nothing = jnp.zeros((config.slots, config.capacity), jnp.int32)
            cache = Turns(cache, begun, nothing[:, 0], nothing)
        return no_slots(cache, config.slots)

    def _prefill_program(self, columns: int, params: Params, ids_PT, counts_P, last_P, policy_P) -> Prefix:
        params = self.weights.gated(params, policy_P)
        empty = kv.init_cache(self.model, len(ids_PT), columns, self.config.compute_dtype, self.config.picks)
        filled = kv.append(self.model, params, empty, ids_PT, jnp.zeros_like(counts_P), counts_P)
        return Prefix(filled, last_P, counts_P)

    def _insert_program(
        self, state: DecodeState, prefix: Prefix, count, slots_N, rows_N, limits_N, stops_N, policy_N, sampling
    ):
        old = state.cache

        def copy(i: jax.Array, cache: kv.Cache) -> kv.Cache:
            return kv.copy_row(cache, prefix.cache, rows_N[i], slots_N[i])

        layers = lax.fori_loop(0, count, copy, state.cache.layers if self.states else state.cache)
        state = state._replace(cache=layers)
        if self.states:
            begun = jax.tree.map(lambda x, new: put(x, slots_N, new[rows_N]), old.begun, _states(prefix.cache))
            begin_S = put(old.begin_S, slots_N, prefix.length_P[rows_N])
            state = state._replace(cache=Turns(layers, begun, begin_S, old.ids_SC))
        token_N, length_N = prefix.token_P[rows_N], prefix.length_P[rows_N]
        return started(state, slots_N, token_N, length_N, limits_N, stops_N, policy_N, sampling)

    def _extend_program(
        self, params: Params, state: DecodeState, ids_ET, slots_E, starts_E, counts_E, last_E, limits_E, keys_E2
    ):
        params = self.weights.gated(params, state.policy_S.at[slots_E].get(mode="clip"))
        if self.states:
            cache = self._extended(params, state.cache, ids_ET, slots_E, starts_E, counts_E)
        else:
            part = kv.take_rows(state.cache, slots_E)
            part = kv.append(self.model, params, part, ids_ET, starts_E, counts_E)
            cache = kv.put_rows(state.cache, part, slots_E)
        state = state._replace(cache=cache)
        return resumed(state, slots_E, last_E, starts_E + counts_E, limits_E, keys_E2)

    def _extended(self, params: Params, turns: Turns, ids_ET, slots_E, starts_E, counts_E) -> Turns:
        """The turns of some slots from their beginning up to starts_E, and new tokens behind them.

        A turn is always computed again, in pieces of one bucket, whether or not more of it was sampled than stays:
        where a dispatch ended depends on other slots, and a slot's bits do not.
        """
        bucket = ids_ET.shape[1]
        begin_E = turns.begin_S.at[slots_E].get(mode="clip")
        place_C = jnp.arange(turns.ids_SC.shape[1])
        new_EC = jnp.take_along_axis(ids_ET, jnp.clip(place_C - starts_E[:, None], 0, bucket - 1), axis=1)
        old_EC = turns.ids_SC.at[slots_E].get(mode="clip")
        ids_EC = jnp.where(place_C < starts_E[:, None], old_EC, new_EC)
        ends_E = jnp.where(slots_E < turns.begin_S.shape[0], starts_E + counts_E, begin_E)

        def more(carry: tuple[jax.Array, kv.Cache]) -> jax.Array:
            return jnp.any(begin_E + carry[0] * bucket < ends_E)

        def one(carry: tuple[jax.Array, kv.Cache]) -> tuple[jax.Array, kv.Cache]:
            number, part = carry
            first_E = begin_E + number * bucket
            at_ET = jnp.minimum(first_E[:, None] + jnp.arange(bucket), ids_EC.shape[1] - 1)
            ids = jnp.take_along_axis(ids_EC, at_ET, axis=1)
            return number + 1, kv.append(self.model, params, part, ids, first_E, jnp.clip(ends_E - first_E, 0, bucket))

        part = _with_states(kv.take_rows(turns.layers, slots_E), kv.take_rows(turns.begun, slots_E))
        _, part = lax.while_loop(more, one, (jnp.int32(0), part))
        begun = kv.put_rows(turns.begun, _states(part), slots_E)
        begin_S, ids_SC = put(turns.begin_S, slots_E, ends_E), put(turns.ids_SC, slots_E, ids_EC)
        return Turns(kv.put_rows(turns.layers, part, slots_E), begun, begin_S, ids_SC)

    def _generate_program(
        self, columns: int, params: Params, state: DecodeState, patience: jax.Array
    ) -> tuple[DecodeState, Result]:
        table_VD = output_table(self.model, params)
        params = self.weights.gated(params, state.policy_S)

        def forward(cache: Any, token_S: jax.Array, length_S: jax.Array, live_S: jax.Array) -> Any:
            if self.states:
                cache, ids_SC = cache
                hidden_SD, cache = kv.step(self.model, params, cache, token_S, length_S, live_S)
                column_S = jnp.where(live_S, length_S, ids_SC.shape[1])
                cache = cache, ids_SC.at[jnp.arange(len(token_S)), column_S].set(token_S, mode="drop")
            else:
                hidden_SD, cache = kv.step(self.model, params, cache, token_S, length_S)
            logits_SV = logits_of(hidden_SD, table_VD, self.model.final_softcap)
            return logits_SV[:, : self.model.vocab_size], cache

        turns = state.cache
        layers = turns.layers if self.states else turns
        part = kv.view(layers, columns)
        part = state._replace(cache=(part, turns.ids_SC) if self.states else part)
        entropies = self.config.entropies
        after, result = sample_tokens(
            *(forward, part, self.config.decode_steps, patience, partial(draw, entropies=entropies)),
            entropies=entropies,
        )
        if self.states:
            part, ids_SC = after.cache
            return after._replace(cache=turns._replace(layers=kv.put_back(layers, part), ids_SC=ids_SC)), result
        return after._replace(cache=kv.put_back(layers, after.cache)), result

    def _pause_program(self, state: DecodeState, paused_S: jax.Array) -> DecodeState:
        return state._replace(live_S=state.live_S & ~paused_S)

    def _picks_program(self, cache: Any, slot: jax.Array) -> jax.Array:
        layers = cache.layers if self.states else cache
        return jnp.moveaxis(lax.dynamic_index_in_dim(layers[-1].picked_SLCk, slot, keepdims=False), 1, 0)


def _states(cache: kv.Cache) -> kv.Cache:
    """The entries of layers with states."""
    return tuple(layer for layer in cache if isinstance(layer, KeptState))


def _with_states(cache: kv.Cache, states: kv.Cache) -> kv.Cache:
    """The cache with these in their place."""
    left = iter(states)
    return tuple(next(left) if isinstance(layer, KeptState) else layer for layer in cache)
