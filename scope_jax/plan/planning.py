"""The plan of a card: does it fit the hardware, what does it execute, and if it does not fit, what would."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from scope_jax.config import Config
from scope_jax.errors import UserError
from scope_jax.games import game_of
from scope_jax.learner.learner import Learner
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.transformer import layer_stages
from scope_jax.plan import estimates, memory
from scope_jax.plan.architectures import model_of
from scope_jax.plan.assumptions import ASSUMED
from scope_jax.plan.costs import Costs
from scope_jax.plan.hardware import GIB, Hardware
from scope_jax.plan.memory import PHASES, Peak, Residents, Teacher
from scope_jax.plan.programs import Compiled
from scope_jax.plan.programs import compiled as compiled_program
from scope_jax.rollouts.engine import Engine
from scope_jax.run.assemble import assemble_learner, keeps_reference
from scope_jax.run.engines import engine_for
from scope_jax.run.meshes import card_mesh, process_mesh, rollout_mesh
from scope_jax.run.scoring import teacher_program
from scope_jax.sharding.program import AbstractProgram, device_bytes

RESERVE = 0.05  # share of the memory that is left to the runtime and to gaps between buffers
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Needs:
    """What a card needs of a device."""

    cfg: Config
    learner: Learner
    engine: Engine
    held: Residents
    peaks: Mapping[str, Peak]
    """By phase."""
    compiled: Sequence[Compiled]
    """Its programs; () if nothing was compiled."""

    @property
    def peak(self) -> Peak:
        """The phase that needs most."""
        return max(self.peaks.values(), key=lambda peak: peak.total)


@dataclass
class Planner:
    """Plans cards of one model on one hardware; programs that two cards share are compiled once."""

    model: ModelConfig
    on: Hardware
    vectors: int = 0
    """Floats of the search index."""
    whole: bool = False
    """Every bucket and all layers. Otherwise the longest bucket, and where layers are unrolled, in the engine and in a
    learner that shares its base, one and two periods of them, extended to all: the programs repeat the same
    instructions for each layer."""
    tell: Tell = lambda sentence: None
    _known: dict[tuple[Any, ...], list[Compiled]] = field(default_factory=dict)

    @property
    def limit(self) -> float:
        """Bytes that a plan may use on a device."""
        return (1 - RESERVE) * self.on.chip.hbm

    def needs(self, cfg: Config) -> Needs:
        """Raises ValueError with one sentence if mesh, slots or budget of the card do not fit each other."""
        game, searching = game_of(cfg), rollout_mesh(cfg, self.on.devices)
        learner = assemble_learner(cfg, self.model, card_mesh(cfg, self.on.devices))
        engine = engine_for(cfg, self.model, searching)
        buckets = cfg.learner.buckets if self.whole else cfg.learner.buckets[-1:]
        teachers = self._teachers(cfg)
        held = self.residents(cfg, learner, engine, searching, teachers)
        compiled: list[Compiled] = []
        resident: dict[str, float] = {}
        if self.on.compiles:
            updates, rating = game.updates(cfg), [teacher.program for teacher in teachers]
            run = [*learner.programs(updates, buckets), *engine.programs(), *rating]
            resident = {program.name: device_bytes(program.resident) for program in run}
            dtypes = (cfg.model.param_dtype, cfg.model.compute_dtype, cfg.model.adapter)
            mesh, cards = (cfg.mesh, cfg.rollout.devices), tuple((update.name, update.card) for update in updates)
            key = ("learn", learner.section, mesh, dtypes, cfg.optimizer, cards)
            compiled += self._once(key, lambda: self._learner(cfg, learner, updates, buckets))
            compiled += self._engine_programs(cfg, engine)
            key = ("rate", cfg.learner, mesh, dtypes, tuple(program.name for program in rating))
            compiled += self._once(key, lambda: self._compile(rating))

        def peak(phase: str) -> Peak:
            if not self.on.compiles:
                sizes = (buckets[-1], engine.config.slots, searching, teachers)
                return memory.arithmetic_peak(held, phase, learner, *sizes)
            return memory.compiled_peak(held, phase, [one for one in compiled if one.phase == phase], resident)

        there = {"rate": bool(teachers), "save": held.shares > 0}
        phases = [phase for phase in PHASES if there.get(phase, True)]
        return Needs(cfg, learner, engine, held, {phase: peak(phase) for phase in phases}, compiled)

    def residents(
        self, cfg: Config, learner: Learner, engine: Engine, searching: Mesh, teachers: Sequence[Teacher] = ()
    ) -> Residents:
        """What lives on a device with this engine."""
        game = game_of(cfg)
        policies, reference = len(game.policies(cfg)), keeps_reference(cfg, game)
        models = len(game.sampled(cfg)) if cfg.train.one_step_off_policy and learner.adapter is None else 1
        copies = models if models > 1 else 0  # as `Sampler.hold` has them
        index = cfg.retrieval is not None and cfg.retrieval.url is None
        how = (self.vectors, searching, teachers, copies, game.updates(cfg), index)
        return memory.residents(learner, engine, policies, reference, cfg.train.offload, *how)

    def _teachers(self, cfg: Config) -> list[Teacher]:
        """The teachers that have a folder, on the devices of one process."""
        folders = {name: teacher.checkpoint for name, teacher in cfg.teachers.items() if teacher.checkpoint is not None}
        if not folders:
            return []
        mesh, bucket = process_mesh(cfg, self.on.devices, self.on.devices[0].process_index), cfg.learner.buckets[-1]
        models = {
            name: model_of(folder, None, f"a folder that is there as teachers.{name}.checkpoint")[0]
            for name, folder in folders.items()
        }
        return [Teacher(model, teacher_program(cfg, name, model, mesh, bucket)) for name, model in models.items()]

    def _once(self, key: tuple[Any, ...], make: Callable[[], list[Compiled]]) -> list[Compiled]:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def _compile(self, wanted: Sequence[AbstractProgram]) -> list[Compiled]:
        done = []
        for program in wanted:
            self.tell(f"compiling {program.name} for {self.on.name}")
            done.append(compiled_program(program, self.on.platform))
        return done

    def _learner(self, cfg: Config, learner: Learner, updates: Any, buckets: Sequence[int]) -> list[Compiled]:
        if not learner.layout.unstacked:
            return self._compile(learner.programs(updates, buckets))
        cfg = cfg.model_copy(update={"learner": learner.section})  # what it chose for all layers
        return self._unrolled(lambda model: assemble_learner(cfg, model, learner.mesh).programs(updates, buckets))

    def _engine_programs(self, cfg: Config, engine: Engine) -> list[Compiled]:
        """The engine's programs, whatever the size of its cache: beyond their arguments they need the same."""
        rollout = cfg.rollout.model_copy(update={"cache_gib": None})
        key = ("generate", engine.paging, rollout, cfg.mesh, cfg.model.compute_dtype, cfg.model.adapter)
        compiled = self._once(key, lambda: self._unrolled(lambda model: engine.with_model(model).programs()))
        return [with_arguments(one, program) for one, program in zip(compiled, engine.programs(), strict=True)]

    def _unrolled(self, programs: Callable[[ModelConfig], Sequence[AbstractProgram]]) -> list[Compiled]:
        """Programs of all layers; unless `whole`, from those of models with one and two periods of them."""
        first, *_ = stages = [len(layers) for _, layers, _ in layer_stages(self.model.layers)]
        step = first if first > 1 else len(stages)  # of a period, or of runs of equal layers
        shared = self.model.cache_layers != self.model.attention_layers  # then the first layers are not like the last
        if self.whole or shared or self.model.num_layers <= 2 * step:
            return self._compile(programs(self.model))
        few = [self._compile(programs(self._first(step * times))) for times in (1, 2)]
        return [extended(one, two, self.model.num_layers / step) for one, two in zip(*few, strict=True)]

    def _first(self, layers: int) -> ModelConfig:
        """The model with its first layers alone."""
        return replace(self.model, layers=self.model.layers[:layers])


