"""Exam suites on a run, a checkpoint, a model folder or an endpoint.

A suite is answered as the card's game answers questions, with its prompt, turns and searches, if the suite lists the
game and a card is given; otherwise with the suite's own prompt, in one turn, without searches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from scope_jax.config import Config, EvalSet, JudgeSection, parse_section
from scope_jax.config.exams import EvalSection
from scope_jax.config.suites import SuiteCard
from scope_jax.data import sources
from scope_jax.data.sources import Source
from scope_jax.errors import UserError
from scope_jax.evaluate import Keep, Records, scores
from scope_jax.games import game_of, overridden
from scope_jax.learner.types import Metrics
from scope_jax.models import peft
from scope_jax.models.tokenizer import Tokenizer
from scope_jax.play import exams, suites
from scope_jax.play.exams import Exam
from scope_jax.play.judge_client import JudgeClient
from scope_jax.play.math_answers import MathAnswers
from scope_jax.play.tools import Tools
from scope_jax.run import evaluations
from scope_jax.run.adapters import base_of
from scope_jax.run.assemble import assemble_world
from scope_jax.run.checkpoint import run_of
from scope_jax.run.examined import (
    base_folder,
    check_alike,
    exam_card,
    find,
    fitted,
    index_folder,
    load_into,
    model_folder,
)
from scope_jax.run.meshes import all_generate
from scope_jax.run.remote import RemoteTools
from scope_jax.run.world import Tell


@dataclass(frozen=True)
class Sitting:
    """One suite, ready to be answered: the card with its [evaluate] table, the exam, the set and its rows."""

    cfg: Config
    exam: Exam
    card: EvalSet
    rows: Sequence[exams.Row]

    def answered(self, tools: Tools) -> Records:
        """The records of all answers."""
        return exams.take(self.cfg, self.exam, tools, self.rows, self.card)


def sittings(
    cfg: Config, wanted: Sequence[SuiteCard], as_game: bool, overrides: Sequence[str], given: frozenset[str], tell: Tell
) -> list[Sitting]:
    """The suites with their rows and prompts, checked. as_game: the card's game may answer with its own prompt.

    overrides, given: see `examine`. Raises ValueError or FileNotFoundError with one sentence for rows, prompts or
    judges that are missing or invalid.
    """
    found = []
    _tell_unjudged(cfg, wanted, tell)
    for original in wanted:
        suite = _raised(cfg, original, overrides, given)
        card = EvalSet(**{name: getattr(suite, name) for name in EvalSet.model_fields})
        own_cfg = cfg.model_copy(update={"evaluate": _evaluate(cfg, card)})
        game = game_of(cfg).exam(own_cfg)
        own = game if as_game and cfg.system in suite.games else None
        if own is not None and own.prompt_tokens is not None and suite.prompt_tokens and "prompt_tokens" not in given:
            suite = suite.model_copy(update={"prompt_tokens": max(suite.prompt_tokens, own.prompt_tokens)})
        exam = suites.exam(own_cfg, suite, own, game.policy)
        rows = sources.load(Source(card.path, exams.kind_of(exam, card), card))
        exams.check_prompts(own_cfg, exam, {card.name: rows})
        exams.judges(own_cfg, exam)
        found.append(Sitting(own_cfg, exam, card, rows))
    return found


def _tell_unjudged(cfg: Config, wanted: Sequence[SuiteCard], tell: Tell) -> None:
    """Says that the accuracy of documents is not the paper's without its judge (SPELL C.2)."""
    names = [suite.name for suite in wanted if suite.form == "document" and "accuracy" in suite.measures]
    if names and cfg.evaluate.judge is None:
        tell(
            f"{', '.join(names)}: without [evaluate.judge], accuracy is the rule's alone; SPELL's tables take the "
            "larger of it and a judge's verdict. For figures beside them add --set "
            """'evaluate.judge={url="…", model="…", max_tokens=4096}'."""
        )


def _raised(cfg: Config, suite: SuiteCard, overrides: Sequence[str], given: frozenset[str]) -> SuiteCard:
    """The suite with the sampling that --set gives, and at least as many tokens of an answer as the card allows: SPELL
    C.2 gives 4K to models that do not think, 20K to those that do, whose cards say so."""
    keys = {override.partition("=")[0].strip() for override in overrides}
    sampled = {"max_tokens", "temperature", "top_p", "top_k"} - given
    changes = {key: getattr(cfg.evaluate, key) for key in sampled if f"evaluate.{key}" in keys}
    if suite.max_tokens and "max_tokens" in sampled - changes.keys() & cfg.evaluate.model_fields_set:
        changes["max_tokens"] = max(suite.max_tokens, cfg.evaluate.max_tokens)
    return suite.model_copy(update=changes)


