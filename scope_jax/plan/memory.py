"""What lives together on a device, in bytes by exact arithmetic over the sharded shapes, and in which phase of a step.

    publish    the engine gets a policy's weights, layer by layer
    generate   the engine samples, judges included
    rate       a teacher with a folder rates rows, if the card has one; the engine has freed its weights and cache
    learn      an update; the engine has freed its weights and cache
    save       a checkpoint is written, where the devices' memory is the host's: its arrays are copied, as many as
               there is room for, and compressed, while the engine samples the next step

With `train.offload` the states are in host memory while no update runs, and one state is on the device in each of the
other two phases: its weights while they are published, all of it while it is trained. With adapters the states have
factors only, the reference is their base, and the engine keeps its weights during an update, too: the same base, or a
copy of it where learner and engine shard it differently.

With `rollout.devices` a phase is that of the devices that take part in it: publish and learn of those that learn, where
the engine has nothing, generate and rate of those that generate, where the states are not. There, and with adapters,
the engine keeps its weights while a teacher rates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from scope_jax.config import LossCard
from scope_jax.learner.batching import chunk_of
from scope_jax.learner.fitting import largest, layer_bytes, numbers, temporaries
from scope_jax.learner.learner import Learner, scored
from scope_jax.learner.types import Update
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.transformer import layer_stages
from scope_jax.multihost.payloads import PIECES
from scope_jax.plan.programs import Compiled
from scope_jax.rollouts.engine import Engine
from scope_jax.run.checkpoint_writer import LEAST
from scope_jax.run.sizes import COMPILER, PASS, engine_process_bytes
from scope_jax.sharding.mesh import row_shards
from scope_jax.sharding.program import AbstractProgram, device_bytes

PHASES = ("publish", "generate", "rate", "learn", "save")
# Of host memory beside what `run.sizes` counts, as measured (docs/plans.md): the libraries of an index; what is kept of
# the program of an optimiser step, STEP times what is kept of another (15.5 of the 42 MiB of a layer are XLA's
# executable); what its compiler has for each byte that is kept.
SEARCH, STEP, MORE = 0.1 * 2**30, 7, 1.4


def _whole_bytes(tree: Any) -> int:
    """Bytes of whole arrays."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


class Teacher(NamedTuple):
    """A model that rates rows, and its program for the longest ones."""

    model: ModelConfig
    program: AbstractProgram


@dataclass(frozen=True)
class Residents:
    """Bytes per device of everything that is not a temporary of a program."""

    policies: int
    """Their number."""
    master: float
    """One policy's weights, or the factors of its adapter."""
    moments: float
    """Of its optimiser, with the scalars."""
    reference: float
    """The frozen base model."""
    engine: float
    """The engine's weights."""
    cache: float
    slots: float
    """The rest of the engine's state."""
    layer: float
    """The largest thing that exists beside both copies while weights are published."""
    index: float
    """Vectors of a search index in this process."""
    offload: bool
    """States are in host memory while no update runs."""
    adapters: bool = False
    """The policies are adapters."""
    shared: float = 0.0
    """The part of the engine's weights that is the reference itself."""
    apart: bool = False
    """Engine and search have devices of their own."""
    exchange: float = 0.0
    """What several processes need to send each other the episodes that they have generated."""
    teachers: tuple[float, ...] = ()
    """The weights of each teacher with a folder; they are in host memory unless it rates."""
    process: float = 0.0
    """What the process has in host memory beside its arrays: itself and its programs."""
    compiler: float = 0.0
    """What it has more while its largest program is compiled."""
    shares: int = 0
    """Devices whose memory is the host's, as of a CPU, between which `process` is divided; 0 if they have their own."""
    copies: int = 0
    """Models of which host memory has a copy in the engine's form, for a step that is played ahead."""

    @property
    def state(self) -> float:
        return self.master + self.moments

    @property
    def idle(self) -> float:
        """States and reference, as they are between updates."""
        return self.policies * self.state + self.reference

    def parts(self, phase: str) -> dict[str, float]:
        """What lives in a phase, by name, without temporaries."""
        engine = {"engine weights": self.engine - self.shared, "cache": self.cache, "slots": self.slots}
        engine |= {"exchange": self.exchange}
        rating = {"teacher": max(self.teachers, default=0.0), "exchange": self.exchange}
        program = {"program": self.process / self.shares if self.shares else 0.0}
        if self.apart and phase == "rate":
            return {**program, "search index": self.index, "engine weights": self.engine - self.shared, **rating}
        if self.apart and phase == "generate":
            return {**program, "search index": self.index, **engine}
        away = self.offload and phase != "learn"
        here = 0 if away else (1 if self.offload else self.policies)
        parts = {
            **program,
            "master weights": here * self.master,
            "moments": here * self.moments,
            "reference": 0.0 if away else self.reference,
            "search index": 0.0 if self.apart else self.index,
        }
        if self.adapters and phase in ("learn", "rate") and not self.apart:
            parts |= {"engine weights": self.engine - self.shared}
        if phase == "publish":
            parts["master weights"] = max(parts["master weights"], self.master)
            parts |= {} if self.apart else {"engine weights": self.engine - self.shared}
            parts |= {"publish transient": self.layer}
        if phase == "save":
            saved = min(LEAST, self.policies * self.state + (0.0 if self.adapters else self.reference))
            parts |= engine | {"copies": saved, "compressed": saved}
        if phase == "rate":
            parts |= rating
        if phase == "generate":
            parts |= engine
        return parts

    @property
    def host(self) -> float:
        """Bytes in host memory for each device."""
        return (self.idle if self.offload else 0.0) + sum(self.teachers) + self.copies * self.engine


