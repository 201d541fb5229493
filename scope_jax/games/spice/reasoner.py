"""SPICE's reasoner: answers tasks without their documents; the answers are graded by rules (section 2.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scope_jax.config import Config
from scope_jax.games.spice import instructions, rules
from scope_jax.games.spice.options import options
from scope_jax.games.spice.records import Attempt, Tried
from scope_jax.learner.types import Metrics
from scope_jax.play import searching
from scope_jax.play.game import ACTOR
from scope_jax.play.math_answers import Comparison
from scope_jax.play.tools import Agent, Rollout, Tools
from scope_jax.rollouts.types import Completion
from scope_jax.text import parsing


def solve(cfg: Config, tools: Tools, attempts: Sequence[Attempt], again: bool = False) -> list[Tried]:
    """{âₖ} ~ π(q), k = 1 … K, for each valid attempt; not yet graded. again: new answers to a task answered before."""
    card = options(cfg).reasoner
    tasks = [(one, one.task) for one in attempts if one.task is not None]
    conversations = [instructions.for_reasoner(cfg, task.question) for _, task in tasks]
    names = [f"{one.document.place}.{one.number}{' again' if again else ''}" for one, _ in tasks]
    limit = card.max_prompt_tokens
    agent = Agent(ACTOR, card.sampling, max_prompt_tokens=limit, tempered=options(cfg).loss.tempered)
    groups = tools.play(
        "reasoner", [Rollout(*each) for each in zip(names, conversations, strict=True)], agent, card.samples
    )
    return [
        Tried(one, task, name, messages, tuple(group), tuple(map(prediction_of, group)))
        for (one, task), name, messages, group in zip(tasks, names, conversations, groups, strict=True)
    ]


def prediction_of(completion: Completion) -> str | None:
    r"""Content of the last `\boxed{…}` outside of thinking; None if missing or empty."""
    return parsing.boxed(searching.reply_text(completion))


def grade(cfg: Config, tools: Tools, tried: Sequence[Tried]) -> tuple[list[Tried], Metrics]:
    """1[âₖ = a*] of every answer, and how many comparisons ended without a verdict, which count as wrong."""
    pairs = {(one.task, prediction): None for one in tried for prediction in one.predictions}
    open_pairs = [pair for pair in pairs if rules.needs_mathematics(*pair)]
    comparisons = [Comparison(prediction or "", (task.answer,)) for task, prediction in open_pairs]
    found = tools.compare_math(comparisons, options(cfg).math_seconds) if comparisons else []
    verdicts = dict(zip(open_pairs, found, strict=True))
    graded = [
        replace(
            one, correct=tuple(rules.right(one.task, said, verdicts.get((one.task, said))) for said in one.predictions)
        )
        for one in tried
    ]
    return graded, {"math/given_up": float(found.count("timeout")), "math/unreadable": float(found.count("unreadable"))}
