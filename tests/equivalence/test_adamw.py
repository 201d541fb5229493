"""Twenty optimiser steps with warm-up, clipping and decay against torch.optim.AdamW, in float64 there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from scope_jax.config import OptimizerSection
from scope_jax.learner.state import advance, fresh, global_norm, learning_rate

torch = pytest.importorskip("torch")

STEPS = 20
SECTION = OptimizerSection(learning_rate=3e-2, warmup_steps=7, weight_decay=0.2, max_grad_norm=1.0, beta2=0.95)
SHAPES = {"matrix": (5, 4), "scale": (6,), "table": (3, 2, 2)}


def gradients(step: int) -> dict[str, np.ndarray]:
    """Gradients whose norm exceeds the clipping bound in some steps and not in others."""
    rng = np.random.default_rng(step)
    scale = (0.05, 0.4, 3.0)[step % 3]
    return {name: (scale * rng.normal(size=shape)).astype(np.float32) for name, shape in SHAPES.items()}


def ours(section: OptimizerSection, start: dict[str, np.ndarray]) -> tuple[list[dict], list[float]]:
    state = fresh(jax.tree.map(jnp.asarray, start), section, None)
    specs = dict.fromkeys(SHAPES, PartitionSpec())
    trajectory, rates = [], []

    @jax.jit
    def one(state, grads):
        return advance(state, grads, global_norm(grads, specs), section)

    for step in range(STEPS):
        state, rate, taken = one(state, gradients(step))
        state = state.replace(step=state.step + 1)  # what Learner.update does after the last of its mini-batches
        assert bool(taken)
        trajectory.append(jax.device_get(state.params))
        rates.append(float(rate))
    return trajectory, rates


def theirs(section: OptimizerSection, start: dict[str, np.ndarray]) -> list[dict]:
    weights = {name: torch.nn.Parameter(torch.tensor(x).double()) for name, x in start.items()}
    optimizer = torch.optim.AdamW(
        weights.values(), section.learning_rate, (section.beta1, section.beta2), section.eps, section.weight_decay
    )
    # torch counts scheduler steps from 0 as we do; LambdaLR's factor of step s is (s + 1) / warmup_steps
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / section.warmup_steps))
    trajectory = []
    for step in range(STEPS):
        for name, grad in gradients(step).items():
            weights[name].grad = torch.tensor(grad).double()
        torch.nn.utils.clip_grad_norm_(list(weights.values()), section.max_grad_norm)
        optimizer.step()
        schedule.step()
        trajectory.append({name: x.detach().numpy().copy() for name, x in weights.items()})
    return trajectory


def test_trajectory_equals_torch():
    rng = np.random.default_rng(99)
    start = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    mine, rates = ours(SECTION, start)
    for step, (a, b) in enumerate(zip(mine, theirs(SECTION, start), strict=True)):
        for name in SHAPES:
            np.testing.assert_allclose(a[name], b[name], rtol=1e-5, atol=1e-6, err_msg=f"step {step}, {name}")
    norms = [np.sqrt(sum((g**2).sum() for g in gradients(step).values())) for step in range(STEPS)]
    assert min(norms) < 1 < max(norms)  # both sides of the clip are reached
    assert rates[:3] == pytest.approx([SECTION.learning_rate * s / 7 for s in (1, 2, 3)])
    assert rates[-1] == pytest.approx(SECTION.learning_rate)
    moved = max(np.abs(mine[-1][name] - start[name]).max() for name in SHAPES)
    assert moved > 0.1


def test_cosine_ends_at_zero():
    section = SECTION.model_copy(update={"schedule": "cosine", "warmup_steps": 2, "total_steps": 12})
    rates = [float(learning_rate(section, jnp.int32(step))) / section.learning_rate for step in (0, 1, 2, 7, 12, 40)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 0.5, 0.0, 0.0], abs=1e-6)


def test_bfloat16_weights_keep_bfloat16_moments_and_float32_arithmetic():
    start = {"w": jnp.full((4,), 1.0, jnp.bfloat16)}
    section = SECTION.model_copy(update={"warmup_steps": 0, "learning_rate": 0.25, "weight_decay": 0.0})
    state, _, _ = advance(fresh(start, section, None), {"w": jnp.full((4,), 0.01)}, jnp.float32(0.02), section)
    assert state.params["w"].dtype == state.opt_state[0].mu["w"].dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(state.params["w"], np.float32), 0.75)
