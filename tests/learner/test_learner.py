"""The learner on one device: what an update changes and what it must not, and that splitting the work changes rounding
only."""

from collections import Counter
from dataclasses import replace
from functools import partial

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.learner import batching, splitting
from scope_jax.learner.learner import Learner, Scores
from scope_jax.learner.logprobs import token_logprobs
from scope_jax.learner.programs import LearnerPrograms
from scope_jax.learner.state import DivergedError
from scope_jax.models.decoder import transformer
from scope_jax.run.programs import programs
from scope_jax.sharding.collectives import LOCAL
from scope_jax.sharding.mesh import MeshConfig, make_mesh

# Nearly all tests share two batch sizes: that of `episodes`, and a few tokens in one micro-batch.
OPTIMIZER = OptimizerSection(learning_rate=1e-2, warmup_steps=1, max_grad_norm=1e9, weight_decay=0.0)
SECTION = LearnerSection(buckets=(32,), packing=True, micro_batch_rows=2, logprob_chunk=16)
POLICY = LossCard(kl="k3", kl_coef=0.1)
SUPERVISED = LossCard(objective="supervised", aggregation="token-mean")


def build(tiny, optimizer=OPTIMIZER, **section) -> Learner:
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    return Learner(
        tiny, mesh, optimizer, SECTION.model_copy(update=section), param_dtype=jnp.float32, compute_dtype=jnp.float32
    )


@pytest.fixture(scope="module")
def learner(tiny):
    return build(tiny)


@pytest.fixture(scope="module")
def state(learner, tiny_params):
    """A state whose reference differs from its policy. Steps donate their state, so tests use `fresh`."""
    start = learner.init_state(tiny_params)
    rng = np.random.default_rng(0)
    moved = jax.tree.map(lambda w: w + 0.02 * rng.normal(size=w.shape).astype(np.float32), start.ref_params)
    return jax.device_get(start.replace(ref_params=moved))


def fresh(learner, state):
    return jax.tree.map(partial(jax.device_put, may_alias=False), state, learner.layout.state_shardings(True))


def test_a_reference_in_bfloat16_gives_the_same_bits(tiny, tiny_params, make):
    """The reference is stored in compute_dtype: its weights are cast to it anyway."""
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    learner = Learner(tiny, mesh, OPTIMIZER, SECTION, param_dtype=jnp.float32, compute_dtype=jnp.bfloat16)
    state = learner.init_state(tiny_params)
    assert {x.dtype for x in jax.tree.leaves(state.ref_params)} == {jnp.dtype(jnp.bfloat16)}
    assert {x.dtype for x in jax.tree.leaves(state.params)} == {jnp.dtype(jnp.float32)}
    wanted = jax.tree.map(lambda leaf: leaf.dtype, learner.abstract_state(True))
    assert jax.tree.map(lambda leaf: leaf.dtype, state) == wanted
    (batch,) = learner.pack(make[2](8, 4), POLICY)
    small, whole = (
        np.asarray(learner.score(state.replace(ref_params=reference), batch, policy=False).ref_MN)
        for reference in (state.ref_params, tiny_params)
    )
    assert small.any() and np.array_equal(small, whole)


def test_casting_the_weights_once_changes_no_bit(tiny, tiny_params, make, monkeypatch):
    """Log-probs and gradients in bfloat16 are those with a cast in every pass."""
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    results = []
    for once in (True, False):
        if not once:
            monkeypatch.setattr(LearnerPrograms, "_cast", lambda self, params: params)
        learner = Learner(tiny, mesh, OPTIMIZER, SECTION, param_dtype=jnp.float32, compute_dtype=jnp.bfloat16)
        state = learner.init_state(tiny_params)
        (batch,) = learner.pack(make[2](8, 4), SUPERVISED)
        scored = np.asarray(learner.score(state, batch, reference=False).old_MN)
        results.append((scored, gradient_of(learner.update(state, [batch], SUPERVISED)[0])))
    (ours, gradient), (wanted, other) = results
    assert ours.any() and np.array_equal(ours, wanted)
    assert all(np.array_equal(gradient[name], other[name]) for name in other)


