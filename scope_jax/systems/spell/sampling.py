"""Role-specific dynamic sampling: the episodes of a step on which the update trains (section 4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from scope_jax.config import Config
from scope_jax.data.keys import rng
from scope_jax.systems.spell import rules
from scope_jax.systems.spell.records import Asked, Group, Response

Item = TypeVar("Item")


@dataclass(frozen=True)
class Chosen:
    """Places in the stream (of questions and their groups), and (place, number of the answer) of the verifier's."""

    responder: frozenset[int]  # groups with right and wrong answers, the first N of them
    questioner: frozenset[int]  # their questions, and as many that earned nothing
    verifier: frozenset[tuple[int, int]]


def judgment_rewards(cfg: Config, response: Response) -> tuple[float, ...]:
    """{r_ij} of one answer's judgments (Eq. (5))."""
    verdicts = [judged.verdict for judged in response.judgments]
    return rules.verifier_rewards(verdicts, response.vote, cfg.spell.malformed_judgment)


def choose(cfg: Config, asked: Sequence[Asked], groups: Sequence[Group], step: int) -> Chosen:
    """What the step's update learns from (Alg. 1 l.25).

    The responder: the first N groups with right and wrong answers. The questioner: their questions, and as many drawn
    from those that earned 0 or less, whatever the reason; all where there are fewer. The verifier: groups of judgments
    that are not all worth the same, of answers about which vote and rule agree (consistency check), drawn until it has
    as many judgments, or groups, as there are questions; all where there are fewer.
    """
    kept = [group.asked.order.place for group in groups if group.mixed][: cfg.spell.groups]
    mixed = {group.asked.order.place for group in groups if group.mixed}
    failed = [a.order.place for a in asked if a.reason not in rules.UNPLAYED and a.order.place not in mixed]
    negatives = _drawn(failed, len(kept), cfg, "spell negatives", step)
    conflicting = [
        (group.asked.order.place, number)
        for group in groups
        for number, response in enumerate(group.responses)
        if response.judgments
        and rules.spread(judgment_rewards(cfg, response))
        and (response.vote == response.rule or not cfg.spell.consistency_check)
    ]
    wanted = len(kept)
    if cfg.spell.verifier_batch == "judgments":
        wanted = -(-wanted // cfg.spell.verifier.samples)
    judged = _drawn(conflicting, wanted, cfg, "spell judgments", step)
    return Chosen(frozenset(kept), frozenset([*kept, *negatives]), frozenset(judged))


def _drawn(items: Sequence[Item], count: int, cfg: Config, name: str, step: int) -> list[Item]:
    """`count` of the items without replacement, all where there are no more."""
    order = rng(name, cfg.seed, step).permutation(len(items))
    return [items[int(place)] for place in order[:count]]
