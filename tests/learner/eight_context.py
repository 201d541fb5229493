"""One update with rows divided over devices against one device, on 8 fake CPU devices, for test_context.py."""

from dataclasses import replace

from tests.learner.eight_devices import SEQUENCE_CARD, TINY, alone, max_difference, run, worst  # isort: skip  # prepares JAX

import jax.numpy as jnp

from scope_jax.models.decoder.config import Delta, ModelConfig
from tests.learner.conftest import weights_of
from tests.shapes import like
from tests.sharding.eight_devices import EXPERTS, POST_NORM

# data, fsdp, tensor, context; TINY has 2 kv heads
QUICK = {"fsdp2_tensor2_context2": (1, 2, 2, 2)}  # ring: one kv head on each device of a tensor group
SIZES = (1, 2, 4, 8)
ALL = {
    f"data{data}_fsdp{fsdp}_tensor{tensor}_context{context}": (data, fsdp, tensor, context)
    for data in SIZES
    for fsdp in SIZES
    for tensor in (1, 2)
    for context in SIZES
    if data * fsdp * tensor * context == 8
}
MOE = like(EXPERTS, num_experts=8)
GATED = replace(TINY.layers[0].attention, gate=True)
# Four key heads, one for each device of a tensor group of two and a context axis of two.
STATES = replace(
    TINY,
    layers=tuple(replace(TINY.layers[0], mixer=mixer) for mixer in (Delta(4, 8, 8, 6, 4, 1e-3), GATED)),
    norm_offset=1.0,
)


def compared(base, sizes, params, **options) -> dict[str, float]:
    grads, weights, measured, share = run(sizes, params, jnp.float32, 8, **options)
    return {
        "grads": max_difference(grads, base[0]),
        "params": max_difference(weights, base[1]),
        "metrics": worst(measured, base[2]),
        "share": share * sizes[1] * sizes[2] * sizes[3],
    }


def main(which: str) -> dict[str, dict[str, float]]:
    """Differences by name. which: "quick" or "all"."""
    params, base = weights_of(TINY), alone()
    if which == "quick":
        facts = {name: compared(base, sizes, params, sequence_parallel=True) for name, sizes in QUICK.items()}
    else:
        facts = {name: compared(base, sizes, params) for name, sizes in ALL.items()}
        for name, sizes in ALL.items():
            if sizes[2] > 1:
                facts[f"{name}_sequence"] = compared(base, sizes, params, sequence_parallel=True)
        facts["ring"] = compared(base, (1, 2, 2, 2), params, context_attention="ring")
        one = run((1, 1, 1), params, jnp.float32, card=SEQUENCE_CARD)
        facts["sequence"] = compared(one, (1, 1, 2, 4), params, card=SEQUENCE_CARD)
        for name, model, sizes in (
            ("windows_ulysses", POST_NORM, (2, 2, 1, 2)),
            ("windows_ring", POST_NORM, (1, 1, 2, 4)),
            ("experts", MOE, (1, 2, 2, 2)),
            ("experts_context4", MOE, (1, 2, 1, 4)),
        ):
            facts |= of_model(name, model, sizes)
    return facts


def of_model(name: str, model: ModelConfig, sizes: tuple[int, ...]) -> dict[str, dict[str, float]]:
    own = weights_of(model)
    one = run((1, 1, 1), own, jnp.float32, model=model)
    facts = {name: compared(one, sizes, own, model=model)}
    if sizes[2] > 1:
        facts[f"{name}_sequence"] = compared(one, sizes, own, model=model, sequence_parallel=True)
    return facts
