"""One complete GRPO step of the learner, against the machine's matmul peak and against the same step in torch.

    python benchmarks/learner.py [--repetitions 7] [--rows 16] [--no-torch]

The model has 4 layers, width 256 and 4,096 words; a batch is 16 prompts of 64 tokens with 128 sampled tokens each,
float32. A step is: old and reference log-probs of the sampled tokens (two forward passes), then forward, backward,
clipping and AdamW. Torch does the same work with transformers' Qwen3ForCausalLM on all threads, logits of the sampled
positions only.

Repetitions are interleaved (matmul, ours, torch), so that noise of the machine affects all alike; times are medians,
ratios are medians of the ratios within one repetition. FLOPs counted are those of matmuls (2 · m · n · k): `executed`
is what the program computes (recomputation and the masked half of attention included), `useful` what the algorithm
needs (one forward, twice that for backward, the causal half of attention). Prints one JSON line.
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
from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.learner.batching import Batch
from scope_jax.learner.learner import Learner
from scope_jax.learner.types import Datum, Episode
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
PROMPT, ANSWER, MATMUL = 64, 128, 1536
CARD = LossCard(kl="k3", kl_coef=0.01, aggregation="sequence-mean", clip_high=0.285)
OPTIMIZER = OptimizerSection(learning_rate=1e-6, warmup_steps=1)


def episodes(rows: int) -> list[Episode]:
    """Random prompts and answers with behaviour log-probs close to those of a uniform model."""
    rng = np.random.default_rng(0)
    sampled_T = np.arange(PROMPT + ANSWER) >= PROMPT
    made = []
    for row in range(rows):
        ids_T = rng.integers(0, MODEL.vocab_size, PROMPT + ANSWER).astype(np.int32)
        logprobs_T = np.where(sampled_T, -8.3, 0).astype(np.float32)
        datum = Datum(ids_T, sampled_T, logprobs_T)
        made.append(Episode("solver", "actor", str(row // 4), (datum,), 0.0, advantage=float(rng.normal())))
    return made


def forward_flops(tokens: int, trained: int, length: int, attention: float) -> tuple[float, float]:
    """(layers, head) of one forward pass; attention: share of the [T, T] products that counts."""
    heads, kv = MODEL.num_heads * MODEL.head_dim, MODEL.num_kv_heads * MODEL.head_dim
    weights = MODEL.width * (2 * heads + 2 * kv + 3 * MODEL.ffn_width)
    layers = MODEL.num_layers * tokens * (2 * weights + 4 * length * heads * attention)
    return layers, 2.0 * trained * MODEL.width * MODEL.vocab_size


def flops(batch: Batch, remat: str) -> tuple[float, float]:
    """(executed, useful) of one step: two scoring passes and one update."""
    tokens, length = batch.ids_MBT.size, batch.ids_MBT.shape[2]
    layers, head = forward_flops(tokens, batch.index_MN.size, length, 1.0)
    executed = 2 * (layers + head) + (4 if remat == "full" else 3) * layers + 4 * head
    real = int((np.asarray(batch.segments_MBT) > 0).sum())
    layers, head = forward_flops(real, int(np.asarray(batch.mask_MN).sum()), length, 0.5)
    return executed, 5 * (layers + head)


def our_step(rows: int, section: LearnerSection) -> tuple[Callable[[], Any], Batch]:
    """A function that runs one step, and the batch it runs on."""
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    learner = Learner(MODEL, mesh, OPTIMIZER, section, param_dtype=jnp.float32, compute_dtype=jnp.float32)
    (batch,) = learner.pack(episodes(rows), CARD)
    state = learner.init_state(init_params(transformer.declare(MODEL), jax.random.key(0)))

    def run() -> None:
        nonlocal state
        scores = learner.score(state, batch)
        state, metrics = learner.step(state, batch, scores, CARD)
        jax.block_until_ready((state, metrics))

    return run, batch


def torch_step(rows: int, threads: int) -> Callable[[], Any]:
    """The same step in torch; imports it."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from models.config import to_hf

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, reference = (Qwen3ForCausalLM(Qwen3Config(**to_hf(MODEL))) for _ in range(2))  # scaled_dot_product_attention
    optimizer = torch.optim.AdamW(model.parameters(), 1e-6, weight_decay=0.01, fused=True)
    data = [episode.datums[0].ids_T for episode in episodes(rows)]
    ids = torch.tensor(np.stack(data), dtype=torch.long)
    advantage = torch.tensor([episode.advantage for episode in episodes(rows)])[:, None]

    def logprobs(policy: Any) -> Any:
        logits = policy(ids, use_cache=False, logits_to_keep=ANSWER + 1).logits[:, :-1]
        nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, PROMPT:].flatten(), reduction="none")
        return -nll.view(rows, ANSWER)

    def run() -> None:
        with torch.no_grad():
            old, ref = logprobs(model), logprobs(reference)
        logp = logprobs(model)
        ratio = torch.exp(logp - old)
        clipped = torch.clamp(ratio, 1 - CARD.clip_low, 1 + CARD.clip_high)
        policy = torch.maximum(-advantage * ratio, -advantage * clipped)
        kl = ratio * (torch.exp(ref - logp) - 1 + logp - ref)
        loss = (policy + CARD.kl_coef * kl).mean(1).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return run


