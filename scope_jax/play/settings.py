"""Records of a setting that a game changes while it runs, such as SCORE's meta-harness.

They are written to episodes.jsonl; the report lists every value of the setting, what changed and who changed it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scope_jax.learner.types import Episode, Judgement


@dataclass(frozen=True)
class SettingChange:
    """An attempt to change a setting."""

    at: int
    """Number of steps done."""
    problem: str = ""
    """Why there is no new value; "" if there is one, which may equal the value before."""
    judgements: Sequence[Judgement] = ()
    """What an external model replied."""


@dataclass(frozen=True)
class SettingRecord:
    """The value of a setting in a step, or after an attempt to change it."""

    name: str
    """Of the setting."""
    value: Mapping[str, Any]
    """Plain data."""
    by: str
    """Who set it; of an attempt: who tried to."""
    since: int
    """Number of steps done when the value came into force."""
    attempt: SettingChange | None = None
    """The attempt that it is about; None: it is the value that was in force."""

    @property
    def episode(self) -> Episode:
        """The record as an episode that is not trained."""
        text: dict[str, Any] = {"setting": self.name, "value": dict(self.value), "by": self.by, "since": self.since}
        group, judgements = self.name, ()
        if self.attempt is not None:
            text |= {"at": self.attempt.at, "problem": self.attempt.problem}
            group = f"{self.name}/after {self.attempt.at}"
            judgements = tuple(self.attempt.judgements)
        return Episode(
            role=self.name,
            policy="none",
            group=group,
            datums=(),
            reward=0.0,
            trained=False,
            text=text,
            judgements=judgements,
        )
