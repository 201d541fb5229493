"""SPICE's reasoner: answers to tasks without their documents, graded by rules (section 2.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from rollouts.types import Completion
from scope_jax.config import Config
from scope_jax.play import searching
from scope_jax.play.defaults import ACTOR
from scope_jax.play.math_answers import MathAnswers
from scope_jax.play.tools import Prompt, Tools, sample
from scope_jax.systems.spice import instructions, rules
from scope_jax.systems.spice.records import Attempt, Tried
from scope_jax.text import parsing


def solve(cfg: Config, tools: Tools, attempts: Sequence[Attempt], again: bool = False) -> list[Tried]:
    """{âₖ} ~ π(q), k = 1 … K, for each valid attempt; not yet graded. again: anew, for a task that was tried before."""
    card = cfg.spice.reasoner
    tasks = [(one, one.task) for one in attempts if one.task is not None]
    asked = [instructions.for_reasoner(cfg, task.question) for _, task in tasks]
    names = [f"{one.document.place}.{one.number}{' again' if again else ''}" for one, _ in tasks]
    groups = sample(
        tools,
        "reasoner",
        [Prompt(tools.encode_prompt(said), name, said) for said, name in zip(asked, names, strict=True)],
        card.samples,
        card.sampling,
        policy=ACTOR,
        max_prompt_tokens=card.max_prompt_tokens,
        tempered=cfg.spice.loss.tempered,
    )
    return [
        Tried(one, task, name, said, tuple(group), tuple(map(prediction_of, group)))
        for (one, task), name, said, group in zip(tasks, names, asked, groups, strict=True)
    ]


def prediction_of(completion: Completion) -> str | None:
    r"""Content of the last `\boxed{…}` outside of thoughts; None without one or when it is empty."""
    return parsing.boxed("".join(searching.contents(completion)))


def grade(cfg: Config, tried: Sequence[Tried]) -> tuple[list[Tried], int]:
    """(1[âₖ = a*] of every answer; how many comparisons took too long and count as unequal). Equal ones are made
    once."""
    answers = comparer(cfg.spice.math_seconds)
    given_up = answers.given_up
    compare = cache(lambda task, prediction: rules.right(task, prediction, answers.equal))
    graded = [
        replace(one, correct=tuple(compare(one.task, prediction) for prediction in one.predictions)) for one in tried
    ]
    return graded, answers.given_up - given_up


@cache
def comparer(seconds: float) -> MathAnswers:
    """The process that compares mathematical answers; it is started at the first question and ends with the run."""
    return MathAnswers(seconds)
