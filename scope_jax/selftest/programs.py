"""Programs of a run on small random models: the engine against the learner, several devices against one, and a
repetition against itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.learner.batching import unpack
from scope_jax.learner.learner import Learner
from scope_jax.learner.types import Datum, Episode
from scope_jax.models.decoder import transformer
from scope_jax.models.decoder.backends import DENSE, EXPERTS, HEADS, PICKS, attention_over_pages
from scope_jax.models.decoder.check import Check
from scope_jax.models.decoder.config import Attention, Delta, Dense, Layer, ModelConfig
from scope_jax.models.decoder.kinds import has_sinks, head_dim
from scope_jax.models.kernels.rope import Rope
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.local import LocalRollouts
from scope_jax.rollouts.slots import EngineConfig
from scope_jax.rollouts.types import Completion, Request, SamplingParams
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from scope_jax.sharding.spec import init_params

# OLMo-3's sliding layers and a full layer of Gemma 4's, with wider heads whose values are their keys.
SLIDING = Layer(replace(HEADS, qk_norm="width", window=70), DENSE.layers[0].feed, "post")
FULL = Attention(8, 2, 256, Rope(1e6, "proportional", share=0.25), None, "head", scale=1.0, values="keys", v_norm=True)
WINDOWS = replace(
    DENSE,
    architecture="olmo3",
    layers=(SLIDING,) * 3 + (Layer(FULL, Dense(512, "gelu_tanh"), "both"),),
    final_softcap=30.0,
)
SINKS = replace(
    EXPERTS,
    architecture="gpt_oss",
    layers=tuple(
        Layer(
            replace(HEADS, qk_norm="none", window=window, sinks=True), replace(PICKS, activation="clamped", bias=True)
        )
        for window in (70, None)
    ),
)
# Qwen3.5's layers: a state in three of four.
STATES = replace(
    DENSE,
    architecture="qwen3_5_text",
    layers=(Layer(Delta(2, 4, 128, 128, taps=4, norm_eps=1e-6), Dense(512)),) * 3 + (Layer(HEADS, Dense(512)),),
)
MODELS = {"dense": DENSE, "windows": WINDOWS, "experts": EXPERTS, "sinks": SINKS, "states": STATES}

CARD = LossCard(kl="k3", kl_coef=0.1)
# A large eps: Adam's first step is otherwise ±1 for every weight, and rounding decides the sign of tiny gradients.
OPTIMIZER = OptimizerSection(learning_rate=1e-3, warmup_steps=0, eps=1e-3)
SECTION = LearnerSection(buckets=(256,), micro_batch_rows=0)
LENGTH = 256  # most tokens of a row

# Largest difference of a token's log-prob, in nats, and of an update relative to its size, by compute dtype.
LOGPROB = {"float32": 1e-4, "bfloat16": 0.25}
UPDATE = {"float32": 1e-4, "bfloat16": 5e-2}
# KL of sampler and trainer, nats of a token, that others allow (docs/losses.md#which-log-π_old); contexts in tokens.
KL = {"dense": 2e-4, "experts": 2e-3, "sinks": 2e-3}
CONTEXTS = (200, 1500, 2900)


def checks(devices: Sequence[Any]) -> list[Check]:
    """The checks of programs on one of these devices and on all of them, in the dtype that cards compute in there."""
    dtype = "float32" if devices[0].platform == "cpu" else "bfloat16"
    one, several = mesh_of(devices[:1]), meshes(devices)
    alone = "" if several else "there is one device"
    found = []
    for name, model in MODELS.items():
        for where, mesh in {"one device": one, **several}.items():
            title, measure = f"engine, {name}, {where}", partial(engine_against_learner, model, mesh, dtype)
            found.append(Check(title, "the learner's log-probs", LOGPROB[dtype], measure))
        if name in KL:
            title, measure = f"engine, {name}, KL by context", partial(kl_by_context, model, one, dtype)
            found.append(Check(title, "the learner", KL[name], measure))
        title, measure = f"engine, {name}, requests in a batch", partial(batched_against_alone, model, one, dtype)
        found.append(Check(title, "each alone, in bits", 0, measure))
    for where, mesh in several.items():
        for name, model in MODELS.items():
            title, measure = f"update, {name}, {where}", partial(update_apart, model, one, mesh, dtype)
            found.append(Check(title, "one device", UPDATE[dtype], measure))
    if not several:
        found.append(Check("update, several devices", "one device", 0, lambda: math.nan, alone))
    last = list(several.values())[-1] if several else one
    for name, model in MODELS.items():
        measure = partial(update_again, model, last, dtype)
        found.append(Check(f"update, {name}, repeated", "itself, in bits", 0, measure))
    return found


def mesh_of(devices: Sequence[Any], tensor: int = 1) -> Mesh:
    return make_mesh(MeshConfig(1, -1, tensor), list(devices))


def meshes(devices: Sequence[Any]) -> dict[str, Mesh]:
    """All devices with the weights' rows divided over them and, if their number is even, in tensor groups of two; {} of
    one device."""
    count = len(devices)
    if count == 1:
        return {}
    found = {f"fsdp = {count}": mesh_of(devices)}
    if count % 2 == 0:
        found[f"fsdp = {count // 2}, tensor = 2"] = mesh_of(devices, tensor=2)
    return found


def random_params(model: ModelConfig) -> Any:
    """Weights large enough for peaked, varied distributions."""
    params = jax.jit(lambda: init_params(transformer.declare(model), jax.random.key(0)))()
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: np.asarray(x) + 0.05 * rng.normal(size=x.shape).astype(np.float32), params)


class Numbers:
    """A tokenizer of tokens that are not text; none of them ends a turn."""

    eos_ids = ()

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(str(int(id)) for id in ids)

    def token_bytes(self, id: int) -> bytes:
        return b""


def rollouts_of(model: ModelConfig, mesh: Mesh, dtype: str, length: int = LENGTH, picks: bool = False) -> LocalRollouts:
    """An engine with pages and random weights. length: of the longest episode; picks: it keeps those of routers."""
    config = EngineConfig(
        slots=8 * mesh.shape["fsdp"] * mesh.shape["fsdp_inner"],
        max_length=length,
        decode_steps=8,
        compute_dtype=jnp.dtype(dtype),
        prefill_tokens=128,
        picks=picks,
    )
    how = attention_over_pages(mesh.devices.flat[0].platform, head_dim(model), has_sinks(model))
    rollouts = LocalRollouts(Engine(model, config, mesh, how), Numbers(), seed=0, threads=1, ahead=False)
    rollouts.load_params(learner_of(model, mesh, dtype).init_state(random_params(model), reference=False).params)
    return rollouts


def learner_of(
    model: ModelConfig, mesh: Mesh, dtype: str, length: int = LENGTH, router_replay: bool = False
) -> Learner:
    section = SECTION.model_copy(update={"buckets": (length,), "router_replay": router_replay})
    return Learner(model, mesh, OPTIMIZER, section, param_dtype=jnp.float32, compute_dtype=jnp.dtype(dtype))


def requests(count: int) -> list[Request]:
    """Prompts of 2 to 180 tokens, 5 to 60 sampled tokens, some of the more likely ones only."""
    found = []
    for number in range(count):
        rng = np.random.default_rng(number)
        prompt = rng.integers(0, DENSE.vocab_size, int(rng.integers(2, 181)))
        top_p = (1.0, 0.9)[number % 2]
        params = SamplingParams(1.0, 0, top_p, int(rng.integers(5, 61)), (), (), False)
        found.append(Request(prompt, params, np.array([number, 7], np.uint32), str(number), 1, None))
    return found


def engine_against_learner(model: ModelConfig, mesh: Mesh, dtype: str) -> float:
    """Largest difference of a sampled token's log-prob, in nats. In bfloat16 the learner has the engine's experts:
    where two are nearly as probable, rounding decides, and each is right (`kl_by_context` lets both pick)."""
    replay = dtype == "bfloat16" and bool(model.expert_layers)
    asked = [replace(one, picks=replay) for one in requests(24)]
    return float(np.max(np.abs(signed(model, mesh, dtype, asked, LENGTH, replay))))


def kl_by_context(model: ModelConfig, mesh: Mesh, dtype: str) -> float:
    """KL of the engine's distribution from the learner's, the mean over tokens of exp(s) − 1 − s with s the signed
    difference of log-probs: the largest of those after prompts of each of CONTEXTS."""
    rng, length = np.random.default_rng(5), -(-max(CONTEXTS) // 1024) * 1024
    model = replace(model, max_positions=length)
    params, worst = SamplingParams(1.0, 0, 1.0, 60, (), (), False), 0.0
    for context in CONTEXTS:
        prompts = rng.integers(0, model.vocab_size, (4, context))
        asked = [
            Request(prompt, params, np.array([n, 9], np.uint32), str(n), 1, None) for n, prompt in enumerate(prompts)
        ]
        apart = signed(model, mesh, dtype, asked, length)
        worst = max(worst, float(np.mean(np.expm1(apart) - apart)))
    return worst


def signed(
    model: ModelConfig, mesh: Mesh, dtype: str, asked: Sequence[Request], length: int, replay: bool = False
) -> np.ndarray:
    """Log-probs of all sampled tokens by the learner less those by the engine. length: of the longest episode; replay:
    the learner takes the engine's experts."""
    completions = rollouts_of(model, mesh, dtype, length, replay).run(asked)
    episodes = [
        Episode("solver", "actor", "0", Datum.from_completion(completion), 0.0, advantage=1.0)
        for completion in completions
    ]
    learner = learner_of(model, mesh, dtype, length, replay)
    state = learner.init_state(random_params(model), reference=False)
    (batch,) = learner.pack(episodes, CARD)
    scores = learner.score(state, batch, reference=False)
    assert scores.old_MN is not None
    sampled = np.concatenate([completion.logprobs_T[completion.sampled_T] for completion in completions])
    return np.float64(unpack(batch, scores.old_MN)) - sampled


