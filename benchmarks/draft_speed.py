"""Tokens per second with and without drafts (`rollout.draft_tokens`) on this machine, by how often drafts are right.

    python -m benchmarks.draft_speed [--drafted 4] [--repetitions 5]

The model is that of `benchmarks.peers`: 4 layers of width 256, two query heads for each of two kv heads, float32. Of an
engine of 1, 4 or 16 slots a few are under way, as at the end of a step, each with a prompt of 64 tokens and a reply of
128; a dispatch without drafts has 16 tokens. What will be sampled is known from the run before, so that a drafted token
is right with a given chance, drawn anew for each. Engines: pages of slots, which is a CPU's default without drafts;
pages that slots share without drafts; and with them, where nothing is drafted, or tokens with these chances. All of the
shared pages sample the same tokens. Prints figures of the fastest run, one JSON line for each number of slots.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from benchmarks.peers import cases, ours
from scope_jax.models.decoder.columns import Columns
from scope_jax.rollouts.drafter import Drafter
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.episodes import ActiveEpisode
from scope_jax.rollouts.local import LocalRollouts
from scope_jax.rollouts.slots import EngineConfig
from scope_jax.rollouts.types import Completion, Request, SamplingParams

PROMPT, REPLY = 64, 128
CASES = ((1, 1), (4, 1), (16, 1), (16, 4))  # slots, and those of them that are under way
CHANCES = (0.0, 0.5, 0.8, 1.0)


class Chances(Drafter):
    """Drafts what follows in known completions, each token wrong with some chance."""

    def __init__(self, completions: Sequence[Completion], chance: float) -> None:
        super().__init__(shares=False)
        self._known = [np.concatenate([said.prompt_ids, said.ids_T]) for said in completions]
        self._chance, self._rng = chance, np.random.default_rng(0)

    def draft(self, row: ActiveEpisode, most: int) -> list[int]:
        ids = self._known[row.index][row.length : row.length + most]
        wrong = self._rng.random(len(ids)) >= self._chance
        return ((ids + wrong) % cases.VOCABULARY).tolist()


def rollouts_of(slots: int, drafted: int, columns: bool) -> LocalRollouts:
    length = PROMPT + REPLY + 1
    config = EngineConfig(slots, length, 16, jnp.float32, prefill_tokens=128, draft_tokens=drafted)
    model = replace(ours.MODEL, max_positions=max(length, ours.MODEL.max_positions))
    engine = Engine(model, config, ours.one_device(), Columns(length) if columns else None)
    rollouts = LocalRollouts(engine, cases.Numbers(), seed=0, threads=1, ahead=False)
    rollouts.load_params(ours.random_params())
    return rollouts


def timed(rollouts: LocalRollouts, asked: Sequence[Request]) -> dict[str, Any]:
    """Seconds of a run, its dispatches and completions."""
    rollouts.clear()
    began = time.perf_counter()
    said = rollouts.run(asked)
    return {"seconds": time.perf_counter() - began, "dispatches": rollouts.progress[1], "said": said}


def measured(slots: int, live: int, drafted: int, repetitions: int) -> dict[str, Any]:
    prompts = np.random.default_rng(0).integers(0, cases.VOCABULARY, (live, PROMPT))
    how = SamplingParams(1.0, 0, 1.0, REPLY, (), (), False)
    asked = [Request(prompts[i], how, np.array([i, 7], np.uint32), None, 1, None) for i in range(live)]
    ways = {
        "pages of slots": (rollouts_of(slots, 0, True), None),
        "shared pages": (rollouts_of(slots, 0, False), None),
    }
    on = rollouts_of(slots, drafted, False)
    on.drafter = None
    known = timed(on, asked)["said"]
    ways["nothing drafted"] = on, None
    ways |= {f"right {chance:.0%}": (on, chance) for chance in CHANCES}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    tokens = {}
    for repetition in range(repetitions + 1):  # the first compiles
        for name, (rollouts, chance) in ways.items():
            if rollouts is on:
                rollouts.drafter = None if chance is None else Chances(known, chance)
            one = timed(rollouts, asked)
            if repetition:
                runs[name].append(one)
            if name != "pages of slots":
                tokens[name] = [each.ids_T.tolist() for each in one["said"]]
    if any(each != tokens["nothing drafted"] for each in tokens.values()):
        raise SystemExit("the ways sampled different tokens, so their times cannot be compared.")

    def figures(own: list[dict[str, Any]]) -> dict[str, float]:
        seconds, dispatches = min(one["seconds"] for one in own), own[0]["dispatches"]
        return {
            "tokens per second": round(live * REPLY / seconds),
            "milliseconds per dispatch": round(1e3 * seconds / dispatches, 2),
            "tokens of a row and dispatch": round(REPLY / dispatches, 2),
        }

    return {name: figures(own) for name, own in runs.items()}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--drafted", type=int, default=4, help="rollout.draft_tokens")
    options.add_argument("--repetitions", type=int, default=5)
    given = options.parse_args()
    for slots, live in CASES:
        found = measured(slots, live, given.drafted, given.repetitions)
        print(json.dumps({"slots": slots, "under way": live, "drafted": given.drafted} | found), flush=True)


if __name__ == "__main__":
    sys.exit(main())
