"""Every loss card against a float64 torch implementation written for padded rows: values and gradients.

The torch side works on sequences, masks and sums over [B, T] and applies autograd to the papers' equations; ours works
on compact slots, split into shares whose sums are added. They agree to 1e-6 in float32 and to 1e-10 in float64.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.config import LossCard
from scope_jax.learner import losses
from scope_jax.learner.logprobs import token_logprobs_and_entropy
from scope_jax.sharding.collectives import LOCAL

torch = pytest.importorskip("torch")

ROWS, LENGTH, WIDTH, VOCAB, SLOTS = 7, 11, 6, 19, 64
TOLERANCE = {"float32": 1e-6, "float64": 1e-10}

logprobs = jax.jit(token_logprobs_and_entropy, static_argnums=(4, 5), static_argnames="entropy_slope")


@pytest.fixture(scope="module")
def exact():
    """Hidden states and all other inputs for seven sequences, one of them empty, one with a single trained token."""
    rng = np.random.default_rng(3)
    mask_BT = rng.random((ROWS, LENGTH)) < 0.6
    mask_BT[2] = False
    mask_BT[4] = np.arange(LENGTH) == 5
    advantage_B = np.array([1.5, -0.7, 9.0, 0.0, -2.0, 0.4, -0.1])
    hidden_BTD = rng.normal(size=(ROWS, LENGTH, WIDTH))
    table_VD = rng.normal(size=(VOCAB, WIDTH)) / 2  # the rounding error of a log-prob grows with its logits
    targets_BT = rng.integers(0, VOCAB, (ROWS, LENGTH))
    logits = hidden_BTD @ table_VD.T / 0.8
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    logp_BT = np.take_along_axis(logp, targets_BT[..., None], -1)[..., 0]
    near_BT, far_BT = (logp_BT + scale * rng.normal(size=logp_BT.shape) for scale in (0.3, 0.8))
    ref_BT = logp_BT + 0.7 * rng.normal(size=logp_BT.shape)
    arrays = {"h": hidden_BTD, "w": table_VD, "old": near_BT, "mu": far_BT, "ref": ref_BT, "advantage": advantage_B}
    arrays["teacher"] = logp_BT + 0.9 * rng.normal(size=logp_BT.shape)
    return arrays | {"mask": mask_BT, "targets": targets_BT}


def in_dtype(exact, dtype):
    return {name: x.astype(dtype) if x.dtype == np.float64 else x for name, x in exact.items()}


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


def torch_kl(logp, old, ref, card, kl):
    """Estimators as written, under autograd: importance-weighted (k2's weight held constant), or plain."""
    bound = card.log_ratio_bound
    ratio, delta = torch.exp((logp - old).clamp(-bound, bound)), (logp - ref).clamp(-bound, bound)
    k2, k3 = delta**2 / 2, torch.exp(-delta) - 1 + delta
    if kl.endswith("plain"):
        plain = k2 if kl == "k2-plain" else k3
        return plain.clamp(max=card.kl_bound) if card.kl_bound else plain
    return {"k1": ratio * delta, "k2": ratio.detach() * k2, "k3": ratio * k3}[kl]


def torch_policy(logp, old, mu, advantage, mask, card):
    """Loss of each token, and its constant weight."""
    trained = mask.double()
    ratio = torch.exp((logp - old).clamp(-card.log_ratio_bound, card.log_ratio_bound))
    if card.ratio == "sequence":
        mean = ((logp - old) * trained).sum(1, keepdim=True) / trained.sum(1, keepdim=True).clamp(min=1)
        ratio = torch.exp(mean).expand(logp.shape)
    bounded = torch.clamp(ratio, 1 - card.clip_low, 1 + card.clip_high)
    if card.surrogate == "weight":
        loss = -bounded.detach() * advantage * logp
    else:
        objective = torch.minimum(ratio * advantage, bounded * advantage)
        if card.dual_clip:
            objective = torch.where(advantage < 0, torch.maximum(objective, card.dual_clip * advantage), objective)
        loss = -objective
    weight = torch.ones_like(logp)
    if card.rollout_cap:
        log = old - mu
        if card.rollout_weight == "sequence":
            log = (log * trained).sum(1, keepdim=True).expand(logp.shape)
        weight = torch.exp(log).clamp(card.rollout_floor, card.rollout_cap).detach()
    if card.rollout_mask != "none":
        log = old - mu
        if card.rollout_mask != "token":
            log = (log * trained).sum(1, keepdim=True)
        if card.rollout_mask == "geometric":
            log = log / trained.sum(1, keepdim=True).clamp(min=1)
        beyond = torch.exp(log) < card.rollout_mask_low
        if card.rollout_mask_high:
            beyond |= torch.exp(log) > card.rollout_mask_high
        weight = torch.where(beyond, 0.0, weight).detach()
    return loss, weight


def torch_loss(hidden, table, world, card, scored):
    """(loss, size of the terms it is summed from)."""
    logps = torch.log_softmax(hidden @ table.T / 0.8, -1)
    logp = logps.gather(-1, torch.tensor(world["targets"])[..., None])[..., 0]
    tensor = {name: torch.tensor(world[name]).double() for name in ("old", "mu", "ref", "teacher", "advantage")}
    mask = torch.tensor(world["mask"])
    if card.objective == "supervised":
        loss = torch_aggregate(-logp, mask, card)
        return loss, loss.item()
    old = tensor["old"] if scored else logp.detach()
    old = tensor["mu"] if card.old_logprobs == "rollout" else old
    policy, weight = torch_policy(logp, old, tensor["mu"], tensor["advantage"][:, None], mask, card)
    loss = torch_aggregate(weight * policy, mask, card)
    size = torch_aggregate((weight * policy).abs(), mask, card).item()
    if card.kl != "none":
        kl = torch_kl(logp, old, tensor["ref"], card, card.kl)
        loss = loss + card.kl_coef * torch_aggregate(kl if card.kl.endswith("plain") else weight * kl, mask, card)
    if card.teacher != "none":
        kl = torch_kl(logp, old, tensor["teacher"], card, card.teacher)
        loss = loss + card.teacher_coef * torch_aggregate(weight * kl, mask, card)
    if card.entropy_coef:
        loss = loss - card.entropy_coef * torch_aggregate(-(logps.exp() * logps).sum(-1), mask, card)
    return loss, size


def tokens_of(world, places, card, scored):
    """The slots of some (row, column) places, in that order, then empty slots with garbage values."""
    rows, columns = np.array(places).T
    mask = world["mask"]
    starts = {(row, int(np.flatnonzero(mask[row])[0])) for row in set(rows.tolist())}

    def slots(values, garbage):
        return jnp.asarray(np.concatenate([values, np.full(SLOTS - len(places), garbage, values.dtype)]))

    return losses.LossInputs(
        mask_N=slots(np.ones(len(places), bool), False),
        first_N=slots(np.array([place in starts for place in places]), False),
        sequence_N=slots(rows.astype(np.int32), 4),
        length_N=slots(mask.sum(1)[rows].astype(world["h"].dtype), 0),
        advantage_N=slots(world["advantage"][rows], 77),
        behaviour_N=slots(world["mu"][rows, columns], 5),
        weight_N=slots(np.ones(len(places), world["h"].dtype), 3),
        old_N=slots(world["old"][rows, columns], -9) if scored else None,
        ref_N=slots(world["ref"][rows, columns], 30) if card.kl != "none" else None,
        teacher_N=slots(world["teacher"][rows, columns], 30) if card.teacher != "none" else None,
    )


def shares_of(world, count):
    """Trained places split into `count` shares regardless of rows: sequences are cut."""
    places = [(int(row), int(column)) for row, column in np.argwhere(world["mask"])]
    order = np.random.default_rng(count).permutation(len(places))
    return [[places[i] for i in part] for part in np.array_split(order, count)]


def our_loss(hidden, table, world, card, scored, shares):
    """Σ numerators / denominator over the shares, after the sums over whole sequences."""
    entered, sequences = [], None
    for places in shares:
        rows, columns = (np.pad(x, (0, SLOTS - len(places))) for x in np.array(places).T)
        targets_N = jnp.asarray(world["targets"][rows, columns], jnp.int32)
        slope, temperature = card.entropy_coef > 0, jnp.asarray(0.8, hidden.dtype)
        logp_N, entropy_N = logprobs(
            hidden[rows, columns], table, targets_N, temperature, 12, LOCAL, entropy_slope=slope
        )
        entered.append((logp_N, entropy_N, tokens_of(world, places, card, scored)))
    if losses.by_sequence(card):
        sums = [losses.sequence_sums(logp_N, tokens, card, ROWS) for logp_N, _, tokens in entered]
        sequences = jax.tree.map(lambda *x: sum(x[1:], x[0]), *sums)
    parts = [
        losses.loss_parts(logp_N, tokens, card, entropy_N=entropy_N, sequences=sequences)
        for logp_N, entropy_N, tokens in entered
    ]
    zero = jnp.zeros((), hidden.dtype)
    trained = sum((jnp.sum(tokens.mask_N, dtype=hidden.dtype) for *_, tokens in entered), zero)
    sequences = sum((jnp.sum(tokens.first_N, dtype=hidden.dtype) for *_, tokens in entered), zero)
    return sum(part.numerator for part in parts) / losses.denominator(card, trained, sequences)


def relative(ours, theirs):
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    return np.abs(ours - theirs).max() / np.abs(theirs).max()


CARDS = [
    LossCard(aggregation=agg, constant_length=4, kl=kl, kl_coef=0.3, dual_clip=dual, clip_low=0.1, clip_high=0.28)
    for (agg, kl), dual in zip(
        itertools.product(
            ("token-mean", "sequence-mean", "constant"), ("none", "k1", "k2", "k3", "k2-plain", "k3-plain")
        ),
        itertools.cycle((0, 1.2, 1.3, 0, 1.2)),
    )
]
CARDS += [
    card.model_copy(update={"clip_low": 0.1, "clip_high": 0.15, "dual_clip": 0.0, "kl": "none"})
    for card in [
        LossCard(ratio="sequence", aggregation="sequence-mean"),
        LossCard(ratio="sequence", aggregation="token-mean"),
        LossCard(ratio="sequence", aggregation="sequence-mean", surrogate="weight", dual_clip=0),
        LossCard(aggregation="token-mean", surrogate="weight", dual_clip=0),
    ]
]
CARDS += [
    LossCard(ratio="sequence", dual_clip=1.1, kl="k3", kl_coef=0.3, old_logprobs="rollout"),
    LossCard(rollout_cap=1.5, kl="k3", kl_coef=0.3),
    LossCard(rollout_cap=1.5, kl="k3-plain", kl_coef=0.3, surrogate="weight", dual_clip=0),
    LossCard(rollout_cap=2.0, rollout_weight="sequence", kl="none"),
    LossCard(rollout_cap=2.0, rollout_weight="sequence", ratio="sequence", kl="k2", kl_coef=0.3),
    LossCard(rollout_cap=1.5, rollout_floor=0.8, kl="k3", kl_coef=0.3),
    LossCard(rollout_mask="token", rollout_mask_low=0.7, rollout_mask_high=1.4, kl="k3", kl_coef=0.3),
    LossCard(rollout_mask="token", rollout_mask_high=1.2, rollout_cap=1.1, kl="k3-plain", kl_coef=0.3),
    LossCard(rollout_mask="sequence", rollout_mask_low=0.5, rollout_mask_high=1.5, kl="k1", kl_coef=0.3),
    LossCard(rollout_mask="geometric", rollout_mask_low=0.95, ratio="sequence", kl="none", aggregation="token-mean"),
    LossCard(rollout_mask="geometric", rollout_mask_high=1.05, rollout_cap=2.0, rollout_weight="sequence"),
    LossCard(entropy_coef=0.2, kl="none", aggregation="token-mean"),
    LossCard(entropy_coef=0.2, kl="k3", rollout_cap=1.5),
    LossCard(log_ratio_bound=0.25, kl="k3-plain", kl_coef=0.3, clip_low=0.9, clip_high=9.0),
    LossCard(kl="k3-plain", kl_coef=0.3, kl_bound=0.05),
    LossCard(kl="k2-plain", kl_coef=0.3, kl_bound=0.05),
    LossCard(kl="k3", kl_coef=0.3, old_logprobs="rollout"),
    *(LossCard(kl="none", teacher=kl, teacher_coef=0.7, aggregation="token-mean") for kl in ("k1", "k2", "k3")),
    LossCard(kl="k3", kl_coef=0.3, teacher="k2", rollout_cap=1.5),
    LossCard(kl="none", teacher="k3", old_logprobs="rollout", entropy_coef=0.2),
    LossCard(objective="supervised", aggregation="token-mean"),
    LossCard(objective="supervised", aggregation="sequence-mean"),
    LossCard(objective="supervised", aggregation="constant", constant_length=9),
]


def name_of(card):
    changed = {k: v for k, v in card.model_dump().items() if v != LossCard.model_fields[k].default}
    return "-".join(f"{v}" for v in changed.values()) or "default"


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
@pytest.mark.parametrize("card", CARDS, ids=name_of)
def test_card_matches_torch(exact, card, dtype):
    world, bound = in_dtype(exact, dtype), TOLERANCE[dtype]
    for scored in (True, False) if losses.by_sequence(card) or card.corrects_rollout else (True,):
        hidden, table = (torch.tensor(world[name]).double().requires_grad_() for name in ("h", "w"))
        theirs, size = torch_loss(hidden, table, world, card, scored)
        theirs.backward()
        with jax.enable_x64(dtype == "float64"):
            run = jax.value_and_grad(our_loss, argnums=(0, 1))
            arrays = jnp.asarray(world["h"]), jnp.asarray(world["w"])
            loss, (grad_hidden, grad_table) = run(*arrays, world, card, scored, shares_of(world, 1))
            assert loss.dtype == grad_hidden.dtype == grad_table.dtype == dtype
        # Weighted terms of both signs can cancel almost completely: the tolerance is relative to their absolute values.
        cancels = card.surrogate == "weight" or card.corrects_rollout
        assert abs(float(loss) - theirs.item()) <= bound * (size if cancels else abs(theirs.item()))
        assert relative(grad_hidden, hidden.grad) <= bound
        assert relative(grad_table, table.grad) <= bound
        assert not np.asarray(grad_hidden)[~world["mask"]].any()


SHARED = [card for card in CARDS[::7] + CARDS[18:24] if card.objective == "policy"]


@pytest.mark.parametrize("card", SHARED, ids=name_of)
def test_shares_change_nothing_but_rounding(exact, card):
    """Sequences are cut over the shares; cards with sequence-level ratios need sums over whole sequences first."""
    world = in_dtype(exact, np.float32)
    hidden, table = jnp.asarray(world["h"]), jnp.asarray(world["w"])
    run = jax.value_and_grad(our_loss, argnums=(0, 1))
    whole, whole_grads = run(hidden, table, world, card, True, shares_of(world, 1))
    cut, cut_grads = run(hidden, table, world, card, True, shares_of(world, 3))
    assert abs(float(whole) - float(cut)) <= 1e-6 * max(1.0, abs(float(whole)))
    assert max(relative(a, b) for a, b in zip(cut_grads, whole_grads, strict=True)) <= 1e-6


def test_the_cases_reach_every_branch(exact):
    """Tokens and sequences clipped above, clipped below and dual-clipped all occur, as do capped weights and others."""
    logits = torch.tensor(exact["h"]) @ torch.tensor(exact["w"]).T / 0.8
    logp = torch.log_softmax(logits, -1).gather(-1, torch.tensor(exact["targets"])[..., None])[..., 0].numpy()
    mask = exact["mask"]
    ratio = np.exp(logp - exact["old"])[mask]
    sign = np.broadcast_to(exact["advantage"][:, None], logp.shape)[mask]
    assert ((ratio > 1.28) & (sign > 0)).any()
    assert ((ratio < 0.9) & (sign < 0)).any()
    assert ((ratio > 1.2) & (sign < 0)).any()
    full = mask.any(1)
    mean = np.exp(((logp - exact["old"]) * mask).sum(1)[full] / mask.sum(1)[full])
    sign = exact["advantage"][full]
    assert ((mean > 1.15) | (mean < 0.9)).any() and ((mean < 1.15) & (mean > 0.9) & (sign != 0)).any()
    weight = np.exp(exact["old"] - exact["mu"])[mask]
    assert (weight > 1.5).any() and (weight < 1.5).any()
    product = np.exp(((exact["old"] - exact["mu"]) * mask).sum(1)[full])
    assert (product > 2).any() and (product < 2).any()


def closed_forms(logits, ref):
    """(∇KL(π ‖ ref), ∇KL(ref ‖ π)) with respect to the logits of π."""
    gradients = []
    for forward in (True, False):
        leaf = logits.detach().clone().requires_grad_()
        logp = torch.log_softmax(leaf, 0)
        ((logp.exp() * (logp - ref)) if forward else (ref.exp() * (ref - logp))).sum().backward()
        gradients.append(leaf.grad.numpy())
    return gradients


@pytest.fixture(scope="module")
def vocabulary():
    """(logits of π, log π_old, log μ, log ref) over six tokens."""
    rng = np.random.default_rng(0)
    logits, *others = (torch.tensor(rng.normal(size=6)) for _ in range(4))
    return logits, *(torch.log_softmax(x, 0) for x in others)


def expected_gradient(card, logits, old, ref, sampler=None):
    """∇ of the KL term summed over the whole vocabulary, each token weighted by its probability under the sampler."""
    old_V, ref_V = jnp.asarray(old.numpy()), jnp.asarray(ref.numpy())
    sampler_V = old_V if sampler is None else jnp.asarray(sampler.numpy())
    share_V = jnp.exp(sampler_V)
    count = len(share_V)

    def expectation(logits_V):
        logp_V, zeros_V = jax.nn.log_softmax(logits_V), jnp.zeros(count)
        tokens = losses.LossInputs(
            mask_N=jnp.ones(count, bool),
            first_N=jnp.ones(count, bool),
            sequence_N=jnp.arange(count),
            length_N=1 / share_V,  # sequence-mean divides by it: the token's weight is its probability
            advantage_N=zeros_V,
            behaviour_N=sampler_V,
            weight_N=jnp.ones(count),
            old_N=old_V,
            ref_N=ref_V,
            teacher_N=ref_V,
        )
        return losses.loss_parts(logp_V, tokens, card).numerator

    return np.asarray(jax.grad(expectation)(jnp.asarray(logits.numpy())))


@pytest.mark.parametrize(
    ("kl", "on_policy", "off_policy"),
    [
        ("k1", "KL(π ‖ ref)", "KL(π ‖ ref)"),
        ("k2", "KL(π ‖ ref)", "KL(π ‖ ref)"),
        ("k3", "KL(π ‖ ref)", "KL(π ‖ ref)"),
        ("k2-plain", "KL(π ‖ ref)", "neither"),
        ("k3-plain", "KL(ref ‖ π)", "neither"),
    ],
)
def test_expected_gradient_is_as_in_the_table(vocabulary, kl, on_policy, off_policy):
    """docs/losses.md: E over x ~ π_old of each estimator's gradient, against closed forms over a small vocabulary."""
    logits, old, _, ref = vocabulary
    forward, reverse = closed_forms(logits, ref)
    card = LossCard(kl=kl, kl_coef=1.0)
    with jax.enable_x64(True):
        for wanted, sampler in ((on_policy, torch.log_softmax(logits, 0)), (off_policy, old)):
            found = expected_gradient(card, logits, sampler, ref)
            assert (relative(found, forward) <= 1e-10) == (wanted == "KL(π ‖ ref)")
            assert (relative(found, reverse) <= 1e-10) == (wanted == "KL(ref ‖ π)")
            if wanted == "neither":
                assert min(relative(found, forward), relative(found, reverse)) > 0.05
        # At π = π_old = ref the KL has zero gradient: only k1 then has a gradient for single tokens, with mean zero.
        same_V = jnp.asarray(ref.numpy())
        slope_V = jax.grad(lambda x_V: jnp.sum(losses.kl_terms(x_V, same_V, same_V, card, card.kl)))(same_V)
    np.testing.assert_allclose(slope_V, np.ones(6) if kl == "k1" else np.zeros(6), atol=1e-15)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_distillation_follows_the_divergence_from_the_teacher(vocabulary, estimator):
    """docs/losses.md: with advantage 0 the expected gradient is teacher_coef · ∇KL(π ‖ q), on and off policy; together
    with a KL to a reference, their sum."""
    logits, old, _, teacher = vocabulary
    forward, _ = closed_forms(logits, teacher)
    alone = LossCard(advantage="none", kl="none", teacher=estimator, teacher_coef=0.5)
    both = LossCard(advantage="none", kl="k2", kl_coef=0.25, teacher=estimator)
    with jax.enable_x64(True):
        for sampler in (torch.log_softmax(logits, 0), old):
            assert relative(expected_gradient(alone, logits, sampler, teacher), 0.5 * forward) <= 1e-10
            assert relative(expected_gradient(both, logits, sampler, teacher), 1.25 * forward) <= 1e-10


@pytest.mark.parametrize("bound", [0.0, 0.05])
def test_rollout_weight_corrects_the_divergence_for_the_sampler(vocabulary, bound):
    """x ~ μ: without the weight the expectation is wrong; with it, if no weight reaches the cap, it is right.
    A bound on the reported value does not affect it."""
    logits, old, mu, ref = vocabulary
    forward, _ = closed_forms(logits, ref)
    with jax.enable_x64(True):
        without = LossCard(kl="k3", kl_coef=1.0, kl_bound=bound)
        assert relative(expected_gradient(without, logits, old, ref, mu), forward) > 0.05
        weighted = without.model_copy(update={"rollout_cap": 1e9})
        assert relative(expected_gradient(weighted, logits, old, ref, mu), forward) <= 1e-10
        capped = without.model_copy(update={"rollout_cap": 1.0})
        assert relative(expected_gradient(capped, logits, old, ref, mu), forward) > 0.01
