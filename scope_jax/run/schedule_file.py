"""The schedule of a run whose steps overlap, as files: when newer weights are used, when rows' caches are computed.

    {"step": 4, "swap": true}
    {"step": 4, "play": 5, "role": "solver", "rollout": "17", "sample": 0, "agent": "", "row": 0, "tokens": 131}

`step` is the one whose update is next: the weights have had one update less. Lines are on disk before anything that
was sampled after them has an effect. Each process writes those of its own rows, into <run>/schedule/<process>.jsonl;
together they are the schedule, whoever repeats it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from scope_jax.config import Config
from scope_jax.errors import UserError
from scope_jax.games import load_card
from scope_jax.multihost import distributed
from scope_jax.rollouts.schedule import SWAP, Pair, RowName, Schedule
from scope_jax.run.config_file import differences
from scope_jax.run.files import SCHEDULE, LineWriter, read_records
from scope_jax.run.lines import Record
from scope_jax.run.processes import by_one, together, writes

NAMES = ("play", "role", "rollout", "sample", "agent", "row")  # of a row


def lines_of(run: Path, done: int = 0) -> dict[str, list[Record]]:
    """The lines of a run's schedule with weights of at least `done` updates, by file. Raises DamagedFile."""
    return {
        path.name: [line for line in read_records(path) if line["step"] > done]
        for path in sorted((run / SCHEDULE).glob("*.jsonl"))
    }


def pairs_of(lines: Iterable[Record]) -> dict[RowName, list[Pair]]:
    """The pairs of each row, and of SWAP, in order; a row that several processes have computed is in several files."""
    known: dict[RowName, list[Pair]] = {}
    for line in lines:
        row = SWAP if "swap" in line else tuple(line[name] for name in NAMES)
        known.setdefault(row, []).append(Pair(line.get("tokens", 0), line["step"] - 1))
    return {row: sorted(pairs, key=lambda pair: pair.version) for row, pairs in known.items()}


def check_schedule(cfg: Config, run: Path, other: Path) -> None:
    """Raises UserError if the schedule of the run `other` is not for a run of this card in the folder `run`."""
    if not cfg.train.max_staleness:
        raise UserError(
            "--schedule repeats when weights changed under way, which they do with train.max_staleness only."
        )
    if not by_one(lambda: bool(lines_of(other))):
        raise UserError(f"{other} has no {SCHEDULE}; give the folder of a run with train.max_staleness.")
    if other.resolve() == run.resolve():
        raise UserError(f"--schedule {other} is the run itself, which repeats its own schedule anyway; leave it out.")
    if different := differences(load_card(other / "config.toml"), cfg):
        raise UserError(f"the schedule of {other} is of a card with different values of {different}; use the same.")


def open_schedule(run: Path, done: int, other: Path | None = None) -> Schedule:
    """The schedule of a run with `done` steps, which repeats what its files have after them and adds to this process's.
    other: the run whose schedule it repeats instead."""
    parts = together(lambda: lines_of(run if other is None else other, done))
    folder = run / SCHEDULE
    folder.mkdir(parents=True, exist_ok=True)
    file = LineWriter(folder / f"{distributed.index()}.jsonl")
    if other is not None:
        file.cut(done)
    if other is not None and writes():
        for path in folder.glob("*.jsonl"):
            if int(path.stem) >= distributed.count():  # of an earlier start with more processes
                LineWriter(path).cut(done)

    def write(new: Sequence[tuple[RowName, Pair]]) -> None:
        file.add(_line(row, pair) for row, pair in new if row != SWAP or writes())

    return Schedule(pairs_of(_united(parts)), write, again=other is not None)


def _united(parts: Sequence[Mapping[str, Sequence[Record]]]) -> Iterable[Record]:
    """The lines that processes have read, of which some may have read the same files."""
    longest: dict[str, Sequence[Record]] = {}
    for part in parts:
        for name, lines in part.items():
            longest[name] = max(longest.get(name, ()), lines, key=len)
    return (line for lines in longest.values() for line in lines)


def _line(row: RowName, pair: Pair) -> Record:
    if row == SWAP:
        return {"step": pair.version + 1, "swap": True}
    return {"step": pair.version + 1, **dict(zip(NAMES, row, strict=True)), "tokens": pair.tokens}
