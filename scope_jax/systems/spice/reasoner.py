"""SPICE's reasoner: answers tasks without their documents; the answers are graded by rules (section 2.3)."""

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
    """{âₖ} ~ π(q), k = 1 … K, for each valid attempt; not yet graded. again: new answers to a task answered before."""
    card = cfg.spice.reasoner
    tasks = [(one, one.task) for one in attempts if one.task is not None]
    conversations = [instructions.for_reasoner(cfg, task.question) for _, task in tasks]
    names = [f"{one.document.place}.{one.number}{' again' if again else ''}" for one, _ in tasks]
    groups = sample(
        tools,
        "reasoner",
        [
            Prompt(tools.encode_prompt(messages), name, messages)
            for messages, name in zip(conversations, names, strict=True)
        ],
        card.samples,
        card.sampling,
        policy=ACTOR,
        max_prompt_tokens=card.max_prompt_tokens,
        tempered=cfg.spice.loss.tempered,
    )
    return [
        Tried(one, task, name, messages, tuple(group), tuple(map(prediction_of, group)))
        for (one, task), name, messages, group in zip(tasks, names, conversations, groups, strict=True)
    ]


def prediction_of(completion: Completion) -> str | None:
    r"""Content of the last `\boxed{…}` outside of thinking; None if missing or empty."""
    return parsing.boxed(searching.reply_text(completion))


def grade(cfg: Config, tried: Sequence[Tried]) -> tuple[list[Tried], int]:
    """(1[âₖ = a*] of every answer; number of comparisons that timed out, which count as unequal). Identical comparisons
    are made once."""
    answers = comparer(cfg.spice.math_seconds)
    given_up = answers.given_up
    compare = cache(lambda task, prediction: rules.right(task, prediction, answers.equal))
    graded = [
        replace(one, correct=tuple(compare(one.task, prediction) for prediction in one.predictions)) for one in tried
    ]
    return graded, answers.given_up - given_up


@cache
def comparer(seconds: float) -> MathAnswers:
    """The process that compares mathematical answers; it starts at the first comparison and ends with the run."""
    return MathAnswers(seconds)
