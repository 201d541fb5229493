"""What a card gains from steps that overlap on named hardware: `overlap.simulate` with the seconds of its plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scope_jax.config import Config
from scope_jax.errors import UserError
from scope_jax.games import load_card
from scope_jax.learner.batching import rows_per_shard
from scope_jax.models.decoder import flops
from scope_jax.plan.assumptions import ASSUMED
from scope_jax.plan.estimates import decode_work, known, pace, seconds, update_work
from scope_jax.plan.hardware import Hardware, without_compiler
from scope_jax.plan.overlap import RowTokens, StageSeconds, bound, drawn_rows, lognormal_rows, modes, simulate
from scope_jax.plan.planning import Needs, Planner
from scope_jax.run.files import EPISODES, read_records
from scope_jax.sharding.mesh import row_shards

SHARES = (1 / 8, 1 / 4, 1 / 2, 3 / 4)  # of the devices that generate, where they have devices of their own
DRAWN = 4096  # rows of a lognormal
SPREAD = 0.8  # of the logarithm of a row's sampled tokens, where nothing else is said


@dataclass(frozen=True)
class StepLengths:
    """What a step samples and trains."""

    rows: Sequence[RowTokens]
    """Of which those of a step are drawn."""
    count: int
    """Rows of a step."""
    trained: float
    """Tokens of a step's trained rows, on average."""


def lengths_of(stated: str, most: int) -> StepLengths:
    """stated: the folder of a run, or EPISODES:READ:SAMPLED[:SPREAD]. most: tokens of a row.

    Raises UserError with one sentence for anything else.
    """
    if (Path(stated) / EPISODES).is_file():
        return _of_run(Path(stated))
    try:
        count, read, sampled, *spread = [float(part) for part in stated.split(":")]
        (spread,) = spread or [SPREAD]
    except ValueError:
        raise UserError(
            f"--async is {stated!r}; give the folder of a run, or EPISODES:READ:SAMPLED, tokens of an episode on "
            "average, such as 512:300:2000."
        ) from None
    if count < 1 or read < 1 or sampled < 1 or spread < 0 or read >= most:
        raise UserError(f"--async is {stated!r}, but an episode has 1 to {most} tokens (rollout.max_length).")
    rows = lognormal_rows(sampled, spread, int(most - read), int(read), DRAWN)
    return StepLengths(rows, int(count), count * sum(row.read + row.sampled for row in rows) / len(rows))


def _of_run(run: Path) -> StepLengths:
    episodes = [line for line in read_records(run / EPISODES) if line["sampled"]]
    if not episodes:
        raise UserError(f"{run} has no episode with sampled tokens; give a run whose first step is over.")
    steps = len({line["step"] for line in episodes})
    rows = [RowTokens(line["tokens"] - line["sampled"], line["sampled"]) for line in episodes]
    trained = sum(line["tokens"] for line in episodes if line["trained"])
    return StepLengths(rows, round(len(rows) / steps), trained / steps)


def overlaps(planner: Planner, card: Path, sets: Sequence[str], stated: str) -> list[dict[str, Any]]:
    """Figures of each way in which steps may follow each other, on shared devices and with devices of the engine's own,
    those that fit; the fastest first. Raises UserError as `lengths_of`, and for hardware whose speed is not known."""
    on = without_compiler(planner.on)
    if not known(on):
        raise UserError(f"the speed of {on.chip.name} is not known, so --async has nothing to simulate with.")
    lengths = lengths_of(stated, load_card(card, sets).rollout.max_length)
    arithmetic = Planner(planner.model, on, planner.vectors)
    found = []
    for needs in _divisions(arithmetic, card, sets):
        apart = needs.cfg.rollout.devices is not None
        cost, rows = stage_seconds(needs, on, lengths), drawn_rows(lengths.rows, lengths.count)
        least = bound(cost, rows, apart)
        for mode in modes(apart):
            figures = asdict(simulate(mode, cost, rows))
            found.append({"mode": mode.name, "engine_devices": needs.cfg.rollout.devices, "bound": least, **figures})
    return sorted(found, key=lambda row: row["seconds"])


def _divisions(planner: Planner, card: Path, sets: Sequence[str]) -> Iterator[Needs]:
    """The card on shared devices, and with so many of the engine's own; those that fit."""
    count = len(planner.on.devices)
    own = [None, *(int(count * share) for share in SHARES if count * share == int(count * share))]
    for devices in own:
        try:
            cfg = _divided(card, sets, devices)
            needs = planner.needs(cfg)
        except (UserError, ValueError):  # this mesh, or these slots, cannot be divided so
            continue
        if needs.peak.total <= planner.limit:
            yield needs


def _divided(card: Path, sets: Sequence[str], devices: int | None) -> Config:
    cfg = load_card(card, sets)
    if cfg.rollout.devices == devices:
        return cfg
    if devices is None:
        return cfg.model_copy(update={"rollout": cfg.rollout.model_copy(update={"devices": None})})
    return load_card(card, [*sets, f"rollout.devices={devices}"])


def stage_seconds(needs: Needs, on: Hardware, lengths: StepLengths) -> StageSeconds:
    """The seconds of the engine and of the learner of a plan."""
    engine, learner, assumed = needs.engine, needs.learner, ASSUMED[on.platform]
    model, shards, mesh = engine.model, row_shards(engine.mesh), engine.mesh.size
    length = sum(row.read + row.sampled / 2 for row in lengths.rows) / len(lengths.rows)
    slots = max(shards, math.floor(pace(engine, on, needs.held.cache, length).slots))

    @cache
    def token(live: float) -> float:
        return seconds(decode_work(engine, on, length, live / shards), on.chip, assumed)

    bucket = needs.cfg.learner.buckets[-1]
    tokens = rows_per_shard(learner.section, learner.row_shards) * learner.row_shards * bucket
    batches = max(1, math.ceil(lengths.trained / tokens))
    assert on.chip.peak is not None
    return StageSeconds(
        token=token,
        read=flops.forward_flops(model, 1, int(length), 0) / length / (assumed.products * on.chip.peak * mesh),
        update=seconds(update_work(learner, on, bucket, batches), on.chip, assumed),
        slots=slots,
    )
