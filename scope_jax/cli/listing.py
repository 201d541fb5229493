"""The command cards: the shipped cards in short, and those of a game or folder with what each reproduces and needs."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from scope_jax.cli.options import Json, load
from scope_jax.cli.program import app
from scope_jax.config.base import HOME, paths
from scope_jax.errors import UserError, sentence
from scope_jax.text import toml

CONFIGS = HOME / "configs"
BEGIN = ("rlvr", "sft", "dpo")  # games of most newcomers
VARIANTS = {"adapters": "with adapters", "ablations": "ablations"}  # folders with variants of a game's cards
ITEMS = ("About", "Reproduces", "Hardware")  # of a card's header; About: its first line, without an item Reproduces
# Written by a run, or names rather than paths.
NOT_READ = ("retrieval.index", "train.compilation_cache", "train.spool", "system", "model.dialect", "clusters.folder")
FILES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet", ".txt", ".jinja", ".toml")


def _header(path: Path) -> dict[str, str]:
    """The items of a card's header comment, each on one line."""
    lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    text = "\n".join(line.removeprefix("#") for line in lines[: _comments(lines)])
    found = re.findall(r"^ ?(\w[\w ]*): +(.*(?:\n {2,}.*)*)", text, re.MULTILINE)
    items = {name: " ".join(value.split()) for name, value in found}
    return items if "Reproduces" in items or not text.strip() else {"About": text.strip().splitlines()[0]} | items


def _title(path: Path) -> str:
    """The first line of a card's header comment."""
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        return file.readline().removeprefix("#").strip()


def _comments(lines: list[str]) -> int:
    return next((place for place, line in enumerate(lines) if not line.startswith("#")), len(lines))


@app.command()
def cards(
    where: Annotated[
        str | None,
        typer.Argument(
            metavar="GAME_OR_DIR",
            help="A game, for all of its cards, or a folder of cards, searched with its subfolders.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the shipped cards, a line for each that is no variant of another; with GAME or DIR all there, with what each
    reproduces, its hardware, and which of its files are missing here."""
    if where is None and not as_json:
        _summarise()
        return
    folder = Path(where or CONFIGS)
    if not folder.is_dir() and where in _games():
        folder = CONFIGS / where
    found = [_described(path) for path in _cards_in(folder)]
    if not found:
        raise UserError(
            f"there is no card in {folder}; give a folder with .toml files, or a game, one of {', '.join(_games())}."
        )
    if as_json:
        typer.echo(json.dumps(found))
        return
    for one in found:
        typer.echo(f"{one['card']}  ({one['game'] or 'not usable here'})")
        for item in ITEMS:
            if item in one:
                typer.echo(f"    {item.lower()}: {one[item]}")
        for need in one["needs"] or ["nothing: everything is here"]:
            typer.echo(f"    needs {need}")


def _summarise() -> None:
    """Prints a line for each shipped card that is no variant: its name, whether its files are here, and its title."""
    width = shutil.get_terminal_size((120, 24)).columns
    for game in _games():
        for path in _in_order((CONFIGS / game).glob("*.toml"), CONFIGS / game):
            state = "" if _described(path)["needs"] else "ready"
            line = f"{path.relative_to(CONFIGS).with_suffix('')!s:<32} {state:<5}  {_title(path)}"
            typer.echo(line if len(line) <= width else f"{line[: width - 1]}…")
        counts = {words: len(list((CONFIGS / game / name).glob("*.toml"))) for name, words in VARIANTS.items()}
        if more := ", ".join(f"{count} {words}" for words, count in counts.items() if count):
            typer.echo(f"{'':<32} ({more}: scope-jax cards {game})")
    typer.echo("ready: all files that a card reads are here; scope-jax cards GAME says what others need.")


def _games() -> list[str]:
    """The games with shipped cards, those of most newcomers first."""
    names = {path.name for path in CONFIGS.iterdir() if path.is_dir() and path.name != "exams"}
    return [*BEGIN, *sorted(names.difference(BEGIN))]


def _cards_in(folder: Path) -> list[Path]:
    return _in_order((path for path in folder.rglob("*.toml") if path.is_file() and not _is_exam(path)), folder)


def _in_order(cards: Iterable[Path], folder: Path) -> list[Path]:
    """The cards of a folder by its subfolders: in each Atlas's first, and variants last."""

    def place(path: Path) -> tuple[Any, ...]:
        *above, name = path.relative_to(folder).parts
        return [(part in VARIANTS, part) for part in above], name != "atlas.toml", name

    return sorted(cards, key=place)


def _described(path: Path) -> dict[str, Any]:
    """A card's name, game, the items of its header, and what it needs that is not here."""
    from scope_jax.config import CardError

    try:
        cfg = load(path, None)
        needs, game = _missing(cfg), cfg.system
    except CardError as error:
        needs, game = [str(error)], ""
    except Exception as error:  # noqa: BLE001 - a game in a file may raise anything where it is imported
        needs, game = [f"a game that can be imported: {type(error).__name__}: {sentence(error)}"], ""
    return {"card": _shown(path), "game": game, **_header(path), "needs": needs}


def _missing(cfg: Any) -> list[str]:
    """ "key: path" for what the card reads and is not here, without opening anything. Names of data sets on the hub
    and paths on object storage are not looked up."""
    found = []
    for key, path in paths(cfg):
        if key in NOT_READ or path.startswith(("gs://", "s3://")):
            continue
        if Path(path).exists():
            continue
        from_hub = not path.endswith(FILES) and "checkpoint" not in key and "prompts" not in key
        found.append(f"{key}: {path}" + (" (or a data set of the hub of this name)" if from_hub else ""))
    return found


def _is_exam(path: Path) -> bool:
    """True for the definition of an exam or the tables of a paper, which are no cards."""
    try:
        table = toml.tables(path)
    except ValueError:
        return False  # as a card it gets its sentence
    return not {"measures", "tables"}.isdisjoint(table) and "system" not in table


def _shown(path: Path) -> str:
    """The path from the current folder; of a shipped card elsewhere, its name."""
    for folder, shown in ((Path.cwd(), path), (CONFIGS, path.with_suffix(""))):
        if path.is_relative_to(folder):
            return str(shown.relative_to(folder))
    return str(path)
