"""The command that builds a search index or clusters of documents: index."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scope_jax.cli.options import Card, Json, Sets, load
from scope_jax.cli.output import console, show, tell
from scope_jax.cli.program import app
from scope_jax.errors import UserError

if TYPE_CHECKING:
    from scope_jax.config import Config


@app.command()
def index(
    card: Card,
    clusters: Annotated[
        bool, typer.Option("--clusters", help="Build clusters of documents instead, as set in [clusters] of CARD.")
    ] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Delete existing output and rebuild it.")] = False,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Build the search index of CARD (retrieval.index), or its clusters; an interrupted build is resumed."""
    from scope_jax.run.fetching import fetched

    cfg = load(card, set_)
    if not clusters and (cfg.retrieval is None or cfg.retrieval.index is None):
        raise UserError(f"{card} has no index folder; add retrieval.index to it or pass --set retrieval.index=DIR.")
    if clusters:
        _prepare_clusters(fetched(cfg, tell, only=("clusters", "evaluate")), rebuild, as_json)
        return
    retrieval = fetched(cfg, tell, only=("retrieval",)).retrieval  # not the model, which no index needs
    assert retrieval is not None
    assert retrieval.index is not None
    from scope_jax.report.progress import Progress
    from scope_jax.run.indexing import index_mesh, open_or_build_index

    began = time.monotonic()
    with Progress(console()) as progress:
        progress.say(f"indexing {retrieval.corpus} in {retrieval.index}")
        retriever = open_or_build_index(
            retrieval, Path(retrieval.index), index_mesh(), progress.part, rebuild, progress.say
        )
    seconds = time.monotonic() - began
    results = {"index": retrieval.index, "passages": len(retriever.corpus), "seconds": seconds}
    show(results, as_json)


def _prepare_clusters(cfg: Config, rebuild: bool, as_json: bool) -> None:
    from scope_jax.report.progress import Progress
    from scope_jax.run.clustering import prepare_clusters
    from scope_jax.run.indexing import index_mesh

    began = time.monotonic()
    worked = False

    def part(name: str, done: int, total: int) -> None:
        nonlocal worked
        worked = True
        progress.part(name, done, total)

    with Progress(console()) as progress:
        found = prepare_clusters(cfg, index_mesh(), part, rebuild, progress.say)
        if not worked:
            progress.say(f"the clusters in {cfg.clusters.folder} are complete; nothing to do")
    shown = {key: value for key, value in found.items() if key not in ("sources", "examples")}
    show({"folder": cfg.clusters.folder, **shown, "seconds": time.monotonic() - began}, as_json)
