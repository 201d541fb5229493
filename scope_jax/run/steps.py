"""The steps of a run, each of which is played, learned from and published.

With `train.one_step_off_policy` a step is played before the update of the step before is made:

    step s        plays with the weights after update s − 2, while update s − 1 is computed
    checkpoint s  holds the weights after update s, and what step s + 1 has played: nothing is sampled again on a resume

What is played with which weights depends on the number of the step alone: the first step of a run, the first one of a
game's stage (`Game.waits`) and, if a run that had ended is made longer, its next step are played with the weights after
all updates before them.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

import numpy as np

from scope_jax.learner.types import Datum, Episode, Judgement, Metrics, Reply
from scope_jax.play.collapse import with_signs
from scope_jax.play.game import play_step
from scope_jax.play.step import Memory
from scope_jax.run import host_memory
from scope_jax.run.assemble import Trainer
from scope_jax.run.checkpoint_writer import Checkpoints
from scope_jax.run.performance import Instruments
from scope_jax.run.sampler import States
from scope_jax.run.signs import Signs
from scope_jax.run.watch import RunEnd, idle_roles, idle_updates, roles_without_update

T = TypeVar("T")


class PlayedStep(NamedTuple):
    """A step of a game before its update."""

    episodes: list[Episode]
    """Without advantages."""
    memory: Memory
    """The game's, after the step."""
    metrics: Metrics
    """The game's own, and the signs of collapse."""


@dataclass
class RunPosition:
    """Where a run is: what its next step follows from."""

    done: int
    """Steps that are done; while one is running, its number."""
    states: States
    """What is trained, by policy."""
    memory: Memory
    """The game's, after the step that was played last."""
    baselines: Mapping[str, float]
    """Moving baselines by "policy/role"."""
    ahead: PlayedStep | None
    """The next step, if it is played already."""
    plays: Mapping[str, Any] | None = None
    """Of steps that overlap: what a checkpoint holds of those that are not learned from yet (`run.overlapping`)."""


class Steps:
    """The steps of a run from a position on. As a context manager it ends the instruments and waits for a checkpoint
    that is being written, also after an error."""

    def __init__(
        self,
        trainer: Trainer,
        position: RunPosition,
        checkpoints: Checkpoints,
        instruments: Instruments,
        resumed: bool,
        signs: Signs,
    ) -> None:
        self.trainer, self.world, self.cfg = trainer, trainer.world, trainer.world.cfg
        self.instruments = instruments
        self.resumed = resumed  # an earlier process of this run had done the steps before
        self.iteration = ""  # the name of the game's iteration that the step completed, if it is to be kept
        self.position, self.checkpoints, self._signs = position, checkpoints, signs
        self._first = position.done + 1
        self.world.sampler.publish(position.states)

    @property
    def done(self) -> int:
        """How many steps are done; while one is running, its number."""
        return self.position.done

    @property
    def states(self) -> States:
        return self.position.states

    @property
    def baselines(self) -> Mapping[str, float]:
        return self.position.baselines

    @property
    def complete(self) -> bool:
        """True if the card or the game takes no further step."""
        return self.world.finished(self.position.memory, self.position.done)

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *error: object) -> None:
        self.instruments.stop()
        with closing(self.world):
            self.checkpoints.wait()

    # ------------------------------------------------------------------------------------------------------- one step
    @contextmanager
    def next(self) -> Iterator[PlayedStep]:
        """The next step as it is played; in the block it is learned from, and the weights are published."""
        at, game = self.position, self.world.game
        at.done += 1
        before = game.iterations_done(self.cfg, at.memory)
        self.world.recording.begin(at.done)
        total = game.total_steps(self.cfg)
        self.world.activity.place = f"step {at.done}" if total is None else f"step {at.done}/{total}"
        with self.instruments.step(at.done):
            with self.instruments.phase("play"), self.world.activity("playing"):
                played = self.play_next()
            at.memory, at.ahead = played.memory, None
            yield played
        self.world.recording.complete(at.done)
        kept = self.cfg.train.keep_iterations and game.iterations_done(self.cfg, at.memory) > before
        self.iteration = f"iteration-{before + 1}" if kept else ""

    def play_next(self) -> PlayedStep:
        """The step that is running, as it is played."""
        return self._play(self.position.done - 1) if self.position.ahead is None else self.position.ahead

    def update(self, learn: Callable[[], T]) -> T:
        """The result of `learn`, which updates the states; meanwhile the next step is played, if that is asked for.

        Then the update is made in a thread of its own, and this one plays with copies of the weights before it. No two
        threads launch programs on the same devices: the learner's are not the engine's, and several processes exchange
        what they play through the engine's (`assemble`). An update, which takes the buffers of the states, waits until
        those of the last checkpoint are copied.
        """
        at, game, sampler = self.position, self.world.game, self.world.sampler
        if not self.cfg.train.one_step_off_policy or self.complete or game.waits(self.cfg, at.memory):
            return self.learned_alone(learn)

        with ThreadPoolExecutor(1, "learner") as thread:
            with self.instruments.phase("play"), self.world.activity("playing the next step beside the update"):
                sampler.hold(game.sampled(self.cfg))  # before the update frees what is copied
                learning = thread.submit(self.learned_beside, learn)
                at.ahead = self._play(at.done, lacking=1)
            with self.instruments.phase("wait"), self.world.activity("updating"):
                return learning.result()

    def learned_beside(self, learn: Callable[[], T]) -> T:
        """The result of `learn`, in a thread beside that which plays."""
        with self.instruments.beside("checkpoint"):
            self.checkpoints.copied()
        with self.instruments.beside("learn"):
            return learn()

    def learned_alone(self, learn: Callable[[], T]) -> T:
        """The result of `learn`, while nothing is played."""
        with self.instruments.phase("checkpoint"):
            self.checkpoints.copied()
        with self.instruments.phase("learn"), self.world.activity("updating"):
            self.world.sampler.rest()
            self._give_back()  # the cache
            learned = learn()
            self._give_back()
            return learned

    def _give_back(self) -> None:
        """Of a CPU, whose memory is the host's, what is free."""
        if self.world.mesh.devices.flat[0].platform == "cpu":
            host_memory.give_back()

    def _play(self, step: int, lacking: int = 0) -> PlayedStep:
        """The step after `step` steps, with the weights that are published. lacking: updates before it that these
        lack."""
        episodes, memory, metrics = play_step(
            self.world.game, self.cfg, self.world.tools(step), self.position.memory, step
        )
        staleness = {"staleness": float(lacking)} if self.cfg.train.one_step_off_policy else {}
        return PlayedStep(episodes, memory, with_signs(metrics, episodes) | staleness)

    def publish(self, states: States, baselines: Mapping[str, float]) -> None:
        """Takes over what an update has made: the engine samples with these weights from now on."""
        self.position.states = self.trainer.with_new_reference(states, self.position.memory)
        self.position.baselines = baselines
        self.world.sampler.publish(self.position.states)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """An evaluation of the current weights."""
        with self.instruments.phase("evaluate"), self.world.activity("evaluating"):
            yield

    def save(self) -> None:
        """Starts writing a checkpoint; one that ends an iteration that is to be kept has its name."""
        at = self.position
        with self.instruments.phase("checkpoint"), self.world.activity("writing a checkpoint"):
            carried = {"game": at.memory, "baselines": at.baselines, **self.carried()}
            self.checkpoints.save(at.done, self.trainer.saved(at.states), carried, self.iteration)

    def carried(self) -> Memory:
        """What a checkpoint holds of steps that are played, but not learned from."""
        return {} if self.position.ahead is None else {"ahead": packed(self.position.ahead)}

    def remarks(self, episodes: list[Episode], metrics: Metrics, end: RunEnd) -> list[str]:
        """What the user is told about the step: who learned nothing, which signs of collapse are new or worse, and
        after the first, rules without a metric."""
        updates = self.world.game.updates(self.cfg)
        sentences = [*roles_without_update(episodes, updates), *idle_roles(episodes, updates), *idle_updates(metrics)]
        sentences += [f"step {self.position.done}: {sentence}" for sentence in self._signs.add(metrics)]
        missing = end.watch.missing(updates) if self.position.done == self._first else None
        return sentences + ([missing] if missing else [])