def gradient_of(after) -> dict[str, np.ndarray]:
    """The gradient of a first step, from Adam's first moment: mu = (1 − beta1) · g."""
    leaves = jax.tree.leaves_with_path(after.opt_state[0].mu)
    return {jax.tree_util.keystr(path): np.asarray(mu) / 0.1 for path, mu in leaves}


def first_step(learner, state, episodes, card, temperature=1.0):
    """(gradient, metrics, weights) of one update."""
    sampled = [replace(episode, temperature=temperature) for episode in episodes]
    after, metrics = learner.update(fresh(learner, state), learner.pack(sampled, card), card)
    return gradient_of(after), metrics, jax.device_get(after.params)


def max_difference(one, other) -> float:
    scale = max(np.abs(x).max() for x in jax.tree.leaves(other))
    return max(np.abs(a - b).max() for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)) / scale


@pytest.fixture(scope="module")
def episodes(make):
    return make[2](9, 3)


@pytest.fixture(scope="module")
def base(learner, state, episodes):
    return first_step(learner, state, episodes, POLICY)


@pytest.mark.parametrize(
    "section",
    [
        {"micro_batch_rows": 1},
        pytest.param({"packing": False}, marks=pytest.mark.slow),
        pytest.param({"micro_batch_rows": 4}, marks=pytest.mark.slow),
        pytest.param({"remat": "none"}, marks=pytest.mark.slow),
    ],
)
def test_splitting_the_work_changes_rounding_only(tiny, state, episodes, base, section):
    grads, metrics, _ = first_step(build(tiny, **section), state, episodes, POLICY)
    assert max_difference(grads, base[0]) < 1e-5
    assert metrics["loss"] == pytest.approx(base[1]["loss"], rel=1e-5)
    assert metrics["tokens"] == base[1]["tokens"] and metrics["sequences"] == 9


SEQUENCE = LossCard(
    ratio="sequence",
    clip_low=0.02,
    clip_high=0.02,
    kl="none",
    rollout_cap=1.5,
    rollout_weight="sequence",
    old_logprobs="learner",
    entropy_coef=0.1,
    mini_batches=2,
)


def sampled_nearby(learner, state, episodes):
    """The episodes as if sampled by an engine whose log-probs differ slightly from the learner's."""
    (batch,) = learner.pack(episodes, POLICY)
    scored = iter(batching.unpack(batch, learner.score(fresh(learner, state), batch, reference=False).old_MN))
    rng = np.random.default_rng(1)

    def shifted(datum):
        logprobs = [next(scored) + rng.normal() / 8 if flag else 0.0 for flag in datum.sampled_T]
        return replace(datum, logprobs_T=np.asarray(logprobs, np.float32))

    return [replace(e, datums=tuple(map(shifted, e.datums))) for e in episodes]


@pytest.mark.slow
def test_sequences_may_be_cut_over_micro_batches(tiny, state, episodes):
    """Ratio and weight of whole episodes of two datums each, in one micro-batch and in many: the gradient of the second
    mini-batch, after the policy has changed. Adam's first moment holds both steps; its eps prevents the step between
    them from amplifying the rounding of gradients near zero."""
    rows = [replace(e, datums=e.datums * 2) for e in sampled_nearby(build(tiny), state, episodes)]

    def run(**section):
        after = build(tiny, OPTIMIZER.model_copy(update={"eps": 1e-3}), **section)
        batches = after.pack(rows, SEQUENCE)
        moved, metrics = after.update(fresh(after, state), batches, SEQUENCE)
        return [batch.ids_MBT.shape[0] for batch in batches], gradient_of(moved), metrics

    (one, *_), whole, base = run(micro_batch_rows=0)
    (many, *_), cut, metrics = run(micro_batch_rows=1, packing=False)
    assert one == 1 and many >= 8
    assert max_difference(cut, whole) < 1e-5
    for name in ("loss", "entropy", "ratio_mean", "rollout_weight_mean", "clip_fraction", "grad_norm"):
        assert metrics[name] == pytest.approx(
            base[name], rel=1e-5, abs=1e-5
        )  # abs: terms of both signs cancel in a loss
    assert base["sequences"] == 9 and 0 < base["clip_fraction"] < 1 and 0 < base["rollout_cap_fraction"] < 1


