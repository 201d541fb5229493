"""The built-in games by name, games in files, and cards: a card is read together with the table of its game.

A card selects its game with `system`: a name in `GAMES`, or the path of a Python file that defines `GAME`, a
`play.game.Game`. The game's options are the card's table of its name.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, create_model, model_validator

from scope_jax.config import CardError, Config, Section
from scope_jax.config.base import HOME, CardPath
from scope_jax.config.loading import card_file, parse_section, read_table, set_value
from scope_jax.config.tables import DataSection, RowsSection
from scope_jax.config.training import TrainSection
from scope_jax.games import absolute_zero, dpo, dr_zero, r_zero, rlvr, scope, score, sft, spell, spice, spiral, ssp
from scope_jax.play.checks import check_roles
from scope_jax.play.game import Game, no_tools

BUILT_IN = (absolute_zero, dpo, dr_zero, r_zero, rlvr, scope, score, sft, spell, spice, spiral, ssp)
GAMES: dict[str, Game] = {package.GAME.name: package.GAME for package in BUILT_IN}


# ------------------------------------------------------------------------------------------------------------- games
def find(system: str) -> Game:
    """The game that a card's `system` names: a built-in one, or that of a Python file, such as a shipped example's.

    Raises CardError.
    """
    if system in GAMES:
        return GAMES[system]
    if not system.endswith(".py"):
        raise CardError(
            f"`system` is {system!r}, which is not a game; give one of {', '.join(map(repr, GAMES))}, or the path of a "
            "Python file (.py)."
        )
    file = next(filter(Path.is_file, (Path(system), HOME / system)), None)
    if file is None:
        raise CardError(f"`system` is {system}, which does not exist; give a path relative to the current directory.")
    return _from_file(file.resolve())


@cache
def _from_file(file: Path) -> Game:
    """Imports a game from a file, which may import modules that lie beside it. Exceptions raised during the import are
    passed through to the game's author."""
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))
    module_name = f"scope_jax_game_{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None  # the file ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except SystemExit:
        raise CardError(
            f'{file} ends the program when it is imported; put what it runs by itself under if __name__ == "__main__".'
        ) from None
    game = getattr(module, "GAME", None)
    if not isinstance(game, Game):
        raise CardError(f"{file} is not a game: it must define GAME, a scope_jax.play.game.Game (docs/tutorial.md).")
    if not (isinstance(game.options, type) and issubclass(game.options, Section)):
        raise CardError(
            f"{file}: the options of the game {game.name} are {game.options!r:.60}; give a class of them, "
            "class Options(Section), with the keys of its table."
        )
    if game.name in Config.model_fields or not game.name.isidentifier():
        raise CardError(
            f"{file}: a game cannot be named {game.name!r}, as its table in a card has this name; rename it."
        )
    return game


def without_retrieval(cfg: Config) -> str:
    """The sentence about a card whose game searches nothing that is there."""
    return (
        f"the table [retrieval] is missing, but {cfg.system} searches; add it, with corpus (a file) or url (a search "
        "server)."
    )


def game_of(cfg: Config) -> Game:
    """The game of a card.

    Raises CardError for a game that searches without a [retrieval] table or tools of its own, and for a table that the
    game does not use; UserError for a game in a file whose roles are none.
    """
    game = find(cfg.system)
    if cfg.system not in GAMES:
        check_roles(game.name, game.roles(cfg))
    if game.searches(cfg) and cfg.retrieval is None and game.tools is no_tools:
        raise CardError(without_retrieval(cfg))
    if cfg.retrieval is not None and not game.searches(cfg):
        raise CardError(f"{cfg.system} does not search; remove the table [retrieval].")
    return game


# ------------------------------------------------------------------------------------------------------------- cards
def load_card(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The config of a card with `a.b=value` overrides applied (values in TOML syntax, bare text allowed); path: as for
    `card_file`. Raises CardError."""
    file = card_file(path)
    return overridden(read_table(file), overrides, str(file), file.parent)


def load_data(path: Path) -> Config:
    """The config of a card that nothing is run with: a game in a file is not imported, and its table stays plain data.

    Raises CardError.
    """
    table = read_table(path)
    system = table.get("system")
    if isinstance(system, str) and system.endswith(".py"):
        return parse_section(_Unread, table, str(path), path.parent)
    return parse_config(table, str(path), path.parent)


def overridden(table: dict[str, Any], overrides: Sequence[str], where: str, folder: Path | None = None) -> Config:
    """The config of a card's plain data with `a.b=value` overrides applied; where: the source, for messages; folder: as
    in `parse_section`."""
    for override in overrides:
        set_value(table, override, where)
    keys = " and ".join(override.partition("=")[0].strip() for override in overrides)
    return parse_config(table, f"{where} with --set {keys}" if overrides else where, folder)


def parse_config(table: dict[str, Any], where: str, folder: Path | None = None) -> Config:
    """A `Config` with the table of its game from plain data; arguments and errors as in `parse_section`."""
    try:
        system = TypeAdapter(CardPath).validate_python(table.get("system"), strict=True, context={"folder": folder})
    except ValidationError:
        return parse_section(Config, {key: table[key] for key in table if key not in GAMES}, where, folder)
    try:
        game = find(system)
    except CardError as error:
        raise CardError(f"{where}: {error}") from None
    if others := [name for name in GAMES if name in table and name != game.name]:
        raise CardError(
            f"{where}: [{others[0]}] is the table of another game, but system is {system!r}; remove it, or correct one "
            "of the two."
        )
    return game.completed(parse_section(_with_options(game), table, where, folder))


class _Unread(Config):
    """A card with the tables of whatever game."""

    model_config = ConfigDict(extra="allow")


@cache
def _with_options(game: Game) -> type[Config]:
    """`Config` with the table of a game, and the game's checks."""

    def check(cfg: Config) -> Config:
        _check_what_is_read(cfg, game)
        game.check(cfg)
        return cfg

    checked: Any = model_validator(mode="after")(check)  # pydantic's own types for what it takes are narrower
    options: Any = (game.options, Field(default_factory=dict, validate_default=True))
    model = create_model(
        "Config",
        __base__=Config,
        __validators__={"_game": checked},
        **{game.name: options},
    )
    model.game_table = game.name
    return model


def _check_what_is_read(cfg: Config, game: Game) -> None:
    """Raises ValueError for keys outside the game's table that it does not read, or lacks."""
    rows = [name for name in DataSection.model_fields if name not in (*RowsSection.model_fields, *game.data)]
    if unread := cfg.data.changed(*rows):
        raise ValueError(f"data.{unread[0]} is set, but {game.title} does not read it; remove it")
    if game.batch and cfg.train.batch_size != TrainSection.model_fields["batch_size"].default:
        raise ValueError(
            f"train.batch_size is {cfg.train.batch_size}, but {game.title} does not use it; "
            f"set {' and '.join(game.batch)}"
        )
    if game.iterations is None and cfg.train.steps is None:
        raise ValueError(f"train.steps is missing; {game.title} needs the number of steps")
    if game.iterations is None and cfg.train.keep_iterations:
        raise ValueError(f"train.keep_iterations is set, but {game.title} has no iterations; use train.keep instead")
