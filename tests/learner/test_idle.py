"""Episodes without a term in the loss are not put through the model: the update is the same as if they were."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.learner import batching
from scope_jax.learner.learner import Learner
from scope_jax.learner.programs import LearnerPrograms
from scope_jax.models.decoder.adapter import Adapter
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from tests.learner.conftest import TINY, datum_of, episode_of, random_episodes

OPTIMIZER = OptimizerSection(learning_rate=1e-2, warmup_steps=0, max_grad_norm=1e9, weight_decay=0.1)
SECTION = LearnerSection(buckets=(32,), micro_batch_rows=2, logprob_chunk=16)
PLAIN = LossCard(kl="none")
ADAPTER = Adapter(4, 8.0, ("q_proj", "v_proj"), base_dtype=jnp.float32)
COMPARED = ("grad_norm", "param_rms", "learning_rate", "skipped", "tokens", "sequences")


def build(section: LearnerSection = SECTION, adapter: Adapter | None = None) -> Learner:
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    dtypes = {"param_dtype": jnp.float32, "compute_dtype": jnp.float32}
    return Learner(TINY, mesh, OPTIMIZER, section, **dtypes, adapter=adapter)


@pytest.fixture(scope="module")
def learner() -> Learner:
    return build()


@pytest.fixture(scope="module")
def state(learner, tiny_params):
    """After a step, so that the moments are not 0."""
    start = learner.init_state(tiny_params, reference=False)
    after, _ = learner.update(start, learner.pack(random_episodes(8, 4, seed=1), PLAIN), PLAIN)
    return jax.device_get(after)


def fresh(state):
    return jax.tree.map(partial(jax.device_put, may_alias=False), state)


def partly_idle(padding: bool = True):
    """Twelve episodes of four groups, two of which have no spread, and a padding; every second has weight 0.15."""
    episodes = [
        replace(e, advantage=0.0 if e.group in ("g1", "g2") else e.advantage, weight=(1.0, 0.15)[i % 2])
        for i, e in enumerate(random_episodes(12, 4))
    ]
    spare = replace(episode_of(datum_of([1, 2, 3], [0, 1, 1]), group="g3", trained=False), padding=True)
    return episodes + [spare] * padding


def update(learner, state, episodes, card):
    batches = learner.pack(episodes, card)
    after, metrics = learner.update(fresh(state), batches, card)
    return jax.device_get(after), metrics, sum(rows_of(batch) for batch in batches)


def rows_of(batch) -> int:
    """Episodes that go through the model."""
    return 0 if batch.empty else int(np.asarray(batch.first_MN).sum())


def assert_equal(ours, other) -> None:
    """Moments relative to the largest entry of each leaf, 1e-6, and 2e-6 for a second one, which is a square; the
    counters exactly. A step moves a weight by η·m/√v, which an error of 1e-6 of the leaf's largest gradient moves by
    η·1e-6·max √v/√v: where a gradient is small, by more than 1e-6 of the largest weight. Of two such moments (m, √v)
    in up to two steps."""
    roots = jax.tree.map(np.sqrt, other.opt_state[0].nu)
    of_weights = {jax.tree_util.keystr(path): root for path, root in jax.tree.leaves_with_path(roots)}
    leaves = jax.tree.leaves_with_path(ours), jax.tree.leaves(other)
    for (path, a), b in zip(*leaves, strict=True):
        name = jax.tree_util.keystr(path)
        bound = (2e-6 if ".nu" in name else 1e-6) * np.abs(b).max()
        if name.startswith(".params"):
            root = of_weights[name.removeprefix(".params")]
            bound = bound + np.where(root > 0, 4 * OPTIMIZER.learning_rate * 1e-6 * root.max() / (root + 1e-8), 0)
        assert np.all(np.abs(a - b) <= bound), name


def absolute_loss(learner, state, episodes, card) -> float:
    """The loss with every advantage below 0: no two terms cancel, so it is the sum of their absolute values over the
    divisor."""
    signed = [e if e.advantage is None else e.with_advantage(-abs(e.advantage)) for e in episodes]
    return abs(update(learner, state, signed, card)[1]["loss"])


def same_loss(ours, other, absolute: float) -> bool:
    """Equal up to rounding, 1e-6 of the sum of absolute terms: the loss itself is no scale, as its terms cancel.

    A log-prob of the tiny model is between −16 and −1, which float32 gives in steps of up to 1e-6; in rows of another
    shape some come out one or two steps apart. The term −A·exp(log π − log μ) moves by the same share of itself, and
    the sum of all by the mean of these shares, times Σ|terms|. To add n terms costs up to (n − 1)·6e-8 of Σ|terms|
    (Higham 2002, Eq. (4.4)): 3e-6 for 44 terms if every rounding is at its worst. Measured: 4e-8 to 1.3e-7, and 4e-7
    for weights of whole sequences, whose log-probs add up first.
    """
    return all(abs(ours[name] - other[name]) <= 1e-6 * absolute for name in ("loss", "policy_loss"))


@pytest.mark.parametrize(
    "changes",
    [
        {"aggregation": "sequence-mean", "ratio": "sequence", "mini_batches": 2},
        {"aggregation": "constant", "rollout_cap": 1.2, "rollout_weight": "sequence"},
        pytest.param(
            {"aggregation": "token-mean", "mini_batches": 2, "dual_clip": 1.5, "clip_high": 0.001, "clip_low": 0.001},
            marks=pytest.mark.slow,
        ),
        pytest.param({"aggregation": "constant", "mini_batches": 2}, marks=pytest.mark.slow),
        pytest.param({"aggregation": "token-mean", "rollout_cap": 1.2}, marks=pytest.mark.slow),
        pytest.param({"surrogate": "weight", "dual_clip": 0.0, "old_logprobs": "rollout"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_loss_gradient_and_weights_are_those_with_all_episodes(learner, state, monkeypatch, changes):
    card = LossCard.model_validate({"kl": "none", "constant_length": 7} | changes)
    after, metrics, rows = update(learner, state, partly_idle(), card)
    monkeypatch.setattr(batching, "has_term", lambda episode, card: True)
    wanted, whole, all_rows = update(learner, state, partly_idle(), card)
    assert (rows, all_rows) == (6, 12)
    assert_equal(after, wanted)
    assert same_loss(metrics, whole, absolute_loss(learner, state, partly_idle(), card))
    assert {n: metrics[n] for n in COMPARED} == pytest.approx({n: whole[n] for n in COMPARED}, rel=1e-6, abs=1e-9)
    assert metrics["idle_sequences"] == 6 and whole["idle_sequences"] == 0
    assert metrics["tokens"] == sum(batching.sampled_tokens(e) for e in partly_idle(padding=False))


@pytest.mark.slow
def test_a_fault_is_more_than_rounding(learner, state):
    """The lightest term lost, one advantage wrong in its fourth digit, or one padding missing from the divisor."""
    card = LossCard(kl="none", aggregation="token-mean", rollout_cap=1.2)
    episodes = partly_idle()
    absolute = absolute_loss(learner, state, episodes, card)
    loss = update(learner, state, episodes, card)[1]
    place = min(
        (place for place, e in enumerate(episodes) if e.advantage),
        key=lambda place: abs(episodes[place].advantage or 0.0) * episodes[place].weight,
    )

    def with_share(share: float):
        lightest = episodes[place].with_advantage((episodes[place].advantage or 0.0) * share)
        return update(learner, state, [*episodes[:place], lightest, *episodes[place + 1 :]], card)[1]

    assert with_share(1.0)["loss"] == loss["loss"]
    assert not same_loss(with_share(0.0), loss, absolute)
    assert not same_loss(with_share(1.001), loss, absolute)
    assert not same_loss(update(learner, state, partly_idle(padding=False), card)[1], loss, absolute)


@pytest.mark.slow
@pytest.mark.parametrize("section", [{"packing": False}, {"micro_batch_rows": 0}], ids=str)
def test_with_any_micro_batches(state, monkeypatch, section):
    learner, card = (
        build(SECTION.model_copy(update=section)),
        LossCard(kl="none", aggregation="constant", mini_batches=2),
    )
    after, _, rows = update(learner, state, partly_idle(), card)
    monkeypatch.setattr(batching, "has_term", lambda episode, card: True)
    wanted, _, all_rows = update(learner, state, partly_idle(), card)
    assert (rows, all_rows) == (6, 12)
    assert_equal(after, wanted)


@pytest.mark.parametrize("changes", [{"kl": "k3"}, {"kl": "k3", "kl_coef": 0.0}, {"entropy_coef": 0.01}], ids=str)
def test_an_advantage_of_zero_is_not_all(learner, changes):
    """With a KL term, a KL that is measured, or an entropy term, only a weight of 0 leaves nothing."""
    card = LossCard.model_validate({"kl": "none"} | changes)
    assert sum(map(rows_of, learner.pack(partly_idle(), card))) == 12
    light = [replace(e, weight=0.0) if e.group == "g0" else e for e in partly_idle()]
    (batch,) = learner.pack(light, card)
    assert rows_of(batch) == 9 and float(batch.idle_sequences) == 3 and float(batch.padding_sequences) == 4


def test_supervised_episodes_of_weight_zero_and_pairs(learner):
    card = LossCard(objective="supervised")
    light = [replace(e, weight=0.0) if e.group == "g0" else e for e in partly_idle()]
    assert sum(map(rows_of, learner.pack(light, card))) == 9
    pairs = [replace(e, advantage=0.0, weight=0.0) for e in random_episodes(4, 2)]
    assert sum(map(rows_of, learner.pack(pairs, LossCard(objective="dpo")))) == 4


@pytest.mark.parametrize(
    ("mini_batches", "adapter"),
    [
        pytest.param(1, None, id="1-weights"),
        pytest.param(4, ADAPTER, id="4-adapter", marks=pytest.mark.slow),
        pytest.param(4, None, id="4-weights", marks=pytest.mark.slow),
        pytest.param(1, ADAPTER, id="1-adapter", marks=pytest.mark.slow),
    ],
)
def test_mini_batches_without_any_term_take_their_step(learner, state, tiny_params, monkeypatch, adapter, mini_batches):
    """As many optimiser steps as before: moments decay, and the weights move by them and by their decay. Nothing of the
    model runs for them."""
    if adapter is not None:
        learner = build(adapter=adapter)
        start = learner.init_state(learner.layout.init_factors(jax.random.key(0)), reference=False)
        start = start.replace(ref_params=jax.tree.map(jnp.asarray, tiny_params))
        state, _ = learner.update(start, learner.pack(random_episodes(8, 4, seed=1), PLAIN), PLAIN)
        state = jax.device_get(state)
    card = LossCard(kl="none", aggregation="token-mean", mini_batches=mini_batches)
    for idle in (("g0", "g1", "g2", "g3"), ("g0", "g1")):
        episodes = [e.with_advantage(0.0) if e.group in idle else e for e in random_episodes(12, 4)]
        batches = learner.pack(episodes, card)
        assert len(batches) == mini_batches
        assert sum(batch.empty for batch in batches) == mini_batches * len(idle) // 4
        with monkeypatch.context() as patch:
            if len(idle) == 4:
                patch.setattr(LearnerPrograms, "_logprobs", None)
            after, metrics = learner.update(fresh(state), batches, card)
        with monkeypatch.context() as patch:
            patch.setattr(batching, "has_term", lambda episode, card: True)
            wanted, whole, _ = update(learner, state, episodes, card)
        assert_equal(jax.device_get(after), wanted)
        assert int(after.opt_state[0].count) == mini_batches + 1
        assert same_loss(metrics, whole, absolute_loss(learner, state, episodes, card))
        assert {n: metrics[n] for n in COMPARED} == pytest.approx({n: whole[n] for n in COMPARED}, rel=1e-6, abs=1e-9)
        assert ("entropy" in metrics) == (len(idle) < 4)  # a mean over no token is left out


def test_means_are_over_the_tokens_that_are_computed(learner, state):
    metrics = update(learner, state, partly_idle(), PLAIN)[1]
    alone = update(learner, state, [e for e in partly_idle() if e.advantage], PLAIN)[1]
    for name in ("entropy", "surprisal", "mismatch_mean", "mismatch_max", "ratio_mean"):
        assert metrics[name] == pytest.approx(alone[name], rel=1e-5), name
    assert metrics["loss"] != pytest.approx(alone["loss"], rel=0.1)  # another divisor