def extended(one: Compiled, two: Compiled, periods: float) -> Compiled:
    """A program of so many periods of layers, from those of one and of two: a straight line."""
    times = periods - 1

    def line(a: float, b: float) -> float:
        return a + times * (b - a)

    def costs(a: Costs, b: Costs) -> Costs:
        return replace(a.times(1 - times).plus(b.times(times)), unknown=b.unknown)

    peak = line(one.peak, two.peak)
    arguments = line(one.arguments, two.arguments)
    return Compiled(
        one.program,
        arguments,
        line(one.temporaries, two.temporaries),
        peak,
        line(one.in_place, two.in_place),
        one.refused or two.refused,
        one.seconds + two.seconds,
        costs(one.costs, two.costs),
        costs(one.round, two.round),
        max(one.largest_copy, two.largest_copy),
        round(line(one.kernels, two.kernels)),
    )


def with_arguments(one: Compiled, program: AbstractProgram) -> Compiled:
    """An engine's program that was compiled with another number of pages or layers, with the arguments of `program`."""
    if one.refused:
        return one
    wanted = device_bytes(program.resident)
    return replace(one, arguments=wanted, peak=one.peak - one.arguments + wanted)


# ------------------------------------------------------------------------------------------------------------- results
def gib(count: float) -> float:
    return round(count / GIB, 2)


