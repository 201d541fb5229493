"""JSON files of a model folder and their typed fields; an invalid value raises an error that names the field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scope_jax.errors import UserError
from scope_jax.files import FileNameError, inside

MOST = 2**31 - 1  # largest accepted count
MOST_LAYERS = 2_000  # published decoders have up to 126
MOST_BYTES = 2**24  # of a JSON file; the largest of published folders, indices of 100,000 tensors, have about 10 MB
MOST_DEEP = 64


class WeightsError(UserError):
    """A folder that cannot be read as a model; the message says which file or tensor and what is wrong."""


def no_pointer(path: Path, beginning: bytes) -> None:
    """Raises WeightsError if a file begins as what Git LFS leaves in its place where it is not installed."""
    if beginning.startswith(b"version https://git-lfs"):
        raise WeightsError(
            f"{path} is a pointer of Git LFS and not the file; run `git lfs pull` in its folder, or download it."
        )


def read_json(path: Path) -> Any:
    """The contents of a JSON file of at most MOST_BYTES, nested at most MOST_DEEP.

    Raises FileNotFoundError or WeightsError with one sentence.
    """
    if not path.is_file():  # a pipe would be waited for
        raise FileNotFoundError(f"{path} is missing; give a model folder in Hugging Face layout.")
    if (size := path.stat().st_size) > MOST_BYTES:
        raise WeightsError(f"{path} has {size} bytes, but at most {MOST_BYTES} are read; copy the file again.")
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, too many digits, nested too deeply
        raise WeightsError(f"{path} is not JSON ({error}); copy the file again.") from None
    if not shallow(contents):
        raise WeightsError(f"{path} is nested more than {MOST_DEEP} levels deep; copy the file again.")
    return contents


def shallow(contents: Any) -> bool:
    """True if lists and objects are nested at most MOST_DEEP levels deep, so that they can be walked and written."""
    level = [contents]
    for _ in range(MOST_DEEP):
        level = [
            inner
            for outer in level
            if isinstance(outer, list | dict)
            for inner in (outer if isinstance(outer, list) else outer.values())
            if isinstance(inner, list | dict)
        ]
        if not level:
            return True
    return False


def read_object(path: Path) -> Mapping[str, Any]:
    """The contents of a JSON file that holds an object. Raises as read_json does."""
    contents = read_json(path)
    if not isinstance(contents, Mapping):
        raise WeightsError(f"{path} does not hold a JSON object; copy the file again.")
    return contents


def within(folder: Path, name: Any, said_by: Path) -> Path:
    """The path of `name` in a folder, where the file `said_by` gives it: `files.inside`, with a WeightsError."""
    try:
        return inside(folder, name, said_by)
    except FileNameError as error:
        raise WeightsError(str(error)) from None


# ----------------------------------------------------------------------------------------------- fields of config.json
def cut(text: str, most: int = 40) -> str:
    """A text for a message: its beginning, on one line."""
    line = " ".join(text[: most + 1].split())
    return line if len(text) <= most else line[: most - 3] + "..."


def shown(value: Any) -> str:
    """A value of a JSON file for a message, as JSON writes it."""
    return cut(json.dumps(value, default=str))


def _refusal(name: str, value: Any, wanted: str) -> ValueError:
    return ValueError(f"config.json: field {name!r} is {shown(value)}; it must be {wanted}.")


def field(config: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """A field's value, or the default if it is absent or null. Raises ValueError if there is no default either."""
    value = config.get(name)
    value = default if value is None else value
    if value is None:
        raise UserError(f"config.json has no field {name!r}; the model cannot be built without it.")
    return value


def count(config: Mapping[str, Any], name: str, default: int | None = None, *, least: int = 1, most: int = MOST) -> int:
    """Like `field`, for a whole number between `least` and `most`."""
    value = field(config, name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _refusal(name, value, f"a whole number from {least} to {most}")
    return value


def number(config: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """Like `field`, for a finite number above 0."""
    value = field(config, name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
        raise _refusal(name, value, "a finite number above 0")
    return float(value)


def flag(config: Mapping[str, Any], name: str, default: bool) -> bool:
    """Like `field`, for true or false."""
    value = field(config, name, default)
    if not isinstance(value, bool):
        raise _refusal(name, value, "true or false")
    return value


def table(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object, empty if the field is absent or null. Raises ValueError for anything else."""
    value = field(config, name, {})
    if not isinstance(value, Mapping):
        raise _refusal(name, value, "an object")
    return value


def texts(config: Mapping[str, Any], name: str) -> list[str]:
    """A list of strings, empty if the field is absent or null. Raises ValueError for anything else."""
    value = field(config, name, [])
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise _refusal(name, value, "a list of texts")
    return value
