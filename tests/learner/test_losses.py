"""Losses computed by hand: two sequences, of two tokens and of one."""

import math

import jax
import jax.numpy as jnp
import pytest

from scope_jax.config import CardError, LossCard
from scope_jax.games import load_card
from scope_jax.games.ssp.options import options
from scope_jax.learner import losses

# ratios 1, 1.5, 0.5 under π_old; advantages 2, 2, −1; an empty slot at the end
LOGP = [math.log(0.5), math.log(0.6), math.log(0.2), -3.0]
OLD = [math.log(0.5), math.log(0.4), math.log(0.4), 0.0]
REF = [math.log(0.25), math.log(0.6), math.log(0.1), 0.0]


def tokens(**changes):
    fields = {
        "mask_N": jnp.array([True, True, True, False]),
        "first_N": jnp.array([True, False, True, False]),
        "sequence_N": jnp.array([0, 0, 1, 0]),
        "length_N": jnp.array([2.0, 2.0, 1.0, 0.0]),
        "advantage_N": jnp.array([2.0, 2.0, -1.0, 0.0]),
        "behaviour_N": jnp.array([math.log(0.5), math.log(0.5), math.log(0.5), 0.0]),
        "weight_N": jnp.ones(4),
        "old_N": jnp.array(OLD),
        "ref_N": jnp.array(REF),
    }
    return losses.LossInputs(**fields | changes)


def parts_of(card, toks=None, logp=LOGP, entropy=None):
    toks, logp_N = tokens() if toks is None else toks, jnp.array(logp)
    sums = losses.sequence_sums(logp_N, toks, card, 2) if losses.by_sequence(card) else None
    entropy_N = None if entropy is None else jnp.array(entropy)
    return losses.loss_parts(logp_N, toks, card, entropy_N=entropy_N, sequences=sums)


def value(card, toks=None, logp=LOGP, entropy=None):
    toks = tokens() if toks is None else toks
    divisor = losses.denominator(card, jnp.sum(toks.mask_N, dtype=float), jnp.sum(toks.first_N, dtype=float))
    return float(parts_of(card, toks, logp, entropy).numerator / divisor)


def gradient(card, toks=None):
    """∂numerator/∂log π of the four slots."""
    toks = tokens() if toks is None else toks
    sums = losses.sequence_sums(jnp.array(LOGP), toks, card, 2) if losses.by_sequence(card) else None
    run = jax.grad(lambda logp_N: losses.loss_parts(logp_N, toks, card, sequences=sums).numerator)
    return run(jnp.array(LOGP)).tolist()


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
    # A = −1 and ratio e² ≈ 7.39: the loss is 7.39 in plain PPO, 3 with dual clip
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


def test_k3_gradient_survives_a_distant_reference():
    # δ = −18: e^18 absorbs the other terms in float32, the gradient r·δ is exact
    slope = jax.grad(lambda x: losses.kl_terms(x, jnp.array([-18.0]), jnp.array([0.0]), card_of(), "k3")[0])
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


# The first sequence's ratio is √(1 · 1.5) = 1.2247, the second's .5, clipped to .8 as A < 0.
def test_ratio_of_a_whole_sequence():
    card = card_of(aggregation="sequence-mean", ratio="sequence")
    assert value(card) == pytest.approx((-2 * math.sqrt(1.5) + 0.8) / 2, rel=1e-6)
    # d(−2 s)/d log π_t = −2 s / 2 for each of the sequence's two tokens; the clipped one has none
    assert gradient(card) == pytest.approx([-math.sqrt(1.5), -math.sqrt(1.5), 0, 0], rel=1e-6)
    tight = card_of(aggregation="sequence-mean", ratio="sequence", clip_high=0.1)
    assert value(tight) == pytest.approx((-2 * 1.1 + 0.8) / 2, rel=1e-6)
    assert gradient(tight) == [0, 0, 0, 0]
    sums = {name: float(x) for name, x in parts_of(tight).per_token.items()}
    assert sums["clip_fraction"] == 3 and sums["ratio_mean"] == pytest.approx(2 * math.sqrt(1.5) + 0.5, rel=1e-6)


def test_ratio_of_a_sequence_is_one_before_the_first_step():
    card = card_of(aggregation="sequence-mean", ratio="sequence")
    assert value(card, tokens(old_N=None)) == pytest.approx((-2 + 1) / 2, rel=1e-6)
    assert gradient(card, tokens(old_N=None)) == pytest.approx([-1, -1, 1, 0])
    assert not losses.sequences_move(card, scored=False) and losses.sequences_move(card, scored=True)


def test_sums_of_a_sequence_that_is_cut_in_two_add_up():
    card, whole = card_of(ratio="sequence"), tokens()
    halves = [tokens(mask_N=jnp.array(m)) for m in ([True, False, False, False], [False, True, True, False])]
    one, other = (losses.sequence_sums(jnp.array(LOGP), half, card, 2) for half in halves)
    both = losses.sequence_sums(jnp.array(LOGP), whole, card, 2)
    assert (one.ratio_Y + other.ratio_Y).tolist() == both.ratio_Y.tolist()
    assert both.ratio_Y.tolist() == pytest.approx([math.log(1.5), math.log(0.5)], rel=1e-6)
    with pytest.raises(ValueError, match="needs the sums"):
        losses.loss_parts(jnp.array(LOGP), whole, card)