def batched_against_alone(model: ModelConfig, mesh: Mesh, dtype: str) -> float:
    """The number of requests whose tokens or log-probs differ."""
    rollouts, asked = rollouts_of(model, mesh, dtype), requests(12)
    together = rollouts.run(asked)
    chosen = (0, 5, 11)
    return float(sum(_bits(rollouts.run([asked[n]])[0]) != _bits(together[n]) for n in chosen))


def _bits(completion: Completion) -> tuple[bytes, bytes]:
    return completion.ids_T.tobytes(), completion.logprobs_T.tobytes()


def updated(model: ModelConfig, mesh: Mesh, dtype: str) -> tuple[Any, Any]:
    """Weights before and after one update, on the host; the reference is another model's."""
    rng = np.random.default_rng(3)
    episodes = []
    for number in range(16):
        ids_T = rng.integers(0, model.vocab_size, int(rng.integers(40, 250))).astype(np.int32)
        sampled_T = np.arange(len(ids_T)) >= 20
        datum = Datum(ids_T, sampled_T, np.where(sampled_T, -6, 0).astype(np.float32))
        episodes.append(Episode("solver", "actor", str(number), (datum,), 0.0, advantage=float(rng.normal())))
    learner, params = learner_of(model, mesh, dtype), random_params(model)
    state = learner.init_state(params)
    state = state.replace(ref_params=jax.tree.map(lambda w: 0.9 * w, state.ref_params))
    state, _ = learner.update(state, learner.pack(episodes, CARD), CARD)
    return params, jax.device_get(state.params)


def update_apart(model: ModelConfig, one: Mesh, several: Mesh, dtype: str) -> float:
    """Distance of the weights after an update, divided by the length of the update."""
    before, expected = updated(model, one, dtype)
    _, found = updated(model, several, dtype)
    return _distance(found, expected) / _distance(expected, before)


def _distance(a: Any, b: Any) -> float:
    squares = jax.tree.map(lambda x, y: float(np.sum(np.square(np.float64(x) - np.float64(y)))), a, b)
    return math.sqrt(sum(jax.tree.leaves(squares)))


def update_again(model: ModelConfig, mesh: Mesh, dtype: str) -> float:
    """The number of arrays whose bits differ between two updates of the same state."""
    first, second = (updated(model, mesh, dtype)[1] for _ in range(2))
    differ = jax.tree.map(lambda x, y: x.tobytes() != y.tobytes(), first, second)
    return float(sum(jax.tree.leaves(differ)))
