"""Generation throughput of the engine against the machine's matmul peak and against transformers' `generate`.

    python benchmarks/rollout.py [--repetitions 5] [--no-torch]

The model has 4 layers, width 256 and 4,096 words, float32, temperature 1, no end token. Three cases:

    fixed    16 prompts of 64 tokens, 128 sampled tokens each
    ragged   64 such prompts through 16 slots, 16 to 128 sampled tokens, 48 on average: freed slots are refilled;
             generate takes batches of 16 in the given order, each running until its longest sample ends
    group    4 prompts, 16 samples of 128 tokens each: one prefill for the samples of a prompt

Repetitions are interleaved (matmul, ours, transformers), so that noise of the machine affects all alike; rates are
medians in sampled tokens per second, ratios are medians of the ratios within one repetition. Ours computes log-probs of
the sampled tokens, generate does not. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Python puts the script's folder first on sys.path, where files are named like our packages, which are one folder up.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import numpy as np

from models import transformer
from models.config import ModelConfig
from models.rope import Rope
from rollouts.engine import Engine
from rollouts.local import LocalRollouts
from rollouts.slots import EngineConfig
from rollouts.types import Request, SamplingParams
from sharding.mesh import MeshConfig, make_mesh
from sharding.spec import init_params

MODEL = ModelConfig(
    architecture="qwen3",
    vocab_size=4096,
    num_layers=4,
    width=256,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    ffn_width=768,
    rope=Rope(10000.0),
    norm_eps=1e-6,
    tie_embeddings=True,
    qk_norm="head",
    qkv_bias=False,
    output_bias=False,
    max_positions=1024,
)
PROMPT, ANSWER, ROWS, MATMUL = 64, 128, 16, 1536
CASES = ("fixed", "ragged", "group")
Work = Callable[[], Any]


class Numbers:
    """A codec for a model whose tokens are not text; no stop strings are used here."""

    eos_ids = ()

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: Any) -> str:
        return " ".join(str(int(id)) for id in ids)

    def token_bytes(self, id: int) -> bytes:
        return b""


def plan(case: str) -> tuple[np.ndarray, list[int], int]:
    """(prompts [P, 64], sampled tokens of each sample, samples of each prompt)."""
    rng = np.random.default_rng(0)
    count, samples = {"fixed": (16, 1), "ragged": (64, 1), "group": (4, 16)}[case]
    prompts_PT = rng.integers(0, MODEL.vocab_size, (count, PROMPT))
    if case != "ragged":
        return prompts_PT, [ANSWER] * (count * samples), samples
    shares = rng.beta(1.0, 2.5, count)  # many short ones, a few long ones
    lengths = np.clip(np.round(16 + shares / shares.mean() * 32), 16, ANSWER).astype(int)
    return prompts_PT, lengths.tolist(), samples


def ours(case: str) -> Work:
    """One run of the case on our engine, including prefill and all round trips to the host."""
    prompts_PT, lengths, samples = plan(case)
    slots = 64 if case == "group" else ROWS
    config = EngineConfig(
        slots=slots,
        max_length=PROMPT + ANSWER,
        prefill_buckets=(PROMPT,),
        prefill_batch=4 if case == "group" else ROWS,
        decode_steps=16,
        compute_dtype=jnp.float32,
    )
    engine = Engine(MODEL, config, make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1]))
    rollouts = LocalRollouts(engine, Numbers(), seed=0, threads=1, ahead=False)
    rollouts.load_params(init_params(transformer.declare(MODEL), jax.random.key(0)))
    requests = [
        Request(
            prompt_ids=prompts_PT[place // samples],
            params=SamplingParams(1.0, 0, 1.0, length, (), (), False),
            key=np.array([place, 7], np.uint32),
            group=str(place // samples),
            max_turns=1,
            respond=None,
        )
        for place, length in enumerate(lengths)
    ]

    def run() -> None:
        completions = rollouts.run(requests)
        if [len(completion.ids_T) for completion in completions] != lengths:
            raise RuntimeError("The engine did not sample as many tokens as were asked for.")

    return run


def theirs(case: str) -> Work | None:
    """The same case with transformers' generate on all threads; None if torch is not installed."""
    try:
        import torch
    except ImportError:
        return None
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.set_num_threads(os.cpu_count() or 1)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=MODEL.vocab_size,
        hidden_size=MODEL.width,
        intermediate_size=MODEL.ffn_width,
        num_hidden_layers=MODEL.num_layers,
        num_attention_heads=MODEL.num_heads,
        num_key_value_heads=MODEL.num_kv_heads,
        head_dim=MODEL.head_dim,
        tie_word_embeddings=True,
        eos_token_id=None,
        bos_token_id=None,
    )
    model: Any = Qwen3ForCausalLM(config).eval()
    prompts_PT, lengths, samples = plan(case)
    size = 64 if case == "group" else ROWS
    prompts = torch.from_numpy(np.repeat(prompts_PT, samples, axis=0))

    @torch.no_grad()
    def run() -> None:
        for first in range(0, len(prompts), size):
            part = prompts[first : first + size]
            longest = max(lengths[first : first + size])
            model.generate(
                part,
                attention_mask=torch.ones_like(part),
                max_new_tokens=longest,
                min_new_tokens=longest,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                pad_token_id=0,
            )

    return run


def seconds(work: Work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def matmul() -> Work:
    a = jax.random.normal(jax.random.key(0), (MATMUL, MATMUL))
    product = jax.jit(lambda x: x @ x)
    return lambda: jax.block_until_ready(product(a))


def measure(case: str, repetitions: int, with_torch: bool) -> dict[str, float]:
    """Tokens per second, share of the matmul peak, and the ratio to generate (omitted without torch)."""
    tokens = sum(plan(case)[1])
    peak, mine, other = matmul(), ours(case), theirs(case) if with_torch else None
    works = [work for work in (peak, mine, other) if work is not None]
    for work in works:
        work()
    times = [[seconds(work) for work in works] for _ in range(repetitions)]
    heads, kv = MODEL.num_heads * MODEL.head_dim, MODEL.num_kv_heads * MODEL.head_dim
    per_layer = MODEL.width * (2 * heads + 2 * kv + 3 * MODEL.ffn_width)
    flops = 2.0 * tokens * (MODEL.num_layers * per_layer + MODEL.width * MODEL.vocab_size)  # without attention, prefill
    shares = [(flops / row[1]) / (2.0 * MATMUL**3 / row[0]) for row in times]
    result = {
        f"{case}_tokens_per_second": round(statistics.median(tokens / row[1] for row in times), 1),
        f"{case}_share_of_peak": round(statistics.median(shares), 4),
    }
    if other is not None:
        result[f"{case}_generate_tokens_per_second"] = round(statistics.median(tokens / row[2] for row in times), 1)
        result[f"{case}_over_generate"] = round(statistics.median(row[2] / row[1] for row in times), 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure generation; prints one JSON line.")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--no-torch", action="store_true")
    given = parser.parse_args()
    peak = matmul()
    peak()
    rate = 2.0 * MATMUL**3 / statistics.median(seconds(peak) for _ in range(5))
    results: dict[str, Any] = {"benchmark": "rollout", "matmul_peak_gflops": round(rate / 1e9, 1)}
    results |= {"load_before": round(os.getloadavg()[0], 1), "cpus": os.cpu_count()}
    for case in CASES:
        results |= measure(case, given.repetitions, not given.no_torch)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
