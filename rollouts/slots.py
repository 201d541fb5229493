"""The engine's settings, the state of the slots, and the loop that samples.

The state of a slot is the tokens whose keys and values are in its cache (`length`) plus one more token (`token`), the
input of the next step. So generation starts from the last token of the prompt, and every sampled token and its log-prob
come from the same program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from scope_jax.errors import UserError
from scope_jax.models.decoder.adapter import Adapter
from scope_jax.models.kernels.writes import put
from scope_jax.rollouts.sampling import Sampling, init_sampling
from scope_jax.rollouts.types import SamplingParams

STOP_IDS = 16  # most stop ids of one request


@dataclass(frozen=True)
class EngineConfig:
    """The engine's static settings."""

    slots: int
    """Episodes decoded at the same time, over the whole mesh."""
    max_length: int
    """Most tokens of one episode, prompt and observations included."""
    decode_steps: int
    """Most tokens per dispatch and slot."""
    compute_dtype: Any
    """Of weights, activations and cache; logits, log-probs and softmax are float32."""
    prefill_tokens: int = 512
    """Tokens of prompts and observations in one dispatch, on each row shard of the mesh."""
    pages: int | tuple[int, ...] | None = None
    """Pages of a row shard, of each shape; None: enough for all slots at max_length."""
    adapter: Adapter | None = None
    """The policies are adapters of this kind over the weights; None: there is one policy, the weights."""
    policies: tuple[str, ...] = ()
    """Names of the policies that are adapters."""
    entropies: bool = False
    """Also measure the entropy of the distribution that each token is drawn from."""
    picks: bool = False
    """Keep the experts that routers pick of each token, for `Engine.picks`."""
    quantized: bool = False
    """Keep matrices in 8 bits (`models.decoder.quantized`)."""
    cache_in_8_bits: bool = False
    """Keep keys and values in 8 bits, too; states stay as they are."""
    cascade: int = 0
    """Slots of a group that attend together to the pages they begin with (`models.kernels.cascade`); 0: each alone."""
    draft_tokens: int = 0
    """Most drafted tokens of a slot that a dispatch verifies (`rollouts.verification`)."""

    @property
    def in_8_bits(self) -> bool:
        """Whether something is."""
        return self.quantized or self.cache_in_8_bits

    @property
    def cache_dtype(self) -> Any:
        """Of keys and values."""
        return jnp.int8 if self.cache_in_8_bits else self.compute_dtype

    def __post_init__(self) -> None:
        for name in ("slots", "max_length", "decode_steps", "prefill_tokens"):
            if vars(self)[name] < 1:
                raise ValueError(f"EngineConfig.{name} is {vars(self)[name]}; it must be at least 1.")
        if (self.adapter is None) != (not self.policies):
            raise ValueError("EngineConfig: adapter and policies belong together; give both or none.")

    @property
    def most_tokens(self) -> int:
        """Most tokens of a slot that a dispatch samples."""
        return max(self.decode_steps, self.draft_tokens + 1)


class DecodeState(NamedTuple):
    """Everything kept on the device between dispatches, one entry per slot; leaves are arrays, or their shardings."""

    cache: Any
    """Keys and values, in the engine's own form."""
    token_S: Any
    """int32, the next token to feed."""
    length_S: Any
    """int32, tokens in the cache."""
    limit_S: Any
    """int32, length at which the turn ends, prompt included."""
    live_S: Any
    """bool, True while decoding."""
    stops_SN: Any
    """int32, stop ids, padded with -1."""
    policy_S: Any
    """int32, number of the adapter; one beyond the last is the base."""
    sampling: Sampling
    """How each slot samples."""


class Result(NamedTuple):
    """What a dispatch sampled. The tokens of slot s are the first counts_S[s] rows of its columns."""

    tokens_NS: Any
    """int32, by step and slot."""
    logprobs_NS: Any
    """float32."""
    counts_S: Any
    """int32, tokens of each slot."""
    live_S: Any
    """bool, slots that are still decoding."""
    entropies_NS: Any = None
    """float32, nats; None: not measured."""

    def sampled(self, slot: int) -> Iterable[tuple[int, float, float | None]]:
        """(token, log-prob, entropy) of each token of a slot; the arrays are in host memory."""
        count = int(self.counts_S[slot])
        tokens, logprobs = self.tokens_NS[:count, slot].tolist(), self.logprobs_NS[:count, slot].tolist()
        measured = self.entropies_NS
        return zip(
            tokens, logprobs, repeat(None, count) if measured is None else measured[:count, slot].tolist(), strict=True
        )


