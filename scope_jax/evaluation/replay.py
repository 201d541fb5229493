"""The replay of SCOPE's Table 4: the searches of one checkpoint, the answers of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from scope_jax.errors import UserError
from scope_jax.evaluation.evaluate import card_sets, evaluate_sets, evaluation, tools_of
from scope_jax.evaluation.measuring import ExamSet
from scope_jax.evaluation.weights import card_of
from scope_jax.play.exams import Answer
from scope_jax.play.tools import Agent, Rollout, Tools
from scope_jax.rollouts.types import Completion
from scope_jax.run.world import Tell


def replay(
    searcher: Path, writer: Path, card: Path | None, base: Path | None, overrides: Sequence[str], tell: Tell
) -> dict[str, Any]:
    """Evaluation metrics when the solver of `searcher` searches and that of `writer` answers.

    Both are SCOPE runs, their checkpoints or model folders, with the same architecture. card: None for that of the
    searcher's run. base and tell: as for `evaluation`. Returns {"searcher", "writer", "base", "metrics"}; metrics are
    named `replay/<set>/<measure>`.
    """
    cfg = card_of(searcher, card, overrides)
    if cfg is not None and cfg.system != "scope":
        raise UserError(f"the card's system is {cfg.system!r}; only SCOPE runs can be replayed.")
    with evaluation([searcher, writer], card, base, overrides, card_sets, tell) as ready:
        tools = tools_of(ready.world, "replay")
        ready.load([ready.model], base=False)
        searched = {one.name: one.answers(tools(one.name)) for one in ready.sets}
        ready.load(ready.others)
        metrics = evaluate_sets(
            ready.sets,
            tools,
            lambda name, records, values: None,
            "replay",
            lambda one, of_set: answers_after(one, of_set, searched[one.name]),
        )
    grader = str(ready.base.folder) if ready.base else None
    return {"searcher": str(searcher), "writer": str(writer), "base": grader, "metrics": metrics}


def before_last_turn(completion: Completion) -> tuple[int, ...]:
    """Ids of the prompt and all turns but the last sampled one; only the prompt if there are no turns."""
    row = completion.rows[-1]
    last = len(completion.turns[-1].ids) if completion.turns else 0
    ids = np.concatenate([row.prompt_ids, row.ids_T[: len(row.ids_T) - last]])
    return tuple(int(token) for token in ids)


def answers_after(one: ExamSet, tools: Tools, searched: Sequence[Answer]) -> list[Answer]:
    """Answers with their last turn replaced by one from the policy of `tools`.

    It gets a single turn: another search instead of an answer is not run, and counts as no answer.
    """
    rollouts = [
        Rollout(f"{place}", answer.prompt, prompt_ids=before_last_turn(answer.completion))
        for place, answer in enumerate(searched)
    ]
    speaker = one.exam.role.agent
    sampling = one.cfg.evaluate.sampling_of(one.eval_set, speaker.sampling)
    agent = Agent(speaker.policy, sampling, stop=speaker.stop)
    groups = tools.play("replay", rollouts, agent)
    return [
        replace(answer, completion=completion, text=one.exam.read(completion))
        for answer, (completion,) in zip(searched, groups, strict=True)
    ]
