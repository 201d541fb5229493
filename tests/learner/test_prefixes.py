"""What several datums begin with is in a row once: the layout, the decision, and that an update is the same."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.learner import batching, prefixes
from scope_jax.learner.learner import Learner
from scope_jax.learner.prefixes import RowWork
from scope_jax.models.decoder import flops
from scope_jax.models.decoder.adapter import Adapter
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from tests.learner.conftest import TINY, datum_of, episode_of, weights_of
from tests.learner.groups import grouped, several_turns
from tests.models.cudnn_in_xla import in_place_of_cudnn
from tests.shapes import like

ROOT = Path(__file__).resolve().parents[2]
SECTION = LearnerSection(buckets=(16, 32, 64), micro_batch_rows=2, logprob_chunk=8)
SPARSE = RowWork(TINY, sparse=True)


@pytest.fixture
def always(monkeypatch):
    """Beginnings are shared wherever that is the cheapest way to share them, if it saves nothing, too."""
    monkeypatch.setattr(prefixes, "SAVING", -9.0)


def paths(batch):
    """For each slot, its source and the ids of the tokens that the token of its hidden state continues, itself
    included; and checks their positions."""
    width, found = batch.ids_MBT.shape[2], {}
    for m, n in zip(*np.nonzero(batch.mask_MN), strict=True):
        row, t = divmod(int(batch.index_MN[m, n]), width)
        seen = [u for u in range(t + 1) if batch.ends_MBT[m, row, u] > t]
        assert batch.positions_MBT[m, row, seen].tolist() == list(range(len(seen)))
        source = int(batch.source_MN[m, n])
        assert source not in found
        found[source] = [*batch.ids_MBT[m, row, seen].tolist(), int(batch.targets_MN[m, n])]
    return found


def test_a_group_in_a_row_by_hand(always):
    prompt, answers = [7, 8, 9], ([1, 2], [1, 3, 4], [5])
    group = [
        replace(episode_of(datum_of([*prompt, *ids], [0] * 3 + [1] * len(ids), range(3 + len(ids))), advantage=1.0),
                temperature=0.5 + number)
        for number, ids in enumerate(answers)
    ]  # fmt: skip
    batch = batching.pack(group, SECTION, 1, work=SPARSE)
    # The prompt, then 1, which two answers begin with, 2, then 3 4, then 5.
    assert batch.ids_MBT[0].tolist() == [[7, 8, 9, 1, 2, 3, 4, 5, *[0] * 8]]
    assert batch.positions_MBT[0].tolist() == [[0, 1, 2, 3, 4, 4, 5, 3, *[0] * 8]]
    assert batch.ends_MBT[0].tolist() == [[8, 8, 8, 7, 5, 7, 7, 8, *range(9, 17)]]
    assert batch.index_MN[0, :6].tolist() == [2, 3, 2, 3, 5, 2]
    assert batch.targets_MN[0, :6].tolist() == [1, 2, 1, 3, 4, 5]
    assert batch.behaviour_MN[0, :6].tolist() == [3, 4, 3, 4, 5, 3]
    assert batch.source_MN[0, :6].tolist() == list(range(6))
    assert batch.sequence_MN[0, :6].tolist() == [0, 0, 1, 1, 1, 2]
    assert batch.first_MN[0, :6].tolist() == [True, False, True, False, False, True]
    assert batch.temperature_MN[0, :6].tolist() == [0.5, 0.5, 1.5, 1.5, 1.5, 2.5]
    assert (batch.row_tokens, batch.shared_tokens) == (8, 7)


TEXTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=10), min_size=1, max_size=24)


@settings(max_examples=60, deadline=None)
@given(TEXTS, TEXTS, st.sampled_from([0, 1, 3]), st.sampled_from([1, 2]), st.booleans(), st.integers(0, 2**16))
def test_every_slot_continues_its_own_text(prompts, answers, micro, shards, sparse, seed):
    """For random texts of few words, which share beginnings of any length and may be equal."""
    rng = np.random.default_rng(seed)
    datums = []
    for answer in answers:
        prompt = prompts[rng.integers(len(prompts))]
        sampled = np.r_[[False] * len(prompt), rng.random(len(answer)) < 0.7]
        datums.append(datum_of([*prompt, *answer], sampled, rng.normal(size=len(sampled))))
    episodes = [episode_of(*datums[i : i + 2], group=str(i), advantage=1.0) for i in range(0, len(datums), 2)]
    wanted = [
        (datum.ids_T[: place + 1].tolist(), datum.logprobs_T[place], number)
        for number, episode in enumerate(e for e in episodes if batching.sampled_tokens(e))
        for datum in episode.datums
        for place in np.flatnonzero(datum.sampled_T)
    ]
    if not wanted:
        return
    section = SECTION.model_copy(update={"micro_batch_rows": micro, "buckets": (24, 32, 64)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefixes, "SAVING", -9.0)
        batch, again = (batching.pack(episodes, section, shards, work=RowWork(TINY, sparse)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(batch), jax.tree.leaves(again), strict=True))
    if shards == 1:
        found = paths(batch)
        assert [found[source] for source in range(len(wanted))] == [ids for ids, _, _ in wanted]
    np.testing.assert_array_equal(batching.unpack(batch, batch.behaviour_MN), [value for _, value, _ in wanted])
    numbers = batching.unpack(batch, batch.sequence_MN.astype(np.float32))
    np.testing.assert_array_equal(numbers, [number for _, _, number in wanted])
    assert batch.first_MN.sum() == len({number for _, _, number in wanted})
    trained = [datum for datum in datums if datum.sampled_T.any()]
    assert batch.row_tokens + batch.shared_tokens == sum(len(datum.ids_T) for datum in trained)
    assert batch.shared_tokens >= 0
    assert batch.index_MN.shape[1] <= max(16 * shards, 4 * batch.ids_MBT[0].size)
    for m, row in np.ndindex(*batch.ids_MBT.shape[:2]):
        ends, width = batch.ends_MBT[m, row], batch.ids_MBT.shape[2]
        assert (ends > np.arange(width)).all() and ends.max() == width
        inside = [ends[t] <= ends[u] for t in range(width) for u in range(t) if ends[u] > t]
        assert all(inside)  # whatever continues t continues all that t continues


def test_a_tree_wider_than_a_row_is_divided(always):
    """Twelve answers of 6 tokens to a prompt of 20: two of them in a row of 32, seven in one of 64."""
    group = grouped(1, 20, [6] * 12, alike=0)
    for buckets, rows in (((32,), 6), ((64,), 2)):
        batch = batching.pack(group, SECTION.model_copy(update={"buckets": buckets}), 1, work=SPARSE)
        assert batch.row_tokens == rows * 20 + 72
        assert (batch.positions_MBT == 19).sum() == rows
        assert [found[:20] for found in paths(batch).values()] == [group[0].datums[0].ids_T[:20].tolist()] * 72


def test_equal_answers_have_slots_of_their_own_up_to_what_a_row_can_have(always):
    """Their tokens are in a row once; a row never has more slots than its datums alone could have."""
    one = grouped(1, 4, [10])[0]
    batch = batching.pack([one] * 12, SECTION.model_copy(update={"buckets": (32,)}), 1, work=SPARSE)
    assert (batch.row_tokens, batch.shared_tokens) == (4 * 14, 8 * 14)  # three of 10 slots fit into 31
    assert batch.mask_MN.sum() == 120


@pytest.mark.slow
def test_a_long_conversation_needs_no_recursion(always):
    """A chain of 2,000 rows, each continuing the one before it."""
    ids = np.arange(2001) % 50
    rows = [episode_of(datum_of(ids[: n + 2], [*[0] * (n + 1), 1]), group=str(n), advantage=1.0) for n in range(1999)]
    batch = batching.pack(rows, SECTION.model_copy(update={"buckets": (2048,)}), 1, work=SPARSE)
    assert batch.row_tokens == 2000 and batch.mask_MN.sum() == 1999


@pytest.mark.slow
def test_a_deep_tree_is_divided_without_recursion(always):
    """Answers of one word, each a word longer than the one before it, with more sampled tokens than a row may have."""
    flags = [np.arange(n + 2) > max(0, n + 1 - 20) for n in range(1199)]
    answers = [episode_of(datum_of([9] * len(own), own), group="g", advantage=1.0) for own in flags]
    batch = batching.pack(answers, SECTION.model_copy(update={"buckets": (1280,)}), 1, work=SPARSE)
    assert batch.mask_MN.sum() == sum(own.sum() for own in flags)


def test_rows_do_not_depend_on_the_names_of_groups(always):
    group = grouped(2, 9, [5, 3, 4])
    renamed = [replace(episode, group=str(number)) for number, episode in enumerate(group)]
    one, other = (batching.pack(episodes, SECTION, 1, work=SPARSE) for episodes in (group, renamed))
    np.testing.assert_array_equal(one.ids_MBT, other.ids_MBT)


def test_sharing_is_chosen_by_the_work_it_saves():
    section = SECTION.model_copy(update={"buckets": (64, 256), "micro_batch_rows": 1})

    def pack(episodes, sparse, **changes):
        return batching.pack(episodes, section.model_copy(update=changes), 1, work=RowWork(TINY, sparse))

    long_prompt, long_answers = (grouped(1, n, [m] * 8, alike=0) for n, m in ((50, 4), (8, 50)))
    # Three rows of 64 have three, three and two answers; a row of 256 would have all, and more padding.
    for sparse in (True, False):
        batch = pack(long_prompt, sparse)
        assert batch.shared_tokens == 5 * 50 and batch.ids_MBT[: int(batch.micro_batches)].shape == (3, 1, 64)
        assert pack(long_prompt, sparse, buckets=(64, 82)).shared_tokens == 7 * 50
    # Two rows of 256 instead of eight of 64: 408 tokens in 512 places either way.
    assert pack(long_answers, True).shared_tokens == 0
    # In a row of 408 the tokens are fewer by an eighth. If all that is before them is computed, it costs more.
    assert pack(long_answers, True, buckets=(64, 408)).shared_tokens == 7 * 8
    assert pack(long_answers, False, buckets=(64, 408)).shared_tokens == 0
    assert pack(long_prompt, True, packing=False).shared_tokens == 0
    assert batching.pack(long_prompt, section, 1).shared_tokens == 0
    apart = [e for seed in range(8) for e in grouped(1, 20, [20], seed=seed)]
    assert pack(apart, True).shared_tokens == 0


def test_micro_batches_of_longer_rows_have_fewer_of_them():
    """Twelve groups, each in a row of 128 instead of four of 64: four at a time instead of eight."""
    groups = grouped(12, 50, [9, 9, 9, 9], alike=0)
    section = SECTION.model_copy(update={"buckets": (64, 128), "micro_batch_rows": 8})
    apart, shared = (batching.pack(groups, section, 1, work=work) for work in (None, SPARSE))
    assert apart.ids_MBT.shape[1:] == (8, 64) and int(apart.micro_batches) == 6
    assert shared.ids_MBT.shape[1:] == (4, 128) and int(shared.micro_batches) == 3


@pytest.mark.parametrize("window", [None, 5])
def test_work_by_hand(window):
    """A prompt of 10 tokens with answers of 3 and 2, in 1 row of 16: pairs of tokens that see each other."""
    model = like(TINY, layer_windows=(window, None))
    pieces = batching.pieces_of(grouped(1, 10, [3, 2], alike=0), 16, True, None)
    rows = prefixes.rows_of(prefixes.shared(pieces), 16)
    dense = 2 * flops.weights_per_token(model) * 16
    full = 55 + (11 + 12 + 13) + (11 + 12)  # 1 + … + 10 in the prompt
    near = full if window is None else 1 + 2 + 3 + 4 + 5 * 11
    assert RowWork(model, True).flops(rows, 1, 16) == dense + 4 * (near + full) * 4 * 16
    assert RowWork(model, False).flops(rows, 1, 16) == dense + 4 * 2 * 136 * 4 * 16  # all before it, window or not
    rows = prefixes.rows_of(prefixes.alone(pieces), 16)
    near = 136 if window is None else 15 + 11 * 5
    assert RowWork(model, False).flops(rows, 2, 16) == 2 * (dense + 4 * (near + 136) * 4 * 16)


# ----------------------------------------------------------------------------------------------------- the same update
CARD = LossCard(kl="k3", kl_coef=0.1, entropy_coef=0.05, old_logprobs="rollout")
ADAPTER = Adapter(4, 8.0, ("q_proj", "v_proj", "down_proj"), base_dtype=jnp.float32)


def changed(factors):
    """Factors of an adapter in use: b, which starts at 0, is not, and no gradient is."""
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda w: w + 0.05 * rng.normal(size=w.shape).astype(np.float32), factors)


def difference(one, other) -> float:
    """Largest difference of any entry, relative to the largest entry of its own leaf."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