def _evaluate(cfg: Config, card: EvalSet) -> EvalSection:
    """[evaluate] of the card with this one set; a reply may be as long as the set allows."""
    table = {name: getattr(cfg.evaluate, name) for name in EvalSection.model_fields}
    longest = max(cfg.evaluate.max_response_tokens, card.max_tokens or 0)
    return parse_section(
        EvalSection, table | {"sets": (card,), "max_response_tokens": longest}, f"the exam {card.name}"
    )


def _judges(taken: Sequence[Sitting]) -> dict[str, JudgeSection]:
    return {name: table for one in taken for name, table in exams.judges(one.cfg, one.exam).items()}


def examine(
    target: Path,
    wanted: Sequence[SuiteCard],
    card: Path | None,
    base: Path | None,
    overrides: Sequence[str],
    keep: Keep,
    tell: Tell,
    given: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """The results of the weights of a run (its newest checkpoint), a checkpoint or a model folder.

    card: as for `evaluate_target`; a model folder without one is examined with `plain_card`. given: keys of the suites
    that the command sets, over which nothing in the card has a say. Returns {"target", "step",
    "base", "metrics"} and keeps answers as `evaluate_target`.
    """
    alone = card is None and run_of(target) is None
    plain = base_of(target, overrides) if peft.is_adapter(target) else str(target)
    cfg = plain_card(plain, overrides) if alone else exam_card(target, card, overrides)
    examined = find(target, cfg)
    cfg = fitted(cfg, examined)
    taken = sittings(cfg, wanted, not alone, overrides, given, tell)
    judge = base_folder(cfg, base, any(exams.uses_base(one.cfg, one.exam) for one in taken))
    others = [judge] if judge else []
    # one world for all suites, without the card's own sets; without the index if no suite searches
    bare: dict[str, Any] = {"evaluate": cfg.evaluate.model_copy(update={"sets": ()})}
    if all(one.exam.respond is None for one in taken):
        bare["retrieval"] = None
    world_cfg = cfg.model_copy(update=bare)
    folder = model_folder(cfg, examined)
    for other in others:
        check_alike(cfg, folder, model_folder(cfg, other))
    with index_folder(target, cfg) as index:
        world = assemble_world(all_generate(world_cfg), index, str(folder), _judges(taken), tell=tell)
        load_into(world, [examined, *others])

        def both(name: str, records: Records, measured: Metrics) -> None:
            keep(name, records, measured)
            evaluations.keep(run_of(target), examined.step, name, records, measured)

        metrics = _answer(taken, lambda name: world.tools(f"evaluate {name}", exam=True), both)
    return {
        "target": str(target),
        "step": examined.step,
        "base": str(judge.folder) if judge else None,
        "metrics": metrics,
    }


def examine_endpoint(
    endpoint: JudgeSection,
    wanted: Sequence[SuiteCard],
    overrides: Sequence[str],
    keep: Keep,
    tell: Tell,
    given: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """The results of a model behind an OpenAI-compatible endpoint, in the form of `examine`.

    It gets the suites' own prompts. `model.tokenizer` among the overrides is used to count tokens.
    """
    datasets.disable_progress_bars()
    cfg = plain_card(endpoint.model, overrides)
    taken = sittings(cfg, wanted, False, overrides, given, tell)
    if any(exams.uses_base(one.cfg, one.exam) for one in taken):
        raise UserError("an endpoint has no base model that could grade; give evaluate.grader an endpoint.")
    client = JudgeClient(endpoint, tell, "the model")
    client.probe()
    judges = {name: JudgeClient(table, tell) for name, table in _judges(taken).items()}
    for judge in judges.values():
        judge.probe()
    tokenizer = Tokenizer.load(cfg.model.tokenizer) if cfg.model.tokenizer else None

    math = MathAnswers()

    def tools(name: str) -> Tools:
        return RemoteTools(client, judges, tokenizer, cfg.seed, f"evaluate {name}", math)

    metrics = _answer(taken, tools, keep)
    return {"target": f"{endpoint.model} at {endpoint.url}", "step": None, "base": None, "metrics": metrics}


def _answer(taken: Sequence[Sitting], tools: Callable[[str], Tools], keep: Keep) -> Metrics:
    metrics: Metrics = {}
    for name, records, measured in _measured(taken, tools):
        keep(name, records, measured)
        metrics |= measured
    return metrics


def _measured(taken: Sequence[Sitting], tools: Callable[[str], Tools]) -> Iterator[tuple[str, Records, Metrics]]:
    for one in taken:
        records = one.answered(tools(one.card.name))
        questions = {f"eval/{one.card.name}/questions": float(len(one.rows))}
        yield one.card.name, records, scores("eval", one.card.name, records) | questions


def plain_card(checkpoint: str, overrides: Sequence[str] = ()) -> Config:
    """A card for a model that comes without one: it answers the prompts of suites, without a game and without searches.

    It is SPICE's, whose exam needs nothing but the model; the training data it names are never opened.
    """
    table = {
        "system": "spice",
        "model": {"checkpoint": checkpoint},
        "data": {"documents": "none"},
        "train": {"steps": 1},
    }
    return overridden(table, overrides, "the options of this command")
