"""Plays a step of a run again from its record: the tools and graders are off, only the policies speak."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from scope_jax.config import Config
from scope_jax.errors import UserError
from scope_jax.play.game import play_step
from scope_jax.run import checkpoint
from scope_jax.run.assemble import assemble
from scope_jax.run.files import EPISODES, read_records
from scope_jax.run.lines import Record
from scope_jax.run.records import episode_record

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


def replay(cfg: Config, run: Path, step: int, say: Callable[[str], None]) -> Replay:
    """Plays a step of the run `run`, of which `cfg` is the card, with the weights and the memory before it.

    Raises UserError if these are not there: no checkpoint of the step before, a step that was played ahead, or calls
    that are not in the record.
    """
    if cfg.train.one_step_off_policy and step > 1:
        raise UserError(
            f"step {step} of {run} was played with the weights before the last update (train.one_step_off_policy), "
            "which no checkpoint holds; only step 1 can be replayed."
        )
    before = [line for line in _episodes(run) if line["step"] == step]
    if not before:
        raise UserError(f"{run} has no episodes of step {step}.")
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
    after = [json.loads(json.dumps(episode_record(step, episode))) for episode in episodes]
    pairs = range(max(len(before), len(after)))
    return Replay(step, len(before), tuple(i for i in pairs if _played(before, i) != _played(after, i)))


def _played(episodes: list[Record], place: int) -> list[object] | None:
    return [episodes[place].get(name) for name in PLAYED] if place < len(episodes) else None


def _episodes(run: Path) -> list[Record]:
    path = run / EPISODES
    if not path.is_file():
        raise UserError(f"{run} is not a run with episodes; give the folder of one.")
    return list(read_records(path))
