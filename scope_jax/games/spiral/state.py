"""What a step of SPIRAL holds: the results of seats, and their baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scope_jax.config import LossCard
from scope_jax.games.spiral.match import SEATS
from scope_jax.play.rollouts import Interaction
from scope_jax.play.samples import Sample

Baselines = Mapping[str, float]  # b, by game and seat


@dataclass(frozen=True)
class SeatResult:
    """What a seat of the policies has won in a match."""

    key: str
    """Game and seat, such as kuhn_poker_first: for these there is a baseline."""
    reward: float
    """What it has won."""
    valid: bool
    """Whether all its actions were legal."""
    sample: Sample | None
    """Its turns; None if it was never asked."""
    match: Mapping[str, Any]
    """The value of the match."""

    @property
    def turns(self) -> int:
        """How many turns it sampled."""
        return 0 if self.sample is None else sum(bool(row.sampled_T.any()) for row in self.sample.rows)


def seat_results(match: Interaction[Sample]) -> list[SeatResult]:
    """The results of the seats of a match that policies had, in order."""
    value = match.value
    return [
        SeatResult(
            key=f"{value['game']}_{player}",
            reward=value["won"][place],
            valid=value["invalid"] != place,
            sample=match.completions.get(player),
            match=value,
        )
        for place, player in enumerate(value["players"])
        if player in SEATS
    ]


def move_baselines(
    loss: LossCard, b: Baselines, results: Sequence[tuple[str, float]]
) -> tuple[list[float], dict[str, float]]:
    """(for each result the baseline before it, the baselines after all). results: key and reward.

    Every result moves the baseline of its key: b ← decay·b + (1 − decay)·reward. Without `ema` all are 0, and none
    moves.
    """
    moving = dict(b)
    before = []
    for key, reward in results:
        if loss.advantage != "ema":
            before.append(0.0)
            continue
        expected = moving.get(key, loss.ema_start)
        before.append(expected)
        moving[key] = loss.ema_decay * expected + (1 - loss.ema_decay) * reward
    return before, moving
