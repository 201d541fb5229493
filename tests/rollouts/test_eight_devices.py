"""Slots over data and fsdp, heads over tensor: the same tokens as on one device, without moving the cache."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.rollouts.world import ENGINE

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def facts():
    command = [sys.executable, str(Path(__file__).with_name("eight_devices.py"))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("mesh", ["data2_fsdp2_tensor2", "data2_tensor4"])
def test_greedy_episodes_equal_one_device(facts, mesh):
    one, mesh = facts["one"], facts[mesh]
    assert mesh["ids"] == one["ids"]
    assert mesh["turns"] == one["turns"] and max(one["turns"]) > 1
    for ours, theirs in zip(mesh["logprobs"], one["logprobs"], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=0)


def test_entropies_equal_one_device(facts):
    one, mesh = (facts[name]["paged"]["entropies"] for name in ("one", "data2_fsdp2_tensor2"))
    assert len(one) == len(facts["one"]["ids"])
    for ours, theirs in zip(mesh, one, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("mesh", ["one", "data2_fsdp2_tensor2", "data2_tensor4"])
def test_the_paged_engine_gives_the_same_episodes(facts, mesh):
    """In tensor groups of 4, each of two kv heads is in the pages of two devices."""
    assert facts[mesh]["paged"]["ids"] == facts["one"]["ids"]
    for ours, theirs in zip(facts[mesh]["paged"]["logprobs"], facts["one"]["logprobs"], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=0)


def test_the_cache_stays_where_it_is(facts):
    gathered = facts["data2_fsdp2_tensor2"]["gathered"]
    sizes = [int(np.prod([int(n) for n in shape[4:-1].split(",")])) for shape in gathered]
    cache = ENGINE.slots * 2 * 8 * 128  # elements of one layer's keys in the attended columns
    assert all(size < cache for size in sizes), gathered


def test_experts_over_all_devices_and_a_mesh_other_than_the_learners(facts):
    one, mesh = facts["experts"]["one"], facts["experts"]["data4_tensor2"]
    assert mesh["ids"] == one["ids"]
    for ours, theirs in zip(mesh["logprobs"], one["logprobs"], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=0)
    assert one["gate"] == [16, 32, 48] and mesh["gate"] == [2, 32, 48]


@pytest.mark.parametrize("mesh", ["data8", "data2_fsdp2_tensor2"])
def test_every_device_computes_its_share_of_the_prompts(facts, mesh):
    assert facts["flops"][mesh] <= 1.1 * facts["flops"]["one"] / 8


def test_no_collective_grows_with_the_capacity(facts):
    for name, (short, long) in facts["collectives"].items():
        assert short == long and short, name
    assert len(facts["collectives"]) == 4
