"""Times estimated by arithmetic: the work of a token, or of an optimiser step, at what `plan.assumptions` says programs
reach of a chip. Nothing is executed, and no compiler is needed; how far such estimates are from published measurements
is in docs/plans.md.

A token of every slot reads the weights once, unless its products take longer, then the cache; an update multiplies and
moves its activations. Collectives of activations are added; those of weights and gradients go on beside the compute, of
which the slower counts. No estimate is below the `roofline`: each part takes at least what the chip's figures allow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from scope_jax.learner.batching import rows_per_shard
from scope_jax.learner.learner import Learner
from scope_jax.models.decoder import flops
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.kinds import cached_bytes, feed_of, kept_bytes, kv_heads, mixer_of
from scope_jax.models.decoder.paging import PAGE
from scope_jax.plan import theory
from scope_jax.plan.assumptions import ASSUMED, Assumptions
from scope_jax.plan.hardware import Chip, Hardware
from scope_jax.plan.programs import Compiled
from scope_jax.rollouts.engine import Engine
from scope_jax.sharding.mesh import row_shards
from scope_jax.sharding.program import device_bytes
from scope_jax.sharding.rules import expert_axes

# Passes over float32 logits, counted in the programs: sampling reads them for the maximum, the exponentials, their sum
# and the draw; an update's blocks are written, read, and computed, written and read again for their gradients.
SAMPLED, TRAINED = 8, 8
OPTIMISER = 36  # bytes that AdamW reads and writes of a float32 weight, its gradient and two moments


@dataclass(frozen=True)
class DeviceWork:
    """What a device does. FLOPs, bytes of memory, and bytes that leave it."""

    products: float = 0.0
    """FLOPs of dense matrix products."""
    attention: float = 0.0
    """FLOPs of attention, over pairs that see each other."""
    experts: float = 0.0
    """FLOPs of grouped products."""
    weights: float = 0.0
    """Bytes of weights that are read while products run."""
    cache: float = 0.0
    """Bytes of keys and values that are read while attention runs."""
    memory: float = 0.0
    """Bytes that everything else reads and writes."""
    link: float = 0.0
    """Bytes of collectives that compute waits for, within a slice or node."""
    network: float = 0.0
    """The same across them."""
    beside_link: float = 0.0
    """Bytes of collectives that go on beside the compute, within a slice or node."""
    beside_network: float = 0.0
    """The same across them."""
    layers: float = 0.0
    """Passes through a layer."""
    slots: float = 0.0
    """Slots times layers, of a token."""
    collectives: float = 0.0
    """Collectives that compute waits for, of a token."""

    def times(self, number: float) -> DeviceWork:
        return DeviceWork(**{name: value * number for name, value in vars(self).items()})

    def plus(self, other: DeviceWork) -> DeviceWork:
        return DeviceWork(**{name: value + vars(other)[name] for name, value in vars(self).items()})


def roofline(work: DeviceWork, chip: Chip) -> float:
    """The least seconds that the chip's figures allow. The chip's figures are known."""
    peak, bandwidth, links, net = _figures(chip)
    return max(
        (work.products + work.attention + work.experts) / peak,
        (work.weights + work.cache + work.memory) / bandwidth,
        (work.link + work.beside_link) / links,
        (work.network + work.beside_network) / net,
    )


def seconds(work: DeviceWork, chip: Chip, assumed: Assumptions) -> float:
    """Estimated; see the module. The chip's figures are known."""
    peak, bandwidth, links, net = _figures(chip)
    products = work.products / (assumed.products * peak) + work.experts / (assumed.experts * peak)
    attention = work.attention / (assumed.attention * peak)
    moved = work.link / (assumed.link * links) + work.network / (assumed.network * net)
    beside = work.beside_link / (assumed.link * links) + work.beside_network / (assumed.network * net)
    compute = max(products, work.weights / (assumed.weights * bandwidth))
    compute += max(attention, work.cache / (assumed.cache * bandwidth))
    compute += work.memory / (assumed.memory * bandwidth) + work.layers * assumed.layer
    compute += work.slots * assumed.slot + work.collectives * assumed.collective
    return moved + max(compute, beside)


