"""One complete GRPO step of the learner, against the machine's matmul peak and against the same step in torch.

    python benchmarks/learner.py [--case update_old|shared_512|shared_2048] [--repetitions 7] [--rows 16] [--no-torch]

The model has 4 layers, width 256 and 4,096 words; a batch is 16 prompts of 64 tokens with 128 sampled tokens each,
float32. A step is: old and reference log-probs of the sampled tokens (two forward passes), then forward, backward,
clipping and AdamW. The cases shared_512 and shared_2048 are 8 answers of 64 tokens to one prompt of 512, and of 128 to
one of 2,048, with log-probs of the reference only; there ours is measured with the prompt once in a row, and as "apart"
with a row for each answer. Torch does the same work with transformers' Qwen3ForCausalLM on all threads, logits of the
sampled positions only.

Repetitions are interleaved (matmul, ours, apart, torch), so that noise of the machine affects all alike; times are
medians, ratios are medians of the ratios within one repetition. FLOPs counted are those of matmuls (2 · m · n · k):
`executed` is what the program computes (recomputation and the masked half of attention included), `useful` what the
algorithm needs (one forward, twice that for backward, the causal half of attention). Prints one JSON line.
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

from benchmarks.peers import cases, ours
from scope_jax.config import LearnerSection
from scope_jax.learner.batching import Batch

CASES = ("update_old", *cases.SHARED)


def flops(case: str, batch: Batch, remat: str) -> tuple[float, float]:
    """(executed, useful) of one step: scoring passes and one update. Executed: of the real micro-batches, with half of
    attention's products in rows of more than one block."""
    micro, rows, length = int(batch.micro_batches), *batch.ids_MBT.shape[1:]
    scoring = 2 if case == "update_old" else 1
    share = 0.5 + 0.5 * min(1.0, 128 / length)  # blocks of 128 queries over the keys before their end
    layers, head = cases.forward_flops(micro * rows * length, micro * batch.index_MN.shape[1], length, share)
    executed = scoring * (layers + head) + (4 if remat == "full" else 3) * layers + 4 * head
    return executed, cases.useful_flops(case)


def our_step(case: str, rows: int, section: LearnerSection) -> tuple[Callable[[], Any], Batch, LearnerSection]:
    """A function that runs one step, the batch it runs on, and the section with numbers."""
    learner = ours.learner_for(section)
    (batch,) = learner.pack(ours.episodes(case, rows), ours.CARD)
    state = learner.init_state(ours.random_params())

    def run() -> None:
        nonlocal state
        scores = learner.score(state, batch, policy=case == "update_old")
        state, metrics = learner.step(state, batch, scores, ours.CARD)
        jax.block_until_ready((state, metrics))

    return run, batch, learner.section


def torch_step(case: str, rows: int, threads: int) -> Callable[[], Any]:
    """The same step in torch; imports it."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from benchmarks.peers.plain_torch import Trainer

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    trainer = Trainer(
        *(Qwen3ForCausalLM(Qwen3Config(**cases.CONFIG)) for _ in range(2))
    )  # scaled_dot_product_attention
    ids_BT, advantages_B = cases.rows(case, rows)
    ids, advantage = torch.from_numpy(ids_BT).long(), torch.tensor(advantages_B, dtype=torch.float32)[:, None]
    return lambda: trainer.update(ids, advantage, old=case == "update_old", prompt=cases.lengths(case)[0])


def seconds(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(args: argparse.Namespace) -> dict[str, Any]:
    threads = os.cpu_count() or 1
    changes = {"micro_batch_rows": args.micro, "remat": args.remat, "logprob_chunk": args.chunk}
    section = ours.section(args.case).model_copy(update=changes)
    mine, batch, section = our_step(args.case, args.rows, section)
    runs: dict[str, Callable[[], Any]] = {"matmul": ours.matmul(), "ours": mine}
    if args.case in cases.SHARED:
        runs["apart"] = our_step(args.case, args.rows, section.model_copy(update={"share_prefixes": "never"}))[0]
    if not args.no_torch:
        runs["torch"] = torch_step(args.case, args.rows, threads)
    for run in runs.values():  # warm-up: compilation, allocation
        run()
        run()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(args.repetitions):
        for name, run in runs.items():
            times[name].append(seconds(run))
    executed, useful = flops(args.case, batch, section.remat)
    median = {name: statistics.median(values) for name, values in times.items()}
    peak = 10 * cases.MATMUL_FLOPS / min(times["matmul"])
    step = min(times["ours"])
    tokens = int(batch.row_tokens + batch.shared_tokens)
    result = {
        "benchmark": "learner",
        "case": args.case,
        "device": jax.devices()[0].device_kind,
        "threads": threads,
        "rows": batch.ids_MBT.shape[1] * int(batch.micro_batches),
        "tokens": tokens,
        "computed_tokens": int(batch.row_tokens),
        "settings": {name: getattr(section, name) for name in ("micro_batch_rows", "remat", "logprob_chunk")},
        "matmul_peak_gflops": round(peak / 1e9, 1),
        "step_seconds_median": round(median["ours"], 4),
        "step_seconds_best": round(step, 4),
        "tokens_per_second": round(tokens / median["ours"]),
        "executed_gflop": round(executed / 1e9, 1),
        "useful_gflop": round(useful / 1e9, 1),
        "executed_of_peak": round(executed / step / peak, 3),
        "useful_of_peak": round(useful / step / peak, 3),
    }
    for name in ("apart", "torch"):
        if name in times:
            ratios = [b / a for a, b in zip(times["ours"], times[name], strict=True)]
            result[f"{name}_step_seconds_median"] = round(median[name], 4)
            result[f"{name}_step_seconds_best"] = round(min(times[name]), 4)
            result[f"times_{name}"] = round(statistics.median(ratios), 3)
            result[f"times_{name}_best"] = round(min(times[name]) / step, 3)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, default="update_old")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--rows", type=int, default=16, help="of update_old: episodes of 64 + 128 tokens in a step")
    parser.add_argument(
        "--micro",
        type=lambda text: text if text == "auto" else int(text),
        default=0,
        help="micro_batch_rows; 0: all rows at once; auto: as many as fit the cache",
    )
    parser.add_argument(
        "--chunk", type=int, default=512, help="logprob_chunk; a card's default is 128, the baseline has 512"
    )
    parser.add_argument("--remat", choices=("auto", "full", "none"), default="full")
    parser.add_argument("--no-torch", action="store_true")
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
