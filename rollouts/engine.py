"""Generation on static slots through a few operations: load_params, prefill, insert, extend, generate, pause.

Every program has fixed shapes: `slots` rows when decoding, `prefill_batch` rows for prefill and extension, lengths from
a small set of buckets. A row's values therefore depend on that row alone. What differs between requests (temperature,
stop ids, limits, keys) is passed as data. The caller decides the order of operations: see `rollouts.local`.

The state of a slot is the tokens whose keys and values are in its cache (`length`) plus one more token (`token`), the
input of the next step. So `generate` starts from the last token of the prompt, and every sampled token and its log-prob
come from the same program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models import cache as kv
from models.config import ModelConfig
from models.transformer import Params, check_mesh, declare, output_table, unstack_layers
from rollouts.sampling import Sampling, init_sampling, sample
from rollouts.types import SamplingParams
from sharding.reshard import reshard
from sharding.rules import DECODE
from sharding.spec import param_shardings

STOP_IDS = 16  # most stop ids of one request
ROWS = ("data", "fsdp")  # mesh axes that slots are sharded over


@dataclass(frozen=True)
class EngineConfig:
    """The engine's static settings.

    slots: episodes decoded at the same time, over the whole mesh. max_length: most tokens of one episode, prompt and
    observations included. prefill_buckets: lengths a prompt or an observation is padded to; max_length is always one.
    prefill_batch: rows of a prefill or extension. decode_steps: most tokens per dispatch and slot. compute_dtype: dtype
    of weights, activations and cache; logits, log-probs and softmax are float32.
    """

    slots: int
    max_length: int
    prefill_buckets: tuple[int, ...]
    prefill_batch: int
    decode_steps: int
    compute_dtype: Any

    def __post_init__(self) -> None:
        for name in ("slots", "max_length", "prefill_batch", "decode_steps"):
            if vars(self)[name] < 1:
                raise ValueError(f"EngineConfig.{name} is {vars(self)[name]}; it must be at least 1.")
        if any(bucket < 1 for bucket in self.prefill_buckets):
            raise ValueError(f"EngineConfig.prefill_buckets {self.prefill_buckets} holds a length below 1.")

    @property
    def capacity(self) -> int:
        """Columns of the cache."""
        return kv.round_up(self.max_length)

    def bucket(self, tokens: int) -> int:
        """The length that `tokens` tokens are padded to: the smallest bucket that holds them."""
        return min(b for b in (*self.prefill_buckets, self.max_length) if b >= tokens)

    def columns(self, tokens: int) -> int:
        """Number of cache columns a dispatch attends to, to cover `tokens`: BLOCK times a power of two, or all.

        At least two blocks: XLA unrolls a loop over a single block, then fuses and rounds differently.
        """
        columns = 2 * kv.BLOCK
        while columns < tokens:
            columns *= 2
        return min(columns, self.capacity)


class DecodeState(NamedTuple):
    """Everything kept on the device between dispatches, one entry per slot; leaves are arrays, or their shardings."""

    cache: kv.Cache
    token_S: Any  # int32, the next token to feed
    length_S: Any  # int32, tokens in the cache
    limit_S: Any  # int32, length at which the turn ends (prompt included)
    live_S: Any  # bool, True while decoding
    stops_SN: Any  # int32, stop ids, padded with -1
    sampling: Sampling


class Prefix(NamedTuple):
    """Prefilled prompts: keys and values of all tokens but the last, and that last token."""

    cache: kv.Cache
    token_P: Any
    length_P: Any  # tokens in the cache: the prompt without its last token


class Result(NamedTuple):
    """What a dispatch sampled. The tokens of slot s are the first counts_S[s] rows of its columns."""

    tokens_NS: Any
    logprobs_NS: Any
    counts_S: Any
    live_S: Any  # slots that are still decoding


@dataclass(frozen=True)
class Placement:
    """Places one request in a slot: the row of a Prefix it starts from, and how it is sampled."""

    slot: int
    row: int
    limit: int  # length at which its turn ends, prompt included
    params: SamplingParams
    key: np.ndarray  # uint32[2]


@dataclass(frozen=True)
class Extension:
    """New tokens for a paused slot.

    length: tokens of the episode that stay in the cache (tokens sampled beyond them are discarded). ids: the tokens
    appended, at least one; the last is the input of the next generate. key: the slot's sampling key from then on.
    """

    slot: int
    length: int
    ids: Sequence[int]
    limit: int
    key: np.ndarray  # uint32[2]


def stop_row(params: SamplingParams) -> np.ndarray:
    """The stop ids of a request as a row of the state. Raises ValueError if there are more than STOP_IDS."""
    if len(params.stop_ids) > STOP_IDS:
        raise ValueError(f"A request has {len(params.stop_ids)} stop ids; the engine takes at most {STOP_IDS}.")
    return np.asarray([*params.stop_ids, *[-1] * (STOP_IDS - len(params.stop_ids))], np.int32)


class Engine:
    """Compiled programs for one model and mesh; holds no weights and no state: both are arguments of the operations.

    Raises ValueError if slots or heads cannot be sharded over the mesh.
    """

    def __init__(self, model: ModelConfig, config: EngineConfig, mesh: Mesh) -> None:
        check_mesh(model, mesh)
        rows = mesh.shape["data"] * mesh.shape["fsdp"]
        if config.slots % rows:
            raise ValueError(
                f"rollout slots={config.slots} is not divisible by data x fsdp = {rows}; choose a multiple of it."
            )
        if config.max_length > model.max_positions:
            raise ValueError(
                f"rollout max_length={config.max_length} exceeds the model's {model.max_positions} positions; lower it."
            )
        self.model = model
        self.config = config
        self.mesh = mesh
        spread = partial(NamedSharding, mesh)
        prefill_rows = ROWS if config.prefill_batch % rows == 0 else None
        self._whole = spread(PartitionSpec())
        self._prefill_rows = spread(PartitionSpec(prefill_rows))
        heads = spread(PartitionSpec(None, "tensor"))
        slot, slot_heads = spread(PartitionSpec(ROWS)), spread(PartitionSpec(ROWS, "tensor"))
        layers = model.num_layers
        self._state_sharding = DecodeState(
            tuple(kv.LayerCache(slot_heads, slot_heads) for _ in range(layers)),
            slot,
            slot,
            slot,
            slot,
            slot,
            Sampling(*(slot,) * 5),
        )
        self.prefix_sharding = Prefix(
            tuple(kv.LayerCache(heads, heads) for _ in range(layers)), self._whole, self._whole
        )
        results = Result(*(self._whole,) * 4)
        state = self._state_sharding
        self._weight_shardings = param_shardings(declare(model), mesh, DECODE)
        self._unstack = jax.jit(unstack_layers)
        self._layer = jax.jit(lambda layers, number: jax.tree.map(lambda weight: weight[number], layers))
        self._init = jax.jit(self._init_program, out_shardings=state)
        self._prefill = jax.jit(self._prefill_program, static_argnums=0, out_shardings=self.prefix_sharding)
        self._insert = jax.jit(self._insert_program, donate_argnums=0, out_shardings=state)
        self._extend = jax.jit(self._extend_program, donate_argnums=1, out_shardings=state)
        self._generate = jax.jit(
            self._generate_program, static_argnums=0, donate_argnums=2, out_shardings=(state, results)
        )
        self._pause = jax.jit(self._pause_program, donate_argnums=0, out_shardings=state)

    # ------------------------------------------------------------------------------------------------------ weights
    def load_params(self, params: Params) -> Params:
        """The engine's own copy of stacked weights: in compute_dtype, under DECODE shardings, one tree per layer.

        The source may be donated afterwards; nothing passes through the host.
        """
        dtype, shardings = self.config.compute_dtype, self._weight_shardings
        one = jax.tree.map(
            lambda sharding: NamedSharding(self.mesh, PartitionSpec(*sharding.spec[1:])), shardings["layers"]
        )
        layers = []
        for number in range(self.model.num_layers):  # one at a time: beside both copies there is never a third
            layer = reshard(self._layer(params["layers"], number), one, dtype)
            layers.append(jax.block_until_ready(layer))
        rest = {name: reshard(tree, shardings[name], dtype) for name, tree in params.items() if name != "layers"}
        return {**rest, "layers": tuple(layers)}

    def take_params(self, params: Params) -> Params:
        """Like load_params, but frees the source weight by weight: at most one weight exists twice at any time."""
        shardings = self._weight_shardings

        def take(weight: jax.Array, sharding: NamedSharding) -> jax.Array:
            taken = reshard(weight, sharding, self.config.compute_dtype).block_until_ready()
            weight.delete()
            return taken

        by_name = []
        for name, weight in params["layers"].items():
            rows = self._unstack({"layers": {name: take(weight, shardings["layers"][name])}})["layers"]
            by_name.append(jax.block_until_ready(rows))
        layers = tuple(
            {name: row for part in parts for name, row in part.items()} for parts in zip(*by_name, strict=True)
        )
        rest = {name: jax.tree.map(take, tree, shardings[name]) for name, tree in params.items() if name != "layers"}
        return {**rest, "layers": layers}

    # -------------------------------------------------------------------------------------------------- operations
    def init_decode_state(self) -> DecodeState:
        """A state in which no slot decodes."""
        return self._init()

    def prefill(self, params: Params, prompts: Sequence[Sequence[int] | np.ndarray]) -> Prefix:
        """Computes keys and values of up to prefill_batch prompts, all in the same bucket.

        Raises ValueError if there are too many, if one is empty or too long, or if their buckets differ.
        """
        rows = self.config.prefill_batch
        self._check_prompts(prompts)
        bucket = self.config.bucket(len(prompts[0]))
        ids_PT = np.zeros((rows, bucket), np.int32)
        counts_P, last_P = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
        for row, prompt in enumerate(prompts):
            ids_PT[row, : len(prompt) - 1] = prompt[:-1]
            counts_P[row], last_P[row] = len(prompt) - 1, prompt[-1]
        ids_PT, counts_P = jax.device_put((ids_PT, counts_P), self._prefill_rows)
        return self._prefill(kv.round_up(bucket), params, ids_PT, counts_P, last_P)

    def insert(self, state: DecodeState, prefix: Prefix, placements: Sequence[Placement]) -> DecodeState:
        """Copies rows of a prefix into slots, which then decode; one row may be copied to many slots.

        Consumes `state`. Raises ValueError if a placement has too many stop ids.
        """
        count = len(placements)
        pad = self.config.slots - count
        slots = np.asarray([p.slot for p in placements] + [self.config.slots] * pad, np.int32)  # padding is dropped
        last = placements[-1]
        rows = [*placements, *[last] * pad]
        sampling = Sampling(
            np.stack([p.key for p in rows]).astype(np.uint32),
            np.asarray([p.params.temperature for p in rows], np.float32),
            np.asarray([p.params.top_k for p in rows], np.int32),
            np.asarray([p.params.top_p for p in rows], np.float32),
            np.asarray([p.params.tempered_logprobs for p in rows], bool),
        )
        stops = np.stack([stop_row(p.params) for p in rows])
        limits = np.asarray([p.limit for p in rows], np.int32)
        sources = np.asarray([p.row for p in rows], np.int32)
        return self._insert(state, prefix, np.int32(count), slots, sources, limits, stops, sampling)

    def extend(self, params: Params, state: DecodeState, extensions: Sequence[Extension]) -> DecodeState:
        """Appends tokens to up to prefill_batch paused slots, which then resume decoding; all in the same bucket.

        Consumes `state`. Other slots do not change. Raises ValueError if there are too many or their buckets differ.
        """
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

    def generate(
        self, params: Params, state: DecodeState, longest: int | None = None, patience: int | None = None
    ) -> tuple[DecodeState, Result]:
        """Samples up to decode_steps tokens for every live slot.

        Consumes `state`. longest: tokens in the cache of the longest live slot, which bounds the columns attended to
        (None: all columns). patience: the dispatch ends early once this many slots have finished (None: all of them).
        Neither changes any token or log-prob.
        """
        config = self.config
        columns = config.capacity if longest is None else config.columns(longest + config.decode_steps)
        return self._generate(columns, params, state, np.int32(config.slots if patience is None else patience))

    def pause(self, state: DecodeState, slots: Sequence[int]) -> DecodeState:
        """Pauses slots; their caches are kept. Consumes `state`."""
        paused = np.zeros(self.config.slots, bool)
        paused[list(slots)] = True
        return self._pause(state, paused)

    def _check_prompts(self, prompts: Sequence[Sequence[int] | np.ndarray]) -> None:
        rows, longest = self.config.prefill_batch, self.config.max_length - 1
        if not 0 < len(prompts) <= rows:
            raise ValueError(f"prefill takes 1 to {rows} prompts, not {len(prompts)}.")
        for prompt in prompts:
            if not 0 < len(prompt) <= longest:
                raise ValueError(f"A prompt has {len(prompt)} tokens; the engine takes 1 to {longest}.")
        if len({self.config.bucket(len(prompt)) for prompt in prompts}) > 1:
            raise ValueError("The prompts of one prefill belong to one bucket.")

    # ----------------------------------------------------------------------------------------------------- programs
    def _init_program(self) -> DecodeState:
        slots = self.config.slots
        zeros = jnp.zeros(slots, jnp.int32)
        return DecodeState(
            cache=kv.init_cache(self.model, slots, self.config.capacity, self.config.compute_dtype),
            token_S=zeros,
            length_S=zeros,
            limit_S=zeros,
            live_S=jnp.zeros(slots, bool),
            stops_SN=jnp.full((slots, STOP_IDS), -1, jnp.int32),
            sampling=init_sampling(slots),
        )

    def _prefill_program(self, columns: int, params: Params, ids_PT, counts_P, last_P) -> Prefix:
        empty = kv.init_cache(self.model, ids_PT.shape[0], columns, self.config.compute_dtype)
        filled = kv.append(self.model, params, empty, ids_PT, jnp.zeros_like(counts_P), counts_P)
        return Prefix(filled, last_P, counts_P)

    def _insert_program(self, state: DecodeState, prefix: Prefix, count, slots_N, rows_N, limits_N, stops_N, sampling):
        def copy(i: jax.Array, cache: kv.Cache) -> kv.Cache:
            return kv.copy_row(cache, prefix.cache, rows_N[i], slots_N[i])

        def put(old: jax.Array, new: jax.Array) -> jax.Array:
            return old.at[slots_N].set(new, mode="drop")

        return DecodeState(
            cache=lax.fori_loop(0, count, copy, state.cache),
            token_S=put(state.token_S, prefix.token_P[rows_N]),
            length_S=put(state.length_S, prefix.length_P[rows_N]),
            limit_S=put(state.limit_S, limits_N),
            live_S=put(state.live_S, jnp.ones_like(slots_N, bool)),
            stops_SN=put(state.stops_SN, stops_N),
            sampling=jax.tree.map(put, state.sampling, sampling),
        )

    def _extend_program(
        self, params: Params, state: DecodeState, ids_ET, slots_E, starts_E, counts_E, last_E, limits_E, keys_E2
    ):
        part = kv.take_rows(state.cache, slots_E)
        part = kv.append(self.model, params, part, ids_ET, starts_E, counts_E)

        def put(old: jax.Array, new: jax.Array) -> jax.Array:
            return old.at[slots_E].set(new, mode="drop")

        return state._replace(
            cache=kv.put_rows(state.cache, part, slots_E),
            token_S=put(state.token_S, last_E),
            length_S=put(state.length_S, starts_E + counts_E),
            limit_S=put(state.limit_S, limits_E),
            live_S=put(state.live_S, jnp.ones_like(slots_E, bool)),
            sampling=state.sampling._replace(keys_S2=put(state.sampling.keys_S2, keys_E2)),
        )

    def _generate_program(
        self, columns: int, params: Params, state: DecodeState, patience: jax.Array
    ) -> tuple[DecodeState, Result]:
        slots, steps = self.config.slots, self.config.decode_steps
        table_VD = output_table(self.model, params)
        alive = jnp.sum(state.live_S)

        def go_on(carry: tuple[jax.Array, DecodeState, Result]) -> jax.Array:
            n, state, _ = carry
            left = jnp.sum(state.live_S)
            return (n < steps) & (left > 0) & (alive - left < patience)

        def one(carry: tuple[jax.Array, DecodeState, Result]) -> tuple[jax.Array, DecodeState, Result]:
            n, state, result = carry
            live_S = state.live_S
            hidden_SD, cache = kv.step(self.model, params, state.cache, state.token_S, state.length_S)
            logits_SV = jnp.einsum("SD,VD->SV", hidden_SD, table_VD, preferred_element_type=jnp.float32)
            token_S, logprob_S = sample(logits_SV, state.sampling, state.length_S + 1)
            stopped_S = jnp.any(token_S[:, None] == state.stops_SN, axis=1)
            ended_S = stopped_S | (state.length_S + 2 >= state.limit_S)
            result = result._replace(
                tokens_NS=result.tokens_NS.at[n].set(token_S),
                logprobs_NS=result.logprobs_NS.at[n].set(logprob_S),
                counts_S=result.counts_S + live_S,
            )
            state = state._replace(
                cache=cache,
                token_S=jnp.where(live_S, token_S, state.token_S),
                length_S=state.length_S + live_S,
                live_S=live_S & ~ended_S,
            )
            return n + 1, state, result

        nothing = Result(
            jnp.zeros((steps, slots), jnp.int32),
            jnp.zeros((steps, slots), jnp.float32),
            jnp.zeros(slots, jnp.int32),
            jnp.zeros(slots, bool),
        )
        part = state._replace(cache=kv.view(state.cache, columns))
        _, after, result = lax.while_loop(go_on, one, (jnp.int32(0), part, nothing))
        state = after._replace(cache=kv.put_back(state.cache, after.cache))
        return state, result._replace(live_S=state.live_S)

    def _pause_program(self, state: DecodeState, paused_S: jax.Array) -> DecodeState:
        return state._replace(live_S=state.live_S & ~paused_S)
