"""Plays a step of a run again from its record: the tools and graders are off, only the policies speak.

A step that follows from one set of weights begins at the checkpoint before it. Where steps overlap, weights changed
while it was played: a copy of the run goes on from an earlier checkpoint by the run's schedule, with its updates.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from scope_jax.config import Config
from scope_jax.errors import UserError
from scope_jax.learner.types import Episode
from scope_jax.play.game import play_step
from scope_jax.run import checkpoint
from scope_jax.run.assemble import Trainer, assemble
from scope_jax.run.files import EPISODES, FILES, read_records
from scope_jax.run.lines import Record
from scope_jax.run.records import episode_record
from scope_jax.run.sampler import States
from scope_jax.run.start import start

PLAYED = (
    "role",
    "group",
    "reward",
    "parts",
    "trained",
    "tokens",
    "sampled",
    "text",
)  # of an episode, before the update


@dataclass(frozen=True)
class Replay:
    """A step that was played again."""

    step: int
    """Its number."""
    episodes: int
    """How many the run has of it."""
    different: tuple[int, ...]
    """Those that came out otherwise, by place; a place beyond the run's episodes is one too many."""


Learn = Callable[
    [Trainer, States, list[Episode], Mapping[str, float]],
    tuple[States, list[Episode], Mapping[str, float], Mapping[str, Any]],
]


def replay(cfg: Config, run: Path, step: int, say: Callable[[str], None], learn: Learn) -> Replay:
    """Plays a step of the run `run`, of which `cfg` is the card, with the weights and the memory before it.

    learn: as `train.learn`. Raises UserError if these are not there: no checkpoint of the step before, a step that was
    played ahead, or calls that are not in the record.
    """
    if cfg.train.one_step_off_policy and step > 1:
        raise UserError(
            f"step {step} of {run} was played with the weights before the last update (train.one_step_off_policy), "
            "which no checkpoint holds; only step 1 can be replayed."
        )
    before = [line for line in _episodes(run) if line["step"] == step]
    if not before:
        raise UserError(f"{run} has no episodes of step {step}.")
    if cfg.train.max_staleness:
        return _compared(step, before, _repeated(cfg, run, step, say, learn))
    return _compared(step, before, _from_checkpoint(cfg, run, step, say))


def _compared(step: int, before: list[Record], episodes: list[Episode]) -> Replay:
    after = [json.loads(json.dumps(episode_record(step, episode))) for episode in episodes]
    pairs = range(max(len(before), len(after)))
    return Replay(step, len(before), tuple(i for i in pairs if _played(before, i) != _played(after, i)))


def _repeated(cfg: Config, run: Path, step: int, say: Callable[[str], None], learn: Learn) -> list[Episode]:
    """The episodes of a step in a copy of the run, which goes on from the last checkpoint before it."""
    with TemporaryDirectory() as scratch:
        copy = Path(scratch) / "run"
        places = checkpoint.checkpoints_in(run / "checkpoints")
        earlier = [place for place in places if checkpoint.step_of(place) < step]
        later = () if earlier else [name for name, kind in FILES.items() if kind.cut]  # lines of the steps to come
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns(".lock", "checkpoints", "report", *later))
        (copy / "checkpoints").mkdir()
        for place in [*earlier[-1:], *(run / "checkpoints").glob("reference-*")]:
            (copy / "checkpoints" / place.name).symlink_to(place.absolute(), target_is_directory=True)
        steps, log, _ = start(cfg, copy, say, lambda name, done, total: None, services=False)
        assert not isinstance(steps, int)
        with closing(log), steps:
            while steps.done < step - 1:
                with steps.next() as played:
                    update = partial(learn, steps.trainer, steps.states, played.episodes, steps.baselines)
                    states, _, baselines, _ = steps.update(update)
                    steps.publish(states, baselines)
            with steps.next() as played:
                return played.episodes


def _from_checkpoint(cfg: Config, run: Path, step: int, say: Callable[[str], None]) -> list[Episode]:
    """The episodes of a step that is played from the checkpoint before it."""
    trainer = assemble(cfg, run, tell=say, services=False)
    saved = None
    if step > 1:
        there = checkpoint.checkpoints_in(run / "checkpoints")
        places = [place for place in there if checkpoint.step_of(place) == step - 1]
        if not places:
            kept = ", ".join(str(checkpoint.step_of(place)) for place in there) or "none"
            raise UserError(
                f"to play step {step} again, the checkpoint of step {step - 1} is needed; {run} has those of {kept} "
                "(train.keep)."
            )
        saved = checkpoint.load(places[0], trainer.targets())
    states, memory, _ = trainer.start(saved)
    world = trainer.world
    world.sampler.publish(states)
    world.recording.replay(run, step)
    with closing(world):
        episodes, _, _ = play_step(world.game, cfg, world.tools(step - 1), memory["game"], step - 1)
    return episodes


def _played(episodes: list[Record], place: int) -> list[object] | None:
    return [episodes[place].get(name) for name in PLAYED] if place < len(episodes) else None


def _episodes(run: Path) -> list[Record]:
    path = run / EPISODES
    if not path.is_file():
        raise UserError(f"{run} is not a run with episodes; give the folder of one.")
    return list(read_records(path))