@pytest.mark.parametrize(
    ("adapter", "episodes"),
    [
        pytest.param(None, grouped(3, 11, [6, 1, 9, 4], temperatures=(0.7, 1.0)), id="group"),
        pytest.param(ADAPTER, several_turns(4, 3), id="turns of conversations, adapter", marks=pytest.mark.slow),
    ],
)
def test_log_probs_loss_and_gradient_are_those_of_separate_rows(always, adapter, episodes):
    optimizer = OptimizerSection(learning_rate=1e-2, warmup_steps=0, max_grad_norm=1e9, weight_decay=0.1)
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    results = []
    for choice in ("auto", "never"):
        section = SECTION.model_copy(update={"share_prefixes": choice})
        dtypes = {"param_dtype": jnp.float32, "compute_dtype": jnp.float32}
        learner = Learner(TINY, mesh, optimizer, section, **dtypes, adapter=adapter)
        start = changed(learner.layout.init_factors(jax.random.key(0))) if adapter else weights_of(TINY)
        state = learner.init_state(start)
        base = weights_of(TINY)
        state = state.replace(ref_params=base if adapter else jax.tree.map(lambda w: w * 1.1, base))
        (batch,) = learner.pack(episodes, CARD)
        assert (float(batch.shared_tokens) > 0) == (choice == "auto")
        scores = [batching.unpack(batch, x) for x in jax.device_get(learner.score(state, batch)[:2])]
        after, metrics = learner.update(state, [batch], CARD)
        filled = int(batch.micro_batches) * batch.ids_MBT[0].size, int(batch.micro_batches) * batch.mask_MN.shape[1]
        assert metrics["row_padding"] == pytest.approx(1 - float(batch.row_tokens) / filled[0], abs=1e-6)
        assert metrics["slot_padding"] == pytest.approx(1 - metrics["tokens"] / filled[1], abs=1e-6)
        results.append((scores, after.opt_state[0].mu, metrics))
    (scores, gradient, metrics), (alone, wanted, others) = results
    assert np.abs(np.subtract(scores, alone)).max() < 1e-5  # of log-probs down to −16, whose steps are 1e-6
    assert difference(gradient, wanted) < 5e-6
    shapes = {"row_padding", "slot_padding", "shared_tokens"}
    for name in others.keys() - shapes:
        assert metrics[name] == pytest.approx(others[name], rel=1e-5, abs=1e-6), name
    assert others["shared_tokens"] == 0 < metrics["shared_tokens"]


