"""The objective of one update as pure functions of per-token arrays and a `LossCard`.

Every array holds the N trained positions of one micro-batch. The loss of an update is Σ numerators / denominator, where
the sums run over all micro-batches and devices and the division happens once: packing, micro-batches and sharding
change the gradient by rounding only. Sums over whole sequences (`Sequences`) enter the loss as constants, so that a
sequence may be split anywhere. The functions keep the dtype of their inputs. docs/losses.md derives the statements
about bias.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from scope_jax.config import LossCard
from scope_jax.config.learner import KL


class LossInputs(NamedTuple):
    """The inputs of the loss of N trained positions, other than log π.

    mask: False in empty slots. first: True at the first trained position of a sequence (an episode). sequence: index of
    the position's sequence in the mini-batch. length: trained tokens of that sequence. advantage, behaviour (log-probs
    of the sampling policy), old and ref: 0 in empty slots. old: log π_old of the ratio, None at the update's first
    step, where it is π itself. ref, teacher: log-probs of the reference and of the teacher, None if the card needs
    none.
    """

    mask_N: Bool[Array, " N"]
    first_N: Bool[Array, " N"]
    sequence_N: Int[Array, " N"]
    length_N: Float[Array, " N"]
    advantage_N: Float[Array, " N"]
    behaviour_N: Float[Array, " N"]
    weight_N: Float[Array, " N"]
    old_N: Float[Array, " N"] | None
    ref_N: Float[Array, " N"] | None
    teacher_N: Float[Array, " N"] | None = None


class Sequences(NamedTuple):
    """Sums over the trained tokens of each sequence of the mini-batch, across micro-batches and devices; constants of
    the loss.

    ratio: Σ log π − log π_old. rollout: Σ log π_old − log μ. Under "dpo" the reference stands in place of π_old, and
    sequences 2k and 2k + 1 are a pair.
    """

    ratio_Y: Float[Array, " Y"]
    rollout_Y: Float[Array, " Y"]


class Parts(NamedTuple):
    """One micro-batch's contribution. numerator: the scalar to differentiate. sums, per_token: metrics to be divided by
    the update's denominator and by its number of tokens. maxima: metrics combined by their maximum."""

    numerator: Float[Array, ""]
    sums: dict[str, Float[Array, ""]]
    per_token: dict[str, Float[Array, ""]]
    maxima: dict[str, Float[Array, ""]]


# ------------------------------------------------------------------------------------------------------ aggregation
def weights(card: LossCard, tokens: LossInputs) -> Float[Array, " N"]:
    """Weight of each position in the numerator: its role's weight, divided by |sequence| for sequence-mean; 0 in empty
    slots."""
    weight_N = jnp.where(tokens.mask_N, tokens.weight_N, 0.0)
    return weight_N / jnp.maximum(tokens.length_N, 1.0) if card.aggregation == "sequence-mean" else weight_N


def denominator(card: LossCard, tokens: Float[Array, ""], sequences: Float[Array, ""]) -> Float[Array, ""]:
    """The divisor of the numerators: tokens for token-mean, sequences for sequence-mean, sequences · constant_length
    for constant; under "dpo" pairs.

    tokens, sequences: numbers of sampled tokens and episodes of the whole mini-batch, padding included. An episode
    without sampled tokens is not counted.
    """
    if card.objective == "dpo":
        return sequences / 2
    match card.aggregation:
        case "token-mean":
            return tokens
        case "sequence-mean":
            return sequences
        case "constant":
            return sequences * card.constant_length


# ----------------------------------------------------------------------------------------------------------- ratios
def by_sequence(card: LossCard) -> bool:
    """Whether the card's loss needs `Sequences`."""
    ratio = card.objective == "policy" and card.ratio == "sequence"
    return card.objective == "dpo" or ratio or card.rollout_by_sequence


def sequences_move(card: LossCard, scored: bool) -> bool:
    """Whether the sums that the card needs depend on the current log π. scored: whether log π_old is given
    (`LossInputs.old_N`)."""
    if card.objective == "dpo":
        return True
    off_policy = scored or card.old_logprobs == "rollout"
    ratio = card.objective == "policy" and card.ratio == "sequence"
    return (ratio and off_policy) or (card.rollout_by_sequence and not scored)


