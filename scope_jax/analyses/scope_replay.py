"""The replay analysis of SCOPE's Table 4: the searches of one checkpoint, the answers of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from scope_jax.config import Config, EvalSet
from scope_jax.errors import UserError
from scope_jax.evaluate import scores
from scope_jax.games import scope
from scope_jax.learner.types import Metrics
from scope_jax.play import exams
from scope_jax.play.exams import Answer, Exam
from scope_jax.play.tools import Agent, Rollout, Tools
from scope_jax.rollouts.types import Completion
from scope_jax.run.adapters import kind_of
from scope_jax.run.examined import assemble_exam, exam_card, find, find_base, fitted, index_folder, load_into
from scope_jax.run.world import Tell


def replay(
    searcher: Path, writer: Path, card: Path | None, base: Path | None, overrides: Sequence[str], tell: Tell
) -> dict[str, Any]:
    """Evaluation metrics when the solver of `searcher` searches and that of `writer` answers.

    Both are SCOPE runs, their checkpoints or model folders, with the same architecture. card: None for that of the
    searcher's run. base and tell: as for `evaluate_target`. Returns {"searcher", "writer", "base", "metrics"}; metrics
    are named `replay/<set>/<measure>`.
    """
    cfg = exam_card(searcher, card, overrides)
    if cfg.system != "scope":
        raise UserError(f"the card's system is {cfg.system!r}; only SCOPE runs can be replayed.")
    exam = scope.GAME.exam(cfg)
    searches, writes, judge = find(searcher, cfg), find(writer, cfg), find_base(cfg, base)
    if kind_of(fitted(cfg, searches)) != kind_of(fitted(cfg, writes)):
        raise UserError(
            f"{searcher} and {writer} are not adapters of one kind; write whole weights with export --merge."
        )
    cfg = fitted(cfg, searches)
    finishers = [writes, *([judge] if judge else [])]
    with index_folder(searcher, cfg) as folder:
        world = assemble_exam(cfg, searches, finishers, folder, tell)
        load_into(world, [searches])
        played = {
            held.name: exams.play(
                cfg, exam, world.tools(f"replay {held.name}", exam=True), world.exams[held.name], held
            )
            for held in cfg.evaluate.sets
        }
        load_into(world, finishers)
        metrics: Metrics = {}
        for held in cfg.evaluate.sets:
            tools = world.tools(f"replay {held.name}", exam=True)
            answers = finished(cfg, exam, tools, played[held.name], held)
            records = exams.measured(cfg, exam, tools, answers, exams.measures_of(exam, held))
            metrics |= scores("replay", held.name, records)
    return {
        "searcher": str(searcher),
        "writer": str(writer),
        "base": str(judge.folder) if judge else None,
        "metrics": metrics,
    }


def before_last_turn(completion: Completion) -> tuple[int, ...]:
    """Ids of the prompt and all turns but the last sampled one; only the prompt if there are no turns."""
    row = completion.rows[-1]
    last = len(completion.turns[-1].ids) if completion.turns else 0
    ids = np.concatenate([row.prompt_ids, row.ids_T[: len(row.ids_T) - last]])
    return tuple(int(token) for token in ids)


def finished(cfg: Config, exam: Exam, tools: Tools, played: Sequence[Answer], card: EvalSet) -> list[Answer]:
    """The given answers with their last turn replaced by one from the policy of `tools`.

    It gets a single turn: another search instead of an answer is not run, and counts as no answer.
    """
    rollouts = [
        Rollout(f"{place}", answer.prompt, prompt_ids=before_last_turn(answer.completion))
        for place, answer in enumerate(played)
    ]
    groups = tools.play("replay", rollouts, Agent(exam.policy, cfg.evaluate.sampling_of(card), stop=exam.stop))
    return [
        replace(answer, completion=completion, text=exam.read(completion))
        for answer, (completion,) in zip(played, groups, strict=True)
    ]
