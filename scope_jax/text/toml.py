"""Reads TOML files that users write, and those that a run writes, with a check sum in their first line."""

from __future__ import annotations

import re
import tomllib
import zlib
from pathlib import Path
from typing import Any

_SUM = re.compile(rb"# CRC-32 of the lines below: ([0-9a-f]{8})\n")


def with_sum(text: str) -> str:
    """The text of a file with a check sum, which `tables` compares."""
    return f"# CRC-32 of the lines below: {zlib.crc32(text.encode()):08x}\n{text}"


def has_sum(path: Path) -> bool:
    """Whether a file begins with a check sum: a run wrote it, and nobody has edited it."""
    with path.open("rb") as file:
        return _SUM.match(file.readline()) is not None


def tables(path: Path) -> dict[str, Any]:
    """The contents of a TOML file, with or without a byte order mark, as some editors write it.

    Raises ValueError with a clause that says what is wrong, and OSError for a file that cannot be opened.
    """
    content = path.read_bytes()
    match = _SUM.match(content)
    if match and int(match[1], 16) != zlib.crc32(content[match.end() :]):
        raise ValueError(
            "it is not as scope-jax wrote it (the check sum in its first line differs); put it back, or if you have "
            "edited it remove that line"
        )
    try:
        return tomllib.loads(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"not UTF-8 (byte {error.start + 1} is 0x{error.object[error.start]:02x}); save the file as UTF-8"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"not valid TOML: {error}") from None
    except RecursionError:
        raise ValueError("not valid TOML: nested too deeply") from None
    except ValueError:  # Python's limit for the digits of an integer
        raise ValueError("not valid TOML: a number with too many digits") from None