def sequence_sums(logp_N: Float[Array, " N"], tokens: LossInputs, card: LossCard, count: int) -> Sequences:
    """The contribution of these tokens to the sums of `count` sequences, to be summed over the whole mini-batch."""
    logp_N = lax.stop_gradient(logp_N)
    old_N = _old(logp_N, tokens, card)

    def total(x_N: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(jnp.where(tokens.mask_N, x_N, 0.0), tokens.sequence_N, count)

    return Sequences(total(logp_N - old_N), total(old_N - tokens.behaviour_N))


def _old(logp_N: Float[Array, " N"], tokens: LossInputs, card: LossCard) -> Float[Array, " N"]:
    if card.objective == "dpo":
        if tokens.ref_N is None:
            raise ValueError('objective = "dpo" needs the log-probs of the reference.')
        return tokens.ref_N
    if card.old_logprobs == "rollout":
        return tokens.behaviour_N
    # Without old log-probs this is the first step after sampling: π_old is π itself, and r = 1 carries the gradient.
    return lax.stop_gradient(logp_N) if tokens.old_N is None else tokens.old_N


def _bounded(log_ratio_N: Float[Array, " N"], card: LossCard) -> Float[Array, " N"]:
    return jnp.clip(log_ratio_N, -card.log_ratio_bound, card.log_ratio_bound)


def _ratio(
    logp_N: Float[Array, " N"],
    old_N: Float[Array, " N"],
    tokens: LossInputs,
    card: LossCard,
    sequences: Sequences | None,
) -> Float[Array, " N"]:
    """π/π_old of each token, or of its sequence: s = exp(mean of log π − log π_old), GSPO Eq. (7) (Zheng et al. 2025).

    Each token of the sequence gets its ratio as s · π/sg(π), GSPO Eq. (14): Σ_t ∇(s π_t/sg(π_t)) / |y| is
    s · mean ∇log π = ∇s, so that the gradient is that of s although each token's term depends only on its own log π.
    """
    if card.ratio == "token":
        return jnp.exp(_bounded(logp_N - old_N, card))
    if sequences is None:
        raise ValueError('ratio = "sequence" needs the sums of whole sequences; see losses.sequence_sums.')
    mean_N = sequences.ratio_Y[tokens.sequence_N] / jnp.maximum(tokens.length_N, 1.0)
    return jnp.exp(_bounded(mean_N, card)) * jnp.exp(logp_N - lax.stop_gradient(logp_N))


def _rollout_weight(
    old_N: Float[Array, " N"], tokens: LossInputs, card: LossCard, sequences: Sequences | None
) -> tuple[Float[Array, " N"], Bool[Array, " N"]]:
    """(weight, kept) of each token; constants in the loss. The weight is min(max(π_old/μ, floor), C), or 1 without a
    cap, and 0 of a token that the mask does not keep. Truncation: Ionides 2008; masks of tokens: IcePop (Ling team
    2025), of sequences and geometric means: Liu et al. 2025."""

    def ratio(kind: str) -> Float[Array, " N"]:
        if kind == "token":
            return jnp.exp(_bounded(old_N - tokens.behaviour_N, card))
        if sequences is None:
            raise ValueError("the rollout's ratio of a sequence needs the sums of whole sequences; see sequence_sums.")
        sum_N = sequences.rollout_Y[tokens.sequence_N]
        return jnp.exp(_bounded(sum_N if kind == "sequence" else sum_N / jnp.maximum(tokens.length_N, 1.0), card))

    weight_N, kept_N = jnp.ones_like(old_N), jnp.ones_like(tokens.mask_N)
    if card.rollout_cap:
        weight_N = jnp.clip(ratio(card.rollout_weight), card.rollout_floor, card.rollout_cap)
    if card.rollout_mask != "none":
        masked_N = ratio(card.rollout_mask)
        kept_N = (masked_N >= card.rollout_mask_low) & (masked_N <= (card.rollout_mask_high or jnp.inf))
    return lax.stop_gradient(jnp.where(kept_N, weight_N, 0.0)), kept_N


# ------------------------------------------------------------------------------------------------------------ terms
def policy_terms(
    logp_N: Float[Array, " N"], ratio_N: Float[Array, " N"], advantage_N: Float[Array, " N"], card: LossCard
) -> tuple[Float[Array, " N"], Bool[Array, " N"], Bool[Array, " N"]]:
    """The policy loss of each token: (loss, clipped, dual-clipped). With r the ratio and
    clip(r) = min(max(r, 1 − clip_low), 1 + clip_high):

        clip     max(−r·A, −clip(r)·A), Eq. (7) of PPO (Schulman et al. 2017); for A < 0, at most −dual_clip·A, Eq. (5)
                 of Ye et al. 2020
        weight   −sg(clip(r))·A·log π, CISPO (MiniMax-M1 2025, Eq. (4)); with clip_low = clip_high = 0, REINFORCE
    """
    held_ratio_N = jnp.clip(ratio_N, 1.0 - card.clip_low, 1.0 + card.clip_high)
    if card.surrogate == "weight":
        clipped_N = held_ratio_N != ratio_N
        return -lax.stop_gradient(held_ratio_N) * advantage_N * logp_N, clipped_N, jnp.zeros_like(clipped_N)
    plain_N = -advantage_N * ratio_N
    held_N = -advantage_N * held_ratio_N
    loss_N = jnp.maximum(plain_N, held_N)
    clipped_N = held_N > plain_N
    dual_N = jnp.zeros_like(clipped_N)
    if card.dual_clip:
        ceiling_N = -card.dual_clip * advantage_N
        dual_N = (advantage_N < 0) & (loss_N > ceiling_N)
        loss_N = jnp.where(advantage_N < 0, jnp.minimum(loss_N, ceiling_N), loss_N)
    return loss_N, clipped_N, dual_N


def kl_terms(
    logp_N: Float[Array, " N"], old_N: Float[Array, " N"], ref_N: Float[Array, " N"], card: LossCard, kl: KL
) -> Float[Array, " N"]:
    """KL(π ‖ ref) of each token by the estimator `kl`; all but the plain ones have the correct expected gradient.

    With δ = log π − log ref and r = π/π_old of the token (both bounded by log_ratio_bound), k1 = δ, k2 = δ²/2,
    k3 = e^(−δ) − 1 + δ (Schulman 2020), and x ~ π_old:

        kl         value   ∂value/∂log π used     expectation of value / gradient
        k1         r·k1    r·(δ + 1)              KL / ∇KL  (the 1 has mean zero and is noise)
        k2         r·k2    r·δ  (r held fixed)    biased / ∇KL
        k3         r·k3    r·δ                    KL / ∇KL
        k2-plain   k2      δ                      biased / ∇KL if π = π_old, else biased
        k3-plain   k3      1 − e^(−δ)             KL if π = π_old, else biased / ∇KL(ref ‖ π) if π = π_old, else biased

    The gradient of the first three is written out instead of differentiated: r·∇k3 + k3·∇r equals r·δ, but suffers from
    cancellation when e^(−δ) is large. kl_bound therefore affects only their reported values; a plain estimator is
    differentiated directly, and has no gradient where the bound applies.
    """
    bound = card.kl_bound or jnp.inf
    delta_N = _bounded(logp_N - ref_N, card)
    if kl in ("k2-plain", "k3-plain"):
        plain_N = 0.5 * jnp.square(delta_N) if kl == "k2-plain" else jnp.expm1(-delta_N) + delta_N
        return jnp.clip(plain_N, -bound, bound)
    delta_N = lax.stop_gradient(delta_N)
    ratio_N = lax.stop_gradient(jnp.exp(_bounded(logp_N - old_N, card)))
    slope_N = ratio_N * delta_N
    match kl:
        case "k1":
            value_N, slope_N = delta_N, ratio_N * (delta_N + 1.0)
        case "k2":
            value_N = 0.5 * jnp.square(delta_N)
        case "k3":
            value_N = jnp.expm1(-delta_N) + delta_N
        case _:
            raise ValueError("A card with kl = 'none' has no KL term.")
    return ratio_N * jnp.clip(value_N, -bound, bound) + slope_N * (logp_N - lax.stop_gradient(logp_N))


def mismatch(
    logp_N: Float[Array, " N"], tokens: LossInputs, card: LossCard
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """(log π_old − log μ, the same as k3 of KL(μ ‖ π_old)) of each token: how far sampler and trainer are apart."""
    signed_N = lax.stop_gradient((logp_N if tokens.old_N is None else tokens.old_N) - tokens.behaviour_N)
    return signed_N, jnp.expm1(_bounded(signed_N, card)) - signed_N


def _policy(
    logp_N: Float[Array, " N"],
    tokens: LossInputs,
    card: LossCard,
    entropy_N: Float[Array, " N"] | None,
    sequences: Sequences | None,
) -> Parts:
    old_N, mask_N, weight_N = _old(logp_N, tokens, card), tokens.mask_N, weights(card, tokens)

    def summed(x_N: Array) -> Array:
        return jnp.sum(weight_N * jnp.where(mask_N, x_N, 0.0))

    def total(x_N: Array) -> Array:
        return jnp.sum(jnp.where(mask_N, x_N, 0), dtype=logp_N.dtype)

    ratio_N = _ratio(logp_N, old_N, tokens, card, sequences)
    loss_N, clipped_N, dual_N = policy_terms(logp_N, ratio_N, tokens.advantage_N, card)
    signed_N, kl_of_rollout_N = mismatch(logp_N, tokens, card)
    mismatch_N = jnp.abs(signed_N)
    per_token = {
        "surprisal": total(-logp_N),
        "clip_fraction": total(clipped_N),
        "dual_clip_fraction": total(dual_N),
        "ratio_mean": total(ratio_N),
        "mismatch_mean": total(mismatch_N),
        "mismatch_bias": total(signed_N),
        "mismatch_kl": total(kl_of_rollout_N),
    }
    rollout_N = None
    if card.corrects_rollout:
        rollout_N, kept_N = _rollout_weight(old_N, tokens, card, sequences)
        loss_N = rollout_N * loss_N
        per_token["rollout_weight_mean"] = total(rollout_N)
        if card.rollout_cap:
            per_token["rollout_cap_fraction"] = total(rollout_N >= card.rollout_cap)
        if card.rollout_mask != "none":
            per_token["rollout_masked_fraction"] = total(~kept_N)
    policy = summed(loss_N)
    sums, numerator = {"policy_loss": policy}, policy
    for name, kl, coefficient, other_N in _divergences(card, tokens):
        if other_N is None:
            raise ValueError("A loss with a KL term needs the log-probs of the reference, or of the teacher.")
        kl_N = kl_terms(logp_N, old_N, other_N, card, kl)
        if rollout_N is not None and not kl.endswith("-plain"):
            kl_N = rollout_N * kl_N  # the importance weight for x ~ μ is r · π_old/μ
        sums[name] = summed(kl_N)
        numerator = numerator + coefficient * sums[name]
    if entropy_N is not None:
        per_token["entropy"] = total(entropy_N)
    if card.entropy_coef:
        if entropy_N is None:
            raise ValueError("A loss with an entropy bonus needs the entropies.")
        numerator = numerator - card.entropy_coef * summed(entropy_N)
    maxima = {"ratio_max": jnp.where(mask_N, ratio_N, 0.0), "mismatch_max": jnp.where(mask_N, mismatch_N, 0.0)}
    return Parts(numerator, sums, per_token, {name: jnp.max(x_N) for name, x_N in maxima.items()})


def _supervised(logp_N: Float[Array, " N"], tokens: LossInputs, card: LossCard) -> Parts:
    nll = jnp.sum(weights(card, tokens) * jnp.where(tokens.mask_N, -logp_N, 0.0))
    return Parts(nll, {}, {}, {})


def _preference(
    logp_N: Float[Array, " N"],
    tokens: LossInputs,
    card: LossCard,
    entropy_N: Float[Array, " N"] | None,
    sequences: Sequences | None,
) -> Parts:
    """DPO, Eq. (7) of Rafailov et al. 2023: −log σ(m) of each pair, where the margin m is beta times the difference of
    Σ log π − log ref between the chosen and the rejected sequence; with label smoothing ε,
    −(1 − ε) log σ(m) − ε log σ(−m).

    The advantage of a token is 1 in the chosen and −1 in the rejected sequence. ∂loss/∂m is a constant of each token,
    whose term is that times ± beta · log π: the gradient is that of the pair although no token knows the others. Value
    and metrics of a pair are counted at the first token of its chosen sequence.
    """
    if sequences is None:
        raise ValueError('objective = "dpo" needs the sums of whole sequences; see losses.sequence_sums.')
    reward_Y = card.dpo_beta * sequences.ratio_Y
    sign_N = tokens.advantage_N
    own_N, other_N = reward_Y[tokens.sequence_N], reward_Y[tokens.sequence_N ^ 1]
    margin_N = sign_N * (own_N - other_N)
    smooth = card.label_smoothing
    loss_N = (1.0 - smooth) * jax.nn.softplus(-margin_N) + smooth * jax.nn.softplus(margin_N)
    slope_N = smooth * jax.nn.sigmoid(margin_N) - (1.0 - smooth) * jax.nn.sigmoid(-margin_N)
    carried_N = slope_N * sign_N * card.dpo_beta * (logp_N - lax.stop_gradient(logp_N))
    chosen_N = tokens.mask_N & tokens.first_N & (sign_N > 0)

    def total(x_N: Array, where_N: Bool[Array, " N"]) -> Array:
        return jnp.sum(jnp.where(where_N, x_N, 0), dtype=logp_N.dtype)

    sums = {
        "implicit_accuracy": total(margin_N > 0, chosen_N),
        "implicit_margin": total(margin_N, chosen_N),
        "implicit_chosen": total(own_N, chosen_N),
    }
    per_token = {"surprisal": total(-logp_N, tokens.mask_N)}
    if entropy_N is not None:
        per_token["entropy"] = total(entropy_N, tokens.mask_N)
    weight_N = tokens.weight_N
    numerator = total(weight_N * loss_N, chosen_N) + total(weight_N * carried_N, tokens.mask_N)
    return Parts(numerator, sums, per_token, {})


def _divergences(card: LossCard, tokens: Any = None) -> list[tuple[str, KL, float, Any]]:
    """(metric, estimator, coefficient, log-probs of the other distribution) of each KL term of the card."""
    kinds: tuple[tuple[str, KL, float, str], ...]
    kinds = (("kl", card.kl, card.kl_coef, "ref_N"), ("teacher", card.teacher, card.teacher_coef, "teacher_N"))
    return [
        (f"{name}_{kl.replace('-', '_')}", kl, coefficient, getattr(tokens, field, None))
        for name, kl, coefficient, field in kinds
        if kl != "none"
    ]


def summed_names(card: LossCard) -> tuple[str, ...]:
    """The names of Parts.sums under a policy or supervised objective."""
    policy = ("policy_loss", *(name for name, *_ in _divergences(card)))
    return "loss", *(policy if card.objective == "policy" else ())


def loss_parts(
    logp_N: Float[Array, " N"],
    tokens: LossInputs,
    card: LossCard,
    *,
    entropy_N: Float[Array, " N"] | None = None,
    sequences: Sequences | None = None,
) -> Parts:
    """One micro-batch's contribution to the update's loss.

    logp_N: log-probs under the current parameters; entropy_N: entropies of the same distributions. objective "policy":
    policy term + kl_coef · KL + teacher_coef · KL to the teacher − entropy_coef · entropy, all with the card's
    aggregation. "supervised": −log π of the trained positions; of the card only the aggregation is used. "dpo": pairs
    of sequences, with the advantages and in the order of `splitting.pairs`; of the card only dpo_beta and
    label_smoothing are used. Every metric is a sum, to be summed over micro-batches and devices and divided by the
    update's denominator (sums) or tokens (per_token).

    sequences: the mini-batch's sums if `by_sequence(card)`. Raises ValueError if these, the entropies or the reference
    are missing and the card needs them.
    """
    match card.objective:
        case "supervised":
            parts = _supervised(logp_N, tokens, card)
        case "dpo":
            parts = _preference(logp_N, tokens, card, entropy_N, sequences)
        case "policy":
            parts = _policy(logp_N, tokens, card, entropy_N, sequences)
    return parts._replace(sums=jax.tree.map(lax.stop_gradient, {"loss": parts.numerator, **parts.sums}))
