"""Files that somebody removes or edits under a run while it trains. Rows as in `faults`: the folder holds `whole`.

Either the run goes on and is whole, or it ends with one message and the same command goes on.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.torture import lives
from tests.torture.faults import GAME
from tests.torture.table import Tried
from tests.train import runs

ATLAS = runs.ROOT / "assets" / "atlas"
Act = Callable[[Path, Path], None]  # (the run, the folder with its data): what is done to them


class World:
    """A run whose data and prompts are copies in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.data, self.run, self._folder = folder / "data", folder / "run", folder
        shutil.copytree(ATLAS / "prompts" / GAME, self.data / "prompts")
        for name in ("answers.jsonl", "corpus.jsonl"):
            shutil.copy(ATLAS / name, self.data / name)
        copies = (
            *(f"data.answers={self.data / 'answers.jsonl'}", f"retrieval.corpus={self.data / 'corpus.jsonl'}"),
            f"ssp.prompts={self.data / 'prompts'}",
        )
        self._words = lives.words(GAME, self.run, *copies)

    def begun(self) -> lives.Life:
        """A life that has two checkpoints."""
        life = self._life()
        while len(runs.saved(self.run)) < 2:
            assert not life.ends_within(0.01), life.output
        return life

    def _life(self) -> lives.Life:
        return lives.Life(self._words, self._folder / "life.log")

    def again(self, code: int = 0) -> list[str]:
        return self._life().end(code)


def sentence(said: list[str]) -> str:
    """The last line, which must be one message to the user, and the only one."""
    assert said[-1].startswith("scope-jax: ") and said[-1].endswith((".", ")")), said
    assert sum(line.startswith("scope-jax: ") for line in said) == 1, said
    return said[-1]


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def unnoticed(act: Act, folder: Path) -> None:
    """The run goes on and has the undisturbed bits, all files included."""
    world = World(folder)
    life = world.begun()
    act(world.run, world.data)
    life.end()
    runs.same(folder / "whole", world.run)


def ended(act: Act, word: str, folder: Path) -> None:
    """The run ends with a sentence with this word in it; the same command goes on, with the undisturbed bits."""
    world = World(folder)
    life = world.begun()
    act(world.run, world.data)
    assert word in sentence(life.end(2))
    world.again()
    runs.same(folder / "whole", world.run)


def records(name: str, cut: bool, folder: Path) -> None:
    """A file of records: the run ends with a sentence; with the file as it was it goes on with the undisturbed bits,
    without it the missing steps are said."""
    world = World(folder)
    life = world.begun()
    life.send(signal.SIGSTOP)
    kept = (world.run / name).read_bytes()
    (world.run / name).write_bytes(kept[:-40]) if cut else (world.run / name).unlink()
    life.send(signal.SIGCONT)
    assert name in sentence(life.end(2))
    shutil.copytree(world.run, folder / "copy")
    said = world.again()
    assert name != "metrics.jsonl" or any("goes on without the lines that are gone" in line for line in said), said
    shutil.rmtree(world.run)
    (folder / "copy").rename(world.run)
    (world.run / name).write_bytes(kept)
    world.again()
    runs.same(folder / "whole", world.run)


def inputs(folder: Path) -> None:
    """inputs.json: the next life says that it cannot compare."""
    world = World(folder)
    life = world.begun()
    (world.run / "inputs.json").unlink()
    life.kill()
    assert [line for line in world.again() if "inputs.json is not there" in line]
    runs.same(folder / "whole", world.run)
    assert (world.run / "inputs.json").is_file()


def edited(name: str, folder: Path) -> None:
    """A file that the run reads: it goes on with what it began with, and the next life refuses and names the file."""
    world = World(folder)
    life = world.begun()
    with (world.data / name).open("a", encoding="utf-8") as file:
        file.write("{}\n")
    life.end()
    runs.same(folder / "whole", world.run)
    assert name in sentence(world.again(2))


def _all(cases: dict[str, Callable[[Path], None]], outcome: str, folder: Path) -> Tried:
    for name, case in cases.items():
        place = folder / name.replace("/", "-")
        place.mkdir()
        (place / "whole").symlink_to(folder / "whole")
        try:
            case(place)
        except AssertionError as error:
            error.add_note(name)
            raise
    return Tried(len(cases), f"{', '.join(cases)}: {outcome}")


def deletions() -> dict[str, Callable[[Path], Tried]]:
    """Every row by its name in the table."""

    def newest(run: Path, data: Path) -> None:
        shutil.rmtree(runs.saved_at(run, runs.saved(run)[-1]))

    goes_on: dict[str, Callable[[Path], None]] = {
        "index": partial(unnoticed, lambda run, data: shutil.rmtree(run / "index")),
        "data": partial(unnoticed, lambda run, data: (data / "answers.jsonl").unlink()),
        "corpus": partial(unnoticed, lambda run, data: (data / "corpus.jsonl").unlink()),
        "prompts": partial(unnoticed, lambda run, data: shutil.rmtree(data / "prompts")),
    }
    ends: dict[str, Callable[[Path], None]] = {
        "newest checkpoint": partial(ended, newest, "was removed"),
        "checkpoints": partial(ended, lambda run, data: _remove(run / "checkpoints"), "was removed"),
        "config.toml": partial(ended, lambda run, data: (run / "config.toml").unlink(), "config.toml"),
        "run folder": partial(ended, lambda run, data: shutil.rmtree(run), "was removed"),
    }
    lines: dict[str, Callable[[Path], None]] = {
        f"{name} {'cut' if cut else 'removed'}": partial(records, name, cut)
        for name in ("metrics.jsonl", "episodes.jsonl")
        for cut in (False, True)
    }
    changed: dict[str, Callable[[Path], None]] = {
        name: partial(edited, name) for name in ("prompts/solver.txt", "answers.jsonl", "corpus.jsonl")
    }
    return {
        "files that a run has read are removed while it trains": partial(_all, goes_on, "it goes on, the same bits"),
        "parts of a run are removed while it trains": partial(
            _all, ends, "one message; the same command goes on, the same bits"
        ),
        "records of a run are removed or cut while it trains": partial(
            _all, lines, "one message; with the file put back the same bits, without it the next life says so"
        ),
        "inputs.json is removed": lambda folder: _all({"inputs": inputs}, "the next life says so", folder),
        "files that a run reads are edited while it trains": partial(
            _all, changed, "no step sees it, the same bits; the next life names the file"
        ),
    }
