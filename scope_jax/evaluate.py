"""Evaluation of weights on held-out questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scope_jax.learner.types import Metrics
from scope_jax.play import exams
from scope_jax.play.measures import MARKS, pass_at_k, standard_error
from scope_jax.play.rewards import mean
from scope_jax.run.assemble import Tell, World
from scope_jax.run.examined import assemble_exam, exam_card, find, find_base, index_folder, take

Records = list[exams.Record]
Keep = Callable[[str, Records, Metrics], None]  # told each evaluation set's name, records and metrics when it is done


def evaluate(world: World) -> Metrics:
    """`eval/<set>/<name>`: measures as means over each of the card's evaluation sets, counts as sums; see `scores`."""
    return {name: value for exam, records in answered(world) for name, value in scores("eval", exam, records).items()}


def answered(world: World) -> Iterator[tuple[str, Records]]:
    """(set, its records) of each evaluation set of the card, one after the other; see `exams.take`."""
    cfg, exam = world.cfg, world.system.exam(world.cfg)
    for card in cfg.evaluate.sets:
        yield card.name, exams.take(cfg, exam, world.tools(f"evaluate {card.name}"), world.exams[card.name], card)


def scores(kind: str, exam: str, records: Records) -> Metrics:
    """`<kind>/<set>/<name>` for each measure and each count of the records.

    A measure is the mean over the questions of the mean over the samples of a question that have it. `<measure>_se` is
    the standard error of that mean, over questions. Of marks with several samples also `<measure>_pass@<k>`, k = 2, 4 …
    """
    values = means(records) | totals(records)
    return {f"{kind}/{exam}/{name}": value for name, value in values.items()}


def means(records: Sequence[Mapping[str, Any]]) -> Metrics:
    """Measures, standard errors and pass@k of the records, as `scores` has them."""
    questions: list[list[Mapping[str, float]]] = []
    for record in records:
        if not record.get("sample"):
            questions.append([])
        questions[-1].append(record["measures"])
    found: Metrics = {}
    for name in dict.fromkeys(name for question in questions for sample in question for name in sample):
        samples = [own for question in questions if (own := [s[name] for s in question if name in s])]
        values = [mean(own) for own in samples]
        found[name] = mean(values)
        if (error := standard_error(values)) is not None:
            found[f"{name}_se"] = error
        fewest, k = min(map(len, samples)), 2
        while name in MARKS and k <= fewest:
            found[f"{name}_pass@{k}"] = mean([pass_at_k(len(own), round(sum(own)), k) for own in samples])
            k *= 2
    return found


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
        world.sampler.load({one.policy: take(world, one) for one in (examined, *judges)})
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
