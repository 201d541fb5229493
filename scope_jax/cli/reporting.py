"""The command that writes the page of a run, or of several: report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scope_jax.cli.options import Json, TrustedHosts, trusted
from scope_jax.cli.output import check_local, check_run, show, tell
from scope_jax.cli.program import app
from scope_jax.errors import UserError


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folder, or several to be compared.")],
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve the report on this machine and renew it while the run goes on.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port for --watch; 0: a free one.")] = 0,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="PLACE",
            help="Folder of the report [default: RUN/report], or page of a comparison [default: in the first report].",
        ),
    ] = None,
    text: Annotated[
        bool, typer.Option("--text", help="Print when the steps were played and learned, of a run whose steps overlap.")
    ] = False,
    trusted_host: TrustedHosts = None,
    as_json: Json = False,
) -> None:
    """Write report/index.html in the run folder: curves, episodes. For several runs, a page that compares them."""
    from scope_jax.run.folder import missing

    for run in runs:
        check_local(run)
        check_run(run)
    if to is not None and len(runs) == 1 and to.is_file():
        raise UserError(f"{to} is a file; give a folder for the report, which has several files.")
    if to is not None and len(runs) > 1 and (to.is_dir() or to.suffix != ".html"):
        raise UserError(f"{to} cannot hold the page of a comparison; give a file that ends in .html.")
    if trusted_host and not watch:
        raise UserError("--trusted-host is for a report that is served; add --watch, or remove it.")
    if text:
        from scope_jax.report.timeline import timeline_of

        for run in runs:
            if (timeline := timeline_of(run)) is None:
                raise UserError(f"the steps of {run} do not overlap (train.max_staleness), so it has no timeline.")
            typer.echo(timeline.text())
        return
    if watch:
        if len(runs) > 1:
            raise UserError("--watch shows one run; give one run folder.")
        if to is not None:
            raise UserError(f"--watch shows the report in {runs[0] / 'report'}; remove --to.")
        from scope_jax.report.live import watch as serve

        serve(runs[0], port, tell, trusted(trusted_host))
        return
    if len(runs) > 1:
        from scope_jax.report.comparison import write_comparison

        page = write_comparison(runs, to or runs[0] / "report" / "comparison.html")
    else:
        from scope_jax.report.page import write_report

        page = write_report(runs[0], to=to)
    for run in runs:
        for warning in missing(run):
            tell(f"scope-jax: {warning}")
    show({"page": str(page)}, as_json)
