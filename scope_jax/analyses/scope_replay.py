"""The replay analysis of SCOPE's Table 4: the searches of one checkpoint, the answers of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rollouts.types import Completion
from scope_jax.config import Config, EvalSet
from scope_jax.errors import UserError
from scope_jax.evaluate import scores
from scope_jax.learner.types import Metrics
from scope_jax.play import exams
from scope_jax.play.exams import Answer, Exam
from scope_jax.play.tools import Prompt, Tools, sample
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
        raise UserError(f"the card's system is {cfg.system!r}; only SCOPE runs can be replayed.")
    exam = scope.exam(cfg)
    searches, writes, judge = find(searcher, cfg), find(writer, cfg), find_base(cfg, base)
    finishers = [writes, *([judge] if judge else [])]
    with index_folder(searcher, cfg) as folder:
        world = assemble_exam(cfg, searches, finishers, folder, tell)
        world.sampler.load({searches.policy: take(world, searches)})
        played = {
            held.name: exams.play(cfg, exam, world.tools(f"replay {held.name}"), world.exams[held.name], held)
            for held in cfg.evaluate.sets
        }
        world.sampler.load({})
        world.sampler.load({one.policy: take(world, one) for one in finishers})
        metrics: Metrics = {}
        for held in cfg.evaluate.sets:
            tools = world.tools(f"replay {held.name}")
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
    """Prompt and turns as ids, without the last turn of the policy; the prompt alone where it has none."""
    row = completion.rows[-1]
    last = len(completion.turns[-1].ids) if completion.turns else 0
    ids = np.concatenate([row.prompt_ids, row.ids_T[: len(row.ids_T) - last]])
    return tuple(int(token) for token in ids)


def finished(cfg: Config, exam: Exam, tools: Tools, played: Sequence[Answer], card: EvalSet) -> list[Answer]:
    """The answers of others with another last turn, which the policy of `tools` writes.

    It has this one turn: a further search instead of an answer is not run, and counts as no answer.
    """
    prompts = [Prompt(before_last_turn(a.completion), f"{place}", a.prompt) for place, a in enumerate(played)]
    sampling = cfg.evaluate.sampling_of(card)
    groups = sample(tools, "replay", prompts, 1, sampling, policy=exam.policy, stop=exam.stop)
    return [
        replace(answer, completion=completion, text=exam.read(completion))
        for answer, (completion,) in zip(played, groups, strict=True)
    ]