def residents(
    learner: Learner,
    engine: Engine,
    policies: int,
    reference: bool,
    offload: bool,
    vectors: int,
    searching: Mesh,
    teachers: Sequence[Teacher] = (),
    copies: int = 0,
    updates: Sequence[Update] = (),
    index: bool = False,
) -> Residents:
    """Of a card. vectors: number of floats of the search index over all devices, 0 without one. searching: its mesh.
    copies: of models in host memory. index: there is one in this process."""
    process, compiler = program_bytes(learner, engine, updates)
    process += SEARCH if index else 0.0
    devices = {*learner.mesh.devices.flat, *engine.mesh.devices.flat}
    state = learner.abstract_state(reference)
    whole = engine.unquantized()  # as exams have it; a layer of the weights is there before it is quantised
    weights, held = whole.abstract_weights(), whole.abstract_state()
    master = device_bytes(state.params)
    cache = device_bytes(held.cache)
    apart = set(learner.mesh.devices.flat).isdisjoint(engine.mesh.devices.flat)
    one = max(map(_whole_bytes if apart else device_bytes, weights["layers"]))
    # One layer of the master in the learner's sharding and the same in the engine's, or a whole table at the end; to
    # other devices they are sent from whole copies.
    stacked = state.params if learner.adapter is None else state.ref_params
    layer = largest(engine.model, stacked["layers"], device_bytes) + one
    tables = [_whole_bytes(tree) if apart else device_bytes(tree) for name, tree in weights.items() if name != "layers"]
    return Residents(
        policies=policies,
        master=master,
        moments=device_bytes(state.opt_state),
        reference=device_bytes(state.ref_params) if reference else 0,
        engine=device_bytes(weights),
        cache=cache,
        slots=device_bytes(held) - cache,
        layer=0 if learner.layout.unstacked else max(layer, *tables),
        index=4.0 * vectors / row_shards(searching),
        offload=offload,
        adapters=learner.adapter is not None,
        shared=device_bytes(state.ref_params) if learner.layout.unstacked else 0,
        apart=apart,
        exchange=PIECES if len({device.process_index for device in searching.devices.flat}) > 1 else 0,
        teachers=tuple(device_bytes(teacher.program.resident) for teacher in teachers),
        copies=copies,
        process=process,
        compiler=compiler,
        shares=len(devices) if searching.devices.flat[0].platform == "cpu" else 0,
    )


def program_bytes(learner: Learner, engine: Engine, updates: Sequence[Update]) -> tuple[float, float]:
    """(what a process has in host memory beside its arrays, what more while it compiles an optimiser step): by the
    programs of all lengths of the engine, which spell out every layer, and those of the updates for the longest rows,
    which do where the learner has the engine's weights, and otherwise have one period of layers."""
    model = learner.model
    layers = model.num_layers
    if not learner.layout.unstacked:
        layers = sum(len(period) for _, period, _ in layer_stages(model.layers))
    cards: list[LossCard] = []
    for update in updates:
        cards += [] if update.card in cards else [update.card]
    scores = {scored(card, card.mini_batches) for card in cards}
    passes = STEP * len(cards) + sum(old + reference for old, reference in scores)
    return engine_process_bytes(engine) + PASS * passes * layers, COMPILER + MORE * PASS * STEP * layers


