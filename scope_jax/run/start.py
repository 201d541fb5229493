"""How a process of a run starts: its parts, and where it goes on: at a checkpoint, at the beginning, or from the state
of another run (`run.origin`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from scope_jax.config import Config
from scope_jax.config.base import paths
from scope_jax.errors import UserError
from scope_jax.games import game_of
from scope_jax.models.files.seal import unfit
from scope_jax.play.game import Memory
from scope_jax.run.adapters import base_digest
from scope_jax.run.assemble import Trainer, assemble, or_closed
from scope_jax.run.checkpoint import (
    READABLE,
    CheckpointError,
    check_base,
    checkpoints_in,
    load,
    remat_of,
    saved_memory,
    step_of,
)
from scope_jax.run.checkpoint_writer import Checkpoints
from scope_jax.run.fetching import fetched
from scope_jax.run.files import METRICS, read_records
from scope_jax.run.folder import RunFolder
from scope_jax.run.indexing import Part
from scope_jax.run.inputs import Inputs
from scope_jax.run.lines import DamagedFile
from scope_jax.run.mirror import Mirror
from scope_jax.run.origin import OriginError, check_game, with_origin
from scope_jax.run.overlapping import OverlappingSteps
from scope_jax.run.performance import Instruments
from scope_jax.run.processes import by_one
from scope_jax.run.programs import keep_programs
from scope_jax.run.sampler import States
from scope_jax.run.schedule_file import check_schedule, open_schedule
from scope_jax.run.signs import Signs
from scope_jax.run.steps import RunPosition, Steps, unpacked
from scope_jax.run.watch import RunEnd, Watch, watch_of
from scope_jax.text import templates


def start(
    cfg: Config,
    run: Path,
    say: Callable[[str], None],
    part: Part,
    *,
    profile: int | None = None,
    mirror: Mirror | None = None,
    accept_inputs: bool = False,
    before: Callable[[Config], None] = lambda cfg: None,
    follow: Callable[[Callable[[], str]], None] = lambda status: None,
    schedule: Path | None = None,
    services: bool = True,
) -> tuple[Steps | int, RunFolder, RunEnd]:
    """(the steps of the card from where the run in the folder `run` is, its files, whether it is over already).

    Of a run that is over, with nothing left to evaluate, nothing is loaded: instead of its steps there is their number.

    say, part, services: as `tell`, `part`, `services` of `assemble`; without services only the record answers. follow:
    is given what says what is going on, once there is one; the others as in `train.train`, with what it raises.
    """
    keep_programs(cfg.train.compilation_cache)
    cfg = with_origin(cfg, run)
    if schedule is not None:
        check_schedule(cfg, run, schedule)
    log = RunFolder(run, cfg)
    with or_closed(log):
        card, cfg = cfg, fetched(cfg, say)
        inputs = Inputs(run, card, cfg)
        by_one(lambda: inputs.check(accept_inputs, say))
        for key, folder in paths(cfg):
            if key.endswith(".prompts"):
                templates.hold(folder)  # a step of this run has the prompts that were compared
        base = by_one(lambda: base_digest(cfg))
        if mirror is None and profile is None and (over := by_one(lambda: _over(cfg, run))) is not None:
            say(_beginning(cfg, run, over, resumed=True, over=True))
            return over, log, RunEnd(_watch(cfg, run), complete=True)
        cfg = _as_begun(cfg, run, schedule)
        before(cfg)
        say(f"loading {cfg.model.checkpoint}" + (" and the search index" if cfg.retrieval is not None else ""))
        trainer = assemble(cfg, run, part, say, services=services)
        world = trainer.world
        remat: Any = trainer.learner.section.remat  # no longer "auto"
        checkpoints = Checkpoints(
            run / "checkpoints", card, mirror, base, lambda: log.extents() | world.recording.extents(), remat
        )
        with or_closed(world):
            follow(world.status)
            schemas = {name: tool.schema for name, tool in world.toolbox.items()}
            by_one(lambda: inputs.check(accept_inputs, say, schemas))  # now with the index and the modules of the game
            if cfg.log.tokens:
                log.token_bytes = world.tokenizer.token_bytes

            position, resumed = _position(trainer, checkpoints, say)
            if not resumed:
                log.check_begun(position.done)
            if mirror is not None:
                by_one(mirror.claim)  # not before: a start that is refused leaves a running process alone
            for sentence in log.rewind(position.done if resumed else None, checkpoints.at_resume):
                say(sentence)
            world.recording.open(run, position.done, checkpoints.at_resume, schedule)
            world.recording.closed = not services
            end = RunEnd(_watch(cfg, run), world.finished(position.memory, position.done))
            say(_beginning(cfg, run, position.done, resumed, bool(end)))
            last = position.done if end else world.game.total_steps(cfg)
            instruments = Instruments(world, remat, run, profile, first=position.done + 1, last=last)
            signs = Signs(by_one(lambda: Signs.after(read_records(run / METRICS)).state))
            parts = (trainer, position, checkpoints, instruments, resumed, signs)
            if cfg.train.max_staleness:
                rows = open_schedule(run, position.done, schedule)
                return OverlappingSteps(*parts, schedule=rows, log=log), log, end
            return Steps(*parts), log, end


def _as_begun(cfg: Config, run: Path, schedule: Path | None) -> Config:
    """The card with what "auto" keeps for the backward pass as the run began with it, or the run whose schedule it
    follows: on another machine it might be something else, and sums would be rounded otherwise."""
    places = [place / "checkpoints" for place in (run, schedule) if place is not None]
    remat = by_one(lambda: next((kept for place in places if (kept := remat_of(place)) is not None), None))
    if cfg.learner.remat != "auto" or remat is None:
        return cfg
    return cfg.model_copy(update={"learner": cfg.learner.model_copy(update={"remat": remat})})


def _over(cfg: Config, run: Path) -> int | None:
    """The number of steps of a run on this machine that is over and has been evaluated, as its newest checkpoint says;
    None of any other run, and if the checkpoint or a line is damaged, or the checkpoint is not that of the last line,
    about which a start speaks."""
    places = checkpoints_in(run / "checkpoints")
    if not places or unfit(places[-1]):
        return None
    memory, done = saved_memory(places[-1]), step_of(places[-1])
    try:
        lines = list(read_records(run / METRICS))
    except DamagedFile:  # perhaps behind the checkpoint, where a resume drops it
        return None
    if not lines or lines[-1]["step"] != done:
        return None
    ends = game_of(cfg).over(cfg, memory["game"], done) or watch_of(cfg, lines).reason is not None
    evaluated = not cfg.evaluate.sets or any(name.startswith("eval/") for name in lines[-1])
    return done if ends and evaluated else None


def _position(trainer: Trainer, checkpoints: Checkpoints, say: Callable[[str], None]) -> tuple[RunPosition, bool]:
    """(where the run is, whether an earlier process of it had got there): at the newest checkpoint, else at
    `train.origin`, else where the card starts."""
    saved = checkpoints.resume(trainer.targets(), say)
    states, memory, done = beginning(trainer) if saved is None else trainer.start(saved)
    own = {} if saved is None else memory  # an origin has played for its own card
    played = unpacked(own["ahead"]) if "ahead" in own else None
    position = RunPosition(done, states, memory["game"], memory["baselines"], played, own.get("plays"))
    return position, saved is not None


def beginning(trainer: Trainer) -> tuple[States, Memory, int]:
    """What a run begins with, as `Trainer.start`: the state of `train.origin`, else that of the card.

    Raises UserError if the run would be complete, CheckpointError as `_from_origin`.
    """
    world = trainer.world
    if world.cfg.train.origin is None:
        return trainer.start(None)
    states, memory, done = _from_origin(trainer)
    if world.finished(memory["game"], done):
        raise UserError(
            f"the run of this card is already complete at {world.cfg.train.origin}; raise train.steps or the "
            "iterations."
        )
    return states, memory, done


def _watch(cfg: Config, run: Path) -> Watch:
    """The card's rules after the records of the run, which process 0 reads."""

    def counted() -> tuple[tuple[int, ...], frozenset[str]]:
        watch = watch_of(cfg, read_records(run / METRICS))
        return watch.counts, watch.seen

    return Watch(cfg.train.watch, *by_one(counted))


