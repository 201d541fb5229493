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
from pathlib import Path
from typing import Any

# Python puts the script's folder first on sys.path, where files are named like our packages, which are one folder up.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


from benchmarks.peers import cases, ours
from benchmarks.peers.worker import Work


def theirs(case: str) -> Work | None:
    """The same case with transformers' generate on all threads; None if torch is not installed."""
    try:
        import torch
        from transformers import Qwen3Config, Qwen3ForCausalLM
    except ImportError:
        return None
    from benchmarks.peers import plain_torch

    torch.set_num_threads(os.cpu_count() or 1)
    torch.manual_seed(0)
    return plain_torch.generate(case, Qwen3ForCausalLM(Qwen3Config(**cases.CONFIG)), "dynamic")


def seconds(work: Work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(case: str, repetitions: int, with_torch: bool) -> dict[str, float]:
    """Tokens per second, share of the matmul peak, and the ratio to generate (omitted without torch)."""
    tokens, flops = cases.tokens(case), cases.useful_flops(case)
    mine, other = ours.generate(case, ours.random_params()), theirs(case) if with_torch else None
    works = [work for work in (ours.matmul(), mine, other) if work is not None]
    for work in works:
        if work() != tokens and work is not works[0]:
            raise RuntimeError("The engine did not sample as many tokens as were asked for.")
    times = [[seconds(work) for work in works] for _ in range(repetitions)]
    shares = [(flops / row[1]) / (10 * cases.MATMUL_FLOPS / row[0]) for row in times]
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
    peak = ours.matmul()
    rate = peak() * cases.MATMUL_FLOPS / statistics.median(seconds(peak) for _ in range(5))
    results: dict[str, Any] = {"benchmark": "rollout", "matmul_peak_gflops": round(rate / 1e9, 1)}
    results |= {"load_before": round(os.getloadavg()[0], 1), "cpus": os.cpu_count()}
    for case in cases.GENERATION:
        results |= measure(case, given.repetitions, not given.no_torch)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