def test_entropy_is_that_of_the_whole_distribution(base, learner, state, episodes):
    assert 0 < base[1]["entropy"] < np.log(72) and base[1]["surprisal"] > 0
    (batch,) = learner.pack(episodes, POLICY)
    flat = jax.tree.map(lambda w: w * 0, state.params)
    card = POLICY.model_copy(update={"kl": "none"})
    _, metrics = learner.step(fresh(learner, state.replace(params=flat)), batch, Scores(None, None), card)
    assert float(metrics["entropy"]) == pytest.approx(np.log(72), rel=1e-6)
    assert float(metrics["surprisal"]) == pytest.approx(np.log(72), rel=1e-6)


def test_same_input_same_bits(learner, state, episodes, base):
    grads, metrics, params = first_step(learner, state, episodes, POLICY)
    assert metrics == base[1]
    assert max_difference(params, base[2]) == 0 and max_difference(grads, base[0]) == 0


def test_metrics_of_a_policy_update(base):
    metrics = base[1]
    assert metrics["ratio_mean"] == metrics["ratio_max"] == 1.0  # the first step after scoring
    assert metrics["clip_fraction"] == metrics["skipped"] == 0
    assert metrics["kl_k3"] > 0 and metrics["grad_norm"] > 0
    assert metrics["mismatch_max"] >= metrics["mismatch_mean"] > 0
    assert metrics["loss"] == pytest.approx(metrics["policy_loss"] + 0.1 * metrics["kl_k3"], rel=1e-5)
    assert metrics["learning_rate"] == pytest.approx(1e-2)
    squares = [float(np.square(w).sum()) for w in jax.tree.leaves(base[2])]
    count = sum(w.size for w in jax.tree.leaves(base[2]))
    assert metrics["param_rms"] == pytest.approx(np.sqrt(sum(squares) / count), rel=1e-6)


def test_score_equals_the_log_probs_of_the_step(learner, state, episodes):
    """Old log-probs that are the policy's own give the same first step as none."""
    (batch,) = learner.pack(episodes, POLICY)
    start = fresh(learner, state)
    scores = learner.score(start, batch)
    _, with_old = learner.step(fresh(learner, state), batch, scores, POLICY)
    _, without = learner.step(start, batch, Scores(None, scores.ref_MN), POLICY)
    assert float(with_old["ratio_max"]) == pytest.approx(1, abs=1e-5)
    assert float(with_old["grad_norm"]) == pytest.approx(float(without["grad_norm"]), rel=1e-5)
    assert not np.asarray(scores.old_MN)[~np.asarray(batch.mask_MN)].any()


def test_mini_batches_are_steps_and_later_ones_use_the_updated_policy(learner, state, episodes):
    card = POLICY.model_copy(update={"mini_batches": 3})
    batches = learner.pack(episodes, card)
    after, metrics = learner.update(fresh(learner, state), batches, card)
    assert len(batches) == 3 and int(after.opt_state[0].count) == 3
    assert metrics["ratio_max"] > 1.0 and metrics["sequences"] == 9
    assert int(after.step) == 1  # the learning rate follows updates, as in verl, not optimiser steps


def test_temperature_is_used_if_the_card_is_tempered(learner, state, episodes):
    def logps(card, temperature):
        (batch,) = learner.pack([replace(episode, temperature=temperature) for episode in episodes], card)
        return batching.unpack(batch, learner.score(fresh(learner, state), batch, reference=False).old_MN)

    plain = logps(POLICY, 1.0)
    assert np.abs(logps(POLICY, 0.5) - plain).max() > 0.1
    np.testing.assert_array_equal(logps(POLICY.model_copy(update={"tempered": False}), 0.5), plain)
    np.testing.assert_array_equal(logps(POLICY, 0.0), plain)


def test_roles_in_one_update_keep_their_temperatures(learner, state, episodes):
    """Each token's log-prob is that of its own episode's temperature, as if its role were scored alone."""

    def logps(rows):
        (batch,) = learner.pack(rows, POLICY)
        return batching.unpack(batch, learner.score(fresh(learner, state), batch, reference=False).old_MN)

    warm = [replace(episode, temperature=1.0) for episode in episodes[:4]]
    cool = [replace(episode, temperature=0.5) for episode in episodes[4:8]]
    np.testing.assert_allclose(logps([*warm, *cool]), np.concatenate([logps(warm), logps(cool)]), rtol=1e-6)


