"""Advantages worked out by hand."""

import math

import numpy as np
import pytest

from scope_jax import advantages
from scope_jax.config import LossCard


def advantage_of(card, rewards, groups="aaaa", tokens=None):
    tokens = np.ones(len(rewards)) if tokens is None else np.array(tokens, float)
    return advantages.compute(np.array(rewards, float), list(groups[: len(rewards)]), tokens, card).tolist()


def test_group_mean_by_hand():
    assert advantage_of(LossCard(advantage="group-mean"), [1, 0, 0, 1, 3], "aabbb") == pytest.approx(
        [0.5, -0.5, -4 / 3, -1 / 3, 5 / 3]
    )


def test_group_zscore_by_hand():
    # group a: 1, 0 with mean .5 and, ddof 1, deviation √.5; ddof 0 gives .5
    root = math.sqrt(0.5)

    def zscore(ddof, eps):
        return LossCard(advantage="group-zscore", advantage_ddof=ddof, advantage_eps=eps)

    assert advantage_of(zscore(1, 0.0), [1, 0]) == pytest.approx([0.5 / root, -0.5 / root])
    assert advantage_of(zscore(0, 0.0), [1, 0]) == pytest.approx([1, -1])
    assert advantage_of(zscore(0, 0.5), [1, 0]) == pytest.approx([0.5, -0.5])


def test_groups_interleaved_are_told_apart_by_name():
    assert advantage_of(LossCard(advantage="group-mean"), [1, 10, 3, 20], "abab") == [-1, -5, 1, 5]


@pytest.mark.parametrize("name", ["group-zscore", "group-mean", "batch-mean", "batch-zscore", "token-whiten"])
def test_no_spread_is_exactly_zero(name):
    assert advantage_of(LossCard(advantage=name), [0.1, 0.1, 0.1], tokens=[3, 4, 5]) == [0, 0, 0]


def test_group_of_one_keeps_its_reward_as_in_verl():
    assert advantage_of(LossCard(advantage="group-mean"), [0.7, 1, 0], "abb") == pytest.approx([0.7, 0.5, -0.5])
    assert advantage_of(LossCard(advantage="group-zscore", advantage_eps=0.25), [0.5]) == [0.4]


def test_batch_baseline_ignores_groups():
    assert advantage_of(LossCard(advantage="batch-mean"), [1, 2, 6], "aab") == [-2, -1, 3]


def test_whitening_weighs_rewards_by_tokens():
    # tokens 1, 1, 1, 0: mean .75, unbiased variance (3 · .0625 + .5625) / 3 = .25
    card = LossCard(advantage="token-whiten", advantage_eps=0.0)
    assert advantage_of(card, [1, 0], tokens=[3, 1]) == pytest.approx([0.5, -1.5])


def test_none_is_the_reward():
    assert advantage_of(LossCard(advantage="none"), [1, -0.1, 0]) == [1, -0.1, 0]


def test_assign_leaves_untrained_episodes_out(make):
    datum_of, episode_of, _ = make
    datum = datum_of([1, 2, 3], [0, 1, 1])
    episodes = [episode_of(datum, reward=r, trained=t) for r, t in ((1.0, True), (50.0, False), (0.0, True))]
    assigned = advantages.assign(episodes, LossCard(advantage="group-mean"))
    assert [episode.advantage for episode in assigned] == [0.5, None, -0.5]
    assert advantages.assign([], LossCard()) == []


def test_whitening_counts_sampled_tokens_of_all_datums(make):
    datum_of, episode_of, _ = make
    long = episode_of(datum_of([1, 2, 3], [0, 1, 1]), datum_of([1, 2], [0, 1]), reward=1.0)
    short = episode_of(datum_of([1, 2, 3], [0, 0, 1]), reward=0.0)
    assigned = advantages.assign([long, short], LossCard(advantage="token-whiten", advantage_eps=0.0))
    assert [episode.advantage for episode in assigned] == pytest.approx([0.5, -1.5])


def test_a_reward_that_is_not_a_number_is_named():
    with pytest.raises(ValueError, match="group 'b' is nan; rewards must be finite"):
        advantage_of(LossCard(), [1, float("nan")], "ab")
