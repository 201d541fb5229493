"""What it saves that episodes without a term in the loss are not put through the model.

    python -m benchmarks.idle configs/spice/atlas.toml [--steps 5] [--repetitions 5] [--set KEY=VALUE …]

Plays and learns the first steps of a card. Each update of a step is then made again, from the same state, with all
trained episodes in rows and without those that have no term (`splitting.has_term`), in turn, so that noise of the
machine affects both alike. FLOPs are those of forward and backward of the real micro-batches, padding included, from
the model's shape (`models.decoder.flops`), and of one more forward pass each for old log-probs and for a reference
where they are scored; seconds are the median of an update. Prints a line for each update, one for all, and the
machine's load.

On that card (seed 0, four steps, two busy cores) the rows of all updates fell from 135 to 115, FLOPs to .80 and seconds
to .86; over six steps of a whole run rewards, losses and gradient norms were the same to two digits.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import jax
import numpy as np

from scope_jax.config import LossCard
from scope_jax.games import load_card
from scope_jax.learner import batching
from scope_jax.learner.batching import Batch
from scope_jax.learner.learner import scored
from scope_jax.learner.types import Episode
from scope_jax.models.decoder import flops
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.play.game import play_step
from scope_jax.run.assemble import Trainer, assemble
from scope_jax.train import learn


@dataclass(frozen=True)
class Cost:
    """Rows that hold tokens, FLOPs and seconds of an update."""

    rows: int
    flops: float
    seconds: float

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.rows + other.rows, self.flops + other.flops, self.seconds + other.seconds)


@contextmanager
def all_in_rows(wanted: bool) -> Iterator[None]:
    """Every trained episode is put through the model, as before."""
    with mock.patch.object(batching, "has_term", return_value=True) if wanted else nullcontext():
        yield


def computed(model: ModelConfig, batch: Batch, card: LossCard) -> float:
    """FLOPs of an update's mini-batch: of all rows of its real micro-batches, padding included."""
    if batch.empty:
        return 0.0
    _, rows, width = batch.ids_MBT.shape
    sizes = int(batch.micro_batches) * rows, width, batch.index_MN.shape[1] // rows
    return flops.update_flops(model, *sizes) + sum(scored(card, card.mini_batches)) * flops.forward_flops(model, *sizes)


def measured(trainer: Trainer, state: Any, batches: Sequence[Batch], card: LossCard) -> float:
    """Seconds of one update from a copy of the state."""
    copy = jax.block_until_ready(jax.tree.map(partial(jax.device_put, may_alias=False), state))
    start = time.perf_counter()
    jax.block_until_ready(trainer.learner.update(copy, batches, card))
    return time.perf_counter() - start


def compared(trainer: Trainer, state: Any, episodes: Sequence[Episode], card: LossCard, repetitions: int) -> list[Cost]:
    """Costs of an update with all episodes, and without those that have no term."""
    packed = []
    for whole in (True, False):
        with all_in_rows(whole):
            packed.append(trainer.learner.pack(episodes, card))
        measured(trainer, state, packed[-1], card)  # compiles
    times = [[measured(trainer, state, batches, card) for batches in packed] for _ in range(repetitions)]
    return [
        Cost(
            sum(0 if one.empty else int((np.asarray(one.ends_MBT)[..., 0] > 1).sum()) for one in batches),
            sum(computed(trainer.world.model, one, card) for one in batches),
            statistics.median(own),
        )
        for batches, own in zip(packed, zip(*times, strict=True), strict=True)
    ]


def line(name: str, both: Sequence[Cost]) -> str:
    before, after = both
    return (
        f"{name}: rows {before.rows} -> {after.rows}, GFLOPs {before.flops / 1e9:.2f} -> {after.flops / 1e9:.2f} "
        f"({after.flops / before.flops:.2f}), seconds {before.seconds:.3f} -> {after.seconds:.3f} "
        f"({after.seconds / before.seconds:.2f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("card", type=Path)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--set", dest="changes", action="append", default=[])
    args = parser.parse_args()
    cfg = load_card(args.card, args.changes)
    with TemporaryDirectory() as folder:
        trainer = assemble(cfg, Path(folder))
        states, carried, _ = trainer.start(None)
        memory, baselines = carried["game"], carried["baselines"]
        total = [Cost(0, 0.0, 0.0)] * 2
        for step in range(args.steps):
            trainer.world.sampler.publish(states)
            before = jax.device_get(states)
            episodes, memory, _ = play_step(trainer.world.game, cfg, trainer.world.tools(step), memory, step)
            states, rated, baselines, _ = learn(trainer, states, episodes, baselines)
            for update in trainer.world.game.updates(cfg):
                roles = {share.role for share in update.roles}
                own = [e for e in rated if e.policy == update.policy and e.role in roles]
                if any(e.trained for e in own):
                    costs = compared(trainer, before[update.policy], own, update.card, args.repetitions)
                    print(line(f"step {step + 1}, {update.name}", costs), flush=True)
                    total = [a + b for a, b in zip(total, costs, strict=True)]
        print(line(f"{args.card}, {args.steps} steps", total))
        print("load", ", ".join(f"{x:.1f}" for x in os.getloadavg()), "on", os.cpu_count(), "cores")


if __name__ == "__main__":
    main()
