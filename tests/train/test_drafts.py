"""A run whose engine verifies drafts: the episodes of one without, resumed exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scope_jax.run.files import read_records
from tests.train import runs

CARD = "ssp/atlas.toml"
SETS = (
    *("train.batch_size=4", "rollout.slots=8", "ssp.solver.samples=2", "train.save_every=1", "train.keep=9"),
    *("train.steps=2", "evaluate.every=1"),
    'evaluate.sets=[{name="held_out", path="assets/atlas/questions_held_out.jsonl", limit=8}]',
)
DRAFTS = "rollout.draft_tokens=4"


def measured(run: Path) -> list[dict[str, Any]]:
    return [line for line in read_records(run / "metrics.jsonl") if "time/play" in line]


@pytest.mark.slow
def test_the_episodes_are_those_without_drafts_and_a_run_is_resumed(tmp_path: Path) -> None:
    plain, drafted, resumed = (tmp_path / name for name in ("plain", "drafted", "resumed"))
    runs.finish(runs.command(CARD, plain, [*SETS, 'rollout.attention="loop"']))
    runs.finish(runs.command(CARD, drafted, [*SETS, DRAFTS]))
    texts = [
        [line["text"] for line in runs.lines(run, "episodes.jsonl") if line["step"] == 1] for run in (plain, drafted)
    ]
    assert texts[0] == texts[1] and len(texts[0]) > 8
    assert not any("draft" in name for line in measured(plain) for name in line)
    steps = measured(drafted)
    assert len(steps) == 2
    for step in steps:
        assert step["perf/drafted_tokens"] >= step["perf/accepted_tokens"] > 0 and step["perf/tokens_per_draft"] > 1
    runs.kill_when(runs.command(CARD, resumed, [*SETS, DRAFTS]), lambda: 1 in runs.saved(resumed))
    runs.finish(runs.command(CARD, resumed, [*SETS, DRAFTS]))
    runs.same(drafted, resumed)
