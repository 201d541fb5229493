"""Tokens of a row divided over devices: their layout, and attention equal to that over whole rows."""

import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.models.decoder import context
from tests.eight import on_eight_devices

QUICK, SLOW = ["ulysses_window", "ring"], ["ulysses", "ring_window", "ring_in_blocks"]


@pytest.mark.parametrize("case", [*QUICK, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)])
def test_values_and_gradients_equal_those_of_whole_rows(case):
    found = on_eight_devices("tests.models.eight_context", case)
    assert len(found) in (4, 5) and max(found) < 3e-6


def test_each_device_has_an_early_and_a_late_chunk():
    assert context.token_order(8, 2).tolist() == [0, 1, 6, 7, 2, 3, 4, 5]
    assert context.token_order(5, 1).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="multiples of 4"):
        context.token_order(6, 2)


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_all_devices_have_the_same_causal_work(devices):
    seen = context.token_order(64, devices).reshape(devices, -1) + 1  # keys that a token sees
    assert len(set(seen.sum(axis=1).tolist())) == 1
    rows = np.arange(128).reshape(2, 64)
    there = np.asarray(context.in_device_order(jnp.asarray(rows), devices))
    assert np.array_equal(there, rows[:, context.token_order(64, devices)])
    assert np.array_equal(context.in_row_order(jnp.asarray(there), devices), rows)


def test_ulysses_up_to_the_number_of_kv_heads():
    assert [context.resolve("auto", 8, devices) for devices in (2, 8, 16)] == ["ulysses", "ulysses", "ring"]
    assert context.resolve("ring", 8, 2) == "ring"
    with pytest.raises(ValueError, match="does not divide them"):
        context.resolve("ulysses", 2, 4)
