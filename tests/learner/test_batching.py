"""Packing: layout, sizes from a small set, and independence of the token ids."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_jax.config import LearnerSection, LossCard
from scope_jax.learner import batching, splitting

SECTION = LearnerSection(buckets=(8, 16, 32), packing=True, micro_batch_rows=2, logprob_chunk=8)


def with_(**fields):
    return SECTION.model_copy(update=fields)


def test_two_short_datums_share_a_row(make):
    datum_of, episode_of, _ = make
    first = episode_of(datum_of([5, 6, 7, 8], [0, 0, 1, 1], [0, 0, -1, -2]), advantage=3.0)
    second = episode_of(datum_of([9, 10, 11], [0, 1, 0], [0, -3, 0]), advantage=-4.0)
    first, second = replace(first, temperature=0.5), replace(second, temperature=0.0, weight=0.25)
    batch = batching.pack([first, second], SECTION, 1)
    assert batch.ids_MBT[0].tolist() == [[5, 6, 7, 8, 9, 10, 11, 0]]  # one row is enough
    assert batch.ends_MBT[0].tolist() == [[4, 4, 4, 4, 7, 7, 7, 8]]
    assert batch.positions_MBT[0, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 0]
    assert batch.mask_MN[0].tolist() == [True] * 3 + [False] * 13
    assert batch.index_MN[0, :3].tolist() == [1, 2, 4]
    assert batch.targets_MN[0, :3].tolist() == [7, 8, 10]
    assert batch.behaviour_MN[0, :3].tolist() == [-1, -2, -3]
    assert batch.advantage_MN[0, :3].tolist() == [3, 3, -4]
    assert batch.length_MN[0, :3].tolist() == [2, 2, 1]
    assert batch.first_MN[0, :3].tolist() == [True, False, True]
    assert batch.temperature_MN[0].tolist() == [0.5, 0.5, *[1] * 14]  # 1 for the greedy token
    assert batch.weight_MN[0].tolist() == [1, 1, 0.25, *[0] * 13]
    assert int(batch.micro_batches) == 1
    plain = batching.pack([first, second], SECTION, 1, tempered=False)
    assert plain.temperature_MN[0].tolist() == [1] * 16


@pytest.mark.parametrize("count", [20, 60, 200])
def test_steps_of_different_sizes_share_one_shape(make, count):
    """Each shape costs the compilation of its own program."""
    datum_of, episode_of, _ = make
    episodes = [episode_of(datum_of(range(1, 33), [0] * 24 + [1] * 8), advantage=1.0) for _ in range(count)]
    batch = batching.pack(episodes, with_(buckets=(64,), micro_batch_rows=4), 1)
    assert int(batch.micro_batches) == -(-count // 8)
    assert batch.ids_MBT.shape == ((16 if count < 200 else 64), 4, 64)
    assert batch.mask_MN.shape[1] == 64
    assert batch.sequences == 256


def test_an_episode_of_several_datums_is_one_sequence(make):
    datum_of, episode_of, _ = make
    datums = datum_of([1, 2], [0, 0]), datum_of([1, 2, 3], [0, 1, 1]), datum_of([4, 5], [0, 1])
    episode = episode_of(*datums, advantage=1.0)
    batch = batching.pack([episode], SECTION, 1)
    assert batch.length_MN[batch.mask_MN].tolist() == [3, 3, 3]
    assert batch.first_MN.sum() == 1


@pytest.mark.parametrize("micro", [0, 1, 2])
@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("packing", [True, False])
def test_an_episode_counts_once_however_its_datums_are_distributed(make, packing, shards, micro):
    """Mean over episodes of the mean over all sampled tokens of each, by hand and from the slots of the batch."""
    datum_of, episode_of, _ = make
    rng = np.random.default_rng(0)
    episodes, by_hand = [], []
    for number in range(7):
        datums, values = [], []
        for count in rng.integers(1, 6, size=number % 4 + 1).tolist():
            logprobs = np.concatenate([[0, 0], rng.normal(size=count)]).astype(np.float32)
            datums.append(datum_of(np.arange(count + 2), [0, 0] + [1] * count, logprobs))
            values += logprobs[2:].tolist()
        episodes.append(episode_of(*datums, group=str(number), advantage=float(number)))
        by_hand.append(number * np.mean(values))
    batch = batching.pack(episodes, with_(packing=packing, micro_batch_rows=micro), shards)
    mask = batch.mask_MN
    each = (batch.advantage_MN * batch.behaviour_MN)[mask] / batch.length_MN[mask]
    assert batch.first_MN[mask].sum() == 7 == batch.first_MN.sum()
    assert each.sum() / batch.first_MN.sum() == pytest.approx(np.mean(by_hand), rel=1e-5)
    assert (1 / batch.length_MN[mask]).sum() == pytest.approx(7)


def test_without_packing_each_datum_has_its_row(make):
    batch = batching.pack(make[2](5, 5), with_(packing=False, micro_batch_rows=0), 1)
    assert batch.ends_MBT.shape == (1, 5, 32)
    assert (np.diff(batch.positions_MBT, axis=2) == 1).sum() == batch.row_tokens - 5
    assert (batch.positions_MBT == np.arange(32))[batch.positions_MBT > 0].all()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(2, 32), min_size=1, max_size=30),
    st.booleans(),
    st.sampled_from([0, 1, 2, 3]),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 2**16),
)
def test_every_token_is_in_the_batch_once(lengths, packing, micro, shards, seed):
    """Rows hold whole datums, slots point at the right hidden states, and all of it is within the shard."""
    from tests.learner.conftest import datum_of, episode_of

    rng = np.random.default_rng(seed)
    datums = []
    for length in lengths:
        sampled = rng.random(length) < 0.5
        sampled[0] = False
        sampled[-1] = True
        datums.append(datum_of(rng.integers(0, 9, length), sampled, rng.normal(size=length)))
    episodes = [episode_of(datum, group=str(i), advantage=float(i)) for i, datum in enumerate(datums)]
    batch = batching.pack(episodes, with_(packing=packing, micro_batch_rows=micro), shards)
    assert batch.ids_MBT.shape[1] % shards == 0 and batch.index_MN.shape[1] % shards == 0
    assert batch.row_tokens == sum(lengths)
    behaviour = batching.unpack(batch, batch.behaviour_MN)
    np.testing.assert_array_equal(behaviour, np.concatenate([d.logprobs_T[d.sampled_T] for d in datums]))
    assert batch.mask_MN[int(batch.micro_batches) :].sum() == 0
    rows, slots = batch.ids_MBT.shape[1] // shards, batch.index_MN.shape[1] // shards
    for m, s in np.ndindex(batch.index_MN.shape[0], shards):
        ids = batch.ids_MBT[m, s * rows : (s + 1) * rows].ravel()
        ends = batch.ends_MBT[m, s * rows : (s + 1) * rows].ravel()
        window = slice(s * slots, (s + 1) * slots)
        places = batch.index_MN[m, window][batch.mask_MN[m, window]]
        assert (ids[places + 1] == batch.targets_MN[m, window][batch.mask_MN[m, window]]).all()
        assert (ends[places] == ends[places + 1]).all() and (places % batch.ids_MBT.shape[2] + 1 < ends[places]).all()
        assert len(set(places.tolist())) == len(places)


def test_token_ids_do_not_affect_packing(make):
    """A datum that consists of the pad id only is packed like any other."""
    datum_of, episode_of, _ = make
    sampled = [0, 1, 0, 1, 1]
    zeros, others = (batching.pack([episode_of(datum_of(ids, sampled))], SECTION, 1) for ids in ([0] * 5, [3] * 5))
    for name in ("positions_MBT", "ends_MBT", "index_MN", "mask_MN", "first_MN", "length_MN"):
        np.testing.assert_array_equal(vars(zeros)[name], vars(others)[name])


def test_sizes_come_from_small_sets(make):
    assert [batching.round_up(n) for n in (1, 7, 8, 9, 11, 15, 17, 33, 100)] == [1, 7, 8, 10, 12, 16, 20, 40, 112]
    shapes = {
        (batch.ids_MBT.shape, batch.index_MN.shape)
        for count in range(20, 30)
        for batch in [batching.pack(make[2](count, count, seed=count), SECTION, 1)]
    }
    assert len(shapes) <= 2


def test_same_episodes_same_batch(make):
    one, two = (batching.pack(make[2](12, 4), SECTION, 2) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(vars(one).values(), vars(two).values(), strict=True))


def test_mini_batches_keep_groups_whole(make):
    episodes = make[2](10, 5)
    parts = splitting.split(episodes, 2)
    assert [len(part) for part in parts] == [4, 6]
    assert not {e.group for e in parts[0]} & {e.group for e in parts[1]}
    assert [e for part in parts for e in part] == episodes
    assert len(splitting.split(episodes, 99)) == 5
    assert splitting.split([], 2) == []


def test_every_mini_batch_has_its_share_of_every_role(make):
    episodes = [replace(e, role="writer") for e in make[2](6, 6)] + make[2](8, 4)
    parts = splitting.split(episodes, 2)
    assert [[e.role for e in part].count("writer") for part in parts] == [3, 3]
    assert [len(part) for part in parts] == [7, 7]
    assert [len(part) for part in splitting.split(episodes, 6)] == [1, 3, 3, 1, 3, 3]  # six groups, and four of two


def test_padding_is_counted_and_has_no_row(make):
    datum_of, episode_of, _ = make
    real = episode_of(datum_of([5, 6, 7, 8], [0, 0, 1, 1]), group="a", advantage=1.0)
    filler, empty = (
        replace(real, datums=(datum_of([1, 2, 3, 4], s),), advantage=None) for s in ([0, 1, 1, 1], [0] * 4)
    )
    padding = [
        replace(e, trained=False, padding=True, group=g) for e, g in ((filler, "b"), (empty, "c"), (filler, "d"))
    ]
    batch, alone = (batching.pack(episodes, SECTION, 1) for episodes in ([real, *padding], [real]))
    assert (batch.padding_tokens, batch.padding_sequences) == (6, 2) and batch.mask_MN.sum() == 2
    assert (alone.padding_tokens, alone.padding_sequences) == (0, 0)
    np.testing.assert_array_equal(batch.ids_MBT, alone.ids_MBT)
    # groups of padding keep their place when mini-batches are cut; a mini-batch of padding alone is dropped
    other = replace(real, group="e")
    assert splitting.mini_batches([real, *padding, other], 2) == [[real, padding[0]], [padding[2], other]]
    assert splitting.mini_batches([real, *padding], 3) == [[real]]


def test_what_cannot_be_packed_is_named(make):
    datum_of, episode_of, _ = make
    with pytest.raises(ValueError, match=r"has 33 tokens, more than the largest of learner\.buckets, 32"):
        batching.pack([episode_of(datum_of(range(33), [0] + [1] * 32))], SECTION, 1)
    with pytest.raises(ValueError, match="is marked as sampled"):
        batching.pack([episode_of(datum_of([1, 2], [1, 1]))], SECTION, 1)
    with pytest.raises(ValueError, match="nothing to train on"):
        batching.pack([episode_of(datum_of([1, 2], [0, 0]))], SECTION, 1)


def test_credits_are_added_to_the_advantage_of_their_tokens(make):
    datum_of, episode_of, _ = make
    datum = replace(datum_of([5, 6, 7, 8], [0, 1, 0, 1]), credit_T=np.array([9, 0.5, 9, -2], np.float32))
    other = datum_of([1, 2], [0, 1])
    policy, supervised = (LossCard(objective=objective, kl="none") for objective in ("policy", "supervised"))
    batch = batching.pack([episode_of(datum, other, advantage=1.0)], SECTION, 1, card=policy)
    assert batching.unpack(batch, batch.advantage_MN).tolist() == [1.5, -1.0, 1.0]
    idle = episode_of(other, advantage=0.0)
    credited = episode_of(datum, advantage=0.0)
    assert batching.pack([idle, credited], SECTION, 1, card=policy).idle_sequences == 1  # a credit is a term
    batch = batching.pack([episode_of(datum)], SECTION, 1, card=supervised)
    assert not batch.advantage_MN.any()
    pair = [replace(episode_of(datum, reward=reward), group="g") for reward in (1.0, 0.0)]
    batch = batching.pack(splitting.pairs(pair), SECTION, 1, card=LossCard(objective="dpo"))
    assert batching.unpack(batch, batch.advantage_MN).tolist() == [1, 1, -1, -1]  # signs, which a credit would change
    for wrong, sentence in (([1.0], "has the shape"), ([0, np.nan, 0, 0], "not finite")):
        damaged = episode_of(replace(datum, credit_T=np.array(wrong, np.float32)), advantage=0.0)
        with pytest.raises(ValueError, match=sentence):
            batching.pack([damaged], SECTION, 1, card=policy)


def test_a_teacher_s_log_probs_reach_their_slots(make):
    datum_of, episode_of, _ = make
    datum = datum_of([5, 6, 7, 8], [0, 1, 0, 1])
    card = LossCard(kl="none", advantage="none", teacher="k2")
    rated = episode_of(datum.with_teacher(np.array([-1, -2], np.float32)), advantage=0.0)
    batch = batching.pack([rated], SECTION, 1, card=card)
    assert batching.unpack(batch, batch.teacher_MN).tolist() == [-1, -2]
    assert batch.idle_sequences == 0  # its advantage is 0, its teacher's term is not
    with pytest.raises(ValueError, match=r"has no teacher_T, but its loss has a teacher"):
        batching.pack([episode_of(datum, advantage=0.0)], SECTION, 1, card=card)
    with pytest.raises(ValueError, match=r"has 2 sampled tokens, but a teacher rated 3"):
        datum.with_teacher(np.zeros(3))
    moved = datum.after([1, 2, 3])
    assert moved.ids_T.tolist() == [1, 2, 3, 6, 7, 8] and moved.sampled_T.tolist() == [False] * 3 + [True, False, True]


def test_pairs_are_ranked_and_stay_together(make):
    datum_of, episode_of, _ = make

    def of(group, reward, trained=True):
        return episode_of(datum_of([1, 2], [0, 1]), group=group, reward=reward, trained=trained)

    mixed = [of("a", 0.5), of("b", -1.0), of("c", 0.0), of("a", 0.7, False), of("b", 2.0), of("c", -3.0), of("a", 0.1)]
    paired = splitting.pairs(mixed)
    assert [(e.group, e.reward, e.advantage) for e in paired] == [
        ("a", 0.5, 1.0),
        ("a", 0.1, -1.0),
        ("b", -1.0, -1.0),
        ("b", 2.0, 1.0),
        ("c", 0.0, 1.0),
        ("c", -3.0, -1.0),
    ]
    assert [[e.group for e in part] for part in splitting.mini_batches(paired, 2)] == [["a", "a"], ["b", "b", "c", "c"]]


def test_pairs_are_of_one_role(make):
    datum_of, episode_of, _ = make
    both = [
        replace(episode_of(datum_of([1, 2], [0, 1]), group="0", reward=reward), role=role)
        for reward in (1.0, 0.0)
        for role in ("solver", "proposer")
    ]
    paired = splitting.pairs(both)
    assert [(e.role, e.advantage) for e in paired] == [
        ("solver", 1.0),
        ("solver", -1.0),
        ("proposer", 1.0),
        ("proposer", -1.0),
    ]
    with pytest.raises(ValueError, match="group '0' of role 'solver' has trained episodes with the rewards 1;"):
        splitting.pairs([both[0], both[3]])


@pytest.mark.parametrize("rewards", [[1.0], [0.5, 0.5], [1.0, 0.0, 0.5], [1.0, float("nan")]])
def test_a_group_that_is_not_a_pair_is_named(make, rewards):
    datum_of, episode_of, _ = make
    group = [episode_of(datum_of([1, 2], [0, 1]), group="q7", reward=reward) for reward in rewards]
    with pytest.raises(ValueError, match=r"group 'q7' of role 'solver' .* needs exactly two with different rewards"):
        splitting.pairs(group)
