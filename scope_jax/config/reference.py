"""The reference of the keys of a card, from the docstrings under the fields of its tables.

`scope-jax keys` prints it, for a game in a file too, and `page` is a page of the documentation (tools/site.py).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic_core import PydanticUndefined

from scope_jax.config.base import PACKAGE, Section

LONGEST = 120  # characters of a default; longer tables show their keys only


@dataclass(frozen=True)
class Key:
    """One key of a card."""

    name: str
    """With the tables it is in, as for `--set`: `rollout.slots`."""
    default: str
    """As in a card; "—": the key is required; "none": it is not set."""
    text: str
    """What it means and which values it takes, on one line."""
    table: type[Section] | None
    """The table that it holds; None: it holds a value."""
    value: Any
    """The default itself."""


def table_of(annotation: Any) -> type[Section] | None:
    """The table inside a type such as tuple[EvalSet, ...] or JudgeSection | None."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    return None


def own_keys(section: type[Section], prefix: str = "", default: Section | None = None) -> Iterator[Key]:
    """The keys of one table, without those of the tables in it. default: values that replace the fields' defaults."""
    for name, field in section.model_fields.items():
        table = table_of(field.annotation)
        value = getattr(default, name) if default is not None else field.get_default(call_default_factory=True)
        text = " ".join((field.description or "").split())
        choices = [f"`{choice}`" for choice in _choices(field.annotation) if isinstance(choice, str)]
        if any(choice not in text for choice in choices):
            text = f"{text} One of {', '.join(choices)}.".strip()
        yield Key(prefix + name, shown(value), text, table, value)


def all_keys(section: type[Section], prefix: str = "", default: Section | None = None) -> Iterator[Key]:
    """The keys of a table, each followed by those of the table that it holds."""
    for key in own_keys(section, prefix, default):
        yield key
        if key.table is not None:
            inside = key.value if isinstance(key.value, Section) else None
            yield from all_keys(key.table, f"{key.name}{_named(section, key.name.removeprefix(prefix))}.", inside)


def _named(section: type[Section], field: str) -> str:
    """What stands between a field and the keys of its tables: a name of the user's if it holds several by name."""
    annotation = section.model_fields[field].annotation if field in section.model_fields else None
    return ".NAME" if get_origin(annotation) is dict else ""


def _choices(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(choice for part in get_args(annotation) for choice in _choices(part))


def shown(value: Any) -> str:
    """A default as a card would have it; "—" for a required key, "none" for one that is not set."""
    if value is PydanticUndefined:
        return "—"
    if value is None:
        return "none"
    if isinstance(value, Section):
        return "table"
    if isinstance(value, str):
        return "the package's" if value.startswith(str(PACKAGE)) else value or '""'
    if isinstance(value, tuple):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict):
        text = ", ".join(f"{key} = {shown(entry)}" for key, entry in value.items())
        return f"{{ {text} }}".replace("{  }", "{}") if len(text) < LONGEST else f"{{ {', '.join(value)} }}"
    if isinstance(value, float) and len(repr(value)) > 10:
        return f"{value:.4g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


# ------------------------------------------------------------------------------------------------------------ markdown
def markdown(keys: Iterator[Key]) -> str:
    """Keys as the rows of a table of a page in docs/."""
    rows = "".join(f"| `{key.name}` | {_cell(key.default)} | {_cell(key.text)} |\n" for key in keys)
    return f"| key | default | meaning |\n|---|---|---|\n{rows}"


def _cell(text: str) -> str:
    linked = re.sub(r"docs/((\w+)\.md(?:#[\w-]+)?)", r"[\2](\1)", text)
    return linked.replace("|", "\\|")


def page(card: type[Section], games: Mapping[str, type[Section]], exam: type[Section]) -> str:
    """The page of all keys: those of a `card`, of the tables of `games` by name, and of the file of an `exam`.

    A table that stands in several places is written once, and its places say which of their defaults differ.
    """
    tables = {key.name: key.table for key in own_keys(card) if key.table is not None} | dict(games)
    counts = Counter(key.table for key in all_keys(card) if key.table is not None)
    counts.update(key.table for game in games.values() for key in all_keys(game) if key.table is not None)
    shared = {table: name for name, table in tables.items() if counts[table] > 1}
    elsewhere = {table: _title(table) for table, places in counts.items() if places > 1 and table not in shared}
    links = {table: (f"`[{name}]`", name) for table, name in shared.items()}
    links |= {table: (title.lower(), title.lower().replace(" ", "-")) for table, title in elsewhere.items()}
    plain = (key for key in own_keys(card) if key.table is None)
    parts = [HEAD, f"## Outside tables\n\n{markdown(plain)}"]
    for name, table in tables.items():
        about = card.model_fields[name].description if name in card.model_fields else table.__doc__
        parts.append(
            f"## `[{name}]`\n\n{_about(about)}{markdown(_rows(table, f'{name}{_named(card, name)}.', None, links))}"
        )
    parts.append("## Tables in several places\n")
    for table, title in elsewhere.items():
        parts.append(f"### {title}\n\n{_about(table.__doc__)}{markdown(_rows(table, '', None, links))}")
    inherited = {name for base in exam.__bases__ if issubclass(base, Section) for name in base.model_fields}
    further = (key for key in own_keys(exam) if key.name not in inherited)
    parts.append(f"## Files of exams\n\n{EXAMS}\n\n{markdown(further)}")
    return "\n".join(parts)


EXAMS = "Those in `configs/exams` have the keys of `[[evaluate.sets]]` except `name`, which is the file's, and:"
HEAD = """# Keys of a card

A key without a default (—) is required; "none" means that it is not set. [Operations](operations.md#cards) says how
cards are read. `scope-jax keys TABLE` prints this in a terminal, and `scope-jax keys --game FILE` the keys of a game of
your own. `scope-jax keys --markdown` prints this page.
"""


def _rows(
    table: type[Section], prefix: str, default: Section | None, links: Mapping[type[Section], tuple[str, str]]
) -> Iterator[Key]:
    for key in own_keys(table, prefix, default):
        if key.table is None:
            yield key
        elif key.table in links:
            title, anchor = links[key.table]
            other = ", ".join(f"`{name} = {value}`" for name, value in _differing(key.value, None))
            text = f"{key.text} Keys: [{title}](#{anchor}){f'; here {other}' if other else ''}."
            yield Key(key.name, key.default, text.strip(), key.table, key.value)
        else:
            yield key
            yield from _rows(key.table, f"{key.name}.", key.value if isinstance(key.value, Section) else None, links)


def _differing(default: Any, other: Section | None, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(key, value) of what a table's default has different from `other`, or from the defaults of its own fields."""
    if not isinstance(default, Section):
        return
    for name, field in type(default).model_fields.items():
        value = getattr(default, name)
        usual = getattr(other, name) if other is not None else field.get_default(call_default_factory=True)
        if isinstance(value, Section):
            yield from _differing(value, usual if isinstance(usual, Section) else None, f"{prefix}{name}.")
        elif value != usual:
            yield f"{prefix}{name}", shown(value)


def _title(table: type[Section]) -> str:
    words = re.findall(r"[A-Z]+[a-z]*", table.__name__.removesuffix("Section"))
    return " ".join(words).capitalize()


def _about(text: str | None) -> str:
    return f"{_cell(' '.join(text.split()))}\n\n" if text else ""
