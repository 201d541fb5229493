"""No sum of an update over tokens is in bfloat16: read from the traced program, as CPUs compute in float32."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.learner.learner import Learner, Scores
from scope_jax.selftest.programs import DENSE, MODELS, mesh_of
from tests.shapes import like

BIASES = like(DENSE, architecture="qwen2", qk_norm="none", qkv_bias=True, output_bias=True)
TIED = replace(DENSE, tie_embeddings=True)


def equations(jaxpr: Any) -> Iterator[Any]:
    """All operations of a program, those inside of others included."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            if hasattr(value, "jaxpr") or hasattr(value, "eqns"):
                yield from equations(value if hasattr(value, "eqns") else value.jaxpr)


CASES = MODELS | {"biases": BIASES, "tied": TIED}
SLOW = ("dense", "windows", "experts", "tied")  # sinks has their layers, too


@pytest.mark.parametrize(
    "model", [pytest.param(model, id=name, marks=[pytest.mark.slow] * (name in SLOW)) for name, model in CASES.items()]
)
def test_an_update_sums_in_float32(model):
    """Allowed: sums over one element, and the gradient of picking the trained positions, which are all different."""
    section = LearnerSection(buckets=(384,), micro_batch_rows=2)
    dtypes = {"param_dtype": jnp.float32, "compute_dtype": jnp.bfloat16}
    learner = Learner(model, mesh_of(jax.devices()[:1]), OptimizerSection(), section, **dtypes)
    batch = learner.abstract_batch(384, micro_batches=2)
    state = learner.abstract_state(reference=False)
    card = LossCard(kl="none", entropy_coef=0.01)

    def update(state, batch):
        return learner.jitted.step(state=state, base=None, batch=batch, scores=Scores(None, None), card=card)

    found = list(equations(jax.make_jaxpr(update)(state, batch).jaxpr))
    assert any(one.primitive.name == "reduce_sum" for one in found)
    tokens = math.prod(batch.ids_MBT.shape[1:])
    for one in found:
        if one.primitive.name == "reduce_sum" and one.outvars[0].aval.dtype == jnp.bfloat16:
            assert one.invars[0].aval.size == one.outvars[0].aval.size, one
        if one.primitive.name == "scatter-add" and one.outvars[0].aval.dtype == jnp.bfloat16:
            assert one.outvars[0].aval.shape == (tokens, model.width), one
