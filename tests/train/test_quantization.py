"""A run whose engine has matrices, or a cache, in 8 bits: episodes of the rounded model, exams of the whole one, and
resumed exactly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.train import runs

SETS = (
    *("train.batch_size=4", "rollout.slots=8", "ssp.solver.samples=2", "train.save_every=1", "train.keep=9"),
    *("ssp.solver.loss.rollout_cap=2.0", "ssp.proposer.loss.rollout_cap=2.0", "train.steps=2", "evaluate.every=1"),
    'evaluate.sets=[{name="held_out", path="assets/atlas/questions_held_out.jsonl", limit=8}]',
)
WEIGHTS, CACHE = 'rollout.quantization="int8"', 'rollout.kv_cache_dtype="int8"'


@pytest.mark.slow
@pytest.mark.parametrize(
    ("card", "narrow"),
    [("ssp/atlas.toml", WEIGHTS), ("ssp/adapters/atlas.toml", WEIGHTS), ("ssp/adapters/atlas.toml", CACHE)],
)
def test_a_step_is_played_in_8_bits_and_exams_are_not(card: str, narrow: str, tmp_path: Path) -> None:
    whole, quantized, resumed = (tmp_path / name for name in ("whole", "quantized", "resumed"))
    pages = ['rollout.attention="loop"'] if narrow == CACHE else []  # or exams differ by their pages
    runs.finish(runs.command(card, whole, [*SETS, *pages]))
    runs.finish(runs.command(card, quantized, [*SETS, narrow]))
    before = [runs.lines(run, "metrics.jsonl")[0] for run in (whole, quantized)]
    assert before[0]["step"] == 0 and scores(before[0]) == scores(before[1])  # of the same weights, in the same way
    steps = [runs.lines(run, "metrics.jsonl")[1] for run in (whole, quantized)]
    near, far = (step["solver/mismatch_kl"] for step in steps)
    assert near < 1e-8 < 1e-6 < far < 0.05, (near, far)
    if narrow == WEIGHTS:  # a rounded cache changes log-probs, and of this small model no token
        first = [
            [line for line in runs.lines(run, "episodes.jsonl") if line["step"] == 1] for run in (whole, quantized)
        ]
        assert json.dumps(first[0]) != json.dumps(first[1])
    runs.kill_when(runs.command(card, resumed, [*SETS, narrow]), lambda: 1 in runs.saved(resumed))
    runs.finish(runs.command(card, resumed, [*SETS, narrow]))
    runs.same(quantized, resumed)


def scores(line: dict) -> dict:
    return {name: value for name, value in line.items() if name.startswith("eval/")}
