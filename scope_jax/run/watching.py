"""Rules of a card that end a run early when a metric leaves its bounds ([[train.watch]]).

Counts are a function of the records in metrics.jsonl, which a resumed run has cut back to its checkpoint: they are
computed from there, and nothing about them is saved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from scope_jax.config import Config, WatchRule
from scope_jax.learner.types import Update

EVALUATED = ("eval/", "time/evaluate")  # what the names of the metrics of an evaluation alone begin with


@dataclass(frozen=True)
class Watch:
    """The rules after some records. counts: of each rule, the last values in a row that were out of bounds. seen: the
    names of all metrics so far."""

    rules: tuple[WatchRule, ...]
    counts: tuple[int, ...]
    seen: frozenset[str] = frozenset()

    def after(self, record: Mapping[str, Any]) -> Watch:
        """The rules after one more record; one that lacks a rule's metric leaves its count as it was.

        The evaluation before the first step, a record with no other metrics, counts for no rule.
        """
        names = record.keys() - {"step"}
        known = replace(self, seen=self.seen | (names - _not_computed(record)))
        if all(name.startswith(EVALUATED) for name in names):
            return known
        counts = (
            count if rule.metric not in names else count + 1 if outside(rule, record[rule.metric]) else 0
            for rule, count in zip(self.rules, self.counts, strict=True)
        )
        return replace(known, counts=tuple(counts))

    @property
    def reason(self) -> str | None:
        """The sentence that says why the run ends, None if it goes on."""
        for rule, count in zip(self.rules, self.counts, strict=True):
            if count >= rule.steps:
                bound = f"below {rule.below:g}" if rule.below is not None else f"above {rule.above:g}"
                steps = "1 step" if count == 1 else f"{count} consecutive steps"
                return f"stopped early by [[train.watch]]: {rule.metric} was {bound} (or not finite) in {steps}."
        return None

    def missing(self, updates: Sequence[Update]) -> str | None:
        """A sentence about rules whose metrics no record has although every update of the game has been made; None
        without one. Under a name that is right the metric may still come."""
        if not all(f"{update.name}/loss" in self.seen for update in updates):
            return None
        names = [rule.metric for rule in self.rules if rule.metric not in self.seen]
        return f"[[train.watch]]: no step has had {', '.join(names)} so far." if names else None


def _not_computed(record: Mapping[str, Any]) -> set[str]:
    """`…/loss` of the updates that lack other metrics, as none of their episodes had a term in the loss."""
    updates = [name.removesuffix("/idle_sequences") for name in record if name.endswith("/idle_sequences")]
    return {f"{name}/loss" for name in updates if record[f"{name}/idle_sequences"] == record[f"{name}/sequences"]}


def outside(rule: WatchRule, value: float | None) -> bool:
    """Whether a value is out of the rule's bound; one that is not finite is (it is null in metrics.jsonl)."""
    number = math.nan if value is None else float(value)
    if not math.isfinite(number):
        return True
    return (rule.below is not None and number < rule.below) or (rule.above is not None and number > rule.above)


def watched(cfg: Config, records: Iterable[Mapping[str, Any]]) -> Watch:
    """The card's rules after the records of a run."""
    rules = cfg.train.watch
    return reduce(Watch.after, records, Watch(rules, (0,) * len(rules)))