def measured(which: str) -> dict[str, dict[str, float]]:
    command = [sys.executable, str(Path(__file__).with_name("eight_prefixes.py")), which]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("digits", ["float32", "float64"])
def test_every_family_and_mesh_is_that_of_separate_rows(digits):
    """float64: with the models' own float32 replaced, so that nothing hides in the rounding."""
    scores, gradients = (1e-5, 5e-6) if digits == "float32" else (1e-12, 1e-11)
    facts = measured(digits)
    assert len(facts) >= 12
    for name, one in facts.items():
        assert one["shared"] > 0, name
        assert one["scores"] < scores and one["grads"] < gradients and one["loss"] < gradients, (name, one)


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        pytest.param([(9, []), (4, [])], (4, 0), id="several"),
        pytest.param([(9, [])], (1, 0), id="single"),
        pytest.param([(5, [(2, []), (2, [(1, []), (1, [])]), (4, [])])], (16, 2), id="a group that forks again"),
        pytest.param([(1, [])] * 17, (64, 0), id="many"),
        pytest.param([(1, [])] * 65, None, id="more than any size"),
        pytest.param([(5, [(2, [(2, [(1, []), (1, [])]), (1, [])]), (4, [])])], None, id="deeper than any"),
    ],
)
def test_what_a_row_holds(texts, kind):
    def node(text, start=0):
        tokens, others = text
        below = [node(other, start + tokens) for other in others]
        return prefixes.Node(np.zeros(tokens, np.int32), start, below)

    rows = [prefixes.Node(np.zeros(0, np.int32), 0, [node(text) for text in texts])]
    assert prefixes.packing_of(rows) == kind
    assert prefixes.packing_of([*rows, prefixes.Node(np.zeros(0, np.int32), 0)]) == kind


