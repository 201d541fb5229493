"""The base class and field types of all tables of a card."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from scope_jax.errors import UserError

PACKAGE = Path(__file__).parents[1]
HOME = (PACKAGE / "configs").resolve().parent  # of configs/ and assets/: the checkout, or the installed package
EXAM_PROMPTS = PACKAGE / "play" / "prompts"  # of exams


def prompts_of(game: str) -> str:
    """The folder of a built-in game's default prompts."""
    return str(PACKAGE / "games" / game / "prompts")


class CardError(UserError):
    """A card cannot be used; the message is one sentence with file, key and remedy."""


def _expand(path: str, info: Any) -> str:  # pydantic's ValidationInfo, a protocol that cannot be checked
    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in os.environ:
            raise ValueError(f"the path {path!r} uses ${{{name}}}; set the environment variable {name}")
        return os.environ[name]

    expanded = re.sub(r"\$\{(\w+)\}", value, path)
    if not expanded or "\0" in expanded:
        raise ValueError(f"{expanded!r} is not a valid path; correct it or remove the key")
    if re.search(r"\$\{\w+\}", expanded):
        raise ValueError(f"the path {expanded!r} has a ${{…}} inside an environment variable; write out the path there")
    if expanded[0] in "~$" and not Path(expanded).exists():
        raise ValueError(
            f"the path {expanded!r} begins with {expanded[0]}, which only a shell expands; write ${{HOME}}/…"
        )
    return _nearest(expanded, (info.context or {}).get("folder"))


def _nearest(path: str, folder: Path | None) -> str:
    """The path as it is if it is absolute or exists in the current folder; otherwise in the nearest folder above the
    card that has it, or in `HOME`; as it is if none has. A name without a slash or suffix may be something other
    than a path."""
    if folder is None or Path(path).is_absolute() or not ("/" in path or Path(path).suffix) or Path(path).exists():
        return path
    above = folder.resolve()
    folders = (above, *above.parents, HOME)
    return next((str(near / path) for near in folders if (near / path).exists()), path)


def _local(path: str) -> str:
    if path.startswith(("gs://", "s3://")):
        raise ValueError(f"{path} is on object storage, but this must be a local path (docs/operations.md); change it")
    return path


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # a non-numeric port, an unclosed bracket
        usable, parts = False, urlsplit("")
    if "@" in parts.netloc:
        raise ValueError(
            "holds a user name or password, which would be stored with the run; take it out of the address "
            "(a judge's key goes into an environment variable that api_key_env names)"
        )
    if not usable or not url.isprintable() or " " in url:
        raise ValueError("is not a server URL; give one like http://127.0.0.1:5000/v1")
    return url


def _ascending(lengths: tuple[int, ...]) -> tuple[int, ...]:
    if not lengths or any(low >= high for low, high in itertools.pairwise(lengths)):
        raise ValueError("must hold at least one length, each larger than the one before")
    return lengths


# Relative: to the current folder, to one above the card, or the checkout. What is only read may be on object storage.
CardPath = Annotated[str, AfterValidator(_expand)]
LocalPath = Annotated[CardPath, AfterValidator(_local)]
Address = Annotated[str, AfterValidator(_address)]
# All numbers of a card are finite and bounded on both sides: counts fit the 32-bit integers of the devices.
MOST = 2**31 - 1
Whole = Annotated[int, Field(ge=0, le=MOST)]
Count = Annotated[int, Field(ge=1, le=MOST)]
Seed = Annotated[int, Field(ge=0, le=10**18)]
Lengths = Annotated[tuple[Count, ...], Field(strict=False), AfterValidator(_ascending)]  # padded lengths in tokens
Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0, le=1e6)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Temperature = Annotated[float, Field(ge=0, le=100)]  # 0 is greedy


def merge_tables(default: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """`default` overridden by the values of `given`, recursively for tables."""
    both = {
        key: merge_tables(default[key], value)
        if isinstance(value, dict) and isinstance(default.get(key), dict)
        else value
        for key, value in given.items()
    }
    return default | both


def one_of(name: str, value: str, choices: Any) -> None:
    """Raises ValueError if `value`, the argument `name`, is not one of the values of the Literal `choices`."""
    if value not in get_args(choices):
        raise ValueError(f"{name} is {value!r}; give one of {', '.join(map(repr, get_args(choices)))}.")


class Section(BaseModel):
    """Base of every table: frozen, unknown keys forbidden, values strictly typed and finite.

    An integer is accepted for a float. TOML arrays are lists, so tuple fields need `strict=False`. The docstring under
    a field describes its key in `scope-jax keys` (`config.reference`).
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def changed(self, *names: str) -> list[str]:
        """The fields among `names` whose value is not the default."""
        fields = type(self).model_fields
        return [name for name in names if getattr(self, name) != fields[name].get_default(call_default_factory=True)]


def paths(section: BaseModel, prefix: str = "") -> list[tuple[str, str]]:
    """(dotted key, value) of every `CardPath` that a section and the tables in it set, in the order of the schema."""
    entries: list[tuple[str, str]] = []
    for name, field in type(section).model_fields.items():
        value: Any = getattr(section, name)
        key = f"{prefix}{name}"
        if isinstance(value, BaseModel):
            entries += paths(value, f"{key}.")
        elif isinstance(value, dict) and value and all(isinstance(item, BaseModel) for item in value.values()):
            entries += [entry for part, item in value.items() for entry in paths(item, f"{key}.{part}.")]
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            entries += [entry for index, item in enumerate(value) for entry in paths(item, f"{key}[{index}].")]
        elif _is_path(field.annotation, field.metadata):
            values: dict[str, Any] = value if isinstance(value, dict) else {"": value}
            entries += [(f"{key}.{part}".rstrip("."), path) for part, path in values.items() if path is not None]
    return entries


def _is_path(annotation: Any, metadata: Sequence[Any] = ()) -> bool:
    inside = get_args(annotation)
    whole = (*metadata, *(inside[1:] if get_origin(annotation) is Annotated else ()))
    expands = any(isinstance(item, AfterValidator) and item.func is _expand for item in whole)
    return expands or any(_is_path(part) for part in inside)


class GameSection(Section):
    """Base of a game's table: a nested table overrides only the keys it sets, the others keep the game's defaults."""

    @model_validator(mode="before")
    @classmethod
    def _tables(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        merged = dict(table)
        for key, given in table.items():
            default = cls.model_fields[key].default if key in cls.model_fields else None
            if isinstance(given, dict) and isinstance(default, BaseModel | dict):
                merged[key] = merge_tables(default if isinstance(default, dict) else default.model_dump(), given)
        return merged
