"""The replay analysis of SCOPE's Table 4: the searches of one checkpoint, the answers of another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scope_jax.assemble import assemble
from scope_jax.checkpoint import load, locate
from scope_jax.config import load_card
from scope_jax.errors import UserError
from scope_jax.evaluate import means
from scope_jax.systems import scope
from scope_jax.types import Metrics


def run_of(target: Path) -> Path:
    """The run folder that `target` is, or is a checkpoint of. Raises UserError for any other folder."""
    for place in (target, *target.parents[:2]):
        if (place / "config.toml").is_file():
            return place
    raise UserError(f"{target} is no run folder (it has no config.toml) and no checkpoint of one; give one of these.")


def replay(searcher: Path, writer: Path, card: Path | None, overrides: Sequence[str]) -> dict[str, Any]:
    """Metrics and records of evaluation sets on which the solver of `searcher` searched and that of `writer` answered.

    Both are runs of SCOPE, or checkpoints of such, with the same model; without `card` the searcher's own is used.
    Returns {"searcher", "writer", "metrics", "records"}; metrics are called `replay/<set>/<measure>`.
    """
    cfg = load_card(card or run_of(searcher) / "config.toml", overrides)
    if cfg.system != "scope":
        raise UserError(f"the card's system is {cfg.system!r}; only runs of scope can be replayed.")
    if not cfg.evaluate.sets:
        raise UserError("the card names no evaluation set; add an [[evaluate.sets]] table with name and path.")
    trainer = assemble(cfg, run_of(searcher))
    world = trainer.world
    options: dict[str, Any] = {"temperature": cfg.evaluate.temperature, "max_tokens": cfg.evaluate.max_tokens}
    world.voices.publish(trainer.start(load(locate(searcher), trainer.targets()))[0])
    found = {
        exam: scope.trajectories(cfg, world.tools(f"replay {exam}"), rows, **options)
        for exam, rows in world.exams.items()
    }
    world.voices.publish(trainer.start(load(locate(writer), trainer.targets()))[0])
    metrics: Metrics = {}
    records: dict[str, list[dict[str, Any]]] = {}
    for name, paths in found.items():
        records[name] = scope.finish(cfg, world.tools(f"replay {name}"), paths, **options)
        metrics |= {f"replay/{name}/{measure}": value for measure, value in means(records[name]).items()}
    return {"searcher": str(searcher), "writer": str(writer), "metrics": metrics, "records": records}
