"""The command new: writes a card for the user's own model and data."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scope_jax.cli.cards import open_all
from scope_jax.cli.options import Sets, load
from scope_jax.cli.output import check_place, tell
from scope_jax.cli.program import app
from scope_jax.errors import UserError
from scope_jax.files import alone, replaced

if TYPE_CHECKING:
    from scope_jax.config import Config
    from scope_jax.models.decoder.config import ModelConfig
    from scope_jax.play.game import Game


@app.command()
def new(
    card: Annotated[Path, typer.Argument(metavar="CARD", help="Card to write, a .toml file.")],
    game: Annotated[
        str, typer.Option(metavar="NAME", help="The game: a name, as in the folders of configs/, or a Python file.")
    ],
    model: Annotated[
        str, typer.Option(metavar="DIR_OR_HUB", help="Hugging Face folder of your model, or its name on the hub.")
    ],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Your data, as the game's page says: problems, answers, documents, clusters, queries; none for some.",
        ),
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Corpus to search, for games that search [default for one that reads documents: these].",
        ),
    ] = None,
    exam: Annotated[str | None, typer.Option(metavar="FILE", help="Held-out questions, or tasks with rubrics.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Training steps.")] = 100,
    max_length: Annotated[
        int | None,
        typer.Option(min=16, help="Most tokens of an episode [default: 4096, or the model's limit if that is lower]."),
    ] = None,
    set_: Sets = None,
) -> None:
    """Write a card for your model and data, with overrides, if everything it refers to can be used, as `check` says."""
    if card.suffix != ".toml":
        raise UserError(f"{card} is not a .toml file; give the card a name that ends in .toml.")
    if card.exists():
        raise UserError(f"{card} exists; remove it or give another name.")
    check_place(card)
    from scope_jax.games import find, overridden

    played = find(game)
    if (data is None) == bool(played.data):
        raise UserError(
            f"{game} needs data; give them with --data FILE."
            if played.data
            else f"{game} reads no data; remove --data."
        )
    shape, unseen = _shape(model)
    wanted = max_length or 4096
    length = min(wanted, (shape and shape.max_positions) or wanted)
    exam = exam and _kept(exam, card)
    conversation = _conversation(played, shape, None if unseen else model)
    table: dict[str, Any] = {"system": _kept(game, card), "model": {"checkpoint": _kept(model, card), **conversation}}
    if data is not None:
        table["data"] = {played.data[0]: _kept(data, card)}
    table |= _limits(length) | {"train": {"steps": steps}}
    if exam is not None:
        table["evaluate"] = {"sets": [{"name": "held_out", "path": exam}]}
    if played.starter.options:
        table[played.name] = dict(played.starter.options)
    from scope_jax.run.config_file import as_toml

    searches = played.searches(overridden(table, set_ or (), str(card)))
    searched = corpus or (data if played.data[:1] == ("documents",) else None)
    if searches:
        if searched is None:
            raise UserError(f"{game} searches a corpus; give one with --corpus FILE.")
        table["retrieval"] = {"corpus": _kept(searched, card)}
    elif corpus is not None:
        raise UserError(f"{game} does not search; remove --corpus.")
    cfg = overridden(table, set_ or (), str(card))  # a card that cannot be loaded is not written
    if shape is not None:
        _fit(table, cfg, shape, _given(set_ or (), max_length))
    with alone(card):
        if card.exists():  # by now
            raise UserError(f"{card} exists; remove it or give another name.")
        with replaced(card) as partial:
            partial.write_text(f"{_header_of(card, played)}\n{as_toml(table)}", encoding="utf-8")
    if unseen:
        tell(unseen)
    try:
        open_all(card, load(card, None), False, (model,) if unseen else ())
    except BaseException as error:
        card.unlink(missing_ok=True)
        if isinstance(error, UserError):  # so that the command may be given again, corrected
            raise UserError(f"{str(error).removesuffix('.')}; the card is not kept.") from None
        raise
    tell(f"{card} is written; scope-jax plan {shlex.quote(str(card))} tells whether it fits your hardware")


def _given(sets: Sequence[str], max_length: int | None) -> set[str]:
    """The keys and tables that the command sets."""
    given = {override.partition("=")[0].strip() for override in sets}
    return given if max_length is None else {*given, "rollout.max_length"}


def _fit(table: dict[str, Any], cfg: Config, shape: ModelConfig, given: Collection[str]) -> None:
    """Gives the card sizes that fit this machine, but for those that are given, and says what it takes."""
    from scope_jax.plan.sizes import LENGTH, ROWS, SLOTS, sizes_here

    length = () if "learner.buckets" in given else (LENGTH,)
    chosen = {key for key in (SLOTS, ROWS, *length) if {key, key.partition(".")[0]}.isdisjoint(given)}
    sized, sentence = sizes_here(cfg, shape, chosen)
    table["rollout"] |= {"max_length": sized.rollout.max_length, "slots": sized.rollout.slots}
    table["learner"]["buckets"] = list(sized.learner.buckets)
    if sized.learner.micro_batch_rows != "auto":
        table["learner"]["micro_batch_rows"] = sized.learner.micro_batch_rows
    tell(sentence)


def _shape(model: str) -> tuple[ModelConfig | None, str]:
    """(the model's shape, None if it is not known; what was not looked at, "" for a folder).

    Of a model of the hub only config.json is downloaded.
    """
    from scope_jax.models.files.weights import checked_config, load_config
    from scope_jax.run import fetching

    if not fetching.is_name(model):
        return checked_config(model), ""
    rest = f"the weights and the tokenizer of {model}; scope-jax check downloads and opens them"
    try:
        return load_config(fetching.snapshot(model, fetching.SHAPE)), f"not checked: {rest}"
    except fetching.Unavailable as error:
        from scope_jax.plan.architectures import public

        return public(model), f"not checked: config.json, {rest}. {error}"


def _conversation(game: Game, shape: ModelConfig | None, folder: str | None) -> dict[str, str]:
    """`model.dialect` and `model.turns` of a game that has others than the defaults: those of the model's architecture,
    or the first that its chat template can render. folder: of the tokenizer, None if it is not here."""
    known = game.starter.conversations
    if not known:
        return {}
    dialect, first = known[""]
    choices = [(dialect, turns) for turns in dict.fromkeys((first, "chat", "chat-trimmed", "raw"))]
    if shape is not None and shape.architecture in known:
        choices.insert(0, known[shape.architecture])
    rendered = choices if folder is None else [choice for choice in choices if _renders(folder, *choice)]
    dialect, turns = (rendered or choices)[0]  # if there is none, `check` says why
    return {"dialect": dialect, "turns": turns}


def _renders(folder: str, dialect: str, turns: Any) -> bool:
    """True if the chat template can render searches and turns like this."""
    from scope_jax.models.tokenizers.tokenizer import Tokenizer
    from scope_jax.play.turns import Joiner
    from scope_jax.text import dialects

    try:
        Joiner(turns, Tokenizer.load(folder), dialects.load(dialect))
    except (OSError, ValueError):
        return False
    return True


def _kept(path: str, card: Path) -> str:
    """How the card names a file: as given if that leads to it from the card's folder or one above it, so that both can
    be moved together; otherwise its absolute path. Other names (of the hub) as they are."""
    if not Path(path).exists():
        return path
    file, folder = Path(path).resolve(), card.resolve().parent
    first = next((above / path for above in (folder, *folder.parents) if (above / path).exists()), None)
    looked_for = not Path(path).is_absolute() and ("/" in path or Path(path).suffix)  # see config.base
    return path if looked_for and first is not None and first.resolve() == file else str(file)


def _header_of(card: Path, game: Game) -> str:
    path = shlex.quote(str(card))
    return f"""\
# {game.title} on your own model{" and data" if game.data else ""}; `scope-jax keys` describes every key.
#
# Command:    scope-jax train {path} --run {shlex.quote(f"runs/{card.stem}")}
# Hardware:   see scope-jax plan {path}
# Expect:     nothing has been measured with this card"""


def _limits(length: int) -> dict[str, Any]:
    """The tables that bound episodes to `length` tokens."""
    return {"rollout": {"max_length": length}, "learner": {"buckets": [length]}}
