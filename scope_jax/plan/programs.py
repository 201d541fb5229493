"""The programs of a card on devices that need not be there: their abstract arguments, compiled ahead of time.

The learner and the engine are the run's own, so these are the programs that a run executes. Benchmarks and tests that
compile ahead of time use the same functions.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from scope_jax.config import LossCard
from scope_jax.errors import UserError
from scope_jax.learner import batching, losses
from scope_jax.learner.batching import Batch
from scope_jax.learner.learner import Learner, Scores
from scope_jax.learner.types import Update
from scope_jax.models.pages import Where
from scope_jax.plan.costs import Costs
from scope_jax.plan.hlo import KERNEL, Program
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.paged import CHUNK, PagedEngine
from scope_jax.sharding.mesh import ROWS

MICRO_BATCHES = 2  # of a planned step: with more than one, gradients are accumulated
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class Job:
    """A program to compile. phase: "learn" or "generate". lower: traces it. bucket: tokens per row, 0 if it has none.
    update: it is an optimiser step. passes: weights under which it scores, 0 if it does not."""

    name: str
    phase: str
    platform: str
    lower: Callable[[], Any]
    bucket: int = 0
    update: bool = False
    passes: int = 0


@dataclass(frozen=True)
class Compiled:
    """A compiled program, in bytes per device. peak: the most that is alive at any time, arguments included; if the
    compiler refused the program, the temporaries it said are needed. in_place: arguments that are overwritten."""

    job: Job
    arguments: float
    temporaries: float
    peak: float
    in_place: float
    refused: bool
    seconds: float
    costs: Costs
    round: Costs  # of one round of its outer loop
    largest_copy: float
    kernels: int


# ----------------------------------------------------------------------------------------------------------- arguments
def placed(shapes: Any, shardings: Any) -> Any:
    """The shapes of a tree with a sharding each; a sharding may stand for a whole branch."""

    def branch(sharding: Any, under: Any) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), under)

    return jax.tree.map(branch, shardings, shapes)


def abstract_batch(
    learner: Learner, bucket: int, sampled: int | None = None, micro_batches: int = MICRO_BATCHES
) -> Batch:
    """Shapes and shardings of full rows of one bucket. sampled: trained tokens of a row; None: all but the first."""
    trained = bucket - 1 if sampled is None else sampled
    batch = batching.abstract(learner.section, learner.row_shards, bucket, trained, micro_batches, learner.context)
    specs = learner._batch_specs(jax.tree.map(lambda x: x, batch))
    shardings = jax.tree.map(
        lambda spec: NamedSharding(learner.mesh, spec), specs, is_leaf=lambda x: isinstance(x, PartitionSpec)
    )
    return placed(batch, shardings)


def abstract_state(engine: Engine | PagedEngine) -> Any:
    """Shapes and shardings of the engine's state on the devices, with the cache."""
    shardings = engine.state_sharding if isinstance(engine, PagedEngine) else engine._state_sharding
    return placed(jax.eval_shape(engine._init), shardings)


# ------------------------------------------------------------------------------------------------------------ programs
def scored(card: LossCard) -> tuple[bool, bool]:
    """(old, reference): which log-probs `Learner.update` scores before the steps of an update with this card."""
    old = card.objective == "policy" and card.old_logprobs == "learner" and card.mini_batches > 1
    return old, card.needs_reference


def lower_step(learner: Learner, card: LossCard, batch: Batch) -> Any:
    """One optimiser step."""
    old, reference = scored(card)
    score = batch.behaviour_MN
    moving = losses.sequences_move(card, old) and batch.ids_MBT.shape[0] > 1
    scores = Scores(score if old else None, score if reference else None, score if moving else None)
    state = learner.abstract_state(reference=learner.adapter is not None)
    base = state.ref_params  # of an adapter
    return learner._step.lower(state=state.replace(ref_params=None), base=base, batch=batch, scores=scores, card=card)


def lower_score(learner: Learner, batch: Batch, *, policy: bool, reference: bool) -> Any:
    """Log-probs under the policy, the reference, or both."""
    state = learner.abstract_state(reference or learner.adapter is not None)
    return learner._score.lower(state.params, state.ref_params, batch, policy=policy, reference=reference)


def lower_decode(engine: Engine | PagedEngine) -> Any:
    """Sampling for all slots, over whole rows of the cache."""
    params, state = engine.abstract_weights(), abstract_state(engine)
    patience = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(engine.mesh, PartitionSpec()))
    if isinstance(engine, Engine):
        return engine._generate.lower(engine.config.capacity, params, state, patience)
    return engine._generate.lower(params, state, engine.abstract_tables(), patience)


