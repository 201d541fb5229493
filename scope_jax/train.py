"""The training loop of every game and card, from rollouts to updated weights.

    play → advantages → pack → update → metrics, episodes, checkpoint

A step is a function of (weights, memory, seed, step). A checkpoint holds weights and memory (the game's, and the roles'
moving baselines); the card and the step number determine the rest. A killed run therefore resumes and ends with exactly
the same results as an uninterrupted one. With `train.one_step_off_policy` the next step is played during an update, see
`run.ahead`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from scope_jax.config import Config
from scope_jax.config.base import paths
from scope_jax.errors import UserError
from scope_jax.evaluation.evaluate import evaluate
from scope_jax.learner import advantages
from scope_jax.learner.types import Episode, Metrics
from scope_jax.play.game import Memory
from scope_jax.report.progress import Progress
from scope_jax.run import ahead, branching, unlearned
from scope_jax.run.adapters import base_digest
from scope_jax.run.ahead import Played
from scope_jax.run.assemble import Trainer, assemble
from scope_jax.run.checkpoint import Checkpoints
from scope_jax.run.compiling import keep_programs, programs
from scope_jax.run.fetching import fetched
from scope_jax.run.heartbeat import heartbeat
from scope_jax.run.inputs import Inputs
from scope_jax.run.metrics import RunLog, records
from scope_jax.run.mirror import Mirror
from scope_jax.run.performance import Instruments
from scope_jax.run.processes import agreed, by_one, give_up, signalled
from scope_jax.run.residence import ACCELERATOR, States, moved
from scope_jax.run.stopping import Stopped, orderly
from scope_jax.run.watching import Watch, watched
from scope_jax.run.world import World
from scope_jax.text import templates

Learned = tuple[States, list[Episode], dict[str, float], Metrics]  # of `learn`


def train(
    cfg: Config,
    run: Path,
    progress: Progress,
    profile: int | None = None,
    mirror: Mirror | None = None,
    accept_inputs: bool = False,
) -> dict[str, Any]:
    """Trains the card's policies in the folder `run`, resuming where an earlier process stopped.

    mirror: of a run on object storage, for which `run` is the local folder. accept_inputs: go on although files that
    the run reads have changed (`run.inputs`).

    With `train.origin` the run starts from the state and step of another run. profile: the number of a step whose trace
    is written to <run>/profile. Returns {"run", "steps", "seconds" and "programs_compiled" (both of this process),
    "before", "after"}; the last two are the evaluation metrics of the initial and the final weights, {} if the card has
    no evaluation set. A run ended by a rule of `train.watch` also has "stopped", the reason. Raises UserError if a rule
    names a metric that the game cannot have, or if `profile` is not a step of this process; Stopped if a signal ended
    the run early, after a step with a checkpoint.
    """
    began, made = time.monotonic(), programs()
    compiled = made.compiled
    keep_programs(cfg.train.compilation_cache)
    cfg = branching.settled(cfg, run)
    log = RunLog(run, cfg)
    card, cfg = cfg, fetched(cfg, progress.say)
    inputs = Inputs(run, card, cfg)
    by_one(lambda: inputs.check(accept_inputs, progress.say))
    for key, folder in paths(cfg):
        if key.endswith(".prompts"):
            templates.hold(folder)  # a step of this run has the prompts that were compared
    checkpoints = Checkpoints(run / "checkpoints", card, mirror, base=by_one(lambda: base_digest(cfg)))
    progress.say(f"loading {cfg.model.checkpoint}" + (" and the search index" if cfg.retrieval is not None else ""))
    trainer = assemble(cfg, run, progress.part, progress.say)
    by_one(lambda: inputs.check(accept_inputs, progress.say))  # now with the index and the modules of the game
    world = trainer.world
    if cfg.log.tokens:
        log.token_bytes = world.tokenizer.token_bytes

    states, memory, baselines, done, resumed, coming = _begin(trainer, checkpoints, progress.say)
    over = finished(world, memory, done)
    if not resumed:
        log.check_begun(done)
    if mirror is not None:
        by_one(mirror.own)  # not before: a start that is refused leaves a running process alone
    if gone := log.rewind(done if resumed else None):
        progress.say(gone)
    world.verdicts.record(run, done)
    watch = _watch(cfg, run)
    over = over or watch.reason is not None
    last = done if over else world.game.total_steps(cfg)
    progress.say(_beginning(cfg, run, done, over, resumed))
    instruments = Instruments(world, run, profile, first=done + 1, last=last)
    world.sampler.publish(states)
    if not resumed and cfg.evaluate.sets:
        progress.say(f"evaluating the initial weights: {cfg.train.origin or 'the base'}")
        initial = _evaluated(world, progress, log, instruments, done)
        log.metrics(done, initial)
        watch = watch.after(initial)
    elif over and cfg.evaluate.sets and not log.evaluated(done):
        progress.say("evaluating the final weights")
        log.metrics(done, _evaluated(world, progress, log, instruments, done))

    signal, begun = 0, done + 1
    with orderly(cfg.train.stop_grace, give_up) as request:
        try:
            while not over and not signal:
                step, passed = done, world.game.iterations_done(cfg, memory)
                done = step + 1
                world.verdicts.begin(done)
                with instruments.step(done), _alive(world, progress, f"step {done}"):
                    with instruments.phase("play"):
                        played = _played(world, memory, step) if coming is None else coming
                    memory = played.memory
                    learned, coming = _learned(trainer, instruments, checkpoints, states, played, baselines, done)
                    states, episodes, baselines, measured = learned
                    world.sampler.publish(states)
                metrics = agreed(played.metrics | measured | instruments.metrics(episodes))

                over = finished(world, memory, done) or watch.after(metrics).reason is not None
                name = ""
                if cfg.train.keep_iterations and world.game.iterations_done(cfg, memory) > passed:
                    name = f"iteration-{passed + 1}"
                if cfg.evaluate.sets and (over or name or (cfg.evaluate.every and done % cfg.evaluate.every == 0)):
                    progress.say("evaluating")
                    metrics |= _evaluated(world, progress, log, instruments, done)
                log.episodes(done, episodes)
                log.metrics(done, metrics)
                progress.step(done, world.game.total_steps(cfg), metrics)
                for sentence in (*unlearned.sentences(episodes), *unlearned.at_rest(metrics)):
                    progress.say(sentence)
                watch = watch.after(metrics)
                if done == begun and (sentence := watch.missing(world.game.updates(cfg))):
                    progress.say(sentence)
                over = over or watch.reason is not None  # by an evaluation
                signal = signalled(request)
                if done % cfg.train.save_every == 0 or over or name or signal:
                    with instruments.phase("checkpoint"):
                        carried = {"game": memory, "baselines": baselines}
                        carried |= {} if coming is None else {"ahead": ahead.packed(coming)}
                        checkpoints.save(done, trainer.saved(states), carried, name)
        finally:
            instruments.stop()
            checkpoints.wait()  # finish a started checkpoint, also after an error
    if signal and not over:
        raise Stopped(signal, done)
    log.close()
    stopped = {} if watch.reason is None else {"stopped": watch.reason}
    for sentence in stopped.values():
        progress.say(f"step {done}: {sentence}")
    used = {"seconds": time.monotonic() - began, "programs_compiled": made.compiled - compiled}
    return {"run": str(run), "steps": done} | used | log.before_after() | stopped


def _begin(
    trainer: Trainer, checkpoints: Checkpoints, tell: Callable[[str], None]
) -> tuple[States, Memory, dict[str, float], int, bool, Played | None]:
    """(states, the game's memory, moving baselines, steps done, whether an earlier process of this run had done them,
    the next step if it was played ahead): from the newest checkpoint, else from `train.origin`, else as the card
    starts."""
    saved = checkpoints.resume(trainer.targets(), tell)
    origin = trainer.world.cfg.train.origin if saved is None else None
    states, remembered, done = trainer.start(saved) if origin is None else branching.start(trainer)
    if origin is not None and finished(trainer.world, remembered["game"], done):
        raise UserError(f"the run of this card is already complete at {origin}; raise train.steps or the iterations.")
    coming = remembered.get("ahead") if saved is not None else None  # of an origin: played for its own card
    played = None if coming is None else ahead.unpacked(coming)
    return states, remembered["game"], remembered["baselines"], done, saved is not None, played


def _watch(cfg: Config, run: Path) -> Watch:
    """The card's rules after the records of the run, which process 0 reads."""

    def counted() -> tuple[tuple[int, ...], frozenset[str]]:
        watch = watched(cfg, records(run / "metrics.jsonl"))
        return watch.counts, watch.seen

    return Watch(cfg.train.watch, *by_one(counted))


