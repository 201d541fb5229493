"""One update on a mesh equals the same update on one device, in a subprocess with 8 fake devices."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def facts():
    command = [sys.executable, str(Path(__file__).with_name("eight_devices.py"))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "mesh", ["fsdp4_tensor2", "data2_fsdp2_tensor2", "fsdp2x2_tensor2", "fsdp2_tensor4", "sequence", "idle"]
)
def test_an_update_equals_that_of_one_device(facts, mesh):
    """Gradient, weights after two clipped steps, every metric; the single device uses other micro-batches, too.

    "idle": episodes, and a whole mini-batch, that count in the divisor only.
    "fsdp2_tensor4": each of two kv heads is shared by two devices.
    "sequence": ratios and weights of whole sequences whose rows are on different devices.
    """
    assert facts[mesh]["grads"] < 1e-5
    assert facts[mesh]["params"] < 1e-5
    assert facts[mesh]["metrics"] < 1e-4


def test_a_mini_batch_without_a_term_takes_its_step(facts):
    assert facts["idle"]["idle"] == [4, 0, 8]
    first, second, third = facts["idle"]["grad_norm"]
    assert first > 0 and second > 0 and third == 0


def test_some_sequences_are_clipped_in_the_second_step(facts):
    assert 0 < facts["sequence"]["clipped"] < 1


def test_log_probs_of_a_vocabulary_in_shares_and_blocks(facts):
    """Log-probs, entropies, gradients of hidden states and table, relative to the largest of each."""
    assert len(facts["split_vocabulary"]) == 4
    assert max(facts["split_vocabulary"]) < 3e-6


def test_weights_are_really_sharded(facts):
    assert [facts[mesh]["share"] for mesh in ("fsdp4_tensor2", "data2_fsdp2_tensor2", "fsdp2x2_tensor2")] == [
        1 / 8,
        1 / 4,
        1 / 8,
    ]


def test_bfloat16_compute_is_near(facts):
    for ours, exact in facts["bfloat16"].values():
        assert ours == pytest.approx(exact, rel=0.1)
