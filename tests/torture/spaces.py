"""A disk that is full while a command writes: export, index, report, data. The folder is empty."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from scope_jax.files import is_partial
from tests.torture import games, lives
from tests.torture.faults import GAME, disk
from tests.torture.table import Tried
from tests.train import runs

SIZE, FILLER = "64m", "filler"
LEFT = (0.0, 0.01, 0.3, 0.6)  # of the space that the command needs
SAID = "could not be written (No space left on device); free some space and run the same command again."
Command = Callable[[Path, Path], list[str]]  # (a finished run, where to write) -> the command line


def _export(run: Path, place: Path) -> list[str]:
    return ["export", str(run), str(place / "export")]


def _index(run: Path, place: Path) -> list[str]:
    card = str(runs.ROOT / "configs" / games.card(GAME))
    return ["index", card, "--set", f"retrieval.index={place / 'index'}"]


def _report(run: Path, place: Path) -> list[str]:
    return ["report", str(run), "--to", str(place / "report")]


def _data(run: Path, place: Path) -> list[str]:
    return ["data", "hotpotqa", str(place / "rows.jsonl"), "--source", str(run.parent / "source.jsonl")]


def contents(place: Path) -> dict[str, str]:
    """The files under a place by their checksums."""
    files = [path for path in place.rglob("*") if path.is_file() and path.name != FILLER]
    return {str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _fill(place: Path, left: int) -> None:
    """Leaves so many bytes free."""
    size = shutil.disk_usage(place).free - left
    with (place / FILLER).open("wb") as file:
        for _ in range(size >> 12):
            file.write(b"1" * 4096)


def _empty(place: Path) -> None:
    for path in place.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def full(command: Command, folder: Path) -> Tried:
    """The command has less space than it needs, in an empty place and where it has written before.

    What was there stays as it was, no file has the name of a whole one that is none, and with more space the same
    command succeeds.
    """
    lives.train(GAME, folder / "run", "train.steps=1")
    rows = [f'{{"question": "q{number}?", "answer": "a{number}", "id": "{number}"}}\n' for number in range(20_000)]
    (folder / "source.jsonl").write_text("".join(rows), encoding="utf-8")
    tries = 0
    with disk(folder, SIZE) as place:
        words = command(folder / "run", place)
        lives.Life(words, folder / "whole.log").end()
        whole = contents(place)
        needed = sum((path.stat().st_size >> 12) + 1 << 12 for path in place.rglob("*"))
        for left in LEFT:
            _empty(place)
            _fill(place, int(left * needed))
            _refused(words, folder)
            tries += 1
            found = contents(place)
            assert not any(is_partial(Path(name)) for name in found), found.keys()
            (place / FILLER).unlink()
            lives.Life(words, folder / "life.log").end()
            assert contents(place).keys() == whole.keys(), contents(place).keys() ^ whole.keys()
        if command is not _index:  # which has nothing to do where one is complete
            for left in LEFT[:2]:
                before = contents(place)
                _fill(place, int(left * needed))
                _refused(words, folder)
                tries += 1
                found = contents(place)
                assert found.keys() == before.keys(), found.keys() ^ before.keys()
                if command is not _report:  # its pictures are files of their own, each whole
                    assert found == before
                (place / FILLER).unlink()
    return Tried(tries, "one message each, an earlier output stays, none is left half; with more space it succeeds")


def _refused(words: list[str], folder: Path) -> None:
    *_, last = lives.Life(words, folder / "life.log").end(2)
    assert last.startswith("scope-jax: ") and last.endswith(SAID), last


def spaces() -> dict[str, Callable[[Path], Tried]]:
    """Every row by its name in the table."""
    commands = {"export": _export, "index": _index, "report": _report, "data": _data}
    return {f"the disk is full: {name}": partial(full, command) for name, command in commands.items()}