def figures(planner: Planner, needs: Needs) -> dict[str, Any]:
    """The plan of a card as plain data; bytes are per device, in GiB."""
    on, peak = planner.on, needs.peak
    updates = [one for one in needs.compiled if one.program.kind == "step"]
    heaviest = max(updates, key=lambda one: (one.program.bucket, one.costs.flops), default=None)
    found: dict[str, Any] = {
        "on": on.name,
        "devices": len(on.devices),
        "chip": on.chip.name,
        "compiled": on.compiles,
        "fits": peak.total <= planner.limit,
        "peak_gib": gib(peak.total),
        "hbm_gib": gib(on.chip.hbm),
        "reserve_gib": gib(on.chip.hbm - planner.limit),
        "shortfall_gib": gib(max(0.0, peak.total - planner.limit)),
        "phase": peak.phase,
        "phases": {
            name: {"program": one.program, "total_gib": gib(one.total), "parts_gib": _gibs(one.parts)}
            for name, one in needs.peaks.items()
        },
        "host_gib": gib(needs.held.host),
        **_host(planner.on, needs),
        "mesh": dict(needs.learner.mesh.shape),
        "slots": needs.engine.config.slots,
        "max_length": needs.engine.config.max_length,
        "rows": needs.learner.section.micro_batch_rows,
        "kept": needs.learner.section.remat,
        "row_tokens": needs.cfg.learner.buckets[-1],
        "full_rows": needs.engine.full_rows,
        "programs": [_program(one) for one in needs.compiled],
        "seconds_to_compile": round(sum(one.seconds for one in needs.compiled), 1),
        "collectives": {} if heaviest is None else _moved(heaviest.costs),
        "unknown_loops": {one.program.name: one.costs.unknown for one in needs.compiled if one.costs.unknown},
    }
    score = None
    if heaviest is not None:
        scores = [one for one in needs.compiled if one.program.passes and one.program.bucket == heaviest.program.bucket]
        score = max(scores, key=lambda one: one.costs.flops, default=None)
        found["update"] = heaviest.program.name
    bucket = needs.cfg.learner.buckets[-1]
    found |= estimates.update_figures(needs.learner, on, bucket, heaviest, score)
    if estimates.known(on):
        found["assumed"] = vars(ASSUMED[on.platform])
    decode = next((one for one in needs.compiled if one.program.kind == "decode"), None)
    found["decode"] = {
        **estimates.decode_figures(needs.engine, on, needs.held.cache),
        "collectives": {} if decode is None else _moved(decode.round),
    }
    return found


def _host(on: Hardware, needs: Needs) -> dict[str, Any]:
    """Of this machine's memory, where the devices have their own: what a run needs, what is available."""
    if on.host is None:
        return {}
    own = sum(device.process_index == on.devices[0].process_index for device in on.devices)
    needed = own * needs.held.host + needs.held.process
    return {"host_needed_gib": gib(needed), "host_available_gib": gib(on.host), "host_fits": needed <= on.host}


def _gibs(parts: Mapping[str, float]) -> dict[str, float]:
    return {name: gib(size) for name, size in parts.items() if size}


def _program(one: Compiled) -> dict[str, Any]:
    return {
        "name": one.program.name,
        "peak_gib": gib(one.peak),
        "arguments_gib": gib(one.arguments),
        "temporaries_gib": gib(one.temporaries),
        "refused": one.refused,
        "flops": one.costs.flops,
        "kernels": one.kernels,
        "largest_copy_mib": round(one.largest_copy / 2**20, 1),
        "seconds": round(one.seconds, 1),
        "collectives": _moved(one.costs),
    }


def _moved(costs: Costs) -> dict[str, dict[str, float]]:
    return {
        kind: {
            "count": round(moved.count),
            "gib": round(moved.bytes / GIB, 3),
            "largest_mib": round(moved.largest / 2**20, 2),
        }
        for kind, moved in sorted(costs.collectives.items())
    }


def index_vectors(cfg: Config, stated: str | None) -> tuple[int, str]:
    """(floats of the search index in this process, a sentence about what is not counted or ""). stated: N x E.

    Without it the manifest of the card's index is read, if there is one. Raises ValueError for another form.
    """
    card = cfg.retrieval
    if stated is not None:
        rows, _, width = stated.partition("x")
        if not (rows.isdecimal() and width.isdecimal() and int(rows) * int(width)):
            raise UserError(f"--index {stated} is not of the form PASSAGESxWIDTH, for example 21015324x768.")
        return int(rows) * int(width), ""
    if card is None or card.url is not None or card.kind != "exact":
        return 0, ""
    import json

    manifest = Path(card.index or "") / "manifest.json"
    if card.index is not None and manifest.is_file():
        try:
            read = json.loads(manifest.read_text(encoding="utf-8"))
            return int(read["passages"]) * int(read["width"]), ""
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            raise UserError(
                f"{manifest} does not describe an index; state its vectors with --index PASSAGESxWIDTH."
            ) from None
    return 0, "the search index is not built yet and not counted; state its vectors with --index PASSAGESxWIDTH"
