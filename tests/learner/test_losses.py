"""Losses worked out by hand: two sequences, of two tokens and of one."""

import math

import jax
import jax.numpy as jnp
import pytest

from scope_jax import losses
from scope_jax.config import LossCard

# ratios 1, 1.5, 0.5 under π_old; advantages 2, 2, −1; an empty slot at the end
LOGP = [math.log(0.5), math.log(0.6), math.log(0.2), -3.0]
OLD = [math.log(0.5), math.log(0.4), math.log(0.4), 0.0]
REF = [math.log(0.25), math.log(0.6), math.log(0.1), 0.0]


def tokens(**changes):
    fields = {
        "mask_N": jnp.array([True, True, True, False]),
        "first_N": jnp.array([True, False, True, False]),
        "length_N": jnp.array([2.0, 2.0, 1.0, 0.0]),
        "advantage_N": jnp.array([2.0, 2.0, -1.0, 0.0]),
        "behaviour_N": jnp.array([math.log(0.5), math.log(0.5), math.log(0.5), 0.0]),
        "old_N": jnp.array(OLD),
        "ref_N": jnp.array(REF),
    }
    return losses.Tokens(**fields | changes)


def value(card, toks=None, logp=LOGP):
    toks = tokens() if toks is None else toks
    parts = losses.loss_parts(jnp.array(logp), toks, card)
    return float(parts.numerator / losses.denominator(card, toks))


def card_of(**fields):
    return LossCard(**{"kl": "none", "dual_clip": None, "clip_low": 0.2, "clip_high": 0.25} | fields)


# per token: −2·1 = −2; −2·min(1.5, 1.25) = −2.5; max(1·0.5, 1·0.8) = 0.8
@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"aggregation": "token-mean"}, (-2 - 2.5 + 0.8) / 3),
        ({"aggregation": "sequence-mean"}, ((-2 - 2.5) / 2 + 0.8) / 2),
        ({"aggregation": "constant", "constant_length": 1}, (-2 - 2.5 + 0.8) / 2),
        ({"aggregation": "constant", "constant_length": 10}, (-2 - 2.5 + 0.8) / 20),
    ],
)
def test_clipped_surrogate_and_aggregation(fields, wanted):
    assert value(card_of(**fields)) == pytest.approx(wanted, rel=1e-6)


def test_dual_clip_bounds_the_loss_of_bad_actions():
    # A = −1 and ratio e² ≈ 7.39: plain PPO charges 7.39, dual clip 3
    toks = tokens(old_N=jnp.array([OLD[0], OLD[0], LOGP[2] - 2.0, 0.0]), advantage_N=jnp.array([0.0, 0.0, -1.0, 0.0]))
    assert value(card_of(aggregation="token-mean"), toks) == pytest.approx(math.exp(2) / 3, rel=1e-6)
    assert value(card_of(aggregation="token-mean", dual_clip=3.0), toks) == pytest.approx(1.0, rel=1e-6)


def test_clipped_tokens_have_no_gradient():
    card = card_of(aggregation="token-mean")
    grad = jax.grad(lambda logp: losses.loss_parts(logp, tokens(), card).numerator)(jnp.array(LOGP))
    assert grad.tolist() == pytest.approx([-2.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("kl", "wanted"),  # ratios 1, 1.5, .5; log π/ref = log 2, 0, log 2
    [
        ("k1", 1.5 * math.log(2)),
        ("k2", 1.5 * math.log(2) ** 2 / 2),
        ("k3", 1.5 * (0.5 - 1 + math.log(2))),
    ],
)
def test_kl_values(kl, wanted):
    still = tokens(advantage_N=jnp.zeros(4))
    card = card_of(aggregation="constant", kl=kl, kl_coef=0.1)
    assert value(card, still) == pytest.approx(0.1 * wanted / 2, rel=1e-5)
    parts = losses.loss_parts(jnp.array(LOGP), still, card)
    assert float(parts.sums[f"kl_{kl}"]) == pytest.approx(wanted, rel=1e-5)


def test_k3_slope_survives_a_reference_that_is_far_off():
    # δ = −18: e^18 swallows the rest in float32, the slope r·δ does not
    slope = jax.grad(lambda x: losses.kl_terms(x, jnp.array([-18.0]), jnp.array([0.0]), card_of(kl="k3"))[0])
    assert float(slope(jnp.array([-18.0]))[0]) == -18.0


def test_log_ratio_is_bounded():
    parts = losses.loss_parts(jnp.array([0.0, 0, 0, 0]), tokens(old_N=jnp.full(4, -500.0)), card_of())
    assert float(parts.maxima["ratio_max"]) == pytest.approx(math.exp(20), rel=1e-5)
    assert math.isfinite(float(parts.numerator))


def test_without_old_log_probs_the_ratio_is_one_and_carries_the_gradient():
    card = card_of(aggregation="token-mean")
    still = tokens(old_N=None)
    assert value(card, still) == pytest.approx(-(2 + 2 - 1) / 3)
    grad = jax.grad(lambda logp: losses.loss_parts(logp, still, card).numerator)(jnp.array(LOGP))
    assert grad.tolist() == [-2.0, -2.0, 1.0, 0.0]


def test_old_log_probs_of_the_rollout():
    # ratios against behaviour .5: 1, 1.2, .4
    card = card_of(aggregation="token-mean", old_logprobs="rollout")
    assert value(card) == pytest.approx((-2 - 2.4 + 0.8) / 3, rel=1e-6)


def test_supervised_is_the_mean_negative_log_likelihood():
    card = LossCard(objective="supervised", aggregation="token-mean")
    bare = tokens(old_N=None, ref_N=None)
    assert value(card, bare) == pytest.approx(-sum(LOGP[:3]) / 3, rel=1e-6)
    assert value(card.model_copy(update={"aggregation": "sequence-mean"}), bare) == pytest.approx(
        -((LOGP[0] + LOGP[1]) / 2 + LOGP[2]) / 2, rel=1e-6
    )


def test_metrics_of_the_tokens():
    parts = losses.loss_parts(jnp.array(LOGP), tokens(), card_of())
    sums = {name: float(x) for name, x in parts.per_token.items()}
    assert sums["clip_fraction"] == 2 and sums["dual_clip_fraction"] == 0
    assert sums["ratio_mean"] == pytest.approx(3.0)
    assert sums["entropy"] == pytest.approx(-sum(LOGP[:3]), rel=1e-6)
    assert sums["mismatch_mean"] == pytest.approx(0 + math.log(5 / 4) + math.log(5 / 4), rel=1e-5)
    assert float(parts.maxima["mismatch_max"]) == pytest.approx(math.log(5 / 4), rel=1e-5)


def test_empty_slots_cannot_poison_the_sum():
    card = card_of(aggregation="token-mean", kl="k3")
    grad = jax.grad(lambda logp: losses.loss_parts(logp, tokens(), card).numerator)(jnp.array([*LOGP[:3], -1e4]))
    assert value(card, logp=[*LOGP[:3], -1e4]) == value(card)
    assert float(grad[3]) == 0.0
