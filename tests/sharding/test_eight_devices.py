"""Sharded equals unsharded on 8 fake CPU devices, in a process of their own."""

import pytest

from tests.eight import on_eight_devices


def facts(name):
    return on_eight_devices("tests.sharding.eight_devices", name)


def slow(*names):
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("mesh", ["data2_fsdp2_tensor2", "fsdp2x2_tensor2", *slow("fsdp4_tensor2", "fsdp4x2")])
def test_forward_and_gradients_equal_one_device(mesh):
    assert facts(mesh)["smallest_gradient"] > 1e-2  # the loss depends on every weight
    assert facts(mesh)["hidden"] < 1e-5
    assert facts(mesh)["loss"] < 1e-5
    assert facts(mesh)["grads"] < 1e-5


@pytest.mark.parametrize("family", slow("experts", "post_norm", "gemma", "gemma_e"))
def test_other_families_equal_one_device(family):
    found = facts(family)
    assert found["smallest_gradient"] > 1e-2
    assert found["loss"] < 2e-6
    assert found["hidden"] < 2e-6
    assert found["all_grads"] < 2e-6
    assert found["grads"] < 1e-5  # relative to each weight's largest


def test_psum_and_enter_count_every_cotangent_once():
    # (1 + 2 + 3 + 4) · 2 = 20; d/dx = 20 · 10, d/dw_t = 20 · 2
    assert facts("pair") == {"x": [200.0], "w": [40.0] * 4}


def test_staged_gather_keeps_row_order():
    assert facts("staged") is True


def test_gradients_of_bfloat16_weights_are_summed_in_float32():
    assert facts("gathered_gradient") == [1 + 7 / 256] * 8


@pytest.mark.parametrize("devices", ["6_to_2", "2_to_6", *slow("4_to_4", "1_to_2")])
def test_weights_are_sent_to_other_devices_and_not_through_the_host(devices):
    assert facts(devices) is True


def test_published_weights_under_decode_rules():
    assert facts("decode")["hidden"] < 1e-5
    assert facts("decode")["same_values"] and facts("decode")["placed"]
    assert facts("decode")["shared_buffers"] is False  # the source may be donated


def test_folders_are_read_into_shards():
    assert facts("loaded") == {"train": True, "decode": True}
    assert facts("expert_shards") == {"loaded": True, "saved": True}


def test_sizes_that_do_not_fit_are_named():
    assert "tensor=8" in facts("refusals")["heads"] and "num_heads=4" in facts("refusals")["heads"]
    assert "8 devices are not divisible by 3" in facts("refusals")["mesh"]
    assert "embed.table_VD" in facts("refusals")["rows"] and "vocab" in facts("refusals")["rows"]