def _alive(world: World, progress: Progress, what: str) -> AbstractContextManager[None]:
    """Says now and then that a step or an evaluation goes on."""
    return heartbeat(progress.say, what, lambda: f"{world.local.progress[1]} dispatches in this call")


def _evaluated(world: World, progress: Progress, log: RunLog, instruments: Instruments, step: int) -> Metrics:
    """Metrics of an evaluation after `step` steps; the answers are logged."""
    with instruments.phase("evaluate"), _alive(world, progress, "evaluating"):
        metrics, answers = evaluate(world)
    log.exams(step, answers)
    return metrics | agreed(instruments.times())


def _beginning(cfg: Config, run: Path, done: int, over: bool, resumed: bool) -> str:
    """What the user is told before the first step of this process."""
    if over:
        return f"{run} is done: {done} steps; to go on, raise train.steps or the iterations"
    start = f"going on from step {done} of {run}" if resumed else f"starting in {run}"
    if cfg.train.origin is not None and not resumed:
        start += f" from {cfg.train.origin}"
    return f"{start}, on {_devices()}; the first step compiles its programs, unless the compilation cache has them"


def _devices() -> str:
    kinds = Counter(device.device_kind for device in jax.devices())
    return " and ".join(f"{count} × {kind}" for kind, count in kinds.items())