def test_a_weight_scales_the_terms_of_its_episodes_and_no_divisor(learner, state, episodes):
    """g(a and w·b) = (|a| g(a) + w |b| g(b)) / (|a| + |b|), every term of the loss included."""
    one, other, weight = episodes[:4], episodes[4:8], 0.25
    both = first_step(learner, state, [*one, *(replace(episode, weight=weight) for episode in other)], POLICY)[0]
    (first, measured), (second, counted) = (first_step(learner, state, rows, POLICY)[:2] for rows in (one, other))
    sizes = [metrics["sequences"] for metrics in (measured, counted)]
    total = sum(sizes)
    for name, gradient in both.items():
        wanted = (sizes[0] * first[name] + weight * sizes[1] * second[name]) / total
        np.testing.assert_allclose(gradient, wanted, atol=2e-6, rtol=0, err_msg=name)


def test_prompt_and_observation_targets_change_nothing(learner, state, make):
    """Targets that were not sampled do not enter the loss. This is tested on the last token of a datum, as no other
    token attends to it: if sampled, it is trained; if observed, its id has no effect."""
    datum_of, episode_of, _ = make

    def run(last_id, last_sampled):
        datum = datum_of([3, 4, 5, 6, last_id], [0, 1, 0, 1, last_sampled], [0, -4, 0, -4, -4 * last_sampled])
        return first_step(learner, state, [episode_of(datum, advantage=1.0)], POLICY)

    seen, other = run(7, False), run(50, False)
    assert seen[1] == other[1]
    embedding = "['embed']['table_VD']"
    np.testing.assert_array_equal(seen[0][embedding], other[0][embedding])
    assert run(7, True)[1]["tokens"] == 3 and max_difference(run(7, True)[0], run(50, True)[0]) > 1e-3


def test_unsampled_positions_get_exactly_zero_gradient(learner, state, episodes):
    """∂loss/∂hidden is zero wherever the next token was not sampled: no gradient comes through the head."""
    (batch,) = learner.pack(episodes[:3], POLICY)
    used = np.asarray(batch.index_MN)[np.asarray(batch.mask_MN)]
    hidden = jnp.asarray(np.random.default_rng(0).normal(size=(batch.ids_MBT.size, 32)), jnp.float32)

    def loss(hidden_ND):
        logp_N = token_logprobs(
            hidden_ND[batch.index_MN[0]],
            jnp.asarray(state.params["embed"]["table_VD"]),
            batch.targets_MN[0],
            jnp.float32(1),
            16,
            LOCAL,
        )
        return jnp.where(batch.mask_MN[0], logp_N, 0).sum()

    grad_ND = np.asarray(jax.jit(jax.grad(loss))(hidden))
    touched = np.flatnonzero(np.abs(grad_ND).sum(1))
    assert int(batch.micro_batches) == 1
    assert sorted(touched.tolist()) == sorted(used.tolist())


@pytest.mark.parametrize("pad", [0, 63])
def test_a_real_token_equal_to_the_pad_id_counts(learner, state, make, pad):
    """Padding is 0; a real 0 keeps its position, is attended to and trained. Compared with one unpadded row."""
    datum_of, episode_of, _ = make
    ids_T = jnp.array([5, pad, 9, pad, 11])
    episode = episode_of(datum_of(ids_T, [0, 0, 1, 1, 1]), advantage=1.0)
    (batch,) = learner.pack([episode], SUPERVISED)
    scored = batching.unpack(batch, learner.score(fresh(learner, state), batch, reference=False).old_MN)

    @jax.jit
    @partial(jax.value_and_grad, has_aux=True)
    def plain(params):
        rows = ids_T[None], jnp.arange(5)[None], jnp.full((1, 5), 5)
        hidden = transformer.hidden(learner.model, params, *rows, shards=LOCAL, remat="none", compute_dtype=jnp.float32)
        logp = jax.nn.log_softmax(hidden[0] @ params["embed"]["table_VD"].T)[jnp.array([1, 2, 3]), ids_T[2:]]
        return -logp.mean(), logp

    (_, logp), grads = plain(state.params)
    np.testing.assert_allclose(scored, logp, atol=1e-5)
    ours, _, _ = first_step(learner, state, [episode], SUPERVISED)
    assert max_difference(list(ours.values()), grads) < 1e-5


