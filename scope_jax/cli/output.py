"""What commands print: results on standard output, messages on standard error."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from scope_jax.errors import UserError, without_passwords

WEIGHTS = "a run, one of its checkpoints or a Hugging Face folder"


def console() -> Console:
    # Results go to standard output, progress and messages to standard error; of several processes, one shows them.
    from scope_jax.run.processes import writes

    return Console(stderr=True, highlight=False, emoji=False, quiet=not writes())


def tell(sentence: str) -> None:
    """Prints a message."""
    typer.echo(without_passwords(sentence), err=True)


def show(results: dict[str, Any], as_json: bool) -> None:
    """Prints results, one per line, or as one JSON object."""
    if as_json:
        typer.echo(json.dumps(_finite(results), allow_nan=False))
        return
    for key, value in _flat(results):
        typer.echo(f"{key:<36} {value:.4g}" if isinstance(value, float) else f"{key:<36} {value}")


def _finite(value: Any) -> Any:
    """With null for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _flat(results: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in results.items():
        rows += _flat(value, f"{prefix}{key} ") if isinstance(value, dict) else [(prefix + key, value)]
    return rows


def check_local(path: Path) -> None:
    """Raises UserError for a path on object storage, which pathlib has shortened to one slash."""
    if path.parts and path.parts[0] in ("gs:", "s3:"):
        raise UserError(
            f"{path.parts[0]}//{'/'.join(path.parts[1:])} is on object storage; copy it to a local folder first "
            "(docs/operations.md)."
        )


def check_run(run: Path) -> None:
    """Raises UserError unless the path is a folder."""
    if not run.is_dir():
        wrong = "is a file" if run.exists() else "does not exist"
        raise UserError(f"the run folder {run} {wrong}; give the folder passed to train as --run.")


def check_folder(folder: Path, give: str) -> None:
    """Raises UserError unless the path is a folder. give: what is wanted."""
    check_local(folder)
    if not folder.is_dir():
        wrong = f"{folder} is a file" if folder.exists() else f"the folder {folder} does not exist"
        raise UserError(f"{wrong}; give {give}.")


def check_place(path: Path) -> None:
    """Raises UserError if the file cannot be written."""
    check_local(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder; give a file name.")
    if not os.access(path.absolute().parent, os.W_OK):
        raise UserError(
            f"{path} cannot be written: {path.parent} does not exist or is not writable; choose another place."
        )
