"""Reads cards: TOML, the cards they extend, overrides; every fault is one sentence that names the file and the key."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from scope_jax.config.base import HOME, CardError, Section, merge_tables
from scope_jax.config.reference import all_keys, table_of
from scope_jax.config.serving import ServedModel
from scope_jax.config.tables import RolloutSection
from scope_jax.text import toml

Parsed = TypeVar("Parsed", bound=Section)


def set_value(table: dict[str, Any], override: str, where: str) -> None:
    """Applies an override `a.b=value` to plain data; raises CardError."""
    shown = where + ": --set " + re.sub(r"//[^/@]*@", "//…@", ascii(override))  # a password is not repeated
    key, sep, text = override.partition("=")
    if not sep or not key.strip():
        raise CardError(f"{shown} is not of the form a.b=value.")
    if not override.isprintable():
        raise CardError(f"{shown} has unprintable characters; write a line break as \\n, in quotes.")
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except (ValueError, RecursionError):  # not a TOML value: text without quotes
        value = text.strip()
    *parents, leaf = key.strip().split(".")
    for name in parents:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise CardError(f"{shown}: {name!r} is a value, not a table; set it as a whole.")
    table[leaf] = value


_TYPES = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text in quotes",
    "tuple_type": "an array [...]",
    "dict_type": "a table",
    "model_type": "a table",
}
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("below", "lt"),
}


FORMER = {
    "rollout.prefill_buckets": "prompts of any length are computed in pieces of `rollout.prefill_tokens`; remove it",
    "rollout.prefill_batch": "prompts of any number are computed in pieces of `rollout.prefill_tokens`; remove it",
    "rollout.cache": "the KV cache has pages on every platform; remove it, or set `rollout.cache_gib`",
}


def _meant(card: type[Section], loc: tuple[int | str, ...]) -> str:
    """The key that an unknown one may stand for: one of its table that is spelled alike, or of its name in another."""
    *above, last = map(str, loc)
    section: type[BaseModel] = card
    for part in above:  # a number, or a name of the user's, is no field
        if part in section.model_fields:
            section = table_of(section.model_fields[part].annotation) or section
    if near := get_close_matches(last, section.model_fields, 1):
        return ".".join((*above, near[0]))
    elsewhere = [key.name for key in all_keys(card) if key.name.rpartition(".")[2] == last and "NAME" not in key.name]
    return elsewhere[0] if len(elsewhere) == 1 else ""


def _complaint(card: type[Section], error: ErrorDetails) -> str:
    """One error as a clause: the key and what it must be. Text values are not shown: one may be a secret."""
    key = ".".join(str(part) for part in error["loc"]) or "the card"
    given, kind, bounds = error["input"], error["type"], error.get("ctx", {})
    value = f" is {json.dumps(given)} but" if isinstance(given, (bool, float)) or _short(given) else ""
    if kind == "extra_forbidden" and key in FORMER:
        return f"`{key}` is a key no more: {FORMER[key]}"
    if kind == "extra_forbidden":
        meant = _meant(card, error["loc"])
        return f"unknown key `{key}`; " + (f"perhaps `{meant}` is meant" if meant else "remove it or correct its name")
    if kind == "missing":
        return f"key `{key}` is missing; add it"
    if kind in _TYPES:
        return f"`{key}`{value} must be {_TYPES[kind]}"
    if kind in _BOUNDS:
        words, name = _BOUNDS[kind]
        return f"`{key}`{value} must be {words} {bounds[name]:.12g}"
    if kind == "literal_error" and error["loc"][-1] == "[key]":
        return f"unknown key `{key.removesuffix('.[key]')}`; give one of {bounds['expected']}"
    if kind == "literal_error":
        return f"`{key}`{value} must be {bounds['expected']}"
    if kind == "string_pattern_mismatch":
        return f"`{key}` must match the pattern {bounds['pattern']}"
    if kind in ("string_too_short", "too_short"):
        return f"`{key}` must not be empty"  # no field asks for more than one
    if kind in ("string_too_long", "too_long"):
        return f"`{key}` must have at most {bounds['max_length']} {'characters' if kind[0] == 's' else 'items'}"
    said = error["msg"].removeprefix("Value error, ")
    return f"`{key}`: {said}" if error["loc"] else said


def _short(value: Any) -> bool:
    return isinstance(value, int) and abs(value) < 10**20


def _sentence(card: type[Section], where: str, error: ValidationError) -> str:
    errors = error.errors()
    inside = {one["loc"][:-1] for one in errors}  # a list without its wrong items is not also too short
    said = "; ".join(
        dict.fromkeys(_complaint(card, one) for one in errors if one["type"] != "too_short" or one["loc"] not in inside)
    )
    return f"{where}: {said}" + ("" if said.endswith("?") else ".")


def parse_section(section: type[Parsed], table: dict[str, Any], where: str, folder: Path | None = None) -> Parsed:
    """A section from plain data; raises a `CardError` that names `where` and every offending key.

    folder: of the card, where its relative paths are looked for if the current folder does not have them.
    """
    try:
        return section.model_validate(table, context={"folder": folder})
    except ValidationError as error:
        raise CardError(_sentence(section, where, error)) from None


def read_table(path: Path, extended_by: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The plain data of a card, merged with that of the card it extends."""
    if not path.is_file():
        raise CardError(_no_card(path, extended_by))
    try:
        table = toml.tables(path)
    except ValueError as error:
        raise CardError(f"{path}: {error}.") from None
    if toml.has_sum(path):
        _remove_former(table)
    parent = table.pop("extends", None)
    if parent is None:
        return table
    if not isinstance(parent, str):
        raise CardError(f"{path}: `extends` must be the path of one card, not {parent!r}.")
    chain = (*extended_by, path.resolve())
    above = (path.parent / parent).resolve()
    if above in chain:
        raise CardError(f"{path}: extends {parent}, which extends it in turn; remove one of the two.")
    return merge_tables(read_table(above, chain), table)


def _remove_former(table: dict[str, Any]) -> None:
    """Removes keys that are gone from the card that a run has written, which lists every key: nobody has set them."""
    for key in FORMER:
        section, _, name = key.partition(".")
        if isinstance(table.get(section), dict):
            table[section].pop(name, None)


def _no_card(path: Path, extended_by: tuple[Path, ...]) -> str:
    """The sentence about a card that is no file."""
    if extended_by:
        wrong = "is a folder" if path.is_dir() else "does not exist"
        return f"{extended_by[-1]}: extends {path}, which {wrong}; give a path relative to the card's folder."
    if path.is_dir():
        own = path / "config.toml"
        return f"{path} is a folder, not a card; give {f'its card, {own}' if own.is_file() else 'a TOML file'}."
    return f"{path}: no such card; give a name that `scope-jax cards` lists, such as ssp/atlas, or a TOML file."


def card_file(path: str | Path) -> Path:
    """The file of a card: `path`, or else the shipped card of that name, "ssp/atlas" or "configs/ssp/atlas.toml"."""
    shipped = (HOME / "configs" / f"{path}.toml", HOME / path)
    return Path(path) if Path(path).exists() else next(filter(Path.is_file, shipped), Path(path))


def load_served(folder: Path, positions: int, overrides: Sequence[str]) -> ServedModel:
    """The card of a model folder that is served by itself; its episodes are no longer than its `positions`."""
    longest = min(RolloutSection().max_length, positions)
    table: dict[str, Any] = {"model": {"checkpoint": str(folder)}, "rollout": {"max_length": longest}}
    for override in overrides:
        set_value(table, override, str(folder))
    return parse_section(ServedModel, table, str(folder))
