"""The entropy of the distribution that a token is drawn from: exact, and measuring it changes no other bit."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from scope_jax.rollouts.sampling import entropy
from tests.rollouts.test_ahead import episodes
from tests.rollouts.test_sampling import how
from tests.rollouts.world import ENGINE, bits, make_engine, make_paged, make_rollouts, mixed, trainer_entropies

THIRDS = math.log(3)
HALVES = 1.5 * math.log(2)  # of 1/2, 1/4, 1/4
SQUARES = math.log(6) - 2 / 3 * math.log(4)  # of 4/6, 1/6, 1/6


@pytest.mark.parametrize(
    ("p", "temperature", "tempered", "nats"),
    [
        ((1 / 3, 1 / 3, 1 / 3), 1.0, False, THIRDS),
        ((1 / 2, 1 / 4, 1 / 4), 1.0, False, HALVES),
        ((1 / 2, 1 / 4, 1 / 4), 0.5, False, HALVES),
        ((1 / 2, 1 / 4, 1 / 4), 0.5, True, SQUARES),
        ((1 / 2, 1 / 4, 1 / 4), 0.0, True, HALVES),
        ((1 / 2, 1 / 2, 0.0), 1.0, True, math.log(2)),
        ((1.0, 0.0, 0.0), 1.0, False, 0.0),
    ],
)
def test_by_hand(p: tuple[float, ...], temperature: float, tempered: bool, nats: float):
    with np.errstate(divide="ignore"):
        logits = np.log(np.asarray([p, p], np.float32)) + np.float32(7)
    top_k = np.asarray([0, 1])  # top-k does not enter
    found = jax.jit(entropy)(logits, how(2, temperature, top_k, tempered=tempered))
    np.testing.assert_allclose(found, [nats, nats], atol=1e-6, rtol=0)


@pytest.mark.parametrize("make", [pytest.param(make_engine, marks=pytest.mark.slow), make_paged])
def test_measuring_changes_no_token_and_no_log_prob(make, params):
    config, asked = dataclasses.replace(ENGINE, entropies=True), [*episodes(), *mixed(12)]
    plain = make_rollouts(make(ENGINE), params).run(asked)
    measured = make_rollouts(make(config), params).run(asked)
    assert [bits(c) for c in measured] == [bits(c) for c in plain]
    assert all(row.entropies_T is None for c in plain for row in c.rows)
    for row in (row for c in measured for row in c.rows):
        assert row.entropies_T is not None and row.entropies_T.shape == row.ids_T.shape
        assert (row.entropies_T[row.sampled_T] > 0).all() and not row.entropies_T[~row.sampled_T].any()


def test_entropies_are_those_of_the_training_forward(params):
    rollouts = make_rollouts(make_paged(dataclasses.replace(ENGINE, entropies=True)), params)
    for one, asked in zip(rollouts.run(mixed(8)), mixed(8), strict=True):
        how = asked.params
        temperature = how.temperature if how.tempered_logprobs and how.temperature else 1.0
        (row,) = one.rows
        assert row.entropies_T is not None
        np.testing.assert_allclose(row.entropies_T, trainer_entropies(params, one, temperature), atol=2e-5, rtol=0)