def _figures(chip: Chip) -> tuple[float, float, float, float]:
    """(FLOP/s, bytes/s of memory, of links, of the network) of a chip whose figures are known."""
    assert None not in (chip.peak, chip.bandwidth, chip.link, chip.network), chip
    return chip.peak, chip.bandwidth, chip.link, chip.network  # pyright: ignore[reportReturnType]


def known(on: Hardware) -> bool:
    """Whether times can be estimated: the chip's figures are known."""
    return None not in (on.chip.peak, on.chip.bandwidth, on.chip.link, on.chip.network) and on.platform in ASSUMED


# ------------------------------------------------------------------------------------------------------------- decoding
def decode_work(engine: Engine, on: Hardware, length: float, slots: float | None = None) -> DeviceWork:
    """Of a token of every slot, on each device. length: tokens of a slot in the cache, on average. slots: so many on
    each row shard decode; None: all."""
    model, mesh = engine.model, engine.mesh
    tensor, shards, size = mesh.shape["tensor"], row_shards(mesh), jnp.dtype(engine.config.compute_dtype).itemsize
    slots = engine.config.slots / shards if slots is None else slots
    spread = expert_axes(model.num_experts, mesh.shape)
    gathered = math.prod(mesh.shape[name] for name in spread if name != "tensor")
    tree = engine.abstract_weights()
    experts = device_bytes([leaf for layer in tree["layers"] for name, leaf in layer.items() if "_X" in name])
    # Tables of which a token reads a row.
    looked_up = [] if model.tie_embeddings else [tree["embed"]]
    looked_up += [tree["inputs"]["table_V_Lp"]] if "inputs" in tree else []
    weights = device_bytes(tree) - device_bytes(looked_up) - experts
    if model.num_experts:  # those that a token of the slots that step together picks
        chosen = _picked(model) / model.num_experts
        experts = experts * (1 - (1 - chosen) ** (slots * gathered))
    dense = 2.0 * flops.weights_per_token(model) + 2.0 * model.width * model.vocab_size
    grouped = flops.expert_flops(model, 1, 3)

    def seen(window: int | None) -> float:
        return min(length, window or math.inf) + PAGE / 2  # the last page is whole

    layer = 2 if tensor <= kv_heads(model) else 4  # parts of a head that several devices have are gathered, too
    crossing = _crossing(mesh, ("tensor",), on)
    sent = _reduced(slots * model.width * size, tensor) * (2 * model.num_layers + 1)
    sent += slots * model.vocab_size / tensor * 4 * (tensor - 1) / tensor
    work = DeviceWork(
        products=slots / tensor * (dense - grouped),
        attention=slots / tensor * flops.pair_flops(model, seen),
        experts=slots / tensor * grouped,
        weights=weights + experts,
        cache=slots * cached_bytes(model, tensor, engine.config.cache_dtype, seen, read=True),
        # What is kept of a text is read and written.
        memory=SAMPLED * 4 * slots * model.vocab_size / tensor + 2 * slots * kept_bytes(model, size) / tensor,
        layers=model.num_layers,
        slots=slots * model.num_layers,
        collectives=(layer * model.num_layers + 3 if tensor > 1 else 0) + (4 * model.num_layers if gathered > 1 else 0),
    )
    work = work.plus(_moved(sent, crossing))
    if gathered > 1:  # tokens of all, to the devices with their experts, and their sums back
        tokens = 2 * slots * (gathered - 1) * model.width * size * model.num_layers
        work = work.plus(_moved(tokens, _crossing(mesh, tuple(name for name in spread if name != "tensor"), on)))
    return work


@dataclass(frozen=True)
class Pace:
    """Of decoding on an engine's mesh."""

    milliseconds: float
    """For a token of every slot that decodes."""
    roofline_milliseconds: float
    tokens_per_second: float
    """Of all slots together."""
    slots: float
    """So many decode at a time: all, or as many as the cache holds."""


def pace(engine: Engine, on: Hardware, cache: float, length: float) -> Pace:
    """cache: bytes of pages on each device. length: tokens of a slot, on average."""
    model, tensor, shards = engine.model, engine.mesh.shape["tensor"], row_shards(engine.mesh)
    token = _token_bytes(model, tensor, engine.config.cache_dtype, length)
    live = min(engine.config.slots / shards, (cache - engine.budget.state_bytes) / (token * length))
    work = decode_work(engine, on, length, live)
    time = seconds(work, on.chip, ASSUMED[on.platform])
    return Pace(1e3 * time, 1e3 * roofline(work, on.chip), live * shards / time, live * shards)