@dataclass(frozen=True)
class Placement:
    """Places one request in a slot."""

    slot: int
    prompt: Sequence[int] | np.ndarray
    """Its token ids."""
    limit: int
    """Length at which its turn ends, prompt included."""
    params: SamplingParams
    key: np.ndarray
    """uint32[2]"""
    may_be_cut: bool = True
    """The slot may be extended later, after any number of the tokens sampled since it was placed or extended."""
    policy: int = 0
    """`Engine.number` of its policy."""
    grouped: int = 0
    """Tokens in the cache that the episode begins with, as all others of its group do."""


@dataclass(frozen=True)
class Extension:
    """New tokens for a paused slot."""

    slot: int
    length: int
    """Tokens of the episode that stay in the cache; those sampled beyond them are discarded."""
    ids: Sequence[int]
    """The tokens appended, at least one; the last is the input of the next generate."""
    limit: int
    """Length at which its next turn ends, prompt included."""
    key: np.ndarray
    """uint32[2], the slot's sampling key from then on."""


def stop_row(params: SamplingParams) -> np.ndarray:
    """The stop ids of a request as a row of the state. Raises ValueError if there are more than STOP_IDS."""
    if len(params.stop_ids) > STOP_IDS:
        raise UserError(f"A request has {len(params.stop_ids)} stop ids; the engine takes at most {STOP_IDS}.")
    return np.asarray([*params.stop_ids, *[-1] * (STOP_IDS - len(params.stop_ids))], np.int32)


def no_slots(cache: Any, slots: int) -> DecodeState:
    """A state in which no slot decodes."""
    zeros = jnp.zeros(slots, jnp.int32)
    return DecodeState(
        cache=cache,
        token_S=zeros,
        length_S=zeros,
        limit_S=zeros,
        live_S=jnp.zeros(slots, bool),
        stops_SN=jnp.full((slots, STOP_IDS), -1, jnp.int32),
        policy_S=zeros,
        sampling=init_sampling(slots),
    )


def rows_of(
    placements: Sequence[Placement], slots: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Sampling]:
    """(slot numbers, limits, stop ids, policies, sampling) of placements, padded to `slots` rows whose slot number is
    past the end. Raises ValueError if a placement has too many stop ids.
    """
    pad = slots - len(placements)
    rows = [*placements, *[placements[-1]] * pad]
    sampling = Sampling(
        np.stack([p.key for p in rows]).astype(np.uint32),
        np.asarray([p.params.temperature for p in rows], np.float32),
        np.asarray([p.params.top_k for p in rows], np.int32),
        np.asarray([p.params.top_p for p in rows], np.float32),
        np.asarray([p.params.tempered_logprobs for p in rows], bool),
    )
    numbers = np.asarray([*(p.slot for p in placements), *[slots] * pad], np.int32)
    return (
        numbers,
        np.asarray([p.limit for p in rows], np.int32),
        np.stack([stop_row(p.params) for p in rows]),
        np.asarray([p.policy for p in rows], np.int32),
        sampling,
    )


def past_the_end(slots: int) -> Placement:
    """A placement whose slot is beyond the last, so that programs drop it: for running them with nothing to do."""
    return Placement(slots, (0,), 0, SamplingParams(0.0, 0, 1.0, 1, (), (), False), np.zeros(2, np.uint32))


def resumed(state: DecodeState, slots_N: Any, token_N: Any, length_N: Any, limit_N: Any, keys_N2: Any) -> DecodeState:
    """The state with slots that decode from now on; stop ids and sampling stay, but for the key. Slot numbers past the
    end are dropped.
    """
    return state._replace(
        token_S=put(state.token_S, slots_N, token_N),
        length_S=put(state.length_S, slots_N, length_N),
        limit_S=put(state.limit_S, slots_N, limit_N),
        live_S=put(state.live_S, slots_N, True),
        sampling=state.sampling._replace(keys_S2=put(state.sampling.keys_S2, slots_N, keys_N2)),
    )


