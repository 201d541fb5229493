"""Our engine and learner on one accelerator, measured: rows of the calibration of `scope-jax plan`.

    python benchmarks/calibration/device.py rates
    python benchmarks/calibration/device.py decode --model Qwen3-8B --slots 64 --length 640
    python benchmarks/calibration/device.py sample --model gpt-oss-20b --slots 64 --length 640
    python benchmarks/calibration/device.py update --model Qwen3-8B --layers 8 --length 4096 --rows 4
    python benchmarks/calibration/device.py update --model Qwen3-0.6B --prompt 2048 --length 2176 --rows 8

Weights are random, in the shapes of `scope_jax.plan.architectures`; --layers takes the first layers alone. `decode` is
the engine's own program, over pages of which no two slots share any, sampling at temperature 1 from the whole
vocabulary: milliseconds for a token of every slot, in dispatches of 16 tokens, whose mean length in the cache is
`length`. `sample` is the same as a run has it, of every family, the host's part included: a request for each slot whose
mean length is that, the difference of whole answers and of one token each, over the tokens between. `update` is one
optimiser step over one micro-batch of full rows, all tokens but the first trained: seconds; with --prompt the rows are
answers to one prompt of so many tokens, which is computed once.
`rates`: FLOP/s of a large bfloat16 product, bytes/s of memory that is read and of an addition of large vectors, which
writes as much as it reads, seconds of a tiny operation in a loop. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from scope_jax.cli.program import MEMORY
from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.learner.batching import Batch
from scope_jax.learner.learner import Learner
from scope_jax.learner.types import Datum, Episode
from scope_jax.models.decoder.adapter import Adapter
from scope_jax.models.decoder.backends import attention_over_pages
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.kinds import has_sinks, head_dim
from scope_jax.models.decoder.paging import PAGE, SHARED, Tables
from scope_jax.plan.architectures import public
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.local import LocalRollouts
from scope_jax.rollouts.slots import EngineConfig, Placement, rows_of
from scope_jax.rollouts.types import Request, SamplingParams
from scope_jax.selftest.programs import Numbers
from scope_jax.sharding.mesh import MeshConfig, make_mesh

STEPS = 16  # tokens of a dispatch
PASSES = 10  # over the array that is read
CARD = LossCard(advantage="group-zscore", aggregation="token-mean", kl="none")


@partial(jax.jit, static_argnums=(0, 1))
def _random(shape: tuple[int, ...], dtype: Any, seed: jax.Array) -> jax.Array:
    if len(shape) == 1:  # scales of norms, and biases, which must not decide what a router picks
        return jnp.ones(shape, dtype)
    few = 0.02 * jax.random.normal(jax.random.key(seed), (min(2**20, math.prod(shape)),), jnp.bfloat16)
    return jnp.resize(few, shape).astype(dtype)


def random_like(tree: Any) -> Any:
    """Small random numbers for every leaf of weights, repeated in those of more than a million."""
    leaves, form = jax.tree.flatten(tree)
    return jax.tree.unflatten(
        form, [_random(leaf.shape, leaf.dtype, jnp.uint32(place)) for place, leaf in enumerate(leaves)]
    )


def timed(run: Callable[[], Any], warm: int, times: int) -> list[float]:
    """Seconds of each of several runs, after some that do not count."""
    found = []
    for number in range(warm + times):
        start = time.perf_counter()
        jax.block_until_ready(run())
        if number >= warm:
            found.append(time.perf_counter() - start)
    return found


def model_of(name: str, layers: int | None) -> ModelConfig:
    model = public(name)
    if model is None:
        raise SystemExit(f"no figures of {name} are known (scope_jax/plan/architectures.py).")
    return replace(model, layers=model.layers[: layers or model.num_layers])


def decode(model: ModelConfig, slots: int, length: int, dispatches: int = 12) -> dict[str, Any]:
    """Milliseconds for a token of every slot."""
    mesh, platform = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1]), jax.devices()[0].platform
    first = length - STEPS * dispatches // 2
    longest = first + STEPS * (dispatches + 4)
    config = EngineConfig(slots, longest, STEPS, jnp.bfloat16, prefill_tokens=1024)
    engine = Engine(model, config, mesh, attention_over_pages(platform, head_dim(model), has_sinks(model)))
    weights = random_like(engine.abstract_weights())
    whole = SamplingParams(1.0, 0, 1.0, longest, (), (), False)
    numbers, limits, *how = rows_of(
        [Placement(slot, (0,), longest, whole, np.array([slot, 7], np.uint32)) for slot in range(slots)], slots
    )
    state = engine.jitted.start(
        *(engine.jitted.init(), numbers, np.full(slots, 17, np.int32), np.full(slots, first, np.int32), limits, *how)
    )
    columns = SHARED.count(longest)
    (pages,) = engine.pages
    if pages <= slots * columns:
        raise SystemExit(f"{slots} slots of {columns} pages are more than the engine's {pages}.")
    own = 1 + np.random.default_rng(0).permutation(slots * columns).reshape(slots, 1, columns)
    tables, patience = Tables(own.astype(np.int32), None), engine.jitted.patience(slots)

    def dispatch() -> Any:
        nonlocal state
        state, result = engine.jitted.generate(weights, state, tables, patience)
        return result

    began = time.perf_counter()
    jax.block_until_ready(dispatch())
    compiled = time.perf_counter() - began
    seconds = timed(dispatch, 1, dispatches)
    done = int(np.asarray(state.length_S).min()) - first
    if done != STEPS * (dispatches + 2):
        raise SystemExit(f"slots have sampled {done} tokens instead of {STEPS * (dispatches + 2)}.")
    return {
        "pages_of": PAGE,
        "milliseconds": 1e3 * statistics.median(seconds) / STEPS,
        "best_milliseconds": 1e3 * min(seconds) / STEPS,
        "seconds_to_compile": round(compiled, 1),
    }


def sample(model: ModelConfig, slots: int, length: int) -> dict[str, Any]:
    """Milliseconds for a token of every slot: a prompt, and half as many sampled tokens."""
    prompt, answer = length * 4 // 5, length * 2 // 5
    platform = jax.devices()[0].platform
    config = EngineConfig(slots, prompt + answer, STEPS, jnp.bfloat16, prefill_tokens=1024)
    how = attention_over_pages(platform, head_dim(model), has_sinks(model))
    engine = Engine(model, config, make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1]), how)
    rollouts = LocalRollouts(engine, Numbers(), seed=0, threads=1, ahead=True)
    rollouts.use(random_like(engine.abstract_weights()))
    draw = np.random.default_rng(0)  # new prompts each time, as the engine keeps those that it has computed

    def run(tokens: int) -> int:
        params = SamplingParams(1.0, 0, 1.0, tokens, (), (), False)
        requests = [
            Request(
                draw.integers(0, model.vocab_size, prompt), params, np.array([slot, 7], np.uint32), str(slot), 1, None
            )
            for slot in range(slots)
        ]
        done = sum(len(completion.ids_T) for completion in rollouts.run(requests))
        if done != slots * tokens:
            raise SystemExit(f"{done} tokens came back instead of {slots * tokens}.")
        return done

    began = time.perf_counter()
    run(answer)
    compiled = time.perf_counter() - began
    whole, first = (statistics.median(timed(lambda n=n: run(n), 1, 3)) for n in (answer, 1))
    return {
        "milliseconds": 1e3 * (whole - first) / (answer - 1),
        "prompt_tokens_per_second": slots * prompt / first,
        "seconds_to_first_result": round(compiled, 1),
    }


def full_rows(learner: Learner, model: ModelConfig, length: int, rows: int, prompt: int) -> Batch:
    """Rows of random ids of which the first `prompt` are the same in all, trained after those."""
    draw, sampled = np.random.default_rng(0), np.arange(length) >= prompt
    same = draw.integers(0, model.vocab_size, prompt)
    episodes = [
        Episode(
            "solver",
            "actor",
            str(row),
            (
                Datum(
                    np.concatenate([same, draw.integers(0, model.vocab_size, length - prompt)]),
                    sampled,
                    np.where(sampled, -8.0, 0).astype(np.float32),
                ),
            ),
            0.0,
            advantage=(-1.0) ** row,
        )
        for row in range(rows)
    ]
    return learner.pack(episodes, CARD)[0]


def update(
    model: ModelConfig,
    length: int,
    rows: int,
    remat: Any,
    rank: int,
    prompt: int = 0,
    repetitions: int = 5,
) -> dict[str, Any]:
    """Seconds of one optimiser step. prompt: tokens that all rows begin with."""
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    together = (prompt + rows * (length - prompt),) if prompt else ()
    section = LearnerSection(buckets=(length, *together), packing=prompt > 0, micro_batch_rows=rows, remat=remat)
    adapter = Adapter(rank, 2.0 * rank, ("all-linear",)) if rank else None
    dtypes: dict[str, Any] = {"param_dtype": jnp.float32, "compute_dtype": jnp.bfloat16}
    learner = Learner(model, mesh, OptimizerSection(), section, adapter=adapter, **dtypes)
    shapes = learner.abstract_state(reference=adapter is not None)
    state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes.replace(params=None, ref_params=None))
    state = state.replace(params=random_like(shapes.params), ref_params=random_like(shapes.ref_params))
    batch = full_rows(learner, model, length, rows, max(prompt, 1))
    scores = learner.score(state, batch, policy=False, reference=False)

    def step() -> Any:
        nonlocal state
        state, metrics = learner.step(state, batch, scores, CARD)
        return state, metrics

    began = time.perf_counter()
    jax.block_until_ready(step())
    compiled = time.perf_counter() - began
    seconds = timed(step, 1, repetitions)
    return {
        "seconds": statistics.median(seconds),
        "best_seconds": min(seconds),
        "tokens_per_second": rows * length / statistics.median(seconds),
        "tokens_computed": int(batch.micro_batches) * batch.ids_MBT[0].size,
        "seconds_to_compile": round(compiled, 1),
    }


def read_once(x_NM: jax.Array, y_N: jax.Array) -> jax.Array:
    """A float32 number of each row of a bfloat16 matrix. It depends on y, so that no pass can be left out."""
    return jnp.sum(jnp.abs(x_NM - y_N.astype(x_NM.dtype)[:, None]), axis=1, dtype=jnp.float32) / x_NM.shape[1]


def read_often(x_NM: jax.Array) -> jax.Array:
    """PASSES over the matrix, which is only read, as decoding reads weights and keys."""
    return lax.fori_loop(0, PASSES, lambda _, y_N: read_once(x_NM, y_N), jnp.zeros(len(x_NM), jnp.float32))


def bytes_of_read_often(rows: int, columns: int) -> int:
    """Bytes that it moves: the matrix, and the numbers of its rows read and written, in each pass."""
    return PASSES * (2 * rows * columns + 2 * 4 * rows)


def rates() -> dict[str, float]:
    """What the device reaches in the simplest programs; the fastest of several runs."""
    found = {}
    for size in (4096, 8192):
        a, b = (_random((size, size), jnp.bfloat16, jnp.uint32(seed)) for seed in (1, 2))
        product = jax.jit(lambda a, b: lax.fori_loop(0, 20, lambda _, x: (x @ b) * 0.1, a))
        found[f"flops_{size}"] = 20 * 2 * size**3 / min(timed(lambda f=product, a=a, b=b: f(a, b), 2, 5))
    rows, columns = 2**13, 2**17  # 2 GiB: far more than any cache holds
    read = jax.jit(read_often)
    matrix = _random((rows, columns), jnp.bfloat16, jnp.uint32(3))
    found["bytes_read"] = bytes_of_read_often(rows, columns) / min(timed(lambda: read(matrix), 2, 20))
    matrix.delete()
    x = jnp.ones(2**30, jnp.bfloat16)
    add = jax.jit(lambda x: lax.fori_loop(0, 10, lambda _, y: y + jnp.bfloat16(1), x))
    found["bytes"] = 10 * 2 * x.nbytes / min(timed(lambda: add(x), 2, 5))
    tiny = jax.jit(lambda x: lax.fori_loop(0, 1000, lambda _, y: jnp.sin(jnp.sum(y) + y), x))
    found["tiny_operation"] = min(timed(lambda: tiny(jnp.ones(128)), 2, 5)) / 1000
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", choices=("rates", "decode", "sample", "update"))
    options.add_argument("--model", default="Qwen3-8B")
    options.add_argument("--layers", type=int)
    options.add_argument("--slots", type=int, default=64)
    options.add_argument(
        "--length", type=int, default=640, help="tokens of a row; of decoding, mean length in the cache"
    )
    options.add_argument("--rows", type=int, default=1)
    options.add_argument("--remat", choices=("full", "qkv", "dots", "none"), default="full")
    options.add_argument(
        "--prompt", type=int, default=0, help="tokens that the rows of an update begin with, the same in all"
    )
    options.add_argument("--rank", type=int, default=0, help="of adapters on all linear layers; 0: all weights")
    given = options.parse_args()
    os.environ.setdefault("XLA_CLIENT_MEM_FRACTION", MEMORY)  # as a run has it
    if given.what == "rates":
        found = rates()
    else:
        model = model_of(given.model, given.layers)
        sizes = {
            "decode": lambda: decode(model, given.slots, given.length),
            "sample": lambda: sample(model, given.slots, given.length),
            "update": lambda: update(model, given.length, given.rows, given.remat, given.rank, given.prompt),
        }
        found = sizes[given.what]()
    device = jax.devices()[0]
    peak = (device.memory_stats() or {}).get("peak_bytes_in_use")
    facts = {"device": device.device_kind, "jax": jax.__version__, "peak_gib": None if peak is None else peak / 2**30}
    print(json.dumps({"benchmark": "device", **vars(given), **found, **facts}))


if __name__ == "__main__":
    main()
