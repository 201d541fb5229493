"""A run that diverges ends with one error and saves no diverged weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train.runs import command, end, saved, start

SMALL = (
    "train.batch_size=4",
    "ssp.solver.samples=2",
    "rollout.slots=8",
    "evaluate.sets=[]",
    "learner.micro_batch_rows=4",
)


@pytest.mark.slow
def test_a_run_that_diverges_ends_with_an_error_and_saves_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    sets = (*SMALL, "train.steps=2", "train.save_every=1", "optimizer.learning_rate=1.0", "optimizer.warmup_steps=0")
    output = end(start(command("ssp/atlas.toml", run, sets)), code=2)
    sentences = [line for line in output.splitlines() if line.startswith("scope-jax: ")]
    assert len(sentences) == 1 and "Traceback" not in output
    assert "training has diverged: the root mean square of the weights is" in sentences[0]
    assert saved(run) == [] and not (run / "report").exists()
