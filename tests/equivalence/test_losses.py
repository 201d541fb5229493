"""Every loss card against a float64 torch implementation written for padded rows: values and gradients.

The torch side knows sequences, masks and sums over [B, T]; ours knows compact slots, cut into shares and added up.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax import losses
from scope_jax.config import LossCard
from scope_jax.logprobs import token_logprobs
from sharding.collectives import LOCAL

torch = pytest.importorskip("torch")

ROWS, LENGTH, WIDTH, VOCAB, SLOTS = 7, 11, 6, 19, 64

logprobs = jax.jit(token_logprobs, static_argnums=(4, 5))


@pytest.fixture(scope="module")
def world():
    """Hidden states and everything else of seven sequences, one of them empty, one with a single trained token."""
    rng = np.random.default_rng(3)
    mask_BT = rng.random((ROWS, LENGTH)) < 0.6
    mask_BT[2] = False
    mask_BT[4] = np.arange(LENGTH) == 5
    advantage_B = np.array([1.5, -0.7, 9.0, 0.0, -2.0, 0.4, -0.1])
    hidden_BTD = rng.normal(size=(ROWS, LENGTH, WIDTH))
    table_VD = rng.normal(size=(VOCAB, WIDTH))
    targets_BT = rng.integers(0, VOCAB, (ROWS, LENGTH))
    logits = hidden_BTD @ table_VD.T / 0.8
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    logp_BT = np.take_along_axis(logp, targets_BT[..., None], -1)[..., 0]
    near_BT, far_BT = (logp_BT + scale * rng.normal(size=logp_BT.shape) for scale in (0.3, 0.8))
    ref_BT = logp_BT + 0.7 * rng.normal(size=logp_BT.shape)
    arrays = {"h": hidden_BTD, "w": table_VD, "old": near_BT, "mu": far_BT, "ref": ref_BT}
    as32 = {name: x.astype(np.float32) for name, x in arrays.items()}
    return as32 | {"mask": mask_BT, "advantage": advantage_B.astype(np.float32), "targets": targets_BT}


def torch_logp(hidden, table, targets, temperature):
    return torch.log_softmax(hidden @ table.T / temperature, -1).gather(-1, targets[..., None])[..., 0]


def torch_aggregate(values, mask, card):
    mask = mask.double()
    full = mask.sum(1) > 0
    match card.aggregation:
        case "token-mean":
            return (values * mask).sum() / mask.sum()
        case "sequence-mean":
            return ((values * mask).sum(1)[full] / mask.sum(1)[full]).mean()
        case "constant":
            return (values * mask).sum() / (full.sum() * card.constant_length)
    raise AssertionError(card.aggregation)


def torch_kl(logp, old, ref, card):
    """Importance-weighted estimators, differentiated by autograd as they stand; k2 with the weight held fixed."""
    ratio, delta = torch.exp(logp - old), logp - ref
    match card.kl:
        case "k1":
            return ratio * delta
        case "k2":
            return ratio.detach() * delta**2 / 2
        case "k3":
            return ratio * (torch.exp(-delta) - 1 + delta)
    raise AssertionError(card.kl)


def torch_loss(logp, world, card):
    tensor = {name: torch.tensor(world[name]).double() for name in ("old", "mu", "ref", "advantage")}
    mask = torch.tensor(world["mask"])
    if card.objective == "supervised":
        return torch_aggregate(-logp, mask, card)
    old = tensor["mu"] if card.old_logprobs == "rollout" else tensor["old"]
    advantage = tensor["advantage"][:, None]
    ratio = torch.exp(logp - old)
    bounded = torch.clamp(ratio, 1 - card.clip_low, 1 + card.clip_high)
    objective = torch.minimum(ratio * advantage, bounded * advantage)
    if card.dual_clip is not None:
        objective = torch.where(advantage < 0, torch.maximum(objective, card.dual_clip * advantage), objective)
    loss = torch_aggregate(-objective, mask, card)
    if card.kl != "none":
        loss = loss + card.kl_coef * torch_aggregate(torch_kl(logp, old, tensor["ref"], card), mask, card)
    return loss


def tokens_of(world, places, card):
    """The slots of some (row, column) places, in that order, then empty slots full of rubbish."""
    rows, columns = np.array(places).T
    mask = world["mask"]
    starts = {(row, int(np.flatnonzero(mask[row])[0])) for row in set(rows.tolist())}

    def slots(values, rubbish):
        return jnp.asarray(np.concatenate([values, np.full(SLOTS - len(places), rubbish, values.dtype)]))

    return losses.Tokens(
        mask_N=slots(np.ones(len(places), bool), False),
        first_N=slots(np.array([place in starts for place in places]), False),
        length_N=slots(mask.sum(1)[rows].astype(np.float32), 0),
        advantage_N=slots(world["advantage"][rows], 77),
        behaviour_N=slots(world["mu"][rows, columns], 5),
        old_N=slots(world["old"][rows, columns], -9),
        ref_N=slots(world["ref"][rows, columns], 30) if card.kl != "none" else None,
    )


def shares_of(world, count):
    """Trained places dealt to `count` shares without regard to rows: sequences are cut apart."""
    places = [(int(row), int(column)) for row, column in np.argwhere(world["mask"])]
    order = np.random.default_rng(count).permutation(len(places))
    return [[places[i] for i in part] for part in np.array_split(order, count)]


def our_loss(hidden, table, world, card, shares):
    """Σ numerators / Σ denominators over the shares."""
    numerator = denominator = jnp.float32(0)
    for places in shares:
        rows, columns = np.array(places).T
        tokens = tokens_of(world, places, card)
        rows, columns = (np.pad(x, (0, SLOTS - len(places))) for x in (rows, columns))
        targets_N = jnp.asarray(world["targets"][rows, columns], jnp.int32)
        logp_N = logprobs(hidden[rows, columns], table, targets_N, jnp.float32(0.8), 12, LOCAL)
        numerator = numerator + losses.loss_parts(logp_N, tokens, card).numerator
        denominator = denominator + losses.denominator(card, tokens)
    return numerator / denominator


def relative(ours, theirs):
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return np.abs(ours - theirs).max() / np.abs(theirs).max()


CARDS = [
    LossCard(aggregation=agg, constant_length=4, kl=kl, kl_coef=0.3, dual_clip=dual, clip_low=0.1, clip_high=0.28)
    for agg, kl, dual in itertools.product(
        ("token-mean", "sequence-mean", "constant"), ("none", "k1", "k2", "k3"), (None, 1.2)
    )
] + [
    LossCard(kl="k3", kl_coef=0.3, old_logprobs="rollout"),
    LossCard(objective="supervised", aggregation="token-mean"),
    LossCard(objective="supervised", aggregation="sequence-mean"),
    LossCard(objective="supervised", aggregation="constant", constant_length=9),
]


def name_of(card):
    return f"{card.objective}-{card.aggregation}-{card.kl}-{card.dual_clip}-{card.old_logprobs}"


@pytest.mark.parametrize("card", CARDS, ids=name_of)
def test_card_matches_torch(world, card):
    hidden, table = (torch.tensor(world[name]).double().requires_grad_() for name in ("h", "w"))
    theirs = torch_loss(torch_logp(hidden, table, torch.tensor(world["targets"]), 0.8), world, card)
    theirs.backward()
    run = jax.value_and_grad(our_loss, argnums=(0, 1))
    arrays = jnp.asarray(world["h"]), jnp.asarray(world["w"])
    loss, (grad_hidden, grad_table) = run(*arrays, world, card, shares_of(world, 1))
    assert abs(float(loss) - theirs.item()) <= 1e-6 * abs(theirs.item())
    assert relative(grad_hidden, hidden.grad) <= 1e-6
    assert relative(grad_table, table.grad) <= 1e-6
    assert not np.asarray(grad_hidden)[~world["mask"]].any()


@pytest.mark.parametrize("card", CARDS[::7], ids=name_of)
def test_shares_change_nothing_but_rounding(world, card):
    hidden, table = jnp.asarray(world["h"]), jnp.asarray(world["w"])
    run = jax.value_and_grad(our_loss, argnums=(0, 1))
    whole, whole_grads = run(hidden, table, world, card, shares_of(world, 1))
    cut, cut_grads = run(hidden, table, world, card, shares_of(world, 3))
    assert abs(float(whole) - float(cut)) <= 1e-6 * abs(float(whole))
    assert max(relative(a, b) for a, b in zip(cut_grads, whole_grads, strict=True)) <= 1e-6


def test_the_cases_reach_every_branch(world):
    """Clipped above, clipped below and dual-clipped tokens are all among the trained ones."""
    hidden, table, targets = (torch.tensor(world[name]) for name in ("h", "w", "targets"))
    logp = torch_logp(hidden, table, targets, 0.8).numpy()
    ratio = np.exp(logp - world["old"])[world["mask"]]
    sign = np.broadcast_to(world["advantage"][:, None], logp.shape)[world["mask"]]
    assert ((ratio > 1.28) & (sign > 0)).any()
    assert ((ratio < 0.9) & (sign < 0)).any()
    assert ((ratio > 1.2) & (sign < 0)).any()


@pytest.mark.parametrize(("kl", "noisy"), [("k1", True), ("k2", False), ("k3", False)])
def test_expected_gradient_is_that_of_the_divergence(kl, noisy):
    """E over x ~ π_old of each estimator's gradient is ∇KL(π ‖ ref), in closed form over a small vocabulary."""
    rng = np.random.default_rng(0)
    logits, old_logits, ref_logits = (torch.tensor(rng.normal(size=6)) for _ in range(3))
    logits.requires_grad_()
    logp, old, ref = torch.log_softmax(logits, 0), torch.log_softmax(old_logits, 0), torch.log_softmax(ref_logits, 0)
    (logp.exp() * (logp - ref)).sum().backward()
    card = LossCard(kl=kl)

    def expectation(logits_V, old_V):
        logp_V = jax.nn.log_softmax(logits_V)
        terms_V = losses.kl_terms(logp_V, jnp.asarray(old_V), jnp.asarray(ref.numpy(), jnp.float32), card)
        return jnp.sum(jnp.exp(jnp.asarray(old_V)) * terms_V)

    grad_V = jax.grad(expectation)(jnp.asarray(logits.detach().numpy(), jnp.float32), old.numpy().astype(np.float32))
    assert relative(grad_V, logits.grad) <= 2e-6
    # At π = π_old = ref the divergence is flat: k2 and k3 then push no single token, k1 pushes each (with mean zero).
    same_V = jnp.asarray(ref.numpy(), jnp.float32)
    slope_V = jax.grad(lambda x_V: jnp.sum(losses.kl_terms(x_V, same_V, same_V, card)))(same_V)
    np.testing.assert_array_equal(np.asarray(slope_V), np.ones(6) if noisy else np.zeros(6))
