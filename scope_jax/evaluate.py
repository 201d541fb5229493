"""Evaluation of weights on held-out questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scope_jax.learner.types import Metrics
from scope_jax.play import exams
from scope_jax.play.measures import MARKS, pass_at_k, standard_error
from scope_jax.play.rewards import mean
from scope_jax.run import evaluations
from scope_jax.run.checkpoint import run_of
from scope_jax.run.examined import assemble_exam, exam_card, find, find_base, fitted, index_folder, load_into
from scope_jax.run.world import Tell, World

Records = list[exams.Record]
Keep = Callable[[str, Records, Metrics], None]  # called with name, records and metrics of each finished evaluation set


def evaluate(world: World) -> tuple[Metrics, dict[str, Records]]:
    """(`eval/<set>/<name>` for each evaluation set of the card, see `scores`; the records by name of the set)."""
    found = dict(answered(world))
    return {key: value for exam, own in found.items() for key, value in scores("eval", exam, own).items()}, found


def answered(world: World) -> Iterator[tuple[str, Records]]:
    """(name, records) of each evaluation set of the card, one after the other; see `exams.take`."""
    cfg, exam = world.cfg, world.game.exam(world.cfg)
    for card in cfg.evaluate.sets:
        yield (
            card.name,
            exams.take(cfg, exam, world.tools(f"evaluate {card.name}", exam=True), world.exams[card.name], card),
        )


def scores(kind: str, exam: str, records: Records) -> Metrics:
    """`<kind>/<set>/<name>` for each measure and each count of the records.

    A measure is averaged over the samples of each question that have it, then over questions. `<measure>_se` is the
    standard error of that mean over questions. For 0/1 measures with several samples, also `<measure>_pass@<k>`,
    k = 2, 4 …
    """
    values = means(records) | totals(records)
    return {f"{kind}/{exam}/{name}": value for name, value in values.items()}


def means(records: Sequence[Mapping[str, Any]]) -> Metrics:
    """Measures, standard errors and pass@k of the records, see `scores`."""
    questions: list[list[Mapping[str, float]]] = []
    for record in records:
        if not record.get("sample"):
            questions.append([])
        questions[-1].append(record["measures"])
    found: Metrics = {}
    for name in dict.fromkeys(name for question in questions for sample in question for name in sample):
        samples = [values for question in questions if (values := [s[name] for s in question if name in s])]
        averages = [mean(values) for values in samples]
        found[name] = mean(averages)
        if (error := standard_error(averages)) is not None:
            found[f"{name}_se"] = error
        fewest, k = min(map(len, samples)), 2
        while name in MARKS and k <= fewest:
            found[f"{name}_pass@{k}"] = mean([pass_at_k(len(values), round(sum(values)), k) for values in samples])
            k *= 2
    return found


def totals(records: Sequence[Mapping[str, Any]]) -> Metrics:
    """The sum of each count."""
    names = dict.fromkeys(name for record in records for name in record["counts"])
    return {name: float(sum(record["counts"].get(name, 0) for record in records)) for name in names}


def evaluate_target(
    target: Path, card: Path | None, base: Path | None, overrides: Sequence[str], keep: Keep, tell: Tell
) -> dict[str, Any]:
    """Evaluation metrics of a run folder (its newest checkpoint), a checkpoint or a model folder.

    A run, or a checkpoint or export in it, is evaluated with its own config unless `card` is given; overrides apply to
    either. base: folder of the base model if it judges, None: the card's `model.checkpoint`. tell: as for `assemble`.
    The answers of a run's checkpoints are also kept in the run (`run.evaluations`).
    Returns {"target", "step" (None for a model folder), "base" (None if it does not judge), "metrics"}.
    """
    cfg = exam_card(target, card, overrides)
    examined, judge = find(target, cfg), find_base(cfg, base)
    cfg = fitted(cfg, examined)
    judges = [judge] if judge else []
    with index_folder(target, cfg) as folder:
        world = assemble_exam(cfg, examined, judges, folder, tell)
        load_into(world, [examined, *judges])
        metrics: Metrics = {}
        for exam, records in answered(world):
            measured = scores("eval", exam, records)
            keep(exam, records, measured)
            evaluations.keep(run_of(target), examined.step, exam, records, measured)
            metrics |= measured
    return {
        "target": str(target),
        "step": examined.step,
        "base": str(judge.folder) if judge else None,
        "metrics": metrics,
    }
