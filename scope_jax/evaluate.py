"""How well weights answer questions they never learned from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scope_jax.learner.types import Metrics
from scope_jax.play.rewards import mean
from scope_jax.run.assemble import Tell, World
from scope_jax.run.examined import assemble_exam, exam_card, find, find_base, index_folder, take

Records = list[dict[str, Any]]
Keep = Callable[[str, Records, Metrics], None]  # told each evaluation set's name, records and metrics when it is done


def evaluate(world: World) -> Metrics:
    """`eval/<set>/<name>`: the game's measures as means over each of the card's evaluation sets, its counts as sums.

    Every row is played once at the card's evaluation temperature. A row counts in the means of the measures it has.
    """
    return {name: value for exam, records in answered(world) for name, value in scores("eval", exam, records).items()}


def answered(world: World) -> Iterator[tuple[str, Records]]:
    """(set, its records) of each evaluation set of the card, one after the other."""
    cfg = world.cfg
    options: dict[str, Any] = {"temperature": cfg.evaluate.temperature, "max_tokens": cfg.evaluate.max_tokens}
    for exam, rows in world.exams.items():
        yield exam, world.system.answer(cfg, world.tools(f"evaluate {exam}"), rows, **options)


def scores(kind: str, exam: str, records: Records) -> Metrics:
    """`<kind>/<set>/<name>` for each measure and each count of the records."""
    return {f"{kind}/{exam}/{name}": value for name, value in (means(records) | totals(records)).items()}


def means(records: Sequence[Mapping[str, Any]]) -> Metrics:
    """The mean of each measure over the records that have it."""
    names = dict.fromkeys(name for record in records for name in record["measures"])
    return {name: mean([r["measures"][name] for r in records if name in r["measures"]]) for name in names}


def totals(records: Sequence[Mapping[str, Any]]) -> Metrics:
    """The sum of each count."""
    names = dict.fromkeys(name for record in records for name in record["counts"])
    return {name: float(sum(record["counts"].get(name, 0) for record in records)) for name in names}


def evaluate_target(
    target: Path, card: Path | None, base: Path | None, overrides: Sequence[str], keep: Keep, tell: Tell
) -> dict[str, Any]:
    """Metrics of a run folder (its newest checkpoint), a checkpoint or a model folder under a card.

    A run, and what lies in it, is evaluated under its own config unless `card` names another; overrides apply to
    either. base: the model folder that judges where the game's judge is the base; the card's `model.checkpoint`
    otherwise. tell: as for `assemble`. Returns {"target", "step" (None for a model folder), "base" (None if none
    judges), "metrics"}.
    """
    cfg = exam_card(target, card, overrides)
    examined, judge = find(target, cfg), find_base(cfg, base)
    judges = [judge] if judge else []
    with index_folder(target, cfg) as folder:
        world = assemble_exam(cfg, examined, judges, folder, tell)
        world.voices.place({one.policy: take(world, one) for one in (examined, *judges)})
        metrics: Metrics = {}
        for exam, records in answered(world):
            measured = scores("eval", exam, records)
            keep(exam, records, measured)
            metrics |= measured
    return {
        "target": str(target),
        "step": examined.step,
        "base": str(judge.folder) if judge else None,
        "metrics": metrics,
    }
