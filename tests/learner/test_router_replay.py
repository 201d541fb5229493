"""The experts that an engine picked, picked again in an update: what they change and what they must not."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.learner import batching, prefixes
from scope_jax.learner.learner import Learner
from scope_jax.learner.prefixes import RowWork
from scope_jax.learner.types import Datum, Episode
from scope_jax.rollouts.slots import EngineConfig
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from tests.learner.conftest import TINY, datum_of, episode_of, weights_of
from tests.learner.groups import with_picks
from tests.rollouts.world import CFG, make_engine, make_params, make_rollouts, request
from tests.shapes import like

OPTIMIZER = OptimizerSection(learning_rate=1e-3, warmup_steps=0, max_grad_norm=1e9)
MOE = like(CFG, architecture="qwen3_moe", num_experts=8, experts_per_token=2, norm_topk_prob=True, max_positions=1280)
PLAIN = LossCard(kl="none")


def build(model, dtype=jnp.float32, **section) -> Learner:
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    options = LearnerSection(**{"buckets": (64,), "micro_batch_rows": 2, "logprob_chunk": 32} | section)
    return Learner(model, mesh, OPTIMIZER, options, param_dtype=jnp.float32, compute_dtype=dtype)


def played(params, prompts, tokens, length, dtype=jnp.float32) -> list[Episode]:
    """Episodes that an engine with these weights has sampled, with its picks."""
    config = EngineConfig(8, length, 8, dtype, picks=True)
    plain = {"max_tokens": tokens, "stop_ids": ()}
    requests = [replace(request(prompt, key=i, **plain), picks=True) for i, prompt in enumerate(prompts)]
    said = make_rollouts(make_engine(config, MOE), params).run(requests)
    return [
        Episode("solver", "actor", "g", Datum.from_completion(one), 0.0, advantage=1.0 - i)
        for i, one in enumerate(said)
    ]


def without(episodes) -> list[Episode]:
    return [replace(e, datums=tuple(replace(one, picked_TLk=None) for one in e.datums)) for e in episodes]


@pytest.mark.slow
def test_the_learners_own_picks_change_no_bit():
    """In float32 engine and learner pick the same experts, so that the update is the same, replayed or not."""
    params, learner = make_params(MOE), build(MOE)
    episodes = played(params, ["a prompt", "another one", "the third"], 20, 64)
    found = []
    for each in (episodes, without(episodes)):
        batches = learner.pack(each, PLAIN)
        assert (batches[0].picked_MBTLk is not None) == (each is episodes)
        after, metrics = learner.update(learner.init_state(params, reference=False), batches, PLAIN)
        found.append((jax.tree.leaves(jax.device_get(after.params)), metrics))
    (ours, mine), (plain, theirs) = found
    assert mine == theirs and all(np.array_equal(a, b) for a, b in zip(ours, plain, strict=True))
    given = batching.abstract(learner.section, 1, 64, 63, 2)
    assert given.picked_MBTLk is None
    abstract = build(MOE, router_replay=True).abstract_batch(64).picked_MBTLk
    assert (abstract.shape[2:], abstract.dtype) == ((64, 2, 2), np.uint8)


@pytest.mark.slow
def test_an_engine_that_picks_others_is_seen_by_depth_and_gone_with_replay():
    """Routers whose probabilities are nearly equal, in bfloat16; noise of their size in the engine's copy makes it pick
    other experts, with nearly the same weights. What is left with replay is what is left without the noise."""
    params = make_params(MOE)
    routers = params["layers"]["router_DX"] * 0.002
    params["layers"]["router_DX"] = routers
    noise = np.random.default_rng(3).normal(size=routers.shape).astype(np.float32) * float(jnp.std(routers))
    moved = params | {"layers": params["layers"] | {"router_DX": routers + noise}}
    prompts = np.random.default_rng(4).integers(0, 256, (4, 960)).tolist()
    learner = build(MOE, jnp.bfloat16, buckets=(1280,))

    def mismatch(weights, own):
        episodes = own(played(weights, prompts, 192, 1280, jnp.bfloat16))
        state = learner.init_state(params, reference=False)
        return learner.update(state, learner.pack(episodes, PLAIN), PLAIN)[1]

    seen, replayed, floor = mismatch(moved, without), mismatch(moved, list), mismatch(params, list)
    for name in ("mismatch_mean", "solver/mismatch_kl@1k", "solver/mismatch_kl@2k"):
        print(name, *(f"{one[name]:.2e}" for one in (seen, replayed, floor)))
        assert seen[name] > (10 if name == "mismatch_mean" else 100) * replayed[name] > 0
        assert replayed[name] < 1.5 * floor[name]


@pytest.mark.slow
def test_the_reference_picks_for_itself():
    model = like(TINY, architecture="qwen3_moe", num_experts=8, experts_per_token=2, norm_topk_prob=True)
    learner = build(model, buckets=(16,))
    ids = np.random.default_rng(0).integers(0, 64, (2, 12))
    episodes = [episode_of(datum_of(row, [0] * 4 + [1] * 8), advantage=1.0) for row in ids]
    state = learner.init_state(weights_of(model))
    scored = (learner.score(state, learner.pack(e, PLAIN)[0]) for e in (with_picks(episodes, 2, 8, 2), episodes))
    (picked_old, picked_ref), (old, ref) = (jax.device_get((one.old_MN, one.ref_MN)) for one in scored)
    assert np.array_equal(picked_ref, ref) and np.array_equal(old, ref)
    assert np.abs(picked_old - old).max() > 1e-3


def test_rows_have_the_picks_of_their_tokens(monkeypatch):
    """A prompt that two datums share has those of the second; where it has none, those of the first."""
    monkeypatch.setattr(prefixes, "SAVING", -9.0)

    def answered(last, picks):
        datum = replace(datum_of([7, 8, 9, *last], [0] * 3 + [1] * len(last)), picked_TLk=np.asarray(picks, np.uint8))
        return episode_of(datum, advantage=1.0)

    none = [[0, 0]]
    first = answered([1, 2], [[[0, 1]], [[0, 2]], [[0, 3]], [[0, 4]], none])
    second = answered([3], [[[5, 1]], none, [[5, 3]], none])
    section = LearnerSection(buckets=(8,), micro_batch_rows=1, logprob_chunk=8)
    pack = partial(batching.pack, section=section, row_shards=1, work=RowWork(TINY, sparse=True))
    batch = pack([first, second])
    assert batch.ids_MBT[0, 0, :6].tolist() == [7, 8, 9, 1, 2, 3]
    wanted = [[5, 1], [0, 2], [5, 3], [0, 4], [0, 0], [0, 0], [0, 0], [0, 0]]
    assert batch.picked_MBTLk[0, 0, :, 0].tolist() == wanted and batch.picked_MBTLk.dtype == np.uint8
    with pytest.raises(ValueError, match=r"picked_TLk of a datum of 4 tokens is uint8\[3, 1, 2\]"):
        pack([first, answered([3], [none] * 3)])
