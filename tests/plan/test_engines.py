"""Which engine meshes fit, and how fast a plan says they are."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.calibration.largest import largest
from scope_jax.games import load_card
from scope_jax.models.decoder.hf import hf_shapes
from scope_jax.models.files.families import from_hf
from scope_jax.plan.architectures import SHAPES
from scope_jax.plan.command import plan
from scope_jax.plan.engines import meshes
from scope_jax.plan.hardware import GIB, hardware
from scope_jax.plan.page import lines
from scope_jax.plan.planning import Planner
from tests.plan.world import CARD, MODEL, SMALL, absent


def test_every_tensor_group_that_divides_heads_and_devices_is_listed():
    """Four devices and two kv heads: tensor 1, 2 and 4, where two devices share a head; the card's own among them."""
    planner = Planner(from_hf(MODEL), absent(4, 1.0))
    needs = planner.needs(load_card(CARD, SMALL))
    found = meshes(planner, needs)
    shapes = sorted((row["tensor"], row["fsdp"], row["card"]) for row in found)
    assert shapes == [(1, 4, True), (2, 2, False), (4, 1, False)]
    assert [row["tokens_per_second"] for row in found] == sorted(
        (row["tokens_per_second"] for row in found), reverse=True
    )
    assert all(row["slots"] == 16 for row in found)
    assert next(row for row in found if row["card"])["set"] == []
    other = next(row for row in found if row["tensor"] == 2)
    assert other["set"] == ["rollout.mesh={fsdp=2, tensor=2}"]  # all slots fit, so that no budget is needed
    taken = planner.needs(load_card(CARD, [*SMALL, *other["set"]]))
    assert dict(taken.engine.mesh.shape)["tensor"] == 2 and taken.peak.total <= planner.limit
    assert next(row for row in meshes(planner, taken) if row["card"])["tokens_per_second"] == other["tokens_per_second"]


def test_a_mesh_has_the_cache_that_is_left_and_none_is_listed_that_has_no_room():
    """128 slots of 256 tokens on two devices: with half of the weights on each there is more room for pages."""
    sets = [*SMALL, "rollout.slots=128"]
    planner = Planner(from_hf(MODEL), absent(2, 0.06))
    found = meshes(planner, planner.needs(load_card(CARD, [*sets, "rollout.cache_gib=0.02"])))
    budgets = {row["tensor"]: float(row["set"][1].partition("=")[2]) for row in found if not row["card"]}
    assert budgets[2] > budgets[1] > 0.02
    assert all(row["slots"] > 109 or row["card"] for row in found)  # as many as the card's budget has room for
    for row in (row for row in found if not row["card"]):
        fitting = planner.needs(load_card(CARD, [*sets, *row["set"]]))
        assert fitting.peaks["generate"].total <= planner.limit
        assert fitting.held.cache == pytest.approx(budgets[row["tensor"]] * GIB, rel=0.03)
    tight = Planner(from_hf(MODEL), absent(2, 0.02))
    assert [row["card"] for row in meshes(tight, tight.needs(load_card(CARD, sets)))] == [True]


def test_no_times_where_the_figures_of_a_chip_are_not_known():
    planner = Planner(from_hf(MODEL), replace(absent(2, 1.0), chip=replace(absent(2, 1.0).chip, link=None)))
    assert meshes(planner, planner.needs(load_card(CARD, SMALL))) == []


def test_a_plan_by_arithmetic_has_times_and_says_which_mesh_is_the_fastest(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(MODEL))
    found = plan(Path(CARD), SMALL, absent(4, 1.0), model_config=file)
    assert found["seconds"] > 0 and 0 < found["mfu"] < 1 and found["assumed"]["products"] <= 1
    assert found["decode"]["length"] == 128 and found["decode"]["slots"] == 16
    assert found["decode"]["milliseconds"] >= found["decode"]["roofline_milliseconds"] > 0
    text = [line for line in lines(found) if line.startswith("engine mesh")]
    assert len(text) == 3 and "<- the fastest" in text[0] and "this card" in "".join(text)


def test_the_largest_model_that_an_engine_holds():
    """One H100 holds gpt-oss-20b. Of 50 GiB, Qwen3.5-9B takes 16.7 for its weights and 16 for keys and values, as only
    8 of its layers have any, beside 144 states of 48 MiB; on a device of 40 GiB there is no room for all."""
    one = hardware("1xH100", compiled=False)
    most = largest(one, 64, 8192)
    assert most is not None and (most.model, most.tensor) == ("gpt-oss-20b", 1)
    held = largest(replace(one, chip=replace(one.chip, hbm=50.0 * GIB)), 64, 8192)
    assert held is not None and (held.model, held.tensor) == ("Qwen3.5-9B", 1)
    token, state = 2 * 8 * 4 * 256 * 2, 24 * 32 * 128 * 128 * 4
    weights = 2 * sum(math.prod(shape) for shape in hf_shapes(from_hf(SHAPES["Qwen3.5-9B"])).values())
    assert held.bytes == pytest.approx(weights + 64 * 8192 * token + 144 * state, rel=0.02)
    small = largest(replace(one, chip=replace(one.chip, hbm=40.0 * GIB)), 64, 8192)
    assert small is not None and small.bytes < 40 * GIB and small.model != "Qwen3.5-9B"
    assert largest(replace(one, chip=replace(one.chip, hbm=1.0 * GIB)), 64, 8192) is None
