"""Files of published data sets as they are published: which recipe converts their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from scope_jax.data import sources
from scope_jax.data.published import RECIPES
from scope_jax.data.rows import DataError, Row, is_file, read
from scope_jax.data.schemas import SCHEMAS, Kind
from scope_jax.data.sources import Source

READ_AS: Mapping[Kind, tuple[Kind, ...]] = {"problems": ("questions",), "answers": ("answers", "questions")}
GSM8K = "gsm8k"  # whose solutions are texts like other answers


def load(source: Source) -> Sequence[Row]:
    """As `sources.load`; the DataError for rows of a published data set as it is published names its recipe."""
    try:
        return sources.load(source)
    except DataError as error:
        if name := recipe_of(source.path, source.kind):
            raise DataError(f"{str(error).removesuffix('.')}; {pointer(name, source.path)}.") from None
        raise


def pointer(name: str, path: str) -> str:
    """How a file is converted, as a clause."""
    return f"rows of {name} are converted by `scope-jax data {name} OUT.jsonl --source {path}`"


def holds_solutions(path: str) -> bool:
    """Whether the answer of a file's first row is one of GSM8K's solutions."""
    return GSM8K in _converting(_first(path), "questions")


def recipe_of(path: str, kind: Kind) -> str:
    """The data set whose recipe makes a row of this kind of a file's first one, and whose description names most of its
    columns; "" if there is none."""
    row = _first(path)

    def named(name: str) -> int:
        words = RECIPES[name].about.replace(",", " ").split()
        return sum(column in words for column in row)

    return max(_converting(row, kind), key=named, default="")


def _first(path: str) -> Row:
    """The first row of a file, {} if there is none that can be read."""
    with suppress(DataError, FileNotFoundError):
        return next(read(path))[1] if is_file(path) else {}
    return {}


def _converting(row: Row, kind: Kind) -> list[str]:
    """The recipes that make a row of this kind of this one."""
    names = []
    for name, recipe in RECIPES.items():
        if not row or recipe.baseline or recipe.kind not in READ_AS.get(kind, (kind,)) or recipe.kind not in SCHEMAS:
            continue
        with suppress(DataError, AttributeError, IndexError, KeyError, TypeError):  # as `conversion` takes them
            if ours := recipe.make(row, "a row"):
                SCHEMAS[recipe.kind](ours, "a row", {})
                names.append(name)
    return names
