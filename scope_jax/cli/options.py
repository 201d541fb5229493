"""Arguments that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from scope_jax.config import Config

Card = Annotated[
    Path,
    typer.Argument(
        metavar="CARD", help="Experiment card: a TOML file, or the name of a shipped card, such as ssp/atlas."
    ),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]
RunPlace = Annotated[
    str,
    typer.Option(
        "--run",
        metavar="DIR",
        help="Run folder, also gs://bucket/path or s3://bucket/path; an existing run in it is resumed.",
    ),
]
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
Json = Annotated[bool, typer.Option("--json", help="Print the results as JSON on the last line.")]

TrustedHosts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A further name of this server, of which clients ask; others are refused. Repeatable.",
    ),
]


def load(path: Path, overrides: list[str] | None) -> Config:
    from scope_jax.games import load_card

    return load_card(path, overrides or ())


def trusted(names: list[str] | None) -> list[str]:
    """The values of --trusted-host. Raises UserError for one that is no name of a host."""
    from scope_jax.errors import UserError
    from scope_jax.web.guard import host_name

    try:
        return [host_name(name) for name in names or ()]
    except ValueError as error:
        raise UserError(f"--trusted-host: {error}") from None
