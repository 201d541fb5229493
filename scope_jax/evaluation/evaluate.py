"""Evaluation of a model, from the weights or the run where training stands to the metrics of each set.

Three kinds of models take part. The weights that answer come from a checkpoint of a run or from a folder. If the base
grades, it is the folder given by --base, or else the card's `model.checkpoint`. External judges are those of the card.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scope_jax.config import Config, JudgeSection
from scope_jax.config.suites import SuiteCard
from scope_jax.errors import UserError
from scope_jax.evaluation import evaluations
from scope_jax.evaluation.measuring import ExamSet, Record
from scope_jax.evaluation.metrics import set_metrics
from scope_jax.evaluation.suites import plain_card, suite_sets
from scope_jax.evaluation.weights import (
    StoredWeights,
    base_folder,
    card_of,
    check_alike,
    find_weights,
    index_folder,
    load_into,
    model_folder,
    with_adapter,
)
from scope_jax.games import game_of
from scope_jax.learner.types import Metrics
from scope_jax.models.files import peft, weights
from scope_jax.play import exams
from scope_jax.play.exams import Answer
from scope_jax.play.tools import Tools
from scope_jax.run.adapters import base_of, kind_of
from scope_jax.run.assemble import assemble_world, or_closed
from scope_jax.run.checkpoint import run_of
from scope_jax.run.meshes import all_generate
from scope_jax.run.opened import OpenedCard
from scope_jax.run.rules import SAMPLING, enforce
from scope_jax.run.sizes import free_sizes, told
from scope_jax.run.world import Tell, World

Records = list[Record]
Keep = Callable[[str, Records, Metrics], None]  # called with name, records and metrics of each set that is finished
Answering = Callable[[ExamSet, Tools], list[Answer]]


def evaluate_sets(
    sets: Sequence[ExamSet],
    tools: Callable[[str], Tools],
    keep: Keep,
    kind: str = "eval",
    answers: Answering = ExamSet.answers,
) -> Metrics:
    """`<kind>/<set>/<name>` of the sets, answered and measured one after the other, see `set_metrics`.

    tools: of the set with this name. answers: how a set is answered.
    """
    metrics: Metrics = {}
    for one in sets:
        of_set = tools(one.name)
        records = one.records(of_set, answers(one, of_set))
        values = set_metrics(kind, one.name, records)
        if one.counts_questions:
            values[f"{kind}/{one.name}/questions"] = float(len(one.rows))
        keep(one.name, records, values)
        metrics |= values
    return metrics


def evaluate(world: World) -> tuple[Metrics, dict[str, Records]]:
    """(metrics of each evaluation set of the card, their records by name of the set) for the weights that a run has
    published."""
    exam, records = world.game.exam_of(world.cfg), dict[str, Records]()
    sets = [ExamSet(world.cfg, exam, card, world.exams[card.name]) for card in world.cfg.evaluate.sets]
    with world.sampler.unquantized():
        metrics = evaluate_sets(sets, tools_of(world), lambda name, rows, values: records.update({name: rows}))
    return metrics, records


def tools_of(world: World, kind: str = "evaluate") -> Callable[[str], Tools]:
    """The tools for a set by its name; `kind` and name enter the key of every sample."""
    return lambda name: world.tools(f"{kind} {name}", exam=True)


# ----------------------------------------------------------------------------------------------------- models on disk
@dataclass(frozen=True)
class Evaluation:
    """A model on disk with the sets it is to answer, and the world for that, in which no weights are loaded yet."""

    world: World
    sets: Sequence[ExamSet]
    model: StoredWeights
    """The weights that answer."""
    others: Sequence[StoredWeights]
    """Further weights that answer (`replay`)."""
    base: StoredWeights | None
    """The base if it grades."""

    def load(self, models: Sequence[StoredWeights], base: bool = True) -> None:
        """Loads these weights, and those of the base if it grades, in place of earlier ones."""
        load_into(self.world, [*models, *([self.base] if base and self.base else [])])


@contextmanager
def evaluation(
    targets: Sequence[Path],
    card: Path | None,
    base: Path | None,
    overrides: Sequence[str],
    sets_of: Callable[[Config], Sequence[ExamSet]],
    tell: Tell,
    plain: bool = False,
) -> Iterator[Evaluation]:
    """The evaluation of the weights in `targets`: each a run folder (its newest checkpoint), a checkpoint or a folder
    of a model or an adapter; all checked, and nothing loaded.

    card: None for that of the first target's run; overrides apply to either. plain: without either, a card without a
    game will do. base: folder of the base if it grades, None: the card's `model.checkpoint`. sets_of: the sets for the
    card. tell: as for `assemble`. All weights share one engine and one tokenizer: those of the first target, or of the
    card if that is a checkpoint. Raises UserError if others have another architecture, tokenizer or chat template.
    """
    target = targets[0]
    cfg = card_of(target, card, overrides)
    if cfg is None and not plain:
        raise UserError(
            f"{target} is not a run folder (it has no config.toml), so it has no evaluation sets of its own; give the "
            "card that has some, for an export --card RUN/config.toml, or benchmarks with --exam."
        )
    alone = cfg is None
    if cfg is None:
        home = base_of(target, overrides) if peft.is_adapter(target) else str(target)
        positions = weights.load_config(home).max_positions if weights.is_model(Path(home)) else None
        cfg = plain_card(home, overrides, positions)
    model, *others = (find_weights(place, cfg) for place in targets)
    for place, other in zip(targets[1:], others, strict=True):
        if kind_of(with_adapter(cfg, model)) != kind_of(with_adapter(cfg, other)):
            raise UserError(
                f"{target} and {place} are not adapters of one kind; write whole weights with export --merge."
            )
    cfg = with_adapter(cfg, model)
    sets = sets_of(cfg)
    grader = base_folder(cfg, base, any(exams.uses_base(one.cfg, one.exam) for one in sets))
    folder = model_folder(cfg, model)
    for other in [*others, *([grader] if grader else [])]:
        check_alike(cfg, folder, model_folder(cfg, other))
    longest = max(cfg.rollout.max_length, cfg.exam_length)  # of an episode, with whatever sets
    changes = {
        "evaluate": cfg.evaluate.model_copy(update={"sets": ()}),  # whose rows are here already
        "rollout": cfg.rollout.model_copy(update={"max_length": longest}),
    }
    world_cfg = all_generate(cfg.model_copy(update=changes))
    searches = any(one.exam.role.may_search for one in sets)
    with index_folder(target, cfg) as index:
        opened = OpenedCard(world_cfg, str(folder), searches=searches, judges=judges_of(sets))
        with or_closed(opened):
            enforce(opened, SAMPLING, tell)
            chosen = free_sizes(overrides, card=not alone).difference(("max_length",))  # which the sets need
            world = assemble_world(opened, index, tell=tell, chosen=chosen)
        tell(told(world.local.engine))
        with closing(world):
            yield Evaluation(world, sets, model, others, grader)


def card_sets(cfg: Config) -> list[ExamSet]:
    """The evaluation sets of the card, checked as in `ExamSet.load`. Raises UserError if it has none."""
    if not cfg.evaluate.sets:
        raise UserError("the card has no evaluation set; add an [[evaluate.sets]] table with name and path.")
    exam = game_of(cfg).exam_of(cfg)
    return [ExamSet.load(cfg, exam, eval_set) for eval_set in cfg.evaluate.sets]


def judges_of(sets: Sequence[ExamSet]) -> dict[str, JudgeSection]:
    """The external models that the sets use, by name."""
    return {name: table for one in sets for name, table in exams.judges(one.cfg, one.exam).items()}


def evaluate_model(
    target: Path,
    card: Path | None,
    base: Path | None,
    overrides: Sequence[str],
    keep: Keep,
    tell: Tell,
    suites: Sequence[SuiteCard] = (),
    given: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """The metrics of the weights in `target`, see `evaluation`, on these suites, or without any on the sets of the
    card. given: keys of the suites that the command sets, see `suite_sets`.

    A folder may answer suites without a card. The answers of a run's checkpoints are also kept in the run
    (`evaluations`). Returns {"target", "step" (None for a folder), "base" (None if it does not grade), "metrics"}.
    """
    alone = bool(suites) and card is None and run_of(target) is None

    def sets_of(cfg: Config) -> list[ExamSet]:
        return suite_sets(cfg, suites, not alone, overrides, given, tell) if suites else card_sets(cfg)

    with evaluation([target], card, base, overrides, sets_of, tell, plain=alone) as ready:
        ready.load([ready.model])

        def keep_both(name: str, records: Records, metrics: Metrics) -> None:
            keep(name, records, metrics)
            evaluations.keep(run_of(target), ready.model.step, name, records, metrics)

        metrics = evaluate_sets(ready.sets, tools_of(ready.world), keep_both)
    grader = str(ready.base.folder) if ready.base else None
    return {"target": str(target), "step": ready.model.step, "base": grader, "metrics": metrics}
