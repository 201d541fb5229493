"""Published measurements of engines and learners, others' and ours, and what the estimator of `scope-jax plan` says of
the same work."""

from __future__ import annotations

import csv
import math
import statistics
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from scope_jax.config import LearnerSection, OptimizerSection
from scope_jax.learner.learner import Learner
from scope_jax.models.decoder.adapter import Adapter
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.kinds import has_sinks, head_dim
from scope_jax.plan.architectures import public
from scope_jax.plan.assumptions import ASSUMED, Assumptions
from scope_jax.plan.estimates import DeviceWork, decode_work, roofline, seconds, update_work
from scope_jax.plan.hardware import hardware
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.slots import EngineConfig
from scope_jax.run.engines import attention_over_pages
from scope_jax.sharding.mesh import MeshConfig, make_mesh

FILE = Path(__file__).with_name("measurements.csv")


@dataclass(frozen=True)
class Row:
    """One measurement; the columns of measurements.csv."""

    work: str
    """decode: a token of every slot. update: one optimiser step."""
    system: str
    hardware: str
    """As `scope-jax plan --on` takes it."""
    model: str
    layers: int
    """The first layers of the model alone; 0: all."""
    data: int
    """Replicas of the sharded weights, in an update."""
    tensor: int
    """Devices of a tensor group; the others share weights (update) or have slots of their own (decode)."""
    context: int
    """Devices that share each row's tokens."""
    rows: int
    """decode: slots, of all devices together. update: rows of a micro-batch on each group of tensor and context."""
    length: int
    """decode: tokens of a slot in the cache, on average. update: tokens of a row."""
    remat: str
    """What is computed again, as `learner.remat`."""
    rank: int
    """Of adapters; 0: all weights are trained."""
    micro_batches: int
    """Of a step."""
    measured: float
    """decode: milliseconds, median. update: seconds."""
    source: str
    date: str

    @property
    def held_out(self) -> bool:
        """Whether the assumptions are judged by this row and were not fitted to it. Fixed before anything was fitted:
        by a checksum of what describes a setting, so that its rows stay together."""
        return zlib.crc32(f"{self.work} {self.system} {self.hardware} {self.model} {self.length}".encode()) % 2 == 1


def rows() -> list[Row]:
    """All measurements."""
    with FILE.open(encoding="utf-8") as file:
        return [_row(line) for line in csv.DictReader(file)]


def _row(line: dict[str, str]) -> Row:
    read: dict[str, Any] = {**line, "measured": float(line["measured"])}
    for name in ("layers", "data", "tensor", "context", "rows", "length", "rank", "micro_batches"):
        read[name] = int(line[name])
    return Row(**read)


hardware_of = cache(partial(hardware, compiled=False))


def model_of(row: Row) -> ModelConfig:
    """The model, cut to its first layers if the row says so."""
    model = public(row.model)
    assert model is not None, row.model
    if not row.layers:
        return model
    return replace(model, layers=model.layers[: row.layers])


@cache
def work_of(row: Row) -> DeviceWork:
    """The work of a row, by plan's own arithmetic over the engine or learner that would do it."""
    on, model = hardware_of(row.hardware), model_of(row)
    if row.work == "decode":
        mesh = make_mesh(MeshConfig(1, -1, row.tensor), on.devices)
        config = EngineConfig(row.rows, 2 * row.length, 16, jnp.bfloat16)
        engine = Engine(model, config, mesh, attention_over_pages(on.platform, head_dim(model), has_sinks(model)))
        return decode_work(engine, on, row.length)
    mesh = make_mesh(MeshConfig(row.data, -1, row.tensor, row.context), on.devices)
    shards = len(on.devices) // row.tensor // row.context
    section = LearnerSection(
        buckets=(row.length,),
        packing=False,
        micro_batch_rows=row.rows * shards,
        remat=row.remat,  # pyright: ignore[reportArgumentType]
    )
    adapter = Adapter(row.rank, 2.0 * row.rank, ("all-linear",)) if row.rank else None
    learner = Learner(
        *(model, mesh, OptimizerSection(), section),
        param_dtype=jnp.float32,
        compute_dtype=jnp.bfloat16,
        adapter=adapter,
    )
    return update_work(learner, on, row.length, row.micro_batches)


def predicted(row: Row, assumed: dict[str, Assumptions] = ASSUMED) -> float:
    """In the unit of `measured`."""
    on = hardware_of(row.hardware)
    return seconds(work_of(row), on.chip, assumed[on.platform]) * (1e3 if row.work == "decode" else 1)


def least(row: Row) -> float:
    """The roofline, in the unit of `measured`."""
    return roofline(work_of(row), hardware_of(row.hardware).chip) * (1e3 if row.work == "decode" else 1)


def error(some: Iterable[Row], assumed: dict[str, Assumptions] = ASSUMED) -> float:
    """The median of |log(predicted / measured)|."""
    return statistics.median(abs(math.log(predicted(row, assumed) / row.measured)) for row in some)
