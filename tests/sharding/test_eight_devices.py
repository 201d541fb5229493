"""Sharded equals unsharded on 8 fake CPU devices, in a subprocess so that every other test keeps its single device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def facts():
    return said()


def said(*words: str):
    command = [sys.executable, str(Path(__file__).with_name("eight_devices.py")), *words]
    done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("mesh", ["fsdp4_tensor2", "data2_fsdp2_tensor2", "fsdp4x2", "fsdp2x2_tensor2"])
def test_forward_and_gradients_equal_one_device(facts, mesh):
    assert facts["smallest_gradient"] > 1e-2  # the loss depends on every weight
    assert facts[mesh]["hidden"] < 1e-5
    assert facts[mesh]["loss"] < 1e-5
    assert facts[mesh]["grads"] < 1e-5


SLOW = ("gemma", "gemma_e")


@pytest.mark.parametrize(
    "family", ["post_norm", "experts", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_other_families_equal_one_device(request, family):
    facts = said(family) if family in SLOW else request.getfixturevalue("facts")
    assert facts[family]["smallest_gradient"] > 1e-2
    assert facts[family]["loss"] < 2e-6
    assert facts[family]["hidden"] < 2e-6
    assert facts[family]["all_grads"] < 2e-6
    assert facts[family]["grads"] < 1e-5  # relative to each weight's largest


def test_psum_and_enter_count_every_cotangent_once(facts):
    # (1 + 2 + 3 + 4) · 2 = 20; d/dx = 20 · 10, d/dw_t = 20 · 2
    assert facts["pair"] == {"x": [200.0], "w": [40.0] * 4}


def test_staged_gather_keeps_row_order(facts):
    assert facts["staged"] is True


def test_gradients_of_bfloat16_weights_are_summed_in_float32(facts):
    assert facts["gathered_gradient"] == [1 + 7 / 256] * 8


@pytest.mark.parametrize("devices", ["4_to_4", "6_to_2", "2_to_6", "1_to_2"])
def test_weights_are_sent_to_other_devices_and_not_through_the_host(facts, devices):
    assert facts["sent"][devices] is True


def test_published_weights_under_decode_rules(facts):
    assert facts["decode"]["hidden"] < 1e-5
    assert facts["decode"]["same_values"] and facts["decode"]["placed"]
    assert facts["decode"]["shared_buffers"] is False  # the source may be donated


def test_folders_are_read_into_shards(facts):
    assert facts["loaded"] == {"train": True, "decode": True}
    assert facts["expert_shards"] == {"loaded": True, "saved": True}


def test_sizes_that_do_not_fit_are_named(facts):
    assert "tensor=8" in facts["refusals"]["heads"] and "num_heads=4" in facts["refusals"]["heads"]
    assert "8 devices are not divisible by 3" in facts["refusals"]["mesh"]
    assert "embed.table_VD" in facts["refusals"]["rows"] and "vocab" in facts["refusals"]["rows"]
