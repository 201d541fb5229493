"""Role-specific dynamic sampling: the episodes of a step that the update trains on (section 4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scope_jax.config import Config
from scope_jax.data.keys import drawn, rng
from scope_jax.games.spell import rules
from scope_jax.games.spell.options import options
from scope_jax.games.spell.records import Asked, Group, Response


@dataclass(frozen=True)
class Chosen:
    """The samples to train on; questions and their groups are identified by their position in the stream."""

    responder: frozenset[int]  # the first N groups with both correct and wrong answers
    questioner: frozenset[int]  # their questions, and as many questions without a positive reward
    verifier: frozenset[tuple[int, int]]  # (position, number of the answer)


def judgment_rewards(cfg: Config, response: Response) -> tuple[float, ...]:
    """{r_ij} of one answer's judgments (Eq. (5))."""
    verdicts = [judged.verdict for judged in response.judgments]
    return rules.verifier_rewards(verdicts, response.vote, options(cfg).malformed_judgment)


def choose(cfg: Config, asked: Sequence[Asked], groups: Sequence[Group], step: int) -> Chosen:
    """Chooses the samples the step's update trains on (Alg. 1 l.25).

    Responder: the first N groups with both correct and wrong answers. Questioner: their questions, and an equal number
    drawn from the questions with a reward of 0 or less, for whatever reason (all if there are fewer). Verifier: groups
    of judgments with unequal rewards, on answers where vote and rule agree (consistency check), drawn until there are
    as many judgments, or groups, as responder groups (all if there are fewer).
    """
    kept = [group.place for group in groups if group.mixed][: options(cfg).groups]
    mixed = {group.place for group in groups if group.mixed}
    failed = [a.order.place for a in asked if a.reason not in rules.UNPLAYED and a.order.place not in mixed]
    negatives = drawn(failed, len(kept), rng("spell negatives", cfg.seed, step))
    conflicting = [
        (group.place, number)
        for group in groups
        for number, response in enumerate(group.responses)
        if response.judgments
        and rules.spread(judgment_rewards(cfg, response))
        and (response.vote == response.rule or not options(cfg).consistency_check)
    ]
    wanted = len(kept)
    if options(cfg).verifier_batch == "judgments":
        wanted = -(-wanted // options(cfg).verifier.samples)
    judged = drawn(conflicting, wanted, rng("spell judgments", cfg.seed, step))
    return Chosen(frozenset(kept), frozenset([*kept, *negatives]), frozenset(judged))
