"""A small policy for the tests of this folder: 260 tokens, of which 256 are the bytes and one ends a turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scope_jax.models.decoder import transformer
from scope_jax.models.decoder.columns import Columns
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.kernels.masks import ends_of
from scope_jax.models.kernels.rope import Rope
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.local import LocalRollouts
from scope_jax.rollouts.slots import EngineConfig
from scope_jax.rollouts.types import Completion, Request, Row, SamplingParams
from scope_jax.sharding.collectives import LOCAL
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from scope_jax.sharding.spec import init_params
from tests.shapes import uniform

EOS = 256
PAD = 0  # also the byte 0: a real token

CFG = uniform(
    architecture="qwen3",
    vocab_size=260,
    num_layers=2,
    width=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    ffn_width=48,
    rope=Rope(10000.0),
    norm_eps=1e-6,
    tie_embeddings=False,
    qk_norm="head",
    qkv_bias=False,
    output_bias=False,
    max_positions=1024,
)
ENGINE = EngineConfig(slots=8, max_length=160, decode_steps=4, compute_dtype=jnp.float32, prefill_tokens=128)


class ByteTokenizer:
    """One byte, one token."""

    eos_ids = (EOS,)

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(self.token_bytes(id) for id in ids).decode("utf-8", errors="replace")

    def token_bytes(self, id: int) -> bytes:
        return bytes([id]) if id < 256 else b"<end>"


def make_params(cfg: ModelConfig = CFG) -> Any:
    """Weights large enough for peaked, varied distributions."""
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: x + 0.15 * rng.normal(size=x.shape).astype(np.float32), _initial(cfg))


@partial(jax.jit, static_argnums=0)
def _initial(cfg: ModelConfig) -> Any:
    return init_params(transformer.declare(cfg), jax.random.key(0))


def make_engine(config: EngineConfig = ENGINE, cfg: ModelConfig = CFG, **changes: Any) -> Engine:
    """As on a CPU: a page for each slot. Tests share an engine of the same sizes, which keeps nothing but its programs;
    one that counts or replaces programs builds `new_engine`."""
    return _shared(dataclasses.replace(config, **changes), cfg, True)


def make_paged(config: EngineConfig = ENGINE, cfg: ModelConfig = CFG, **changes: Any) -> Engine:
    """Pages that slots share, by XLA's loop; shared by tests as those of `make_engine`."""
    return _shared(dataclasses.replace(config, **changes), cfg, False)


def new_engine(config: EngineConfig = ENGINE, cfg: ModelConfig = CFG, columns: bool = True) -> Engine:
    """An engine that no other test has. columns: a page for each slot."""
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    return Engine(cfg, config, mesh, Columns(config.max_length) if columns else None)


_shared = cache(new_engine)


def make_rollouts(engine: Engine, params: Any, seed: int = 0, ahead: bool = False) -> LocalRollouts:
    rollouts = LocalRollouts(engine, ByteTokenizer(), seed=seed, threads=4, ahead=ahead)
    rollouts.load_params(params)
    return rollouts


def sampling(**changes: Any) -> SamplingParams:
    plain: dict[str, Any] = {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "max_tokens": 20,
        "stop": (),
        "stop_ids": (EOS,),
        "tempered_logprobs": False,
    }
    return SamplingParams(**(plain | changes))


def request(
    prompt: Sequence[int] | str, key: int | None = 0, group=None, max_turns=1, respond=None, **changes
) -> Request:
    """A request; `changes` go into its SamplingParams."""
    ids = list(prompt.encode()) if isinstance(prompt, str) else list(prompt)
    data = None if key is None else np.asarray([7, key], np.uint32)
    return Request(ids, sampling(**changes), data, group, max_turns, respond)


def mixed(count: int) -> list[Request]:
    """Requests that differ in prompt, length, temperature, truncation and key."""
    requests = []
    for i in range(count):
        rng = np.random.default_rng(i)
        requests.append(
            request(
                rng.integers(0, 256, size=int(rng.integers(2, 90))).tolist(),
                key=i,
                temperature=(1.0, 0.7, 1.3, 0.0)[i % 4],
                top_k=(0, 0, 7)[i % 3],
                top_p=(1.0, 1.0, 1.0, 1.0, 0.8)[i % 5],
                max_tokens=int(rng.integers(3, 60)),
                tempered_logprobs=i % 2 == 1,
            )
        )
    return requests


def bits(completion: Completion) -> tuple[bytes, bytes, str]:
    """Everything that must be equal for completions to be identical."""
    return completion.ids_T.tobytes(), completion.logprobs_T.tobytes(), completion.finish_reason


def trainer_logprobs(
    params: Any,
    completion: Completion | Row,
    temperature: float = 1.0,
    cfg: ModelConfig = CFG,
    length: int = ENGINE.max_length,
) -> np.ndarray:
    """Log-probs of all tokens after the prompt from the training forward: one padded row, no cache."""
    logp_TV = _trainer(params, completion, temperature, cfg, length)
    return logp_TV[np.arange(len(logp_TV)), completion.ids_T]


def trainer_entropies(params: Any, completion: Completion, temperature: float) -> np.ndarray:
    """Entropies at all tokens after the prompt, in the same way."""
    logp_TV = _trainer(params, completion, temperature, CFG, ENGINE.max_length).astype(np.float64)
    return -(np.exp(logp_TV) * logp_TV).sum(-1)


def _trainer(
    params: Any, completion: Completion | Row, temperature: float, cfg: ModelConfig, length: int
) -> np.ndarray:
    prompt = np.asarray(completion.prompt_ids)
    full = np.concatenate([prompt, completion.ids_T])
    ids = np.zeros((1, length), np.int32)
    ids[0, : len(full)] = full
    logp_TV = _score(cfg, params, ids, np.array([len(full)]), temperature)
    return np.asarray(logp_TV)[len(prompt) - 1 : len(full) - 1]


@partial(jax.jit, static_argnums=0)
def _score(cfg, params, ids_BT, lengths_B, temperature):
    positions = jnp.arange(ids_BT.shape[1])[None]
    ends_BT = ends_of(lengths_B, ids_BT.shape[1])
    x = transformer.hidden(
        cfg, params, ids_BT, positions, ends_BT, shards=LOCAL, remat="none", compute_dtype=jnp.float32
    )
    logits = transformer.logits_of(x[0], transformer.output_table(cfg, params), cfg.final_softcap)
    return jax.nn.log_softmax(logits / temperature)
