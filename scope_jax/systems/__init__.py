"""The built-in games by name, in one literal dict; other games are loaded from a file.

A card selects its game with `system`: a name in `SYSTEMS`, or the path of a Python file that defines the functions of
`play.system.System`. Missing functions are taken from `play.defaults`; the game's options are in the [game] table.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from pathlib import Path
from typing import cast

from scope_jax.config import CardError, Config
from scope_jax.play import defaults
from scope_jax.play.system import System
from scope_jax.systems import scope, score, spell, spice, ssp

FUNCTIONS = [name for name in vars(System) if not name.startswith("_")]
DEFAULTS = {name: function for name, function in vars(defaults).items() if name in FUNCTIONS}
SYSTEMS: dict[str, System] = {"ssp": ssp, "scope": scope, "spice": spice, "spell": spell, "score": score}


def game_of(cfg: Config) -> System:
    """The game that a card selects.

    Raises CardError for a file that does not exist or is not a game, for a game that searches without a [retrieval]
    table, and for a [retrieval] table that the game does not use.
    """
    game = SYSTEMS[cfg.system] if cfg.system in SYSTEMS else _from_file(cfg.system)
    if game.searches(cfg) and cfg.retrieval is None:
        raise CardError(
            f"the table [retrieval] is missing, but {cfg.system} searches; add it, with corpus (a file) or url (a "
            "search server)."
        )
    if cfg.retrieval is not None and not game.searches(cfg):
        raise CardError(f"{cfg.system} does not search; remove the table [retrieval].")
    return game


@cache
def _from_file(path: str) -> System:
    """Imports a game from a file. Exceptions raised during the import are passed through to the game's author."""
    file = Path(path).resolve()
    if not file.is_file():
        raise CardError(f"`system` is {path}, which does not exist; give a path relative to the current directory.")
    name = f"scope_jax_game_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None  # the file ends in .py
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    vars(module).update({name: function for name, function in DEFAULTS.items() if name not in vars(module)})
    if missing := [name for name in FUNCTIONS if name not in vars(module)]:
        raise CardError(f"{path} is not a game: it lacks the functions {', '.join(missing)} of scope_jax.play.system.")
    return cast(System, module)
