"""One update on a mesh equals the same update on one device, in a process with 8 fake devices."""

import pytest

from tests.eight import on_eight_devices


def facts(name):
    return on_eight_devices("tests.learner.eight_devices", name)


def slow(*names):
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize(
    "mesh",
    ["sequence", *slow("fsdp4_tensor2", "data2_fsdp2_tensor2", "fsdp2x2_tensor2", "fsdp2_tensor4", "idle")],
)
def test_an_update_equals_that_of_one_device(mesh):
    """Gradient, weights after two clipped steps, every metric; the single device uses other micro-batches, too.

    "idle": episodes, and a whole mini-batch, that count in the divisor only.
    "fsdp2_tensor4": each of two kv heads is shared by two devices.
    "sequence": ratios and weights of whole sequences whose rows are on different devices.
    """
    assert facts(mesh)["grads"] < 1e-5
    assert facts(mesh)["params"] < 1e-5
    assert facts(mesh)["metrics"] < 1e-4


@pytest.mark.slow
def test_a_mini_batch_without_a_term_takes_its_step():
    assert facts("idle")["idle"] == [4, 0, 8]
    first, second, third = facts("idle")["grad_norm"]
    assert first > 0 and second > 0 and third == 0


def test_some_sequences_are_clipped_in_the_second_step():
    assert 0 < facts("sequence")["clipped"] < 1


def test_log_probs_of_a_vocabulary_in_shares_and_blocks():
    """Log-probs, entropies, gradients of hidden states and table, relative to the largest of each."""
    assert len(facts("split_vocabulary")) == 4
    assert max(facts("split_vocabulary")) < 3e-6


@pytest.mark.parametrize(
    ("mesh", "share"),
    [
        pytest.param("fsdp2x2_tensor2", 1 / 8, marks=pytest.mark.slow),
        ("sequence", 1 / 4),
        pytest.param("fsdp4_tensor2", 1 / 8, marks=pytest.mark.slow),
        pytest.param("data2_fsdp2_tensor2", 1 / 4, marks=pytest.mark.slow),
    ],
)
def test_weights_are_really_sharded(mesh, share):
    assert facts(mesh)["share"] == share


@pytest.mark.slow
def test_bfloat16_compute_is_near():
    for ours, exact in facts("bfloat16").values():
        assert ours == pytest.approx(exact, rel=0.1)
