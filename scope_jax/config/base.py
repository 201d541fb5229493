"""What every table of a card is made of."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

PROMPTS = Path(__file__).parents[1] / "prompts"  # the games' own, by game


class CardError(ValueError):
    """A card that cannot be used: the message is one sentence with file, key and remedy."""


def _expand(path: str) -> str:
    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in os.environ:
            raise ValueError(f"the path {path!r} uses ${{{name}}}; set the environment variable {name}")
        return os.environ[name]

    return re.sub(r"\$\{(\w+)\}", value, path)


CardPath = Annotated[str, AfterValidator(_expand)]


def laid_over(default: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """`default` with the keys of `given` laid over it, table by table."""
    both = {
        key: laid_over(default[key], value) if isinstance(value, dict) and isinstance(default.get(key), dict) else value
        for key, value in given.items()
    }
    return default | both


class Section(BaseModel):
    """Base of every table: frozen, and closed to keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class GameSection(Section):
    """Base of a game's table: a table inside it changes the keys it names, the others keep the game's defaults."""

    @model_validator(mode="before")
    @classmethod
    def _tables(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        merged = dict(table)
        for key, given in table.items():
            default = cls.model_fields[key].default if key in cls.model_fields else None
            if isinstance(given, dict) and isinstance(default, BaseModel | dict):
                merged[key] = laid_over(default if isinstance(default, dict) else default.model_dump(), given)
        return merged
