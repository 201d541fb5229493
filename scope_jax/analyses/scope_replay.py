"""The replay analysis of SCOPE's Table 4: the searches of one checkpoint, the answers of another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scope_jax.errors import UserError
from scope_jax.evaluate import scores
from scope_jax.learner.types import Metrics
from scope_jax.run.assemble import Tell
from scope_jax.run.examined import assemble_exam, exam_card, find, find_base, index_folder, take
from scope_jax.systems import scope


def replay(
    searcher: Path, writer: Path, card: Path | None, base: Path | None, overrides: Sequence[str], tell: Tell
) -> dict[str, Any]:
    """Metrics of evaluation sets on which the solver of `searcher` searched and that of `writer` answered.

    Both are runs of SCOPE, checkpoints of such or model folders, with the same model; without `card` that of the
    searcher's run is used. base and tell: as for `evaluate_target`. Returns {"searcher", "writer", "base", "metrics"};
    metrics are called `replay/<set>/<measure>`.
    """
    cfg = exam_card(searcher, card, overrides)
    if cfg.system != "scope":
        raise UserError(f"the card's system is {cfg.system!r}; only runs of scope can be replayed.")
    searches, writes, judge = find(searcher, cfg), find(writer, cfg), find_base(cfg, base)
    finishers = [writes, *([judge] if judge else [])]
    options: dict[str, Any] = {"temperature": cfg.evaluate.temperature, "max_tokens": cfg.evaluate.max_tokens}
    with index_folder(searcher, cfg) as folder:
        world = assemble_exam(cfg, searches, finishers, folder, tell)
        world.sampler.load({searches.policy: take(world, searches)})
        found = {
            exam: scope.trajectories(cfg, world.tools(f"replay {exam}"), rows, **options)
            for exam, rows in world.exams.items()
        }
        world.sampler.load({})
        world.sampler.load({one.policy: take(world, one) for one in finishers})
        metrics: Metrics = {}
        for exam, paths in found.items():
            metrics |= scores("replay", exam, scope.finish(cfg, world.tools(f"replay {exam}"), paths, **options))
    return {
        "searcher": str(searcher),
        "writer": str(writer),
        "base": str(judge.folder) if judge else None,
        "metrics": metrics,
    }
