"""The schedule of a run whose steps overlap, as a file: when newer weights are used, when rows' caches are computed.

    {"step": 4, "swap": true}
    {"step": 4, "play": 5, "role": "solver", "rollout": "17", "sample": 0, "agent": "", "row": 0, "tokens": 131}

`step` is the one whose update is next: the weights have had one update less. Lines are on disk before anything that
was sampled after them has an effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scope_jax.config import Config
from scope_jax.errors import UserError
from scope_jax.games import load_card
from scope_jax.rollouts.schedule import SWAP, Pair, RowName, Schedule
from scope_jax.run.config_file import differences
from scope_jax.run.files import SCHEDULE, LineWriter, read_records
from scope_jax.run.lines import Record

NAMES = ("play", "role", "rollout", "sample", "agent", "row")  # of a row


def pairs_in(run: Path, done: int = 0) -> dict[RowName, list[Pair]]:
    """The pairs of a run's rows, and of SWAP, with weights of at least `done` updates. Raises DamagedFile."""
    known: dict[RowName, list[Pair]] = {}
    for line in read_records(run / SCHEDULE):
        if line["step"] > done:
            row = SWAP if "swap" in line else tuple(line[name] for name in NAMES)
            known.setdefault(row, []).append(Pair(line.get("tokens", 0), line["step"] - 1))
    return known


def check_schedule(cfg: Config, run: Path, other: Path) -> None:
    """Raises UserError if the schedule of the run `other` is not for a run of this card in the folder `run`."""
    if not cfg.train.max_staleness:
        raise UserError(
            "--schedule repeats when weights changed under way, which they do with train.max_staleness only."
        )
    if not (other / SCHEDULE).is_file():
        raise UserError(f"{other} has no {SCHEDULE}; give the folder of a run with train.max_staleness.")
    if other.resolve() == run.resolve():
        raise UserError(f"--schedule {other} is the run itself, which repeats its own schedule anyway; leave it out.")
    if different := differences(load_card(other / "config.toml"), cfg):
        raise UserError(f"the schedule of {other} is of a card with different values of {different}; use the same.")


def open_schedule(run: Path, done: int, other: Path | None = None) -> Schedule:
    """The schedule of a run with `done` steps, which repeats what its file has after them and adds to it. other: the
    run whose schedule it repeats instead."""
    file = LineWriter(run / SCHEDULE)
    if other is not None:
        file.cut(done)

    def write(new: Sequence[tuple[RowName, Pair]]) -> None:
        file.add(_line(row, pair) for row, pair in new)

    return Schedule(pairs_in(run if other is None else other, done), write, again=other is not None)


def _line(row: RowName, pair: Pair) -> Record:
    if row == SWAP:
        return {"step": pair.version + 1, "swap": True}
    return {"step": pair.version + 1, **dict(zip(NAMES, row, strict=True)), "tokens": pair.tokens}