# ------------------------------------------------------------------------------------------------------ in checkpoints
def packed(played: PlayedStep) -> str:
    """The step as text (JSON, compressed, in base64) from which `unpacked` makes the same step, bit for bit."""
    plain = {**played._asdict(), "episodes": [_of_episode(episode) for episode in played.episodes]}
    return base64.b64encode(zlib.compress(json.dumps(plain, default=_plain).encode(), level=1)).decode()


def unpacked(text: str) -> PlayedStep:
    plain = json.loads(zlib.decompress(base64.b64decode(text)))
    return PlayedStep(**plain | {"episodes": [_to_episode(episode) for episode in plain["episodes"]]})


def _plain(value: Any) -> Any:
    """What JSON does not have: arrays by dtype, bytes and shape, their scalars as numbers."""
    if isinstance(value, np.ndarray):
        return [value.dtype.str, base64.b64encode(value.tobytes()).decode(), *value.shape]
    return dict(value) if isinstance(value, Mapping) else value.item()


def _array(plain: list[Any] | None) -> Any:
    if plain is None:
        return None
    dtype, content, *shape = plain  # in older checkpoints without a shape, as all had one axis
    return np.frombuffer(base64.b64decode(content), dtype).reshape(shape or -1)


def _of_episode(episode: Episode) -> dict[str, Any]:
    plain = {field.name: getattr(episode, field.name) for field in fields(episode)}
    datums = [vars(datum) for datum in episode.datums]
    judgements = [vars(one) | {"replies": [vars(reply) for reply in one.replies]} for one in episode.judgements]
    return plain | {"datums": datums, "judgements": judgements}


def _to_episode(plain: dict[str, Any]) -> Episode:
    datums = tuple(Datum(**{name: _array(value) for name, value in datum.items()}) for datum in plain["datums"])
    judgements = tuple(
        Judgement(**one | {"replies": tuple(Reply(**reply) for reply in one["replies"])}) for one in plain["judgements"]
    )
    return Episode(**plain | {"datums": datums, "judgements": judgements})