def test_weight_is_a_constant_times_log_pi():
    # CISPO: weights clip(1, 1.5, .5) = 1, 1.25, .8
    card = card_of(aggregation="token-mean", surrogate="weight")
    terms = (-2 * LOGP[0], -2.5 * LOGP[1], 0.8 * LOGP[2])
    assert value(card) == pytest.approx(sum(terms) / 3, rel=1e-6)
    assert gradient(card) == pytest.approx([-2, -2.5, 0.8, 0], rel=1e-6)
    assert float(parts_of(card).per_token["clip_fraction"]) == 2
    # REINFORCE: both bounds at 1
    plain = card_of(aggregation="token-mean", surrogate="weight", clip_low=0, clip_high=0)
    assert gradient(plain) == [-2, -2, 1, 0]


def test_weight_of_the_rollout():
    # π_old/μ = 1, .8, .8 by tokens, capped at .9; by sequences .8 and .8; losses −2, −2.5, .8
    by_token = card_of(aggregation="token-mean", rollout_cap=0.9)
    assert value(by_token) == pytest.approx((-2 * 0.9 - 2.5 * 0.8 + 0.8 * 0.8) / 3, rel=1e-6)
    by_sequence = card_of(aggregation="token-mean", rollout_cap=0.9, rollout_weight="sequence")
    assert value(by_sequence) == pytest.approx(0.8 * (-2 - 2.5 + 0.8) / 3, rel=1e-6)
    sums = {name: float(x) for name, x in parts_of(by_token).per_token.items()}
    assert sums["rollout_weight_mean"] == pytest.approx(2.5, rel=1e-6) and sums["rollout_cap_fraction"] == 1
    # before the first step π_old is π: 1, .6/.5 and .2/.5, without a gradient
    fresh = card_of(aggregation="token-mean", rollout_cap=1.1)
    assert gradient(fresh, tokens(old_N=None)) == pytest.approx([-2, -2 * 1.1, 0.4, 0], rel=1e-6)


def test_weight_of_the_rollout_enters_the_kl_estimators_with_a_ratio():
    still = tokens(advantage_N=jnp.zeros(4))
    k1 = card_of(aggregation="constant", kl="k1", rollout_cap=2.0)  # r·δ = log 2, 0, ½ log 2; weights 1, .8, .8
    assert float(parts_of(k1, still).sums["kl_k1"]) == pytest.approx(1.4 * math.log(2), rel=1e-5)
    plain = card_of(aggregation="constant", kl="k2-plain", rollout_cap=2.0)  # δ²/2 = ½ log² 2, 0, ½ log² 2
    assert float(parts_of(plain, still).sums["kl_k2_plain"]) == pytest.approx(math.log(2) ** 2, rel=1e-5)


def test_plain_k3_and_its_bound():
    # δ = log 2, 0, log 2: k3 = log 2 − ½ = .193 and slope 1 − e^(−δ) = ½, whatever the ratio
    still, free = tokens(advantage_N=jnp.zeros(4)), card_of(aggregation="constant", kl="k3-plain", kl_coef=1.0)
    assert float(parts_of(free, still).sums["kl_k3_plain"]) == pytest.approx(2 * math.log(2) - 1, rel=1e-5)
    assert gradient(free, still) == pytest.approx([0.5, 0, 0.5, 0], rel=1e-5)
    bound = free.model_copy(update={"kl_bound": 0.1})
    assert float(parts_of(bound, still).sums["kl_k3_plain"]) == pytest.approx(0.2, rel=1e-6)
    assert gradient(bound, still) == [0, 0, 0, 0]


def test_a_bound_does_not_change_the_gradient_of_estimators_with_a_ratio():
    still = tokens(advantage_N=jnp.zeros(4))
    free = card_of(aggregation="constant", kl="k3", kl_coef=1.0)
    bound = free.model_copy(update={"kl_bound": 0.1})
    assert gradient(bound, still) == gradient(free, still)
    assert float(parts_of(bound, still).sums["kl_k3"]) == pytest.approx(0.15, rel=1e-6)  # ratios 1 and ½


def test_entropy_bonus():
    card = card_of(aggregation="sequence-mean", entropy_coef=0.5)
    without = value(card_of(aggregation="sequence-mean"))
    assert value(card, entropy=[1.0, 3.0, 0.5, 9.0]) == pytest.approx(without - 0.5 * (2.0 + 0.5) / 2, rel=1e-6)
    assert float(parts_of(card, entropy=[1.0, 3.0, 0.5, 9.0]).per_token["entropy"]) == 4.5
    with pytest.raises(ValueError, match="needs the entropies"):
        value(card)