def test_a_non_finite_gradient_skips_the_step(learner, state, episodes):
    poisoned = [episodes[0].with_advantage(float("nan")), *episodes[1:]]
    start = fresh(learner, state)
    after, metrics = learner.update(start, learner.pack(poisoned, POLICY), POLICY)
    assert metrics["skipped"] == 1 and not np.isfinite(metrics["grad_norm"])
    assert max_difference(jax.device_get(after.params), state.params) == 0
    assert not any(leaf.any() for leaf in jax.tree.leaves(jax.device_get(after.opt_state)))
    assert int(after.step) == int(after.skipped) == 1
    again, metrics = learner.update(after, learner.pack(episodes, POLICY), POLICY)
    assert metrics["skipped"] == 0 and int(again.skipped) == 0 and int(again.step) == 2
    assert max_difference(jax.device_get(again.params), state.params) > 0


def test_many_consecutive_non_finite_gradients_end_the_run(learner, state, episodes):
    poisoned = learner.pack([episodes[0].with_advantage(float("nan")), *episodes[1:]], POLICY)
    after = fresh(learner, state)
    for _ in range(OPTIMIZER.max_skipped):
        after, metrics = learner.update(after, poisoned, POLICY)
    assert metrics["skipped"] == 1 and metrics["param_rms"] > 0
    with pytest.raises(
        DivergedError, match=r"9 optimiser steps in a row .* optimizer\.max_skipped = 8; start a new run"
    ):
        learner.update(after, poisoned, POLICY)


@pytest.mark.parametrize("size", [1e3, 1e25])  # the square of the second overflows float32
def test_weights_that_explode_end_the_run(learner, state, episodes, size):
    far = state.replace(params=jax.tree.map(lambda w: size * w, state.params))
    with pytest.raises(DivergedError, match=r"root mean square .* above optimizer\.max_param_rms = 1; start a new run"):
        learner.update(fresh(learner, far), learner.pack(episodes, POLICY), POLICY)


def test_equal_rewards_without_kl_change_nothing(learner, state, make):
    datum_of, episode_of, _ = make
    still = [episode_of(datum_of([1, 2, 3], [0, 1, 1], [0, -4, -5]), advantage=0.0) for _ in range(2)]
    _, metrics, params = first_step(learner, state, still, LossCard(kl="none"))
    assert metrics["grad_norm"] == 0 and metrics["tokens"] == 4
    assert max_difference(params, state.params) == 0


def test_supervised_loss_falls_and_the_end_of_sequence_is_learned(learner, state, make):
    datum_of, episode_of, _ = make
    eos = 63
    rows = [datum_of(ids, [0, 1, 1, 1]) for ids in ([7, 1, 2, eos], [8, 4, 5, eos])]
    (batch,) = batches = learner.pack([episode_of(row, group=str(i)) for i, row in enumerate(rows)], SUPERVISED)
    after, losses, ends = fresh(learner, state), [], []
    for _ in range(16):
        ends.append(batching.unpack(batch, learner.score(after, batch, reference=False).old_MN)[[2, 5]])
        after, metrics = learner.update(after, batches, SUPERVISED)
        losses.append(metrics["loss"])
    assert losses[-1] < 0.2 * losses[0] and metrics["tokens"] == 6
    assert (ends[0] < -0.5).all() and (ends[-1] > -0.05).all()


def test_update_donates_the_state_but_keeps_the_reference(learner, state, episodes):
    start = fresh(learner, state)
    after, _ = learner.update(start, learner.pack(episodes, POLICY), POLICY)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves((start.params, start.opt_state)))
    assert after.ref_params is start.ref_params
    assert max_difference(jax.device_get(after.ref_params), state.ref_params) == 0


