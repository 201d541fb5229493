"""Advantages computed by hand."""

import math

import numpy as np
import pytest

from scope_jax.config import LossCard
from scope_jax.learner import advantages
from scope_jax.learner.types import Episode, RoleShare, Update


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


def test_interleaved_groups_are_separated_by_name():
    assert advantage_of(LossCard(advantage="group-mean"), [1, 10, 3, 20], "abab") == [-1, -5, 1, 5]


SPREADLESS = [
    "group-zscore", "group-mean", "leave-one-out", "group-mean-whiten", "batch-mean", "batch-zscore", "token-whiten"
]  # fmt: skip


@pytest.mark.parametrize("name", SPREADLESS)
def test_no_spread_is_exactly_zero(name):
    assert advantage_of(LossCard(advantage=name), [0.1, 0.1, 0.1], tokens=[3, 4, 5]) == [0, 0, 0]


def test_group_of_one_keeps_its_reward_as_in_verl():
    assert advantage_of(LossCard(advantage="group-mean"), [0.7, 1, 0], "abb") == pytest.approx([0.7, 0.5, -0.5])
    assert advantage_of(LossCard(advantage="group-zscore", advantage_eps=0.25), [0.5]) == [0.4]


def test_batch_baseline_ignores_groups():
    assert advantage_of(LossCard(advantage="batch-mean"), [1, 2, 6], "aab") == [-2, -1, 3]


def test_whitening_weights_rewards_by_tokens():
    # tokens 1, 1, 1, 0: mean .75, unbiased variance (3 · .0625 + .5625) / 3 = .25
    card = LossCard(advantage="token-whiten", advantage_eps=0.0)
    assert advantage_of(card, [1, 0], tokens=[3, 1]) == pytest.approx([0.5, -1.5])


def test_leave_one_out_compares_with_the_others():
    # group a: 1 against the mean of 0 and 5, …; group b of one keeps its reward
    assert advantage_of(LossCard(advantage="leave-one-out"), [1, 0, 5, 0.5], "aaab") == [-1.5, -3, 4.5, 0.5]


def test_whitening_after_the_group_mean():
    # centred: 1, −1 with 3 and 1 tokens, 0, 0 with 2 each: sum 2 over 8 tokens, mean ¼;
    # squares (3 · 9/16 + 25/16 + 4 · 1/16) / 7 = ½
    card = LossCard(advantage="group-mean-whiten", advantage_eps=0.0)
    wanted = [(x - 0.25) / math.sqrt(0.5) for x in (1, -1, 0, 0)]
    assert advantage_of(card, [3, 1, 7, 7], "aabb", tokens=[3, 1, 2, 2]) == pytest.approx(wanted)


def test_a_moving_baseline_is_the_value_before_the_update(make):
    datum_of, episode_of, _ = make
    card = LossCard(advantage="ema", ema_decay=0.7, ema_start=0.0)

    def update(rewards, baseline):
        rows = [episode_of(datum_of([1, 2], [0, 1]), reward=r) for r in rewards]
        rows.append(episode_of(datum_of([1, 2], [0, 1]), reward=99.0, trained=False))
        rated, after = advantages.assign(rows, card, baseline)
        return [e.advantage for e in rated[:-1]], after

    assert update([1.0, 3.0], None) == ([1.0, 3.0], pytest.approx(0.6))  # b_0 = 0; b_1 = .3 · 2
    assert update([1.0, 1.0], 0.6) == (pytest.approx([0.4, 0.4]), pytest.approx(0.7 * 0.6 + 0.3))
    assert update([], 0.6) == ([], 0.6)
    late = card.model_copy(update={"ema_decay": 0.95, "ema_start": 0.5})
    rated, after = advantages.assign([episode_of(datum_of([1, 2], [0, 1]), reward=1.0)], late, None)
    assert rated[0].advantage == 0.5 and after == pytest.approx(0.95 * 0.5 + 0.05)


def test_none_is_the_reward():
    assert advantage_of(LossCard(advantage="none"), [1, -0.1, 0]) == [1, -0.1, 0]


def test_assign_leaves_untrained_episodes_out(make):
    datum_of, episode_of, _ = make
    datum = datum_of([1, 2, 3], [0, 1, 1])
    episodes = [episode_of(datum, reward=r, trained=t) for r, t in ((1.0, True), (50.0, False), (0.0, True))]
    assigned, baseline = advantages.assign(episodes, LossCard(advantage="group-mean"))
    assert [episode.advantage for episode in assigned] == [0.5, None, -0.5]
    assert baseline is None
    assert advantages.assign([], LossCard()) == ([], None)


def test_whitening_counts_sampled_tokens_of_all_datums(make):
    datum_of, episode_of, _ = make
    long = episode_of(datum_of([1, 2, 3], [0, 1, 1]), datum_of([1, 2], [0, 1]), reward=1.0)
    short = episode_of(datum_of([1, 2, 3], [0, 0, 1]), reward=0.0)
    assigned, _ = advantages.assign([long, short], LossCard(advantage="token-whiten", advantage_eps=0.0))
    assert [episode.advantage for episode in assigned] == pytest.approx([0.5, -1.5])


def test_a_reward_that_is_not_a_number_is_named():
    with pytest.raises(ValueError, match="group 'b' is nan; rewards must be finite"):
        advantage_of(LossCard(), [1, float("nan")], "ab")


def test_an_update_rates_the_episodes_of_its_roles_alone():
    """Two roles with moving baselines, of which one has none yet, and an episode of another policy."""

    def rewarded(role: str, reward: float, policy: str = "actor") -> Episode:
        return Episode(role, policy, "g", (), reward)

    card = LossCard(advantage="ema", ema_decay=0.75, ema_start=0.0, kl="none")
    update = Update("actor", card, (RoleShare("b", weight=0.5), RoleShare("a")))
    episodes = [rewarded("a", 1.0), rewarded("b", 2.0), rewarded("a", 3.0), rewarded("a", 5.0, "other")]
    result = advantages.for_update(update, episodes, {"actor/a": 1.0, "other/a": 7.0})
    assert [episode.advantage for episode in result.episodes] == [0.0, 2.0, 2.0, None]
    assert [episode.weight for episode in result.episodes] == [1.0, 0.5, 1.0, 1.0]
    assert result.places == [0, 1, 2]
    assert result.baselines == {"b": 0.5, "a": 1.25}  # .75 · 0 + .25 · 2, and .75 · 1 + .25 · 2
    given = advantages.for_update(Update("actor", LossCard(objective="supervised"), (RoleShare("a"),)), episodes, {})
    assert given.places == [0, 2] and given.episodes == episodes and given.baselines == {}
