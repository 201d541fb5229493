"""Times estimated from compiled programs. Nothing was executed: they serve to compare plans, not as a promise.

Compute is XLA's own `estimated_cycles` at the chip's clock. Pallas kernels, which have none, are assumed to reach half
of the peak in training (splash attention) and 80 % of the memory bandwidth in decoding (each token reads all pages of
full rows). Collectives count only as far as XLA estimates them; they may take longer where they do not overlap.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models import flops
from scope_jax.learner.batching import rows_per_shard
from scope_jax.learner.learner import Learner
from scope_jax.plan import theory
from scope_jax.plan.hardware import Hardware
from scope_jax.plan.memory import Residents
from scope_jax.plan.programs import Compiled

SPLASH = 0.5  # share of the peak
PAGED = 0.8  # share of the bandwidth
ASSUMED = (
    "full rows of one sequence each; XLA's cycle estimates; splash kernels at 50 % of the peak, cache reads at 80 % of "
    "the bandwidth; collectives only as far as XLA estimates them"
)


def update_figures(learner: Learner, on: Hardware, one: Compiled) -> Mapping[str, Any]:
    """Of one optimiser step over one micro-batch, per device: FLOPs executed (dots of the program, splash kernels by
    arithmetic) and useful, and with a known chip the estimated seconds and share of the peak."""
    share = rows_per_shard(learner.section, learner.row_shards)
    tensor = learner.mesh.shape["tensor"]
    rows, length = share / tensor / learner.context, one.job.bucket
    frozen = learner.adapter is not None
    useful = flops.update_flops(learner.model, 1, length, length - 1, frozen) * rows
    kernels = 0.0
    recomputed, how = learner.section.remat != "none", learner.context_attention
    if learner.attention == "splash" and (learner.context == 1 or how == "ulysses"):
        kernels = rows * flops.splash_flops(learner.model, 1, length, backward=True, recomputed=recomputed)
    found: dict[str, Any] = {
        "flops": one.costs.flops + kernels,
        "kernel_flops": kernels,
        "theory_flops": useful,
        "executed_of_theory": (one.costs.flops + kernels) / useful,
        "tokens_per_device": rows * length,
    }
    if not frozen:
        mesh = (learner.shards.fsdp, recomputed, learner.context, how, learner.shards.sequence)
        found["closed_form"] = theory.step_collectives(learner.model, *mesh)
    if on.chip.clock and on.chip.peak and not one.refused:
        seconds = one.costs.cycles / on.chip.clock + kernels / (SPLASH * on.chip.peak)
        found |= {"seconds": seconds, "mfu": useful / seconds / on.chip.peak}
    return found


def decode_figures(on: Hardware, one: Compiled, held: Residents, steps: int) -> Mapping[str, Any]:
    """Of one token of every slot, the whole cache being full: estimated milliseconds, and those to read weights and
    cache once."""
    if not (on.chip.clock and on.chip.bandwidth) or one.refused:
        return {}
    rest = one.costs.cycles - one.round.cycles  # once per dispatch
    seconds = (one.round.cycles + rest / steps) / on.chip.clock + held.cache / (PAGED * on.chip.bandwidth)
    roofline = (held.cache + held.engine) / on.chip.bandwidth
    return {"milliseconds": 1e3 * seconds, "roofline_milliseconds": 1e3 * roofline}
