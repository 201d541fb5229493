"""Times estimated from compiled programs. Nothing was executed: they serve to compare plans, not as a promise.

On TPUs compute is XLA's own `estimated_cycles` at the chip's clock, and collectives count only as far as these do; they
may take longer where they do not overlap. For GPUs XLA has no such figures. There products run at a share of the peak,
everything else moves its operands and results at a share of the memory bandwidth, one after the other, and collectives
move their bytes, all-reduces twice, at a share of NVLink. A collective that is scheduled around a product overlaps: of
these and the compute the slower counts; the other collectives are added. Latencies are left out.

Kernels are assumed to reach half of the peak in training (splash attention, grouped products of experts). In decoding,
attention reads all pages of full rows at 80 % of the memory bandwidth; the other kernels read and write what they
declare at this rate, or multiply at half of the peak if that takes longer. On GPUs a decoded token reads all weights,
too, unless its products take longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scope_jax.learner.batching import rows_per_shard
from scope_jax.learner.learner import Learner
from scope_jax.models import flops
from scope_jax.plan import theory
from scope_jax.plan.costs import Costs
from scope_jax.plan.hardware import Chip, Hardware
from scope_jax.plan.programs import Compiled

KERNELS = 0.5  # share of the peak
PRODUCTS = 0.6  # share of the peak, on GPUs; cuDNN's attention among them
MEMORY = 0.8  # share of the bandwidth
LINK = 0.8  # share of NVLink
LAUNCH = 2122  # estimated cycles of XLA's smallest operations on a TPU; a kernel takes as many beside its reads
ASSUMED = {
    "tpu": "full rows of one sequence each; XLA's cycle estimates; kernels at 50 % of the peak, their reads of cache "
    "and weights at 80 % of the bandwidth; collectives only as far as XLA estimates them",
    "gpu": "full rows of one sequence each; products at 60 % of the peak, kernels at 50 %; other operations, weights "
    "and cache at 80 % of the bandwidth; collectives at 80 % of NVLink, beside products where they are scheduled so",
}


def _seconds(chip: Chip, costs: Costs, kernels: float) -> float | None:
    """Of a program with so many FLOPs in kernels; None for a chip whose figures are not known."""
    if chip.peak is None or chip.bandwidth is None:
        return None
    if chip.clock is not None:
        return costs.cycles / chip.clock + kernels / (KERNELS * chip.peak)
    if chip.link is None:
        return None
    compute = costs.flops / (PRODUCTS * chip.peak) + kernels / (KERNELS * chip.peak)
    compute += costs.memory / (MEMORY * chip.bandwidth)
    return max(compute, costs.beside / (LINK * chip.link)) + (_moved(costs) - costs.beside) / (LINK * chip.link)


def _moved(costs: Costs) -> float:
    """Bytes of all collectives; an all-reduce is a scatter and a gather."""
    return sum(moved.bytes * (2 if kind == "all-reduce" else 1) for kind, moved in costs.collectives.items())


def update_figures(learner: Learner, on: Hardware, one: Compiled, score: Compiled | None = None) -> Mapping[str, Any]:
    """Of one optimiser step over one micro-batch, per device: FLOPs executed (dots of the program, kernels by
    arithmetic) and useful, together with those of `score` if given, and with a known chip the estimated seconds and
    share of the peak."""
    share = rows_per_shard(learner.section, learner.row_shards)
    tensor = learner.mesh.shape["tensor"]
    rows, length = share / tensor / learner.context, one.program.bucket
    frozen, model = learner.adapter is not None, learner.model
    useful = flops.update_flops(model, 1, length, length - 1, frozen) * rows
    recomputed, how = learner.section.remat != "none", learner.context_attention
    splash = learner.attention == "splash" and (learner.context == 1 or how == "ulysses")

    def in_kernels(products: int, backward: bool, recomputed: bool) -> float:
        total = flops.expert_flops(model, rows * length, products) if on.platform != "cpu" else 0.0
        if splash:
            total += rows * flops.splash_flops(model, 1, length, backward=backward, recomputed=recomputed)
        return total

    kernels = in_kernels((6 if frozen else 9) + (2 if recomputed else 0), True, recomputed)
    executed = one.costs.flops + kernels
    found: dict[str, Any] = {
        "flops": executed,
        "kernel_flops": kernels,
        "theory_flops": useful,
        "executed_of_theory": executed / useful,
        "tokens_per_device": rows * length,
    }
    if score is not None:
        passes = score.program.passes
        more = score.costs.flops + passes * in_kernels(3, False, False)
        forward = passes * flops.forward_flops(model, 1, length, length - 1) * rows
        found["executed_of_theory_with_scoring"] = (executed + more) / (useful + forward)
    if not frozen:
        mesh = (learner.shards.fsdp, recomputed, learner.context, how, learner.shards.sequence)
        found["closed_form"] = theory.step_collectives(model, *mesh)
    seconds = None if one.refused else _seconds(on.chip, one.costs, kernels)
    if seconds is not None:
        assert on.chip.peak is not None
        found |= {"seconds": seconds, "mfu": useful / seconds / on.chip.peak, "assumed": ASSUMED[on.platform]}
    return found


@dataclass(frozen=True)
class Reads:
    """Bytes that a device reads for a token of every slot: the full cache and all weights."""

    cache: float
    weights: float


def decode_figures(on: Hardware, whole: Costs, one: Costs, reads: Reads, steps: int) -> Mapping[str, float]:
    """Of one token of every slot: estimated milliseconds, of these the kernels' reads and the rest, and milliseconds to
    read weights and cache once. whole, one: costs of a dispatch of `steps` tokens, and of one of them."""
    chip = on.chip
    if chip.peak is None or chip.bandwidth is None:
        return {}
    read = MEMORY * chip.bandwidth
    if chip.clock is not None:
        cycles = one.cycles + LAUNCH * sum(one.kernels.values()) + (whole.cycles - one.cycles) / steps
        # Attention over pages declares nothing, nor does what reads little.
        work = sum(n * max(k.bytes / read, k.flops / (KERNELS * chip.peak)) for k, n in one.kernels.items())
        seconds = {"reads": reads.cache / read + work, "other": cycles / chip.clock}
    elif chip.link is not None:
        memory = one.memory + (whole.memory - one.memory) / steps
        products = max(one.flops / (PRODUCTS * chip.peak), reads.weights / read)
        seconds = {"reads": reads.cache / read, "other": products + memory / read + _moved(one) / (LINK * chip.link)}
    else:
        return {}
    return {
        "milliseconds": 1e3 * sum(seconds.values()),
        **{f"{name}_milliseconds": 1e3 * value for name, value in seconds.items()},
        "roofline_milliseconds": 1e3 * (reads.cache + reads.weights) / chip.bandwidth,
    }