def _beginning(cfg: Config, run: Path, done: int, resumed: bool, over: bool) -> str:
    """What the user is told before the first step of this process."""
    if over:
        return f"{run} is done: {done} steps; to go on, raise train.steps or the iterations"
    start = f"going on from step {done} of {run}" if resumed else f"starting in {run}"
    if cfg.train.origin is not None and not resumed:
        start += f" from {cfg.train.origin}"
    kinds = Counter(device.device_kind for device in jax.devices())
    devices = " and ".join(f"{count} × {kind}" for kind, count in kinds.items())
    return f"{start}, on {devices}; the first step compiles its programs, unless the compilation cache has them"


def _from_origin(trainer: Trainer) -> tuple[States, Memory, int]:
    """Like `Trainer.start`, for a run that starts from the state of the card's origin.

    Raises CheckpointError for a checkpoint that is gone or damaged, or one of another model.
    """
    cfg, game = trainer.world.cfg, trainer.world.game
    place = Path(cfg.train.origin or "")
    before = check_game(cfg, place)
    if not by_one(place.is_dir):
        raise CheckpointError(
            f"{place}, from which this run starts, is gone, as its run keeps only train.keep checkpoints; start a new "
            "run from another one."
        )
    targets = {name: state.replace(ref_params=None) for name, state in trainer.targets().items()}
    saved = load(place, targets)
    check_base(saved, by_one(lambda: base_digest(cfg)), cfg.model.checkpoint)
    if saved.meta.get("layout") not in READABLE:
        raise OriginError(f"{place} was written by an incompatible version of scope-jax.")
    memory = saved.memory | {"game": game.adopt(cfg, saved.memory["game"], before)}
    return trainer.with_new_reference(trainer.referring(saved.states), memory["game"]), memory, saved.step
