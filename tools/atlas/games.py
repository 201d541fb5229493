"""The games with a base checkpoint on Atlas; the module of each has its demonstrations and its part of the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from tools.atlas import dr_zero_roles, scope_roles, score_roles, spell_roles, spice_roles, ssp_roles
from tools.atlas.facts import World
from tools.atlas.rows import Makers, Show, Split


@runtime_checkable
class Roles(Protocol):
    """What a game's module says of its roles."""

    CARD: Path  # its card on Atlas
    EXTRA_TEXTS: tuple[str, ...]  # texts of the game that no demonstration shows, for the tokenizer's word list
    PIECES: tuple[str, ...]  # patterns of what is one token beside names, words and tags
    STEPS: tuple[int, int]  # of stage "read" and of stage "play"
    READ_ROWS: Mapping[str, int]  # demonstrations of each kind in a step of stage "read"
    PLAY_ROWS: Mapping[str, int]  # and of stage "play"

    @staticmethod
    def texts(world: World) -> Mapping[str, Sequence[dict[str, Any]]]:
        """The rows of the game's files, by their paths in the folder of the world."""
        ...

    @staticmethod
    def makers(world: World, show: Show, *, split: Split, seed: int, with_habits: bool) -> Makers:
        """How to draw each kind of demonstration, about everything, train names alone or held-out names.

        with_habits: bad ones among them, as often as the game's habits say.
        """
        ...


GAMES: Mapping[str, Roles] = {
    "ssp": ssp_roles,
    "scope": scope_roles,
    "spell": spell_roles,
    "spice": spice_roles,
    "score": score_roles,
    "dr_zero": dr_zero_roles,
}
