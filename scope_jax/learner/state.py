"""The learner's state between updates, one optimiser step on it, and the detection of divergence."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from scope_jax.config import OptimizerSection
from scope_jax.errors import UserError
from scope_jax.models.decoder.kinds import FROZEN
from scope_jax.sharding.collectives import mesh_axes
from scope_jax.sharding.spec import path_name

Tree = Any


class TrainState(struct.PyTreeNode):
    """The training state of one policy.

    step: number of updates so far, each of one or more optimiser steps; determines the learning rate. skipped: number
    of consecutive optimiser steps, up to the latest, that were skipped because of a non-finite gradient. opt_state:
    AdamW moments in the dtype of the weights, and the number of steps taken. ref_params: the frozen reference of the KL
    term, in separate buffers; None if no card needs one.
    """

    step: Any  # int32 scalar, or its sharding in a tree of shardings
    skipped: Any
    params: Tree
    opt_state: Tree
    ref_params: Tree


class DivergedError(UserError):
    """Training cannot continue; the message is one sentence with the observed value, its limit and the remedy."""


def check_sound(section: OptimizerSection, param_rms: float, skipped: int) -> None:
    """Raises DivergedError if the root mean square of the weights is not finite or too large, or if too many
    consecutive optimiser steps were skipped.
    """
    remedy = f"start a new run with a lower optimizer.learning_rate (it is {section.learning_rate:g})"
    if not param_rms <= section.max_param_rms:
        raise DivergedError(
            f"training has diverged: the root mean square of the weights is {param_rms:.3g} after this update, above "
            f"optimizer.max_param_rms = {section.max_param_rms:g}; {remedy}."
        )
    if skipped > section.max_skipped:
        raise DivergedError(
            f"training has diverged: {skipped} optimiser steps in a row had a non-finite gradient, more than "
            f'optimizer.max_skipped = {section.max_skipped}; {remedy} or with model.compute_dtype = "float32".'
        )


def adamw(section: OptimizerSection) -> optax.GradientTransformation:
    """AdamW without its learning rate (Loshchilov & Hutter 2019): m̂ / (√v̂ + eps) + weight_decay · θ, on ALL weights.

    Like torch.optim.AdamW given model.parameters(), as verl does: norm scales and embeddings decay too.
    """
    return optax.chain(
        optax.scale_by_adam(b1=section.beta1, b2=section.beta2, eps=section.eps),
        optax.add_decayed_weights(section.weight_decay),
    )


def learning_rate(section: OptimizerSection, step: Int[Array, ""]) -> Float[Array, ""]:
    """Learning rate of all optimiser steps of update `step`, counted from 0.

    Linear warm-up lr · (step + 1)/warmup_steps, so that the first update moves the weights (verl's starts at 0); then
    constant, or lr · ½(1 + cos(π · (step − warmup_steps)/(total_steps − warmup_steps))), 0 from total_steps on.
    """
    place = jnp.asarray(step, jnp.float32)
    factor = jnp.minimum(1.0, (place + 1.0) / max(section.warmup_steps, 1))
    if section.schedule == "cosine" and section.total_steps is not None:
        span = max(section.total_steps - section.warmup_steps, 1)
        progress = jnp.clip((place - section.warmup_steps) / span, 0.0, 1.0)
        factor = factor * 0.5 * (1.0 + jnp.cos(jnp.pi * progress))
    return section.learning_rate * factor


def fresh(params: Tree, section: OptimizerSection, ref_params: Tree) -> TrainState:
    """State before the first update."""
    zero = jnp.zeros((), jnp.int32)
    return TrainState(zero, zero, params, adamw(section).init(params), ref_params)


def specs_like(section: OptimizerSection, abstract: Tree, specs: Tree) -> Tree:
    """PartitionSpec of every array of adamw's state: moments like their weights, everything else replicated."""
    shapes = jax.eval_shape(adamw(section).init, abstract)
    return optax.tree_utils.tree_map_params(
        adamw(section), lambda _, spec: spec, shapes, specs, transform_non_params=lambda _: PartitionSpec()
    )


def global_norm(grads: Tree, specs: Tree) -> Float[Array, ""]:
    """‖g‖₂ over the whole mesh inside a shard_map, counting each shard once and replicated leaves once."""
    squares: dict[tuple[str, ...], jax.Array] = {}
    for grad, spec in zip(jax.tree.leaves(grads), jax.tree.leaves(specs), strict=True):
        axes = tuple(name for entry in spec for name in mesh_axes(entry))
        square = jnp.sum(jnp.square(grad.astype(jnp.float32)))
        squares[axes] = squares[axes] + square if axes in squares else square
    total = jnp.zeros((), jnp.float32)
    for axes, square in squares.items():
        total = total + (lax.psum(square, axes) if axes else square)
    return jnp.sqrt(total)


def _as_float32(tree: Tree) -> Tree:
    return jax.tree.map(lambda x: x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def advance(
    state: TrainState, grads: Tree, norm: Float[Array, ""], section: OptimizerSection
) -> tuple[TrainState, Float[Array, ""], Bool[Array, ""]]:
    """(state after one AdamW step of the current update, learning rate used, whether the step was taken).

    The gradient is scaled by min(1, max_grad_norm/(norm + 1e-6)) as in torch.nn.utils.clip_grad_norm_. If the norm is
    not finite, weights and moments are unchanged and the step is counted as skipped. Weights in FROZEN stay as they
    are. Computed in float32, whatever the dtype of the state.
    """
    taken = jnp.isfinite(norm)
    scale = jnp.minimum(1.0, section.max_grad_norm / (norm + 1e-6))
    grads = jax.tree.map(lambda grad: grad.astype(jnp.float32) * scale, grads)
    params32 = _as_float32(state.params)
    moved, opt_state = adamw(section).update(grads, _as_float32(state.opt_state), params32)
    rate = learning_rate(section, state.step)

    def stepped(path: Any, weight: jax.Array, step: jax.Array) -> jax.Array:
        return weight if path_name(path).rpartition(".")[2] in FROZEN else weight - rate * step

    params = jax.tree.map_with_path(stepped, params32, moved)

    def keep(new: jax.Array, old: jax.Array) -> jax.Array:
        return jnp.where(taken, new.astype(old.dtype), old)

    after = state.replace(
        skipped=jnp.where(taken, 0, state.skipped + 1),
        params=jax.tree.map(keep, params, state.params),
        opt_state=jax.tree.map(keep, opt_state, state.opt_state),
    )
    return after, rate, taken