def _picked(model: ModelConfig) -> int:
    """Experts of a token, 0 of a dense model."""
    experts = model.layers[0].experts
    return 0 if experts is None else experts.picked


def _token_bytes(model: ModelConfig, tensor: int, dtype: Any, length: float) -> float:
    """Bytes of a token's keys and values on a device; of a layer with a window, its share of those that it keeps."""
    return cached_bytes(model, tensor, dtype, lambda window: min(1.0, (window or math.inf) / length))


# --------------------------------------------------------------------------------------------------------------- update
def update_work(learner: Learner, on: Hardware, length: int, micro_batches: int = 1) -> DeviceWork:
    """Of one optimiser step over full rows of `length` tokens, on each device; of all devices the average."""
    model, mesh, section = learner.model, learner.mesh, learner.section
    tensor, context, frozen = mesh.shape["tensor"], learner.context, learner.adapter is not None
    share, size = rows_per_shard(section, learner.row_shards), learner.layout.compute_dtype.itemsize
    rows, again = share / tensor / context, section.remat != "none"
    tokens = rows * length
    done = executed(learner, on, length, length)
    count, picked = model.num_layers, max(_picked(model), 1)
    heads = sum(mixer_of(layer).values(layer.mixer) for layer in model.layers) / count / 2  # of queries, keys
    values = 12 * model.width + 4 * heads + 6 * model.width * (picked - 1)
    vectors = model.layers[0].inputs
    values += 6 * (model.width + vectors) if vectors else 0
    feeds = sum(feed_of(layer).values(layer.feed) for layer in model.layers) / count
    values += 4 * feeds / 3  # of gate, up and their product, each of its width
    passes = (2 if again else 1) + 2
    layers = model.num_layers * passes
    one = DeviceWork(
        products=rows * done.products,
        attention=rows * done.attention,
        experts=rows * done.experts,
        memory=tokens * (layers * values * size + TRAINED * 4 * model.vocab_size),
        layers=layers,
    )
    group = share * length / context * model.width * size
    one = one.plus(
        _moved(_reduced(group, tensor) * 2 * model.num_layers * (passes - 1), _crossing(mesh, ("tensor",), on))
    )
    turned = 2 * tokens * heads * size * (context - 1) / context * model.num_layers * (passes - 1)
    one = one.plus(_moved(turned, _crossing(mesh, ("context",), on)))
    weights = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(_whole(learner))) / tensor
    moved = weights * ((2 if again else 1) * size + (0 if frozen else 4))
    # Vectors of each layer: their table is not gathered, their rows go to the tokens and their gradients back.
    rows_moved = (
        share * length / context * count * vectors * size * math.prod(mesh.shape[n] for n in learner.shards.fsdp)
    )
    moved += (1 if frozen else 2) * rows_moved
    one = one.plus(_gathered(moved, mesh, learner.shards.fsdp, on))
    trained = device_bytes(learner.abstract_state(reference=False).params) / learner.layout.param_dtype.itemsize
    replicas = mesh.shape["data"]
    shared = _moved(_reduced(4 * trained, replicas), _crossing(mesh, ("data",), on))
    step = DeviceWork(memory=OPTIMISER * trained, beside_link=shared.link, beside_network=shared.network)
    return one.times(micro_batches).plus(step)


def _whole(learner: Learner) -> Any:
    """Shapes of the weights that a forward pass gathers."""
    state = learner.abstract_state(reference=learner.adapter is not None)
    whole = state.params if learner.adapter is None else state.ref_params
    if "inputs" not in whole:
        return whole
    return {**whole, "inputs": {name: w for name, w in whole["inputs"].items() if name != "table_V_Lp"}}


def executed(learner: Learner, on: Hardware, length: int, trained: int) -> flops.Executed:
    """FLOPs that an update of one row executes."""
    remat: Any = learner.section.remat  # a value, no longer "auto"
    how = {"frozen": learner.adapter is not None, "splash": on.platform == "tpu"}
    return flops.executed_flops(learner.model, length, trained, remat, **how)


