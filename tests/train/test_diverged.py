"""A run that diverges, or samples from numbers that are none, ends with one error and saves no such weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from tests.train.runs import ROOT, command, end, saved, start

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


@pytest.mark.slow
def test_a_run_whose_logits_overflow_ends_with_the_step_the_policy_and_the_program(tmp_path: Path) -> None:
    """The weights themselves are finite, so nothing is refused before the first step."""
    run, base = tmp_path / "run", tmp_path / "base"
    shutil.copytree(ROOT / "assets/atlas/ssp/base", base)
    tensors = load_file(base / "model.safetensors")
    tensors["model.norm.weight"][:] = 1e38
    save_file(tensors, base / "model.safetensors", {"format": "pt"})
    output = end(start(command("ssp/atlas.toml", run, (*SMALL, "train.steps=2", f"model.checkpoint={base}"))), code=2)
    sentences = [line for line in output.splitlines() if line.startswith("scope-jax: ")]
    assert len(sentences) == 1 and "Traceback" not in output
    assert "step 1, role 'proposer', policy 'actor': the decode program gave no finite logits" in sentences[0]
    assert saved(run) == []
