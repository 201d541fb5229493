"""Groups that attend together to their prompt (`rollout.cascade`) against slots that attend alone, on this machine.

    python benchmarks/cascade.py [--groups 8] [--samples 8] [--prompts 64 256 1024] [--repetitions 7]

The model is that of `benchmarks.peers`: 4 layers of width 256, two query heads for each of two kv heads, float32. Both
engines sample 64 tokens for every member of every group, prompts included, in turn; a repetition during which
others used more than 5 % of the cores is repeated. Reports the median of tokens per second, and of the ratio of a
repetition's times; both engines must sample the same tokens. Prints one JSON line for each length of the prompt.

On two quiet cores (AMD EPYC with AVX2), 64 slots, 5 repetitions, tokens per second alone and together:

    tokens of a prompt   4 groups of 16         8 groups of 8          16 groups of 4
    64                   4,890, 4,767 (0.99)    4,593, 4,808 (1.03)    5,007, 5,387 (1.08)
    256                  3,384, 4,476 (1.32)    3,589, 4,521 (1.26)    3,707, 4,485 (1.20)
    1,024                1,636, 3,020 (1.83)    1,583, 2,709 (1.84)    1,538, 2,210 (1.52)
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax.numpy as jnp
import numpy as np

from benchmarks.peers import cases, ours
from benchmarks.peers.machine import LIMIT, cores, others_share, usage
from scope_jax.models.decoder.paging import PAGE
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.local import LocalRollouts
from scope_jax.rollouts.slots import EngineConfig
from scope_jax.rollouts.types import Completion, Request, SamplingParams

ANSWER = 64  # sampled tokens


def sampler(prompt: int, groups: int, samples: int, cascade: int) -> Callable[[], list[Completion]]:
    """All completions of all groups. prompt: tokens of one in the cache."""
    length = prompt + 1 + ANSWER
    model = replace(ours.MODEL, max_positions=max(length, ours.MODEL.max_positions))
    config = EngineConfig(groups * samples, length, 16, jnp.float32, prefill_tokens=512, cascade=cascade)
    engine = Engine(model, config, ours.one_device())
    rollouts = LocalRollouts(engine, cases.Numbers(), seed=0, threads=1, ahead=False)
    rollouts.load_params(ours.random_params())
    prompts = np.random.default_rng(0).integers(0, cases.VOCABULARY, (groups, prompt + 1))
    how = SamplingParams(1.0, 0, 1.0, ANSWER, (), (), False)
    asked = [
        Request(prompts[i // samples], how, np.array([i, 7], np.uint32), str(i // samples), 1, None)
        for i in range(groups * samples)
    ]
    return lambda: rollouts.run(asked)


def measured(prompt: int, groups: int, samples: int, repetitions: int) -> dict[str, object]:
    runs = {"alone": sampler(prompt, groups, samples, 0), "together": sampler(prompt, groups, samples, samples)}
    tokens = {name: [completion.ids_T.tolist() for completion in run()] for name, run in runs.items()}
    if tokens["alone"] != tokens["together"]:
        raise SystemExit("the engines sampled different tokens, so their times cannot be compared.")
    seconds: list[dict[str, float]] = []
    rejected = 0
    while len(seconds) < repetitions:
        taken, busy = {}, 0.0
        for name, run in runs.items():
            before = usage(os.getpid())
            run()
            after = usage(os.getpid())
            taken[name], busy = after.clock - before.clock, max(busy, others_share(before, after, cores()))
        if busy <= LIMIT:
            seconds.append(taken)
        else:
            rejected += 1
            if rejected > 10 * repetitions:
                raise SystemExit(f"others used {busy:.0%} of the cores; run this on a quiet machine.")
    rates = {name: round(groups * samples * ANSWER / statistics.median(s[name] for s in seconds)) for name in runs}
    ratio = statistics.median(s["alone"] / s["together"] for s in seconds)
    return {**rates, "ratio": round(ratio, 2), "rejected": rejected}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--groups", type=int, default=8)
    options.add_argument("--samples", type=int, default=8, help="of a group, and slots that attend together")
    options.add_argument("--prompts", type=int, nargs="+", default=[PAGE, 4 * PAGE, 16 * PAGE], help="tokens")
    options.add_argument("--repetitions", type=int, default=7)
    given = options.parse_args()
    for prompt in given.prompts:
        shape = {"groups": given.groups, "samples": given.samples, "prompt": prompt}
        found = measured(prompt, given.groups, given.samples, given.repetitions)
        print(json.dumps({"benchmark": "cascade", **shape, **found}), flush=True)


if __name__ == "__main__":
    main()
