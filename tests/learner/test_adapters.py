"""Adapters on a mesh: an update equals that of one device, the engine's log-probs the learner's, in a subprocess with 8
fake devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow  # seven models are compiled


@pytest.fixture(scope="module")
def facts():
    command = [sys.executable, "-m", "tests.learner.eight_adapters"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "mesh", ["fsdp4_tensor2", "data2_fsdp2_tensor2", "fsdp2x2_tensor2", "experts_fsdp4_tensor2", "sequence_tensor2"]
)
def test_an_update_equals_that_of_one_device(facts, mesh):
    """Gradient and factors after two clipped steps, relative to the largest of each; every metric."""
    assert facts[mesh]["grads"] < 1e-5
    assert facts[mesh]["params"] < 1e-5
    assert facts[mesh]["metrics"] < 1e-4


def test_factors_are_sharded_like_their_matrices(facts):
    assert [facts[mesh]["share"] for mesh in ("fsdp4_tensor2", "data2_fsdp2_tensor2")] == [1 / 4, 1 / 2]


def test_the_engine_on_a_mesh_agrees_with_the_learner(facts):
    """One policy and the base in one batch; tensor groups, and whole experts over all devices."""
    assert max(facts["engine"].values()) < 1e-4