def started(
    state: DecodeState,
    slots_N: Any,
    token_N: Any,
    length_N: Any,
    limit_N: Any,
    stops_N: Any,
    policy_N: Any,
    sampling: Sampling,
) -> DecodeState:
    """`resumed` for slots with a new request."""
    state = resumed(state, slots_N, token_N, length_N, limit_N, sampling.keys_S2)
    return state._replace(
        stops_SN=put(state.stops_SN, slots_N, stops_N),
        policy_S=put(state.policy_S, slots_N, policy_N),
        sampling=jax.tree.map(lambda old, new: put(old, slots_N, new), state.sampling, sampling),
    )


Forward = Callable[[Any, jax.Array, jax.Array, jax.Array], tuple[jax.Array, Any]]
Draw = Callable[[jax.Array, Sampling, jax.Array], tuple[jax.Array, jax.Array, jax.Array | None]]
DecodeStep = Callable[[jax.Array, DecodeState, Result], tuple[DecodeState, Result]]


def one_token(forward: Forward, draw: Draw) -> DecodeStep:
    """A step of `sample_tokens` with a token for every live slot.

    forward(cache, token_S, length_S, live_S) -> (logits_SV float32, cache with the tokens at their positions).
    draw: as `sampling.draw`, on logits in the form in which `forward` gives them.
    """

    def step(n: jax.Array, state: DecodeState, result: Result) -> tuple[DecodeState, Result]:
        live_S = state.live_S
        logits_SV, cache = forward(state.cache, state.token_S, state.length_S, live_S)
        token_S, logprob_S, entropy_S = draw(logits_SV, state.sampling, state.length_S + 1)
        stopped_S = jnp.any(token_S[:, None] == state.stops_SN, axis=1)
        ended_S = stopped_S | (state.length_S + 2 >= state.limit_S)
        result = result._replace(
            tokens_NS=result.tokens_NS.at[n].set(token_S),
            logprobs_NS=result.logprobs_NS.at[n].set(logprob_S),
            counts_S=result.counts_S + live_S,
            entropies_NS=None if entropy_S is None else result.entropies_NS.at[n].set(entropy_S),
        )
        state = state._replace(
            cache=cache,
            token_S=jnp.where(live_S, token_S, state.token_S),
            length_S=state.length_S + live_S,
            live_S=live_S & ~ended_S,
        )
        return state, result

    return step


def sample_tokens(
    step: DecodeStep,
    state: DecodeState,
    steps: int | jax.Array,
    patience: jax.Array,
    most: int,
    *,
    entropies: bool,
    together: tuple[str, ...] = (),
) -> tuple[DecodeState, Result]:
    """Up to `steps` steps for every live slot, fewer if `patience` slots have finished.

    step(number, state, result) -> both after one more. most: tokens of a slot in all steps. entropies: whether they are
    measured. together: mesh axes whose devices take every step together, as it communicates over them; slots and
    patience then count all of theirs.
    """
    slots = state.token_S.shape[0]

    def decoding(state: DecodeState) -> jax.Array:
        own = jnp.sum(state.live_S)
        return lax.psum(own, together) if together else own

    alive = decoding(state)

    def go_on(carry: tuple[jax.Array, jax.Array, DecodeState, Result]) -> jax.Array:
        n, left, _, _ = carry
        return (n < steps) & (left > 0) & (alive - left < patience)

    def one(
        carry: tuple[jax.Array, jax.Array, DecodeState, Result],
    ) -> tuple[jax.Array, jax.Array, DecodeState, Result]:
        n, _, state, result = carry
        state, result = step(n, state, result)
        return n + 1, decoding(state), state, result

    nothing = Result(
        jnp.zeros((most, slots), jnp.int32),
        jnp.zeros((most, slots), jnp.float32),
        jnp.zeros(slots, jnp.int32),
        jnp.zeros(slots, bool),
        jnp.zeros((most, slots), jnp.float32) if entropies else None,
    )
    _, _, state, result = lax.while_loop(go_on, one, (jnp.int32(0), alive, state, nothing))
    return state, result._replace(live_S=state.live_S)