def test_a_kl_without_reference_log_probs_is_an_error():
    with pytest.raises(ValueError, match="needs the log-probs of the reference"):
        value(card_of(kl="k3"), tokens(ref_N=None))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"surrogate": "weight"}, 'set dual_clip = 0 with surrogate = "weight"'),
        ({"dual_clip": 0.5}, "give a number above 1, or 0 for none"),
        ({"rollout_cap": 2.0, "old_logprobs": "rollout"}, "are the same; remove them, or set old_logprobs"),
        ({"rollout_mask": "token", "rollout_mask_low": 0.5, "old_logprobs": "rollout"}, "are the same; remove them"),
        ({"rollout_cap": 2.0, "rollout_floor": 3.0}, "rollout_floor is 3, but the weight is at most rollout_cap = 2"),
        ({"rollout_floor": 0.5}, "set a lower floor, or a cap"),
        ({"rollout_mask": "sequence"}, "rollout_mask and its bounds belong together"),
        ({"rollout_mask_high": 2.0}, "rollout_mask and its bounds belong together"),
        ({"rollout_mask": "token", "rollout_mask_low": 2.0, "rollout_mask_high": 2.0}, "nothing would be left"),
        ({"clip_low": -0.1}, "greater than or equal to 0"),
        ({"ema_decay": 1.0}, "less than 1"),
    ],
)
def test_cards_that_contradict_themselves_are_refused(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        LossCard(**fields)


@pytest.mark.parametrize(
    ("fields", "terms", "masked"),
    [
        ({"rollout_mask": "token", "rollout_mask_low": 0.9}, -2.0, 2),
        ({"rollout_mask": "token", "rollout_mask_high": 0.9}, -2.5 + 0.8, 1),
        ({"rollout_mask": "geometric", "rollout_mask_low": 0.85}, -2.0 - 2.5, 1),
        ({"rollout_mask": "sequence", "rollout_mask_low": 0.85}, 0.0, 3),
        ({"rollout_mask": "sequence", "rollout_mask_low": 0.75, "rollout_mask_high": 1.0}, -2.0 - 2.5 + 0.8, 0),
        ({"rollout_cap": 2.0, "rollout_floor": 0.9}, -2.0 - 0.9 * 2.5 + 0.9 * 0.8, None),
        ({"rollout_cap": 2.0, "rollout_mask": "token", "rollout_mask_high": 0.9}, -0.8 * 2.5 + 0.8 * 0.8, 1),
    ],
)
def test_bounds_of_the_rollouts_ratio(fields, terms, masked):
    """π_old/μ is 1, .8 and .8: of the sequences .8 and .8, their geometric means .894 and .8. The divisor stays."""
    card = card_of(aggregation="token-mean", **fields)
    assert value(card) == pytest.approx(terms / 3, rel=1e-6, abs=1e-7)
    per_token = parts_of(card).per_token
    assert (None if masked is None else float(per_token["rollout_masked_fraction"])) == masked
    assert ("rollout_masked_fraction" in per_token) == (masked is not None)
    assert gradient(card)[3] == 0


def test_a_card_can_switch_off_dual_clip():
    off = options(load_card("configs/ssp/atlas.toml", ["ssp.solver.loss.dual_clip=0"])).solver.loss
    assert off.dual_clip == 0 == card_of(dual_clip=None).dual_clip
    toks = tokens(old_N=jnp.array([OLD[0], OLD[0], LOGP[2] - 2.0, 0.0]), advantage_N=jnp.array([0.0, 0.0, -1.0, 0.0]))
    free = off.model_copy(update={"kl": "none", "aggregation": "token-mean"})
    assert value(free, toks) == pytest.approx(math.exp(2) / 3, rel=1e-6)
    with pytest.raises(CardError, match=r"ssp.solver.loss.*dual_clip = 0 with surrogate"):
        load_card("configs/ssp/atlas.toml", ['ssp.solver.loss.surrogate="weight"'])


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
    assert sums["surprisal"] == pytest.approx(-sum(LOGP[:3]), rel=1e-6) and "entropy" not in sums
    assert sums["mismatch_mean"] == pytest.approx(0 + math.log(5 / 4) + math.log(5 / 4), rel=1e-5)
    assert float(parts.maxima["mismatch_max"]) == pytest.approx(math.log(5 / 4), rel=1e-5)
    assert sums["mismatch_bias"] == pytest.approx(2 * math.log(0.8), rel=1e-5)
    assert sums["mismatch_kl"] == pytest.approx(2 * (0.8 - 1 - math.log(0.8)), rel=1e-5)


def test_non_finite_values_in_empty_slots_do_not_enter_the_sum():
    card = card_of(aggregation="token-mean", kl="k3")
    grad = jax.grad(lambda logp: losses.loss_parts(logp, tokens(), card).numerator)(jnp.array([*LOGP[:3], -1e4]))
    assert value(card, logp=[*LOGP[:3], -1e4]) == value(card)
    assert float(grad[3]) == 0.0
