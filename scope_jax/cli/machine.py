"""The command about the machine itself: selftest."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from scope_jax.cli.options import Json
from scope_jax.cli.output import tell
from scope_jax.cli.program import app


@app.command()
def selftest(
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Run the checks with this text in their names. Repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare kernels, engine and learner with references on the devices of this machine (minutes, mostly compilation).

    Exit code 1 if a check differs or ends in an error; docs/operations.md says what to do then.
    """
    import jax

    from scope_jax.selftest import selftest as checks

    kinds = sorted({device.device_kind for device in jax.local_devices()})
    tell(f"{jax.local_device_count()} × {' and '.join(kinds)}; each check compiles its programs")
    found = checks(tell, only or ())
    ran = [check for check in found["checks"] if check["status"] != "skipped"]
    skipped = len(found["checks"]) - len(ran)
    failed = [check["name"] for check in ran if check["status"] != "ok"]
    last = f"{len(ran) - len(failed)} of {len(ran)} checks passed, {skipped} have nothing to compare here"
    if failed:
        last += f"; these did not: {'; '.join(failed)} (docs/operations.md says what to do)"
    typer.echo(f"{last}.", err=as_json)
    if as_json:
        typer.echo(json.dumps(found))
    if failed:
        raise typer.Exit(1)