def lower_prefill(engine: Engine | PagedEngine) -> Any:
    """Keys and values of prompts: the longest bucket of the dense engine, one dispatch of the paged one."""
    params = engine.abstract_weights()
    if isinstance(engine, Engine):
        rows, bucket = engine.config.prefill_batch, engine.config.bucket(engine.config.max_length)
        spread, whole = engine._prefill_rows, NamedSharding(engine.mesh, PartitionSpec())
        ids = jax.ShapeDtypeStruct((rows, bucket), jnp.int32, sharding=spread)
        counts = jax.ShapeDtypeStruct((rows,), jnp.int32, sharding=spread)
        last = jax.ShapeDtypeStruct((rows,), jnp.int32, sharding=whole)
        return engine._prefill.lower(engine.config.capacity, params, ids, counts, last, counts)
    spread, rows = NamedSharding(engine.mesh, PartitionSpec(ROWS)), engine.row_shards * engine.chunks

    def ints(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=spread)

    where = Where(ints(rows, len(engine.windows), engine.columns), ints(rows), ints(rows))
    return engine._append.lower(params, abstract_state(engine).cache, ints(rows, CHUNK), where, ints(rows))


def learner_jobs(learner: Learner, updates: Sequence[Update], buckets: Sequence[int]) -> list[Job]:
    """Every distinct step and scoring program of the updates, for each of these buckets."""
    jobs: dict[tuple[Any, ...], Job] = {}
    platform = learner.mesh.devices.flat[0].platform
    for bucket in buckets:
        batch = abstract_batch(learner, bucket)
        for update in updates:
            card, (old, reference) = update.card, scored(update.card)
            jobs.setdefault(
                ("step", bucket, card),
                Job(
                    f"update {update.name} @{bucket}",
                    "learn",
                    platform,
                    _late(lower_step, learner, card, batch),
                    bucket,
                    True,
                ),
            )
            asked = [(old, reference)] if old or reference else []
            asked += [(True, False)] if losses.sequences_move(card, old) else []
            for policy, ref in asked:
                names = " and ".join(name for name, wanted in (("old", policy), ("reference", ref)) if wanted)
                lower = _late(lower_score, learner, batch, policy=policy, reference=ref)
                jobs.setdefault(
                    ("score", bucket, policy, ref),
                    Job(f"score {names} @{bucket}", "learn", platform, lower, bucket, passes=policy + ref),
                )
    return list(jobs.values())


def engine_jobs(engine: Engine | PagedEngine) -> list[Job]:
    """The engine's programs that hold the most."""
    platform = engine.mesh.devices.flat[0].platform
    return [
        Job("decode", "generate", platform, _late(lower_decode, engine)),
        Job("prefill", "generate", platform, _late(lower_prefill, engine)),
    ]


def _late(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[], Any]:
    return lambda: function(*args, **kwargs)


# ----------------------------------------------------------------------------------------------------------- compiling
def compiled(job: Job) -> Compiled:
    """Compiles a program and reads its figures. Programs that the compiler refuses for lack of memory have only a peak;
    other errors are raised, as a UserError if the compiler lacks a memory on the chip."""
    lowered, began = job.lower(), time.monotonic()
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        needed = memory_asked(str(error))
        if needed is None and "RESOURCE_EXHAUSTED" in str(error):  # of another memory than the device's
            reason = " ".join(str(error).partition("RESOURCE_EXHAUSTED:")[2].split())[:200]
            raise UserError(
                f"the compiler refuses the program {job.name!r} for lack of on-chip memory ({reason})."
            ) from error
        if needed is None:
            raise
        nothing = Costs()
        return Compiled(job, 0, 0, needed, 0, True, time.monotonic() - began, nothing, nothing, 0, 0)
    seconds = time.monotonic() - began
    memory, text = program.memory_analysis(), program.as_text()
    assert memory is not None
    assert text is not None
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    peak = memory.argument_size_in_bytes + outputs + memory.temp_size_in_bytes
    if job.platform == "tpu":  # elsewhere temporaries share no memory with each other that the compiler counts
        peak = memory.peak_memory_in_bytes
    parsed = Program(text)
    return Compiled(
        job,
        memory.argument_size_in_bytes,
        memory.temp_size_in_bytes,
        peak,
        memory.alias_size_in_bytes,
        False,
        seconds,
        parsed.costs(),
        parsed.body(),
        parsed.largest_copy(),
        len(KERNEL.findall(text)),
    )


def memory_asked(message: str) -> float | None:
    """Bytes of temporaries, from the compiler's refusal; None if the message is about something else."""
    found = re.search(r"memory required[^(]*\(([\d.]+)([KMG]?)\) exceeds available HBM", message)
    return float(found[1]) * UNITS[found[2]] if found else None
