"""The command new: writes a card for the user's own model and data."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scope_jax.cli.cards import open_all
from scope_jax.cli.listing import CONFIGS
from scope_jax.cli.options import Sets, load
from scope_jax.cli.output import check_place, tell
from scope_jax.cli.program import app
from scope_jax.config.base import HOME
from scope_jax.errors import UserError
from scope_jax.files import alone, replaced

if TYPE_CHECKING:
    from scope_jax.config import Config
    from scope_jax.models.decoder.config import ModelConfig
    from scope_jax.play.game import Game

NAMES = ", ".join(sorted(path.name for path in CONFIGS.iterdir() if path.is_dir() and path.name != "exams"))
ALGORITHMS = ("grpo", "dapo", "gspo", "cispo", "rloo", "ppo", "reinforce", "rl", "dr_grpo")  # which are losses here


@app.command()
def new(
    card: Annotated[Path, typer.Argument(metavar="CARD", help="Card to write, a .toml file.")],
    game: Annotated[str, typer.Option(metavar="NAME", help=f"The game: {NAMES}, or a Python file with one.")],
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
    force: Annotated[bool, typer.Option("--force", help="Replace CARD if it exists.")] = False,
    set_: Sets = None,
) -> None:
    """Write a card for your model and data, with overrides, if everything it refers to can be used, as `check` says."""
    if card.suffix != ".toml":
        raise UserError(f"{card} is not a .toml file; give the card a name that ends in .toml.")
    _check_free(card, force)
    check_place(card)
    from scope_jax.cli.defaults import with_defaults
    from scope_jax.games import overridden
    from scope_jax.run.config_file import as_toml

    played, model = _found(game), _shipped(model)

    def completed() -> Config:
        return overridden(table, set_ or (), str(card), card.absolute().parent)

    shape, unseen = _shape(model)
    wanted = max_length or 4096
    length = min(wanted, (shape and shape.max_positions) or wanted)
    table: dict[str, Any] = {"system": _kept(game, card), "model": {"checkpoint": _kept(model, card)}}
    table |= _data(played, game, data, card)
    table |= _limits(length) | {"train": {"steps": steps}}
    if exam is not None:
        table["evaluate"] = {"sets": [{"name": "held_out", "path": _kept(exam, card)}]}
    if played.starter.options:
        table[played.name] = dict(played.starter.options)
    searched = corpus or (data if played.data[:1] == ("documents",) else None)
    if played.searches(completed()):
        if searched is None:
            raise UserError(f"{game} searches a corpus; give one with --corpus FILE.")
        table["retrieval"] = {"corpus": _kept(searched, card)}
    elif corpus is not None:
        raise UserError(f"{game} does not search; remove --corpus.")
    _complete(table, played, completed(), shape, None if unseen else model)
    cfg = completed()  # a card that cannot be loaded is not written
    if shape is not None:
        _fit(table, cfg, shape, _given(set_ or (), max_length))
        cfg = completed()
    text = with_defaults(as_toml(table), table, cfg, played)
    with _written(card, f"{_header_of(card, played)}\n{text}", force):
        if unseen:
            tell(unseen)
        open_all(card, load(card, None), False, (model,) if unseen else ())
    tell(f"{card} is written; scope-jax plan {shlex.quote(str(card))} tells whether it fits your hardware")


def _data(played: Game, game: str, data: str | None, card: Path) -> dict[str, Any]:
    """The table [data] of a game that reads any. Raises UserError if the data are missing, or not read."""
    if (data is None) == bool(played.data):
        raise UserError(
            f"{game} needs data; give them with --data FILE."
            if played.data
            else f"{game} reads no data; remove --data."
        )
    return {} if data is None else {"data": {played.data[0]: _kept(data, card)}}


def _found(game: str) -> Game:
    """The game of a name or file. Raises UserError."""
    from scope_jax.games import GAMES, find

    if game not in GAMES and not game.endswith(".py"):
        hint = f"; {game} is a loss, by which rlvr trains (docs/rlvr.md#algorithms)" if game in ALGORITHMS else ""
        raise UserError(f"--game {game} is not a game{hint}; give one of {NAMES}, or the path of a Python file.")
    return find(game)


def _shipped(model: str) -> str:
    """The folder of a model that comes with the package, such as assets/atlas/ssp/base; another name as it is."""
    return str(HOME / model) if not Path(model).exists() and (HOME / model).is_dir() else model


def _check_free(card: Path, force: bool) -> None:
    if card.exists() and not force:
        raise UserError(f"{card} exists; replace it with --force, or give another name.")


@contextmanager
def _written(card: Path, text: str, force: bool) -> Iterator[None]:
    """Has a card written for the block; after an error in it, what was there before stands again."""
    with alone(card):
        _check_free(card, force)  # by now
        before = card.read_bytes() if card.exists() else None
        with replaced(card) as partial:
            partial.write_text(text, encoding="utf-8")
    try:
        yield
    except BaseException as error:
        if before is None:
            card.unlink(missing_ok=True)
        else:
            card.write_bytes(before)
        if isinstance(error, UserError):  # so that the command may be given again, corrected
            raise UserError(f"{str(error).removesuffix('.')}; the card is not kept.") from None
        raise


def _complete(table: dict[str, Any], game: Game, cfg: Config, shape: ModelConfig | None, folder: str | None) -> None:
    """Adds what follows from the rest of a card, where its table does not say it. cfg: the card so far. folder: of the
    tokenizer, None if it is not here."""
    for name, value in game.starter.completed(cfg).items():
        table.setdefault(game.name, {}).setdefault(name, value)
    if not {"dialect", "turns"} & table["model"].keys():
        table["model"] |= _conversation(game, cfg, shape, folder)


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


def _conversation(game: Game, cfg: Config, shape: ModelConfig | None, folder: str | None) -> dict[str, str]:
    """`model.dialect` and `model.turns`, if they are not the defaults: the game's for the model's architecture, or the
    first with which its roles read what they are told, and that the chat template can render."""
    defaults = (cfg.model.dialect, cfg.model.turns)
    known = game.starter.conversations
    dialect, first = known.get("", (cfg.model.dialect, _usual(game, cfg)))
    choices = [(dialect, turns) for turns in dict.fromkeys((first, "chat", "chat-trimmed", "raw"))]
    if shape is not None and shape.architecture in known:
        choices.insert(0, known[shape.architecture])
    chosen = next(
        (choice for choice in choices if _fits(cfg, choice, folder)), choices[0]
    )  # `check` says what is wrong
    return {} if chosen == defaults else dict(zip(("dialect", "turns"), chosen, strict=True))


def _usual(game: Game, cfg: Config) -> str:
    """How turns are joined where the game does not say it: as messages, if a turn that has ended is answered."""
    agents = [role.agent for role in game.roles(cfg) if role.external is None]
    goes_on = any(agent.max_turns > 1 and agent.calls == "all" and not agent.stop for agent in agents)
    return "chat" if goes_on else cfg.model.turns


def _fits(cfg: Config, choice: Sequence[str], folder: str | None) -> bool:
    """True if with these `model.dialect` and `model.turns` roles read the results of their calls, and the chat template
    of the folder renders them."""
    from scope_jax.run import card_rules
    from scope_jax.run.opened import OpenedCard

    dialect, turns = choice
    model = cfg.model.model_copy(update={"dialect": dialect, "turns": turns})
    opened = OpenedCard(cfg.model_copy(update={"model": model}), folder)
    try:
        card_rules.calls(opened)
        if folder is not None:
            _ = opened.joiner
    except (OSError, UserError):
        return False
    finally:
        opened.close()
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
# Expect:     nothing has been measured with this card
# Lines behind a # are what one changes first, with the values in force (docs/quickstart.md#what-to-change)."""


def _limits(length: int) -> dict[str, Any]:
    """The tables that bound episodes to `length` tokens."""
    return {"rollout": {"max_length": length}, "learner": {"buckets": [length]}}