# What a device has of `Residents.parts` whatever its programs need.
CERTAIN = ("master weights", "moments", "reference", "search index", "engine weights", "cache", "slots")


def least(held: Residents, learner: Learner) -> tuple[str, float]:
    """(phase, bytes on each device) of the most that is certain to be there at one time: the arrays that stay, and in
    an update gradients and, of one of the shortest rows, the input of every layer."""
    totals = {
        phase: sum(size for name, size in held.parts(phase).items() if name in CERTAIN)
        for phase in ("generate", "learn")
    }
    state, tokens = learner.abstract_state(reference=False), min(learner.section.buckets) // learner.context
    inputs = learner.model.num_layers * tokens * learner.model.width * learner.layout.compute_dtype.itemsize
    totals["learn"] += device_bytes(state.params) + inputs
    phase = max(totals, key=lambda phase: totals[phase])
    return phase, totals[phase]


@dataclass(frozen=True)
class Peak:
    """The most memory of one phase."""

    phase: str
    program: str
    """The one that needs most, "" if none runs."""
    parts: Mapping[str, float]
    """Bytes by name; they add up to `total`."""
    exact: bool
    """No program is missing, so temporaries are the compiler's."""

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def compiled_peak(held: Residents, phase: str, programs: Sequence[Compiled], resident: Mapping[str, float]) -> Peak:
    """The peak of a phase whose programs were compiled: everything resident, and the program with the largest peak.

    resident: by program, bytes of its arguments that `held` counts; the rest of its peak are temporaries. (A refusal
    names temporaries only.)
    """
    parts = held.parts(phase)
    if not programs:
        return Peak(phase, "", parts, True)
    least = held.compiler if held.shares and phase == "learn" else 0.0
    extra = {one.program.name: one.peak for one in programs}
    extra |= {one.program.name: one.peak - resident[one.program.name] for one in programs if not one.refused}
    name = max(extra, key=lambda name: extra[name])
    return Peak(phase, name, parts | {"temporaries": max(extra[name], least)}, True)


def rating_temporaries(teacher: Teacher, chunk: int) -> dict[str, float]:
    """The same of a teacher's forward pass: one layer of one row, without gradients."""
    model, (weights,) = teacher.model, teacher.program.resident
    leaf = jax.tree.leaves(weights)[0]
    size, tensor = leaf.dtype.itemsize, leaf.sharding.mesh.shape["tensor"]
    layer = largest(model, weights["layers"], numbers) / tensor
    return {
        "activations": float(max(layer_bytes(model, teacher.program.bucket, tensor, size))),
        "gathered weights": (2 * layer + model.table_rows * model.width / tensor) * size,
        "logits": 2.0 * chunk * model.table_rows / tensor * 4,
    }


def arithmetic_peak(
    held: Residents,
    phase: str,
    learner: Learner,
    bucket: int,
    slots: int,
    searching: Mesh,
    teachers: Sequence[Teacher] = (),
) -> Peak:
    """The peak of a phase without a compiler. For generation, temporaries are three times the logits of all slots."""
    parts, name = held.parts(phase), ""
    if phase == "learn":
        needed, name = temporaries(learner.layout, learner.section, bucket), f"update @{bucket}"
        if held.shares and sum(needed.values()) < held.compiler:
            needed, name = {"compiler": held.compiler}, f"compiling update @{bucket}"
        parts |= needed
    if phase == "rate":
        teacher = max(teachers, key=lambda teacher: device_bytes(teacher.program.resident))
        parts, name = parts | rating_temporaries(teacher, chunk_of(learner.section)), teacher.program.name
    if phase == "generate":
        rows, tensor = row_shards(searching), searching.shape["tensor"]
        parts["logits"] = 3.0 * 4 * slots / rows * learner.model.table_rows / tensor
    return Peak(phase, name, parts, False)
