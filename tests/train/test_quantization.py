"""A run whose engine has matrices in 8 bits: episodes of the rounded model, exams of the whole one, resumed exactly."""

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
INT8 = 'rollout.quantization="int8"'


@pytest.mark.slow
@pytest.mark.parametrize("card", ["ssp/atlas.toml", "ssp/adapters/atlas.toml"])
def test_a_step_is_played_in_8_bits_and_exams_are_not(card: str, tmp_path: Path) -> None:
    whole, quantized, resumed = (tmp_path / name for name in ("whole", "quantized", "resumed"))
    runs.finish(runs.command(card, whole, SETS))
    runs.finish(runs.command(card, quantized, [*SETS, INT8]))
    before = [runs.lines(run, "metrics.jsonl")[0] for run in (whole, quantized)]
    assert before[0]["step"] == 0 and scores(before[0]) == scores(before[1])  # of the same weights, in the same way
    steps = [runs.lines(run, "metrics.jsonl")[1] for run in (whole, quantized)]
    near, far = (step["solver/mismatch_kl"] for step in steps)
    assert near < 1e-8 < 1e-6 < far < 0.05, (near, far)
    first = [[line for line in runs.lines(run, "episodes.jsonl") if line["step"] == 1] for run in (whole, quantized)]
    assert json.dumps(first[0]) != json.dumps(first[1])
    runs.kill_when(runs.command(card, resumed, [*SETS, INT8]), lambda: 1 in runs.saved(resumed))
    runs.finish(runs.command(card, resumed, [*SETS, INT8]))
    runs.same(quantized, resumed)


def scores(line: dict) -> dict:
    return {name: value for name, value in line.items() if name.startswith("eval/")}