# ---------------------------------------------------------------------------------------------------------- collectives
def _reduced(size: float, devices: int) -> float:
    """Bytes that leave a device in an all-reduce of so many."""
    return 2 * size * (devices - 1) / devices


def _crossing(mesh: Mesh, axes: tuple[str, ...], on: Hardware) -> int:
    """The number of slices or nodes that a group along these axes is spread over."""
    domain = {device.id: place * on.domains // len(on.devices) for place, device in enumerate(on.devices)}
    group = mesh.devices[tuple(slice(None) if name in axes else 0 for name in mesh.axis_names)]
    return len({domain[device.id] for device in np.ravel(group)})


def _moved(size: float, domains: int) -> DeviceWork:
    """Bytes of a collective that compute waits for; across domains all of them take the network."""
    return DeviceWork(link=size) if domains == 1 else DeviceWork(network=size)


def _gathered(size: float, mesh: Mesh, axes: tuple[str, ...], on: Hardware) -> DeviceWork:
    """Gathers and scatters beside the compute, of arrays of `size` bytes that are sharded over these axes: the part of
    a device's neighbours in its own slice or node over the links, the rest of its shard over the network."""
    devices = math.prod(mesh.shape[name] for name in axes)
    domains = _crossing(mesh, axes, on)
    inside = devices // domains
    across = size / inside * (domains - 1) / domains
    return DeviceWork(beside_link=size * (inside - 1) / inside, beside_network=across)


# -------------------------------------------------------------------------------------------------------------- figures
def update_figures(
    learner: Learner, on: Hardware, bucket: int, one: Compiled | None, score: Compiled | None = None
) -> Mapping[str, Any]:
    """Of one optimiser step over one micro-batch of full rows, per device: useful FLOPs, with a known chip the
    estimated seconds, MFU and HFU (`models.decoder.flops`); of a compiled program also the FLOPs executed (dots of the
    program, kernels by arithmetic), together with those of `score` if given, and its collectives in closed form."""
    share = rows_per_shard(learner.section, learner.row_shards)
    rows = share / learner.mesh.shape["tensor"] / learner.context
    frozen, model = learner.adapter is not None, learner.model
    useful = flops.update_flops(model, 1, bucket, bucket - 1, frozen) * rows
    found: dict[str, Any] = {"theory_flops": useful, "tokens_per_device": rows * bucket}
    if one is not None:
        found |= _executed(learner, on, rows, useful, one, score)
    if known(on) and not (one and one.refused):
        assert on.chip.peak is not None
        time = seconds(update_work(learner, on, bucket), on.chip, ASSUMED[on.platform])
        done = executed(learner, on, bucket, bucket - 1).total * rows
        found |= {"seconds": time, "mfu": useful / time / on.chip.peak, "hfu": done / time / on.chip.peak}
    return found


def _executed(
    learner: Learner, on: Hardware, rows: float, useful: float, one: Compiled, score: Compiled | None
) -> dict[str, Any]:
    model, length, how = learner.model, one.program.bucket, learner.context_attention
    frozen, recomputed = learner.adapter is not None, learner.section.remat != "none"
    splash = learner.attention == "splash" and (learner.context == 1 or how == "ulysses")
    if one.refused:
        return {}

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
        "executed_of_theory": executed / useful,
    }
    if score is not None:
        passes = score.program.passes
        more = score.costs.flops + passes * in_kernels(3, False, False)
        forward = passes * flops.forward_flops(model, 1, length, length - 1) * rows
        found["executed_of_theory_with_scoring"] = (executed + more) / (useful + forward)
    if not frozen:
        mesh = (learner.shards.fsdp, recomputed, learner.context, how, learner.shards.sequence)
        found["closed_form"] = theory.step_collectives(model, *mesh)
    return found


def decode_figures(engine: Engine, on: Hardware, cache: float) -> Mapping[str, Any]:
    """Of decoding with a cache of so many bytes on each device, at half of max_length in every slot; {} for a chip
    whose figures are not known."""
    if not known(on):
        return {}
    length = engine.config.max_length / 2
    return {"length": length, **vars(pace(engine, on, cache, length))}
