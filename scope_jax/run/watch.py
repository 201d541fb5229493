"""What a run watches in its steps: the rules of the card that end it early, and roles that learn nothing.

A rule of [[train.watch]] ends a run when a metric leaves its bounds. Its count is a function of the records in
metrics.jsonl, which a resumed run has cut back to its checkpoint: it is computed from there, and nothing is saved.

The rewards of a step teach a role nothing if the advantages of all its trained episodes are 0, which happens if all
rewards of every group are equal (see `learner.advantages`); a policy then moves by KL and entropy terms alone, if at
all. A run says so after such a step, and its report for all of them.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from scope_jax.config import Config, WatchRule
from scope_jax.learner.types import Episode, Update

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
        missing = [rule.metric for rule in self.rules if rule.metric not in self.seen]
        named = [f"{name}{_similar(name, self.seen)}" for name in missing]
        return f"[[train.watch]]: no step has had {', '.join(named)} so far." if missing else None


def _similar(name: str, known: Iterable[str]) -> str:
    """The most similar one of the known names, in brackets; "" if none is."""
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.8)
    return f" (similar: {near[0]})" if near else ""


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


def watch_of(cfg: Config, records: Iterable[Mapping[str, Any]]) -> Watch:
    """The card's rules after the records of a run."""
    rules = cfg.train.watch
    return reduce(Watch.after, records, Watch(rules, (0,) * len(rules)))


@dataclass(frozen=True)
class RunEnd:
    """Why a run ends after its steps so far; false while it goes on."""

    watch: Watch
    """The rules of the card after the records so far."""
    complete: bool
    """True if the card or the game takes no further step."""
    signal: int = 0
    """The number of one that asks this process to end after the step; 0 without one."""

    def __bool__(self) -> bool:
        return self.over or self.signal != 0

    @property
    def over(self) -> bool:
        """True if the run is over, not only this process of it."""
        return self.complete or self.watch.reason is not None

    def after(self, complete: bool, record: Mapping[str, Any], signal: int = 0) -> RunEnd:
        """The end after one more record."""
        return RunEnd(self.watch.after(record), complete, signal)


# -------------------------------------------------------------------------------------------- steps that taught nothing
Outcome = tuple[str, float, float]  # of a trained episode: role, reward, advantage or, if larger, its tokens' credit
SHOWN = 5  # steps that the report names


def idle_roles(episodes: Iterable[Episode], updates: Iterable[Update] = ()) -> list[str]:
    """One for every role whose advantages and credits in a step are all 0: that they are, and what to look at. Roles
    that learn from something else by one of the updates, a teacher or given answers, are left out."""
    others = learns_otherwise(updates)
    step = [
        (e.role, e.reward, e.signal) for e in episodes if e.trained and e.advantage is not None and e.role not in others
    ]
    return [f"nothing to learn for the {role} in this step: {why}." for role, why in _idle(step).items()]


def learns_otherwise(updates: Iterable[Update]) -> set[str]:
    """The roles that learn from something else than rewards: a teacher, or given answers."""
    return {
        share.role
        for update in updates
        if update.card.objective != "policy" or update.card.teacher != "none"
        for share in update.roles
    }


def roles_without_update(episodes: Iterable[Episode], updates: Iterable[Update]) -> list[str]:
    """A sentence for every role with episodes to be trained that no update takes, as after a typing error."""
    taken = {f"{update.policy}/{share.role}" for update in updates for share in update.roles}
    left = {f"{e.policy}/{e.role}" for e in episodes if e.trained} - taken
    return [
        f"nothing is learned from the episodes of {one}, though they are to be trained: the game's updates train "
        f"{', '.join(sorted(taken)) or 'none'}; correct one of the two, or set trained=False."
        for one in sorted(left)
    ]


def idle_updates(metrics: Mapping[str, float]) -> list[str]:
    """A sentence for every update of a step that moved nothing, as its cosine has ended."""
    names = [name.rpartition("/") for name, value in metrics.items() if name.endswith("/learning_rate") and value == 0]
    return [
        f"nothing is learned in the update of the {name}: its learning rate is 0 from optimizer.total_steps on; to go "
        "on, start a new run --from this one with a larger number."
        for name, _, _ in names
    ]


def _idle(step: Iterable[Outcome]) -> dict[str, str]:
    """Why, by role."""
    rewards: dict[str, list[float]] = {}
    moved = set()
    for role, reward, advantage in step:
        rewards.setdefault(role, []).append(reward)
        if advantage != 0:
            moved.add(role)
    return {role: _why(values) for role, values in rewards.items() if role not in moved}


def _why(rewards: Sequence[float]) -> str:
    low, high = min(rewards), max(rewards)
    if low < high:
        return (
            "the rewards of each group are equal; more samples of a prompt, a higher temperature or tasks of other "
            "difficulty make them differ"
        )
    if low <= 0:
        return (
            f"all rewards are {low:g}; see in the report whether its answers keep the format, end within the token "
            "limits, and are within reach of the model, or let `scope-jax check CARD --probe` say what usually helps"
        )
    return f"all rewards are {low:g}; the tasks may be too easy, or the reward may accept anything: see the report"


def taught_roles(lines: Iterable[Mapping[str, Any]]) -> set[str]:
    """The roles that learn from a teacher: the KL to it is in the metrics of their update."""
    names = {name for line in lines for name in line if "/teacher_k" in name}
    return {role for name in names for role in name.rpartition("/")[0].split("+")}


class IdleRoles:
    """Collects such steps while the records of episodes.jsonl pass. lines: of metrics.jsonl."""

    def __init__(self, lines: Iterable[Mapping[str, Any]] = ()) -> None:
        self._taught = taught_roles(lines)
        self._steps: dict[str, list[int]] = {}  # by role
        self._why: dict[str, str] = {}  # of the latest one
        self._of: dict[str, int] = {}  # steps with trained episodes

    def collect(self, records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """All records unchanged, in the order of their steps."""
        number, step = 0, list[Outcome]()
        for record in records:
            if record["step"] != number:
                self._add(number, step)
                number, step = record["step"], []
            role, reward, advantage = record["role"], record["reward"], record["advantage"]
            if record["trained"] and reward is not None and advantage is not None and role not in self._taught:
                step.append((role, reward, advantage or record.get("credit", 0.0)))
            yield record
        self._add(number, step)

    def _add(self, number: int, step: Sequence[Outcome]) -> None:
        for role in {role for role, _, _ in step}:
            self._of[role] = self._of.get(role, 0) + 1
        for role, why in _idle(step).items():
            self._steps.setdefault(role, []).append(number)
            self._why[role] = why

    @property
    def sentences(self) -> list[str]:
        """One for every role with such steps."""
        found = []
        for role, steps in sorted(self._steps.items()):
            which = ", ".join(map(str, steps[-SHOWN:]))
            which = f"the last: {which}" if len(steps) > SHOWN else which
            share = f"{len(steps)} of {self._of[role]} steps ({which})"
            found.append(f"There was nothing to learn for the {role} in {share}; in the latest {self._why[role]}.")
        return found
