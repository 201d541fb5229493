"""DPO against torch: values and gradients of pairs whose tokens are split into shares, and a series of updates."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.learner import losses
from scope_jax.learner.learner import Learner
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from tests.equivalence import test_learner as qwen3

torch = pytest.importorskip("torch")

models, episodes = qwen3.models, qwen3.episodes  # fixtures: a policy and a reference in torch and here, ten episodes
PAIRS, LENGTH = 4, 9
TOLERANCE = {"float32": 1e-6, "float64": 1e-10}


def torch_dpo(ratio_w, ratio_l, beta, smoothing):
    """The mean over pairs, from Σ log π/ref of the chosen and of the rejected."""
    margin = beta * (ratio_w - ratio_l)
    logsigmoid = torch.nn.functional.logsigmoid
    return (-(1 - smoothing) * logsigmoid(margin) - smoothing * logsigmoid(-margin)).mean()


@pytest.fixture(scope="module")
def world():
    """Eight sequences; those of pair k are 2k and 2k + 1, and either may be the chosen one."""
    rng = np.random.default_rng(2)
    mask_BT = rng.random((2 * PAIRS, LENGTH)) < 0.6
    mask_BT[3] = np.arange(LENGTH) == 4  # a single token
    sign_B = np.array([1, -1, -1, 1, 1, -1, -1, 1.0])
    logp_BT = -2 + rng.normal(size=mask_BT.shape)
    return {"mask": mask_BT, "sign": sign_B, "logp": logp_BT, "ref": logp_BT + 2 * rng.normal(size=mask_BT.shape)}


def ours(logp_BT, world, card, shares):
    """Loss and metrics from `shares` shares of the tokens, in a random order, with an empty slot in each."""
    rows, columns = np.nonzero(world["mask"])
    first = {row: int(np.flatnonzero(world["mask"][row])[0]) for row in rows}
    dealt = np.array_split(np.random.default_rng(shares).permutation(len(rows)), shares)

    def tokens(places):
        def slots(values, garbage):
            return jnp.asarray(np.append(values, np.asarray(garbage, values.dtype)))

        own = rows[places]
        zeros = np.zeros(len(places), world["logp"].dtype)
        return losses.LossInputs(
            mask_N=slots(np.ones(len(places), bool), False),
            first_N=slots(
                np.array([first[row] == column for row, column in zip(own, columns[places], strict=True)]), True
            ),
            sequence_N=slots(own.astype(np.int32), 5),
            length_N=slots(zeros, 0),
            advantage_N=slots(world["sign"][own], 1),
            behaviour_N=slots(zeros, 7),
            weight_N=slots(zeros + 1, 3),
            old_N=None,
            ref_N=slots(world["ref"][own, columns[places]], 30),
        )

    entered = [(jnp.append(logp_BT[rows[p], columns[p]], -4.0), tokens(p)) for p in dealt]
    sums = [losses.sequence_sums(logp_N, toks, card, 2 * PAIRS) for logp_N, toks in entered]
    whole = jax.tree.map(lambda *x: sum(x[1:], x[0]), *sums)
    parts = [losses.loss_parts(logp_N, toks, card, sequences=whole) for logp_N, toks in entered]
    divisor = losses.denominator(card, jnp.asarray(len(rows), logp_BT.dtype), jnp.asarray(2 * PAIRS, logp_BT.dtype))
    metrics = {name: sum(part.sums[name] for part in parts) / divisor for name in parts[0].sums}
    return sum(part.numerator for part in parts) / divisor, metrics


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("shares", "smoothing"), [(1, 0.1), (3, 0.0)])
def test_pairs_match_torch(world, dtype, shares, smoothing):
    world = {name: x.astype(dtype) if x.dtype == np.float64 else x for name, x in world.items()}
    card, mask = LossCard(objective="dpo", dpo_beta=0.3, label_smoothing=smoothing), torch.tensor(world["mask"])
    logp = torch.tensor(world["logp"]).double().requires_grad_()
    ratio = ((logp - torch.tensor(world["ref"]).double()) * mask).sum(1)
    chosen = torch.tensor(world["sign"]) > 0
    theirs = torch_dpo(ratio[chosen], ratio[~chosen], 0.3, smoothing)
    theirs.backward()
    with jax.enable_x64(dtype == "float64"):
        run = jax.jit(jax.value_and_grad(lambda x_BT: ours(x_BT, world, card, shares), has_aux=True))
        (loss, metrics), grad_BT = run(jnp.asarray(world["logp"]))
        assert loss.dtype == grad_BT.dtype == dtype
    assert abs(float(loss) - theirs.item()) <= TOLERANCE[dtype] * theirs.item()
    assert np.abs(np.asarray(grad_BT) - logp.grad.numpy()).max() <= TOLERANCE[dtype] * logp.grad.abs().max()
    margin = (0.3 * (ratio[chosen] - ratio[~chosen])).detach()
    assert float(metrics["loss"]) == float(loss)
    assert float(metrics["implicit_margin"]) == pytest.approx(margin.mean().item(), rel=1e-5)
    assert float(metrics["implicit_chosen"]) == pytest.approx(0.3 * ratio[chosen].mean().item(), rel=1e-5)
    assert float(metrics["implicit_accuracy"]) == (margin > 0).double().mean().item()
    assert 0 < float(metrics["implicit_accuracy"]) < 1


def test_updates_equal_torch(models, episodes):
    """Five pairs in packed rows, the chosen one first or second, over several micro-batches, with AdamW steps."""
    policy, reference, cfg, params, ref_params = models
    rewards = [1.0, 0.0, 0.2, 0.7, 3.0, -1.0, 0.0, 0.1, 0.5, 0.4]
    rows = [replace(e, reward=r, temperature=0.8, advantage=None) for e, r in zip(episodes, rewards, strict=True)]
    optimizer = OptimizerSection(learning_rate=1e-3, warmup_steps=0, max_grad_norm=1e9, weight_decay=0.0)
    section = LearnerSection(buckets=(32,), micro_batch_rows=1, logprob_chunk=16)
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    learner = Learner(cfg, mesh, optimizer, section, param_dtype=jnp.float32, compute_dtype=jnp.float32)
    state = learner.init_state(params).replace(ref_params=ref_params)
    card = LossCard(objective="dpo", dpo_beta=0.5)
    batches = learner.pack(rows[::2] + rows[1::2], card)  # the two of a pair are not adjacent
    assert batches[0].ids_MBT.shape[0] > 2
    found, wanted = [], []
    adam = torch.optim.AdamW(policy.parameters(), optimizer.learning_rate, weight_decay=0.0)
    for _ in range(4):
        state, metrics = learner.update(state, batches, card)
        found.append((metrics["loss"], metrics["grad_norm"]))
        with torch.no_grad():
            ref = [qwen3.torch_logprobs(reference, e.datums[0]).sum() for e in rows]
        ratio = [qwen3.torch_logprobs(policy, e.datums[0]).sum() - r for e, r in zip(rows, ref, strict=True)]
        ordered = [(2 * k, 2 * k + 1) if rewards[2 * k] > rewards[2 * k + 1] else (2 * k + 1, 2 * k) for k in range(5)]
        chosen, rejected = (torch.stack([ratio[pair[side]] for pair in ordered]) for side in (0, 1))
        loss = torch_dpo(chosen, rejected, 0.5, 0.0)
        adam.zero_grad()
        loss.backward()
        wanted.append((loss.item(), torch.nn.utils.clip_grad_norm_(policy.parameters(), 1e9).item()))
        adam.step()
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
    np.testing.assert_allclose(np.array(found), np.array(wanted), rtol=2e-4)
    assert metrics["sequences"] == 10 and found[-1][0] < 0.5 * found[0][0]
