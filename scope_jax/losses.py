"""The objective of one update as pure functions of per-token arrays and a `LossCard`.

Every array holds the N trained positions of one micro-batch. The loss of an update is Σ numerators / denominator, where
the sums run over all micro-batches and devices and the division happens once: how rows are packed, cut into
micro-batches or spread over devices changes the gradient by rounding only. docs/losses.md derives what is said here
about bias.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from scope_jax.config import LossCard

LOG_RATIO_BOUND = 20.0  # verl; e²⁰ is far beyond any clip range and still a float32


class Tokens(NamedTuple):
    """What the loss of N trained positions depends on besides log π.

    mask: False where a slot is empty. first: True at the first trained position of a sequence (an episode). length:
    trained tokens of the position's sequence. advantage, behaviour (log-probs of whoever sampled), old and ref: 0 where
    empty. old: log π_old of the ratio. ref: log-probs of the KL reference, None if the card has no KL term.
    """

    mask_N: Bool[Array, " N"]
    first_N: Bool[Array, " N"]
    length_N: Float[Array, " N"]
    advantage_N: Float[Array, " N"]
    behaviour_N: Float[Array, " N"]
    old_N: Float[Array, " N"] | None
    ref_N: Float[Array, " N"] | None


class Parts(NamedTuple):
    """One micro-batch's share. numerator: the scalar to differentiate. sums and per_token: metrics to be divided by the
    update's denominator and by its tokens. maxima: metrics of which the largest counts."""

    numerator: Float[Array, ""]
    sums: dict[str, Float[Array, ""]]
    per_token: dict[str, Float[Array, ""]]
    maxima: dict[str, Float[Array, ""]]


def weights(card: LossCard, tokens: Tokens) -> Float[Array, " N"]:
    """Weight of each position in the numerator: 1, or 1/|sequence| for sequence-mean; 0 where the slot is empty."""
    mask_N = tokens.mask_N.astype(jnp.float32)
    return mask_N / jnp.maximum(tokens.length_N, 1.0) if card.aggregation == "sequence-mean" else mask_N


def denominator(card: LossCard, tokens: Tokens) -> Float[Array, ""]:
    """This share of the divisor: token-mean Σ tokens; sequence-mean sequences; constant sequences · constant_length.

    A sequence without trained tokens is no sequence: it counts in no divisor.
    """
    if card.aggregation == "token-mean":
        return jnp.sum(tokens.mask_N, dtype=jnp.float32)
    sequences = jnp.sum(tokens.first_N, dtype=jnp.float32)
    return sequences * card.constant_length if card.aggregation == "constant" else sequences