def finished(world: World, memory: Memory, step: int) -> bool:
    """True if the card or the game ends the run after `step` steps."""
    limit = world.cfg.train.steps
    return (limit is not None and step >= limit) or world.game.finished(world.cfg, memory, step)


def _played(world: World, memory: Memory, step: int, lacking: int = 0) -> Played:
    """The step after `step` steps, with the weights that are published. lacking: updates before it that these lack."""
    episodes, memory, metrics = world.game.play(world.cfg, world.tools(step), memory, step)
    staleness = {"staleness": float(lacking)} if world.cfg.train.one_step_off_policy else {}
    return Played(episodes, memory, metrics | staleness)


def _learned(
    trainer: Trainer,
    instruments: Instruments,
    checkpoints: Checkpoints,
    states: States,
    played: Played,
    baselines: Mapping[str, float],
    done: int,
) -> tuple[Learned, Played | None]:
    """(what `learn` makes of the step numbered `done`, the next step if it is played ahead).

    Then the update is made in a thread of its own, and this one plays with the engine's copy of the weights before it.
    No two threads launch programs on the same devices: the learner's are not the engine's. An update, which takes the
    buffers of the states, waits until those of the last checkpoint are copied.
    """
    world = trainer.world
    cfg, game = world.cfg, world.game
    if not cfg.train.one_step_off_policy or finished(world, played.memory, done) or game.waits(cfg, played.memory):
        with instruments.phase("checkpoint"):
            checkpoints.copied()
        with instruments.phase("learn"):
            world.sampler.rest()
            return learn(trainer, states, played.episodes, baselines), None

    def update() -> Learned:
        with instruments.beside("checkpoint"):
            checkpoints.copied()
        with instruments.beside("learn"):
            return learn(trainer, states, played.episodes, baselines)

    with ThreadPoolExecutor(1, "learner") as thread:
        with instruments.phase("play"):
            world.sampler.use(game.policies(cfg)[0])  # copied before the update frees what it is copied from
            learning = thread.submit(update)
            coming = _played(world, played.memory, done, lacking=1)
        with instruments.phase("wait"):
            return learning.result(), coming


def learn(trainer: Trainer, states: States, episodes: list[Episode], baselines: Mapping[str, float]) -> Learned:
    """(states after the step's updates, episodes with advantages, baselines, metrics by role).

    baselines: the moving baselines by "policy/role", for roles whose card has one. The given states are donated. A
    policy is on the accelerator while it is trained, and otherwise in the memory of idle policies.
    """
    states, episodes, baselines, metrics = dict(states), list(episodes), dict(baselines), {}
    for update in trainer.world.game.updates(trainer.world.cfg):
        chosen: list[int] = []
        for share in update.roles:
            name = f"{update.policy}/{share.role}"
            places = [i for i, e in enumerate(episodes) if e.role == share.role and e.policy == update.policy]
            rule = share.advantage or update.card
            rated, baseline = advantages.assign([episodes[i] for i in places], rule, baselines.get(name))
            if baseline is not None:
                baselines[name] = baseline
                metrics[f"{share.role}/baseline"] = baseline
            for i, episode in zip(places, rated, strict=True):
                episodes[i] = replace(episode, weight=share.weight)
            chosen += places
        if batches := trainer.learner.pack([episodes[i] for i in sorted(chosen)], update.card):
            active = moved(states[update.policy], ACCELERATOR)
            state, measured = trainer.learner.update(active, batches, update.card)
            idle = moved(state.replace(ref_params=None), trainer.idle_memory)
            reference = states[update.policy].ref_params  # the buffers shared by all states, never a copy
            states[update.policy] = idle.replace(ref_params=reference)
            metrics |= {f"{update.name}/{name}": value for name, value in measured.items()}
    return states, episodes, baselines, metrics
