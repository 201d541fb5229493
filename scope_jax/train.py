"""The training loop of every game and card, from rollouts to updated weights.

    play → advantages → pack → update → metrics, episodes, checkpoint

A step is a function of (weights, memory, seed, step). A checkpoint holds weights and memory (the game's, and the roles'
moving baselines); the card and the step number determine the rest. A killed run therefore resumes and ends with exactly
the same results as an uninterrupted one. With `train.one_step_off_policy` the next step is played during an update, see
`run.steps`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scope_jax.config import Config
from scope_jax.evaluation.evaluate import evaluate
from scope_jax.learner import advantages
from scope_jax.learner.types import Episode, Metrics
from scope_jax.report.progress import Progress
from scope_jax.run.assemble import Trainer, or_closed
from scope_jax.run.folder import RunFolder
from scope_jax.run.mirror import Mirror
from scope_jax.run.processes import agreed, give_up, signalled
from scope_jax.run.programs import programs
from scope_jax.run.sampler import ACCELERATOR, States, moved
from scope_jax.run.start import start
from scope_jax.run.steps import Steps
from scope_jax.run.stopping import Stopped, orderly
from scope_jax.run.watch import RunEnd


def train(
    cfg: Config,
    run: Path,
    progress: Progress,
    profile: int | None = None,
    mirror: Mirror | None = None,
    accept_inputs: bool = False,
    before: Callable[[Config], None] = lambda cfg: None,
    schedule: Path | None = None,
) -> dict[str, Any]:
    """Trains the card's policies in the folder `run`, resuming where an earlier process stopped.

    mirror: of a run on object storage, for which `run` is the local folder. accept_inputs: go on although files that
    the run reads have changed (`run.inputs`). before: is called before anything is loaded, with the card when what it
    names on the hub is here.

    With `train.origin` the run starts from the state and step of another run. profile: the number of a step whose trace
    is written to <run>/profile. Returns {"run", "steps", "seconds" and "programs_compiled" (both of this process),
    "before", "after"}; the last two are the evaluation metrics of the initial and the final weights, {} if the card has
    no evaluation set. A run ended by a rule of `train.watch` also has "stopped", the reason. Raises UserError if
    `profile` is not a step of this process; Stopped if a signal ended the run early, after a step with a checkpoint.
    """
    began = time.monotonic()
    compiled = programs().compiled
    steps, log, end = start(
        cfg,
        run,
        progress.say,
        progress.part,
        profile=profile,
        mirror=mirror,
        accept_inputs=accept_inputs,
        before=before,
        follow=progress.follow,
        schedule=schedule,
    )
    if isinstance(steps, int):
        used = {"seconds": time.monotonic() - began, "programs_compiled": 0}
        return _results(run, steps, log, end, progress, used)
    cfg = steps.cfg
    every = cfg.evaluate.every
    progress.begin(programs().seconds)
    with or_closed(steps.world):
        if not steps.resumed and cfg.evaluate.sets:
            progress.say(f"evaluating the initial weights: {cfg.train.origin or 'the base'}")
            initial = evaluation(steps, log)
            progress.scores(initial, programs().seconds)
            log.metrics(steps.done, initial)
            end = end.after(steps.complete, initial)
        elif end and cfg.evaluate.sets and not log.evaluated(steps.done):
            progress.say("evaluating the final weights")
            final = evaluation(steps, log)
            progress.scores(final, programs().seconds)
            log.metrics(steps.done, final)

    with orderly(cfg.train.stop_grace, give_up) as request, steps:
        while not end:
            with steps.next() as step:
                learned = steps.update(lambda: learn(steps.trainer, steps.states, step.episodes, steps.baselines))
                states, episodes, baselines, measured = learned
                steps.publish(states, baselines)
            metrics = agreed(step.metrics | measured | steps.instruments.metrics(episodes))

            last = bool(end.after(steps.complete, metrics) or steps.iteration)
            if cfg.evaluate.sets and (last or (every and steps.done % every == 0)):
                progress.say("evaluating")
                metrics |= evaluation(steps, log)
            log.episodes(steps.done, episodes)
            log.metrics(steps.done, metrics)
            total = steps.world.game.total_steps(cfg)
            progress.step(steps.done, total, metrics, exams_left(cfg, steps.done, total), programs().seconds)
            end = end.after(steps.complete, metrics, signalled(request))
            for sentence in steps.remarks(episodes, metrics, end):
                progress.say(sentence)
            if end or steps.iteration or steps.done % cfg.train.save_every == 0:
                steps.save()
    if end.signal and not end.over:
        raise Stopped(end.signal, steps.done)
    used = {"seconds": time.monotonic() - began, "programs_compiled": programs().compiled - compiled}
    return _results(run, steps.done, log, end, progress, used)


def _results(
    run: Path, steps: int, log: RunFolder, end: RunEnd, progress: Progress, used: Mapping[str, Any]
) -> dict[str, Any]:
    """What `train` returns of a run that is over after so many steps. Closes its folder, and says why it was stopped
    early, if it was. used: what this process has needed."""
    log.close()
    stopped = {} if end.watch.reason is None else {"stopped": end.watch.reason}
    for sentence in stopped.values():
        progress.say(f"step {steps}: {sentence}")
    return {"run": str(run), "steps": steps} | dict(used) | log.before_after() | stopped


def exams_left(cfg: Config, done: int, total: int | None) -> int:
    """How many of the card's evaluations are after step `done` of `total`; 0 if that is not known."""
    if not cfg.evaluate.sets or total is None or done >= total:
        return 0
    every = cfg.evaluate.every
    return total // every - done // every + (total % every > 0) if every else 1


def evaluation(steps: Steps, log: RunFolder) -> Metrics:
    """Metrics of an evaluation of the current weights, whose answers are recorded."""
    with steps.evaluating():
        metrics, answers = evaluate(steps.world)
    log.exams(steps.done, answers)
    return metrics | agreed(steps.instruments.times())


def learn(
    trainer: Trainer, states: States, episodes: list[Episode], baselines: Mapping[str, float]
) -> tuple[States, list[Episode], dict[str, float], Metrics]:
    """(states after the step's updates, episodes with advantages, baselines, metrics by role).

    baselines: the moving baselines by "policy/role", for roles whose card has one. The given states are donated. A
    policy is on the accelerator while it is trained, and otherwise in the memory of idle policies.
    """
    states, episodes, baselines, metrics = dict(states), list(episodes), dict(baselines), {}
    for update in trainer.world.game.updates(trainer.world.cfg):
        rated = advantages.for_update(update, episodes, baselines)
        episodes = rated.episodes
        for role, baseline in rated.baselines.items():
            baselines[f"{update.policy}/{role}"] = baseline
            metrics[f"{role}/baseline"] = baseline
        if batches := trainer.learner.pack([episodes[i] for i in rated.places], update.card):
            programs().need("updates", trainer.learner.new_programs(batches, update.card))
            active = moved(states[update.policy], ACCELERATOR)
            state, measured = trainer.learner.update(active, batches, update.card)
            idle = moved(state.replace(ref_params=None), trainer.idle_memory)
            reference = states[update.policy].ref_params  # the buffers shared by all states, never a copy
            states[update.policy] = idle.replace(ref_params=reference)
            metrics |= {name if "/" in name else f"{update.name}/{name}": value for name, value in measured.items()}
    return states, episodes, baselines, metrics