def _log_ratio(logp_N: Float[Array, " N"], other_N: Float[Array, " N"]) -> Float[Array, " N"]:
    return jnp.clip(logp_N - other_N, -LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def policy_terms(
    logp_N: Float[Array, " N"], old_N: Float[Array, " N"], advantage_N: Float[Array, " N"], card: LossCard
) -> tuple[Float[Array, " N"], Float[Array, " N"], Bool[Array, " N"], Bool[Array, " N"]]:
    """Clipped surrogate of each token: (loss, ratio, clipped, dual-clipped).

    r = exp(clamp(log π − log π_old, ±20)); loss = max(−r·A, −clip(r, 1−clip_low, 1+clip_high)·A), Eq. (7) of PPO
    (Schulman et al. 2017); where A < 0, at most −dual_clip·A, Eq. (5) of Ye et al. 2020.
    """
    ratio_N = jnp.exp(_log_ratio(logp_N, old_N))
    plain_N = -advantage_N * ratio_N
    held_N = -advantage_N * jnp.clip(ratio_N, 1.0 - card.clip_low, 1.0 + card.clip_high)
    loss_N = jnp.maximum(plain_N, held_N)
    clipped_N = held_N > plain_N
    dual_N = jnp.zeros_like(clipped_N)
    if card.dual_clip is not None:
        ceiling_N = -card.dual_clip * advantage_N
        dual_N = (advantage_N < 0) & (loss_N > ceiling_N)
        loss_N = jnp.where(advantage_N < 0, jnp.minimum(loss_N, ceiling_N), loss_N)
    return loss_N, ratio_N, clipped_N, dual_N


def kl_terms(
    logp_N: Float[Array, " N"], old_N: Float[Array, " N"], ref_N: Float[Array, " N"], card: LossCard
) -> Float[Array, " N"]:
    """KL(π ‖ ref) of each token: value under the card's estimator, gradient right in expectation over x ~ π_old.

    With δ = log π − log ref and r = π/π_old (both clamped ±20), k1 = δ, k2 = δ²/2, k3 = e^(−δ) − 1 + δ (Schulman 2020):

        kl   value   ∂value/∂log π used     expectation of value / gradient
        k1   r·k1    r·(δ + 1)              KL / ∇KL  (the 1 has mean zero and is noise)
        k2   r·k2    r·δ  (r held fixed)    biased / ∇KL
        k3   r·k3    r·δ                    KL / ∇KL

    The gradient is stated rather than differentiated: r·∇k3 + k3·∇r is the same r·δ, but loses it to cancellation when
    e^(−δ) is large.
    """
    delta_N = lax.stop_gradient(_log_ratio(logp_N, ref_N))
    ratio_N = lax.stop_gradient(jnp.exp(_log_ratio(logp_N, old_N)))
    slope_N = ratio_N * delta_N
    match card.kl:
        case "k1":
            value_N, slope_N = ratio_N * delta_N, ratio_N * (delta_N + 1.0)
        case "k2":
            value_N = ratio_N * 0.5 * jnp.square(delta_N)
        case "k3":
            value_N = ratio_N * (jnp.expm1(-delta_N) + delta_N)
        case "none":
            raise ValueError("A card with kl = 'none' has no KL term.")
    return value_N + slope_N * (logp_N - lax.stop_gradient(logp_N))


def _policy(logp_N: Float[Array, " N"], tokens: Tokens, card: LossCard) -> Parts:
    # Without old log-probs the update is the first after sampling: π_old is π itself, and r = 1 carries the gradient.
    old_N = lax.stop_gradient(logp_N) if tokens.old_N is None else tokens.old_N
    if card.old_logprobs == "rollout":
        old_N = tokens.behaviour_N
    weight_N = weights(card, tokens)
    mask_N = tokens.mask_N
    loss_N, ratio_N, clipped_N, dual_N = policy_terms(logp_N, old_N, tokens.advantage_N, card)
    policy = jnp.sum(weight_N * jnp.where(mask_N, loss_N, 0.0))
    sums, numerator = {"policy_loss": policy}, policy
    if card.kl != "none" and tokens.ref_N is not None:
        kl = jnp.sum(weight_N * jnp.where(mask_N, kl_terms(logp_N, old_N, tokens.ref_N, card), 0.0))
        sums[f"kl_{card.kl}"] = kl
        numerator = policy + card.kl_coef * kl
    scored_N = logp_N if tokens.old_N is None else tokens.old_N
    mismatch_N = jnp.abs(scored_N - tokens.behaviour_N)

    def total(x_N: Array) -> Array:
        return jnp.sum(jnp.where(mask_N, x_N, 0), dtype=jnp.float32)

    per_token = {
        "entropy": total(-logp_N),
        "clip_fraction": total(clipped_N),
        "dual_clip_fraction": total(dual_N),
        "ratio_mean": total(ratio_N),
        "mismatch_mean": total(mismatch_N),
    }
    maxima = {"ratio_max": jnp.where(mask_N, ratio_N, 0.0), "mismatch_max": jnp.where(mask_N, mismatch_N, 0.0)}
    return Parts(numerator, sums, per_token, {name: jnp.max(x_N) for name, x_N in maxima.items()})


def _supervised(logp_N: Float[Array, " N"], tokens: Tokens, card: LossCard) -> Parts:
    nll = jnp.sum(weights(card, tokens) * jnp.where(tokens.mask_N, -logp_N, 0.0))
    return Parts(nll, {}, {}, {})


def loss_parts(logp_N: Float[Array, " N"], tokens: Tokens, card: LossCard) -> Parts:
    """One micro-batch's share of the update's loss.

    logp_N: float32 log-probs under the current parameters. objective "policy": clipped surrogate + kl_coef · KL, both
    with the card's aggregation. "supervised": −log π of the trained positions; of the card it reads the aggregation
    only. Every metric is a sum, to be added over shares and divided by the update's denominator (sums) or tokens
    (per_token).
    """
    parts = _supervised(logp_N, tokens, card) if card.objective == "supervised" else _policy(logp_N, tokens, card)
    return parts._replace(sums=jax.tree.map(lax.stop_gradient, {"loss": parts.numerator, **parts.sums}))