def matmul_step() -> Callable[[], Any]:
    """A float32 matrix product of 2 · MATMUL³ FLOPs through XLA."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(MATMUL, MATMUL)), jnp.float32)
    product = jax.jit(lambda a, b: a @ b)
    return lambda: product(x, x).block_until_ready()


def seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(args: argparse.Namespace) -> dict[str, Any]:
    threads = os.cpu_count() or 1
    section = LearnerSection(
        buckets=(PROMPT + ANSWER,),
        packing=False,
        micro_batch_rows=args.micro,
        remat=args.remat,
        logprob_chunk=args.chunk,
    )
    ours, batch = our_step(args.rows, section)
    runs = {"matmul": matmul_step(), "ours": ours}
    if not args.no_torch:
        runs["torch"] = torch_step(args.rows, threads)
    for run in runs.values():  # warm-up: compilation, allocation
        run()
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(args.repetitions):
        for name, run in runs.items():
            times[name].append(min(seconds(run) for _ in range(3)) if name == "matmul" else seconds(run))
    executed, useful = flops(batch, args.remat)
    median = {name: statistics.median(values) for name, values in times.items()}
    peak = 2 * MATMUL**3 / min(times["matmul"])
    step = min(times["ours"])
    tokens = args.rows * (PROMPT + ANSWER)
    result = {
        "benchmark": "learner",
        "device": jax.devices()[0].device_kind,
        "threads": threads,
        "rows": args.rows,
        "tokens": tokens,
        "settings": {"micro_batch_rows": args.micro, "remat": args.remat, "logprob_chunk": args.chunk},
        "matmul_peak_gflops": round(peak / 1e9, 1),
        "step_seconds_median": round(median["ours"], 4),
        "step_seconds_best": round(step, 4),
        "tokens_per_second": round(tokens / median["ours"]),
        "executed_gflop": round(executed / 1e9, 1),
        "useful_gflop": round(useful / 1e9, 1),
        "executed_of_peak": round(executed / step / peak, 3),
        "useful_of_peak": round(useful / step / peak, 3),
    }
    if "torch" in times:
        ratios = [b / a for a, b in zip(times["ours"], times["torch"], strict=True)]
        result["torch_step_seconds_median"] = round(median["torch"], 4)
        result["torch_step_seconds_best"] = round(min(times["torch"]), 4)
        result["times_torch"] = round(statistics.median(ratios), 3)
        result["times_torch_best"] = round(min(times["torch"]) / step, 3)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--rows", type=int, default=16, help="episodes of 64 + 128 tokens in a step")
    parser.add_argument("--micro", type=int, default=0, help="micro_batch_rows; 0: all rows at once")
    parser.add_argument(
        "--chunk", type=int, default=512, help="logprob_chunk; a card's default is 128, the baseline has 512"
    )
    parser.add_argument("--remat", choices=("full", "none"), default="full")
    parser.add_argument("--no-torch", action="store_true")
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