@pytest.mark.slow
@pytest.mark.parametrize("kind", [(1, 0), (4, 0), (16, 1), (16, 2)])
def test_updates_without_a_mask_are_those_of_the_reference(always, kind, monkeypatch):
    """Rows of each kind, in kernels that stand for cuDNN's."""
    in_place_of_cudnn(monkeypatch)
    choice = "never" if kind[1] == 0 else "auto"
    section = SECTION.model_copy(update={"share_prefixes": choice, "packing": kind[0] > 1, "remat": "attention"})
    episodes = grouped(3, 11, [6, 1, 9, 4], alike=2 if kind[1] == 2 else 0)
    mesh, results = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1]), []
    for backend in ("cudnn", "reference"):
        monkeypatch.setattr("scope_jax.models.kernels.attention.resolve", lambda *given, backend=backend: backend)
        optimizer = OptimizerSection(learning_rate=1e-2, warmup_steps=0, max_grad_norm=1e9)
        learner = Learner(TINY, mesh, optimizer, section, param_dtype=jnp.float32, compute_dtype=jnp.float32)
        learner.jitted.work = learner.jitted.work and SPARSE
        state = learner.init_state(weights_of(TINY))
        (batch,) = learner.pack(episodes, CARD)
        assert batch.packing == (kind if backend == "cudnn" else None)
        logps_MN = learner.score(state, batch).old_MN
        assert logps_MN is not None
        scored = batching.unpack(batch, logps_MN)
        after, _ = learner.update(state, [batch], CARD)
        results.append((scored, after.opt_state[0].mu))
    (scored, gradient), (wanted, other) = results
    assert np.abs(scored - wanted).max() < 5e-6  # of log-probs down to −16, whose steps are 1e-6
    assert difference(gradient, other) < 5e-6
