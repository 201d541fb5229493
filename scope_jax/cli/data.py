"""`scope-jax data`: published data sets as files of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scope_jax.cli.options import Json
from scope_jax.cli.output import check_place, show, tell
from scope_jax.errors import UserError


def data(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Data set, one of those in docs/data.md.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write: .jsonl or .jsonl.gz.")],
    source: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE_OR_HUB", help="Its files, or another name on the hub [default: its own]. Repeatable."
        ),
    ] = None,
    split: Annotated[str | None, typer.Option(help="Split on the hub [default: the data set's].")] = None,
    hub_config: Annotated[str | None, typer.Option(help="Configuration on the hub [default: the data set's].")] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="FILE", help="Answers of the baseline, for arena-hard-cw.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Convert a published data set into rows for cards and exams; invalid rows are kept beside it, with reasons."""
    if not out.name.endswith((".jsonl", ".jsonl.gz")):
        raise UserError(f"{out} is neither .jsonl nor .jsonl.gz; give such a name.")
    if out.parent.exists():
        check_place(out)
    from scope_jax.data.conversion import convert

    results = convert(name, out, source or (), split=split, hub_config=hub_config, baseline=baseline)
    first = results.pop("first_refused")
    if results["refused"]:
        tell(f"{results['refused']} rows could not be converted and are in {out}.refused.jsonl; the first: {first}")
    show(results, as_json)
