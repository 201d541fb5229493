"""Reads TOML files that users write."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


def tables(path: Path) -> dict[str, Any]:
    """The contents of a TOML file, with or without a byte order mark, as some editors write it.

    Raises ValueError with a clause that says what is wrong, and OSError for a file that cannot be opened.
    """
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
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
