"""Steps whose rewards taught a role nothing, because the advantages of all its trained episodes are 0.

That happens if all rewards of every group are equal (see `learner.advantages`); a policy then moves by KL and entropy
terms alone, if at all. A run says so after such a step, and its report for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from scope_jax.learner.types import Episode

Outcome = tuple[str, float, float]  # role, reward and advantage of a trained episode
SHOWN = 5  # steps that the report names


def sentences(episodes: Iterable[Episode]) -> list[str]:
    """One for every role whose advantages in a step are all 0: that they are, and what to look at."""
    step = [(e.role, e.reward, e.advantage) for e in episodes if e.trained and e.advantage is not None]
    return [f"nothing to learn for the {role} in this step: {why}." for role, why in _unlearned(step).items()]


def at_rest(metrics: Mapping[str, float]) -> list[str]:
    """A sentence for every update of a step that moved nothing, as its cosine has ended."""
    names = [name.rpartition("/") for name, value in metrics.items() if name.endswith("/learning_rate") and value == 0]
    return [
        f"nothing is learned in the update of the {name}: its learning rate is 0 from optimizer.total_steps on; to go "
        "on, start a new run --from this one with a larger number."
        for name, _, _ in names
    ]


def _unlearned(step: Iterable[Outcome]) -> dict[str, str]:
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
            "limits, and are within reach of the model"
        )
    return f"all rewards are {low:g}; the tasks may be too easy, or the reward may accept anything: see the report"


class Unlearned:
    """Collects such steps while the records of episodes.jsonl pass."""

    def __init__(self) -> None:
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
            if record["trained"] and record["reward"] is not None and record["advantage"] is not None:
                step.append((record["role"], record["reward"], record["advantage"]))
            yield record
        self._add(number, step)

    def _add(self, number: int, step: Sequence[Outcome]) -> None:
        for role in {role for role, _, _ in step}:
            self._of[role] = self._of.get(role, 0) + 1
        for role, why in _unlearned(step).items():
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
