"""Arguments that several commands take, and the output of their results."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from scope_jax.errors import UserError

if TYPE_CHECKING:
    from scope_jax.config import Config

Card = Annotated[
    Path, typer.Argument(metavar="CARD", help="Experiment card, a TOML file such as configs/ssp/atlas.toml.")
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]
Run = Annotated[Path, typer.Option("--run", metavar="DIR", help="Run folder; an existing run in it is resumed.")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override one key of the card, e.g. --set train.steps=10. Repeatable."
    ),
]
Base = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Model folder of the base model that judges, if the game has one [default: the card's model].",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the results as one JSON object on the last line.")]


def load(path: Path, overrides: list[str] | None) -> Config:
    from scope_jax.config import load_card

    return load_card(path, overrides or ())


def console() -> Console:
    # Results go to standard output, progress and messages to standard error; of several processes, one shows them.
    from scope_jax.run.processes import writes

    return Console(stderr=True, highlight=False, quiet=not writes())


def tell(sentence: str) -> None:
    typer.echo(sentence, err=True)


def show(results: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(results))
        return
    for key, value in _flat(results):
        typer.echo(f"{key:<36} {value:.4g}" if isinstance(value, float) else f"{key:<36} {value}")


def _flat(results: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in results.items():
        rows += _flat(value, f"{prefix}{key} ") if isinstance(value, dict) else [(prefix + key, value)]
    return rows


def check_place(path: Path) -> None:
    """Raises UserError if the file cannot be written."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; give a file name.")
    if not os.access(path.absolute().parent, os.W_OK):
        raise UserError(
            f"{path} cannot be written: {path.parent} does not exist or is not writable; choose another place."
        )
