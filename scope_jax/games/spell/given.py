"""The RLVR baseline: the responder is trained on given questions, without questioner and verifier (App. C.4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scope_jax.config import Config
from scope_jax.games.spell import instructions, responder, rows
from scope_jax.games.spell.options import options
from scope_jax.games.spell.records import Group, Question
from scope_jax.games.spell.sampling import choose
from scope_jax.learner.types import Episode, Metrics
from scope_jax.play import grading
from scope_jax.play.game import Memory
from scope_jax.play.tools import Tools


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
    """One step: draws questions in rounds, as in self-play, until N have both correct and wrong answers.

    Rewards are those of the rule. A question whose text does not fit into the prompt is not answered, and counted.
    Pure: all randomness is derived from the seed and the position in the stream of questions.
    """
    position, count = memory["position"], options(cfg).clusters_per_round
    answered: list[Group | None] = []
    groups: list[Group] = []
    grades: list[grading.Grades] = []
    rounds = 0
    while rounds < options(cfg).max_rounds and sum(group.mixed for group in groups) < options(cfg).groups:
        drawn = tools.rows(position, count)
        readings = [reading(cfg, row, position + place) for place, row in enumerate(drawn)]
        fresh, checked = responder.answer(cfg, tools, readings)
        answered, grades = answered + fresh, [*grades, checked]
        groups = [group for group in answered if group is not None]
        position, rounds = position + count, rounds + 1
    chosen = choose(cfg, [], groups, step)
    metrics = rows.measure(cfg, [], groups, chosen, grades) | {
        "groups/rounds": float(rounds),
        "questions/asked": float(len(answered)),
        "rejected/documents_too_long": 1.0 - len(groups) / len(answered),
    }
    return rows.episodes(cfg, [], groups, chosen), memory | {"position": position}, metrics


def reading(cfg: Config, row: Mapping[str, Any], place: int) -> responder.Reading:
    """What the responder reads at position `place` of the stream."""
    reference, *aliases = row["answers"]
    question = Question(row["question"], reference, tuple(row["options"]), tuple(aliases))
    return responder.Reading(place, instructions.task_of(row), question, instructions.shown(cfg, row["context"]))
