"""Commands that answer evaluation sets and exams, and prepare data: eval, data, replay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scope_jax.cli import data, exams
from scope_jax.cli.options import Base, Json, Sets
from scope_jax.cli.output import check_local, show, tell
from scope_jax.cli.program import app
from scope_jax.errors import UserError

app.command("eval")(exams.evaluate)
app.command("data")(data.data)


@app.command()
def replay(
    searcher: Annotated[
        Path, typer.Argument(metavar="SEARCHER", help="SCOPE run, checkpoint or model folder that searches.")
    ],
    writer: Annotated[
        Path, typer.Argument(metavar="WRITER", help="SCOPE run, checkpoint or model folder that writes the answers.")
    ],
    card: Annotated[Path | None, typer.Option(help="Card with the evaluation sets [default: the searcher's].")] = None,
    base: Base = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Answer evaluation sets with the searches of one checkpoint and the answers of another (SCOPE Table 4)."""
    for folder in (searcher, writer):
        check_local(folder)
        if not folder.is_dir():
            raise UserError(
                f"the folder {folder} does not exist; give a SCOPE run, a checkpoint or a Hugging Face folder."
            )
    from scope_jax.analyses.scope_replay import replay as play_again

    show(play_again(searcher, writer, card, base, set_ or [], tell), as_json)
