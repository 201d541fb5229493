"""Commands about cards: cards and runs list them, new writes one, check opens what one refers to."""

from __future__ import annotations

import json
import re
import time
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from scope_jax.cli.options import Card, Json, Sets, load
from scope_jax.cli.output import check_place, show, tell
from scope_jax.cli.program import app
from scope_jax.errors import UserError

CONFIGS = Path(__file__).parents[2] / "configs"
ITEMS = ("About", "Reproduces", "Hardware")  # of a card's header; About: its first line, without an item Reproduces
DATA = {"ssp": "answers", "scope": "documents", "spice": "documents", "spell": "clusters", "score": "queries"}
SEARCHING = ("ssp", "scope", "score")
Game = Literal["ssp", "scope", "spice", "spell", "score"]


def _header(path: Path) -> dict[str, str]:
    """The items of a card's header comment, each on one line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    text = "\n".join(line.removeprefix("#") for line in lines[: _comments(lines)])
    found = re.findall(r"^ ?(\w[\w ]*): +(.*(?:\n {2,}.*)*)", text, re.MULTILINE)
    items = {name: " ".join(value.split()) for name, value in found}
    return items if "Reproduces" in items or not text.strip() else {"About": text.strip().splitlines()[0]} | items


def _comments(lines: list[str]) -> int:
    return next((place for place, line in enumerate(lines) if not line.startswith("#")), len(lines))


@app.command()
def cards(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of cards, searched with its subfolders.")
    ] = CONFIGS,
    as_json: Json = False,
) -> None:
    """List the cards of a folder: game, what each reproduces, its hardware, and which of its files are missing here."""
    from scope_jax.config import CardError
    from scope_jax.run.missing import missing

    found: list[dict[str, Any]] = []
    for path in sorted(folder.rglob("*.toml")):
        if _is_exam(path):
            continue
        try:
            cfg = load(path, None)
            needs, game = missing(cfg), cfg.system
        except CardError as error:
            needs, game = [str(error)], ""
        found.append({"card": _shown(path), "game": game, **_header(path), "needs": needs})
    if not found:
        raise UserError(f"there is no card in {folder}; give a folder with .toml files.")
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


def _is_exam(path: Path) -> bool:
    """True for the definition of an exam or the tables of a paper, which are no cards."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False  # as a card it gets its sentence
    return not {"measures", "tables"}.isdisjoint(table) and "system" not in table


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of run folders.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List the runs in a folder: game, model, steps that are done, and when the last of them ended."""
    from scope_jax.config import CardError

    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*/config.toml")):
        try:
            cfg = load(path, None)
            what = {"game": cfg.system, "model": cfg.model.checkpoint, "of": cfg.train.steps}
        except CardError as error:
            what = {"game": "", "model": str(error), "of": None}
        steps, changed = _progress(path.parent / "metrics.jsonl")
        found.append({"run": str(path.parent), **what, "steps": steps, "changed": changed})
    if as_json:
        typer.echo(json.dumps(found))
        return
    if not found:
        tell(f"there is no run in {folder}")
    for one in found:
        of = "" if one["of"] is None else f" of {one['of']}"
        typer.echo(f"{one['run']}  {one['game']}  {one['steps']}{of} steps  {one['changed']}  {one['model']}")


def _progress(metrics: Path) -> tuple[int, str]:
    """(the last whole line's step, the file's time) of metrics.jsonl; (0, "") if there is none."""
    if not metrics.is_file():
        return 0, ""
    steps = 0
    for line in metrics.read_bytes().splitlines():
        try:
            steps = int(json.loads(line)["step"])
        except ValueError:  # the incomplete last line of a run that goes on or was killed
            break
    return steps, time.strftime("%Y-%m-%d %H:%M", time.localtime(metrics.stat().st_mtime))


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


@app.command()
def check(card: Card, set_: Sets = None, as_json: Json = False) -> None:
    """Open every model, prompt, data set, corpus and server of CARD and say all that is wrong; nothing is compiled."""
    _check(card, load(card, set_), as_json)


def _check(card: Path, cfg: Any, as_json: bool, left: tuple[str, ...] = ()) -> None:
    """What `check` does. left: models of the hub that are not downloaded."""
    from scope_jax.run.checking import check as opened
    from scope_jax.run.fetching import fetched

    wrong, findings = 0, {}
    for one in opened(fetched(cfg, tell, left), left):
        wrong += one.wrong
        findings[one.name] = one.text
        if not as_json:
            typer.echo(f"{'WRONG' if one.wrong else 'ok':<6} {one.name}: {one.text}")
    if as_json:
        show({"wrong": wrong, **findings}, as_json)
    if wrong:
        raise UserError(f"{wrong} of {len(findings)} parts of {card} cannot be used, see above.")


@app.command()
def new(
    card: Annotated[Path, typer.Argument(metavar="CARD", help="Card to write, a .toml file.")],
    game: Annotated[Game, typer.Option(help="The game.")],
    model: Annotated[
        str, typer.Option(metavar="DIR_OR_HUB", help="Hugging Face folder of your model, or its name on the hub.")
    ],
    data: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Your data: answers (ssp), documents (scope, spice), clusters (spell) or queries (score).",
        ),
    ],
    corpus: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Corpus to search, for ssp, score and scope (there, without it, the documents)."
        ),
    ] = None,
    exam: Annotated[str | None, typer.Option(metavar="FILE", help="Held-out questions, or tasks with rubrics.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 100,
    max_length: Annotated[
        int | None, typer.Option(min=16, help="Tokens of an episode; without it 4096, or what the model can.")
    ] = None,
    set_: Sets = None,
) -> None:
    """Write a card for your model and data, with overrides, then open all it refers to, as `check` does."""
    if card.suffix != ".toml":
        raise UserError(f"{card} is no .toml file; give the card a name that ends in .toml.")
    if card.exists():
        raise UserError(f"{card} exists; remove it or give another name.")
    check_place(card)
    searched = corpus or (data if game == "scope" else None)
    if game in SEARCHING and searched is None:
        raise UserError(f"{game} searches a corpus; give one with --corpus FILE.")
    if game not in SEARCHING and corpus is not None:
        raise UserError(f"{game} does not search; remove --corpus.")
    positions, unseen = _positions(model)
    wanted = max_length or 4096
    length = min(wanted, positions or wanted)
    searched, exam = searched and _kept(searched, card), exam and _kept(exam, card)
    table = _table(game, _kept(model, card), _kept(data, card), searched, exam, steps, length)
    from scope_jax.config import overridden
    from scope_jax.run.metrics import as_toml

    overridden(table, set_ or (), str(card))  # a card that cannot be loaded is not written
    partial = card.with_name(card.name + ".partial")
    partial.write_text(f"{_header_of(card, game)}\n{as_toml(table)}", encoding="utf-8")
    partial.replace(card)
    tell(f"{card} is written; scope-jax plan {card} tells whether it fits your hardware")
    if unseen:
        tell(unseen)
    _check(card, load(card, None), False, (model,) if unseen else ())


def _positions(model: str) -> tuple[int | None, str]:
    """(tokens of the model's longest sequence, None if it is not known; what was not looked at, "" for a folder).

    Of a model of the hub only config.json is downloaded.
    """
    from models.weights import load_config
    from scope_jax.run import hub

    if not hub.is_name(model):
        return load_config(model).max_positions, ""
    rest = f"the weights and the tokenizer of {model}; scope-jax check downloads and opens them"
    try:
        return load_config(hub.snapshot(model, hub.SHAPE)).max_positions, f"not checked: {rest}"
    except hub.Unavailable as error:
        from scope_jax.plan.architectures import public

        known = public(model)
        return known and known.max_positions, f"not checked: config.json, {rest}. {error}"


def _kept(path: str, card: Path) -> str:
    """How the card names a file: as given if that leads to it from the card's folder or one above it, so that both can
    be moved together; otherwise its absolute path. Other names (of the hub) as they are."""
    if not Path(path).exists():
        return path
    file, folder = Path(path).resolve(), card.resolve().parent
    first = next((above / path for above in (folder, *folder.parents) if (above / path).exists()), None)
    looked_for = not Path(path).is_absolute() and ("/" in path or Path(path).suffix)  # see config.base
    return path if looked_for and first is not None and first.resolve() == file else str(file)


def _header_of(card: Path, game: str) -> str:
    return f"""\
# {game.upper()} on your own model and data; docs/{game}.md explains it, docs/configuration.md every key.
#
# Command:    scope-jax train {card} --run runs/{card.stem}
# Hardware:   see scope-jax plan {card}
# Expect:     nothing has been measured with this card"""


def _table(
    game: str, model: str, data: str, corpus: str | None, exam: str | None, steps: int, length: int
) -> dict[str, Any]:
    """The card: what differs between models and data is set, everything else keeps the paper's defaults."""
    buckets = [bucket for bucket in (64, 256, 1024, 4096) if bucket <= length] or [length]
    table: dict[str, Any] = {"system": game, "model": {"checkpoint": model}}
    if corpus is not None:
        table["retrieval"] = {"corpus": corpus}
    table["rollout"] = {"max_length": length, "prefill_buckets": buckets}
    table["learner"] = {"buckets": [length]}
    table["data"] = {DATA[game]: data}
    table["train"] = {"steps": steps}
    if exam is not None:
        table["evaluate"] = {"sets": [{"name": "held_out", "path": exam}]}
    if game == "ssp":
        table["ssp"] = {"grader": "exact-match", "verify": "policy"}  # no external judge
    return table