def test_init_state_copies(learner, tiny_params):
    params = jax.tree.map(jnp.asarray, tiny_params)
    start = learner.init_state(params)
    for ours, ref, given in zip(*(jax.tree.leaves(t) for t in (start.params, start.ref_params, params)), strict=True):
        assert len({ours.unsafe_buffer_pointer(), ref.unsafe_buffer_pointer(), given.unsafe_buffer_pointer()}) == 3
    described = learner.abstract_state(reference=True)
    assert jax.tree.map(lambda x: (x.shape, x.dtype, x.sharding), start) == jax.tree.map(
        lambda x: (x.shape, x.dtype, x.sharding), described
    )


def dots_in(jaxpr):
    """Shapes of both operands of every matrix product in a program, inner programs included."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield tuple(variable.aval.shape for variable in equation.invars)
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from dots_in(inner)


def test_the_head_is_applied_to_trained_positions_only(tiny, state, make):
    learner = build(tiny, micro_batch_rows=4, logprob_chunk=512)
    (batch,) = learner.pack(make[2](8, 4), POLICY)
    trained, all_positions = batch.index_MN.shape[1], batch.ids_MBT[0].size
    assert trained // 2 < int(batch.mask_MN.sum(1).max()) <= trained < all_positions
    shapes = jax.make_jaxpr(
        lambda s, b: learner.jitted.step(state=s, base=None, batch=b, scores=Scores(None, None), card=SUPERVISED)
    )(fresh(learner, state).replace(ref_params=None), batch)
    flat = {shape for pair in dots_in(shapes.jaxpr) for shape in pair if len(shape) == 2}
    assert {shape[0] for shape in flat if 72 in shape and shape != (72, 32)} == {trained}


def test_a_missing_reference_or_advantage_is_named(learner, tiny_params, make, episodes):
    bare = learner.init_state(tiny_params, reference=False)
    with pytest.raises(ValueError, match="has no reference weights"):
        learner.update(bare, learner.pack(episodes, POLICY), POLICY)
    with pytest.raises(ValueError, match="no advantage"):
        learner.pack([make[1](make[0]([1, 2], [0, 1]))], POLICY)
    with pytest.raises(ValueError, match="nothing to train on"):
        learner.update(bare, [], POLICY)
    assert learner.pack([make[1](make[0]([1, 2], [0, 0]), advantage=1.0)], POLICY) == []


def test_the_distance_of_sampler_and_trainer_by_role_and_depth(tiny, state, episodes, monkeypatch):
    """Against the log-probs that the learner gives, in two mini-batches, with depths of 8 tokens."""
    monkeypatch.setattr(batching, "DEPTH", 8)
    learner = build(tiny)
    asked = [replace(episode, role=("solver", "judge")[n % 2]) for n, episode in enumerate(episodes)]
    card = LossCard(kl="none", mini_batches=2)
    batches = learner.pack(asked, card)
    before, wanted = Counter(programs().finished), learner.new_programs(batches, card)
    assert wanted == {"_score": 1, "_step": 1}  # both mini-batches have one shape
    apart: dict[tuple[str, int], list[float]] = {}
    for batch, part in zip(batches, splitting.mini_batches(asked, 2), strict=True):
        scores = learner.score(fresh(learner, state), batch, reference=False).old_MN
        assert scores is not None
        values = iter(batching.unpack(batch, scores))
        for episode in splitting.trainable(part):
            for datum in episode.datums:
                for place in np.flatnonzero(datum.sampled_T):
                    signed = float(next(values)) - datum.logprobs_T[place]
                    apart.setdefault((episode.role, int(place) // 8), []).append(signed)
    _, metrics = learner.update(fresh(learner, state), batches, card)
    assert all(programs().finished[name] == before[name] + count for name, count in wanted.items())
    assert learner.new_programs(batches, card) == {}  # all are there now
    found = {name: value for name, value in metrics.items() if "@" in name}
    assert len(apart) > 4 and len(found) == 2 * len(apart)
    for (role, depth), signed in apart.items():
        assert found[f"{role}/mismatch_bias@{depth + 1}k"] == pytest.approx(np.mean(signed), abs=1e-5)
        assert found[f"{role}/mismatch_kl@{depth + 1}k"] == pytest.approx(np.mean(np.expm1(signed) - signed), rel=1e-4)
