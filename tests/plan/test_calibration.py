"""The figures of benchmarks/baselines/calibration.json, the errors of rows that are held out, and that assumptions are
fitted."""

import json
import math
from dataclasses import replace

import pytest

from benchmarks.calibration.__main__ import FILE, errors, largest_models, predictions
from benchmarks.calibration.fit import STEPS, objective
from benchmarks.calibration.rows import error, hardware_of, least, predicted, rows
from benchmarks.plan_tables import errors as error_table
from benchmarks.plan_tables import page
from benchmarks.plans import PLANS, ROOT
from scope_jax.plan.assumptions import ASSUMED
from scope_jax.plan.command import plan
from scope_jax.plan.engines import floored
from scope_jax.plan.hardware import GIB, hardware


@pytest.mark.slow
def test_the_figures_that_are_kept_are_those_of_the_benchmark():
    """After a change: python -m benchmarks.calibration"""
    kept = json.loads(FILE.read_text(encoding="utf-8"))
    assert kept["errors"] == errors() and kept["rows"] == predictions()
    assert error_table(kept["errors"]) in (ROOT / "docs" / "plans.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_largest_models_that_are_kept_are_those_of_the_benchmark():
    assert json.loads(FILE.read_text(encoding="utf-8"))["largest"] == largest_models()


def test_the_page_of_tables_has_every_card_row_and_machine():
    tables, kept = page(), json.loads(FILE.read_text(encoding="utf-8"))
    assert all(f"\n| `{card}` |" in tables for card, _, _ in PLANS)
    assert tables.count(" | held out |\n") == sum(row["held_out"] for row in kept["rows"])
    assert all(f"| `{row['machine']}` |" in tables for row in kept["largest"])


def test_measurements_are_facts_with_a_source_and_half_of_the_settings_is_held_out():
    found = rows()
    assert len(found) > 80 and all(row.measured > 0 and row.source and row.date for row in found)
    assert {row.work for row in found} == {"decode", "update"}
    settings = {(row.work, row.system, row.hardware, row.model, row.length): row.held_out for row in found}
    assert 0.2 < sum(settings.values()) / len(settings) < 0.5
    assert all(settings[row.work, row.system, row.hardware, row.model, row.length] == row.held_out for row in found)


def test_rows_that_are_held_out_are_predicted_within_a_third():
    assert error(row for row in rows() if row.held_out) <= math.log(1.35)


def test_no_prediction_is_below_the_roofline_and_no_measurement_either():
    """What a roofline says is impossible has not been measured, or the work is counted wrongly."""
    for row in rows():
        assert least(row) <= min(predicted(row), row.measured), row


@pytest.mark.parametrize("platform", ASSUMED)
def test_no_assumption_is_better_for_the_fitted_rows_with_another_value(platform):
    some = [row for row in rows() if not row.held_out and hardware_of(row.hardware).platform == platform]
    assumed = ASSUMED[platform]
    fitted = objective(some, platform, assumed)
    for name, value in vars(assumed).items():
        for step in STEPS:
            tried = replace(assumed, **{name: min(value * step, 0.95)})
            assert objective(some, platform, tried) > fitted - 0.002, (name, step)


def test_a_budget_is_rounded_down_to_three_digits():
    assert [floored(size * GIB) for size in (12.349, 123.9, 0.98765)] == [12.3, 123, 0.987]


@pytest.mark.slow
@pytest.mark.parametrize(("card", "named", "index"), PLANS)
def test_no_other_engine_mesh_is_faster_by_more_than_a_tenth(card, named, index):
    """With a cache as large as the card's; a larger budget may be faster."""
    found = plan(ROOT / card, (), hardware(named, compiled=False), index=index, search=False)
    own = next(row for row in found["engine_meshes"] if row["card"])
    others = [row for row in found["engine_meshes"] if row["tensor"] != own["tensor"]]
    assert found["fits"]
    assert max(row["tokens_per_second"] for row in others or [own]) <= 1.1 * own["tokens_per_second"]
