"""Slots over data and fsdp, heads over tensor: the same tokens as on one device, without moving the cache."""

import numpy as np
import pytest

from tests.eight import on_eight_devices
from tests.rollouts.world import ENGINE

MESHES = ["data2_fsdp2_tensor2", "data2_tensor4"]


def facts(name, *words):
    return on_eight_devices("tests.rollouts.eight_devices", name, *words)


def assert_the_same(mesh, one):
    assert mesh["ids"] == one["ids"] and mesh["turns"] == one["turns"]
    for ours, theirs in zip(mesh["logprobs"], one["logprobs"], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize("mesh", ["data2_fsdp2_tensor2", pytest.param("data2_tensor4", marks=pytest.mark.slow)])
def test_greedy_episodes_equal_one_device(mesh):
    """In tensor groups of 4, each of two kv heads is in the pages of two devices."""
    one = facts("pages", "one")
    assert_the_same(facts("pages", mesh), one)
    assert max(one["turns"]) > 1


def test_entropies_equal_one_device():
    one, mesh = (facts("pages", name)["entropies"] for name in ("one", "data2_fsdp2_tensor2"))
    assert len(one) == len(facts("pages", "one")["ids"])
    for ours, theirs in zip(mesh, one, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["one", *MESHES])
def test_a_page_for_each_slot_gives_the_same_episodes(mesh):
    assert_the_same(facts("columns", mesh), facts("pages", "one"))


def test_the_cache_stays_where_it_is():
    gathered = facts("pages", "data2_fsdp2_tensor2")["gathered"]
    sizes = [int(np.prod([int(n) for n in shape[4:-1].split(",")])) for shape in gathered]
    cache = ENGINE.slots * 2 * 8 * 128  # elements of one layer's keys in the attended columns
    assert all(size < cache for size in sizes), gathered


def test_experts_over_all_devices_and_a_mesh_other_than_the_learners():
    one, mesh = facts("experts", "one"), facts("experts", "data4_tensor2")
    assert_the_same(mesh, one)
    assert one["gate"] == [16, 32, 48] and mesh["gate"] == [2, 32, 48]


@pytest.mark.slow
def test_drafts_are_verified_in_the_rows_of_each_shard():
    """Four row shards of two slots and four rows, with tensor groups of two and experts over all devices."""
    one, mesh = facts("drafts", "one"), facts("drafts", "data4_tensor2")
    assert one["same"] and mesh["same"] and mesh["ids"] == one["ids"]
    assert all(each[name] > 10 for each in (one, mesh) for name in ("accepted", "rejected"))


@pytest.mark.parametrize("mesh", [pytest.param("data8", marks=pytest.mark.slow), "data2_fsdp2_tensor2"])
def test_every_device_computes_its_share_of_the_prompts(mesh):
    assert facts("flops", mesh) <= 1.1 * facts("flops", "one") / 8


@pytest.mark.parametrize("model", [pytest.param("plain", marks=pytest.mark.slow), "experts"])
@pytest.mark.parametrize("program", ["prefill", pytest.param("decode", marks=pytest.mark.slow)])
def test_no_collective_grows_with_the_capacity(model, program):
    short, long = facts("collectives", model, program)
    assert short == long and short
