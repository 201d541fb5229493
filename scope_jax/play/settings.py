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
    """An attempt to change a setting.

    at: number of steps done. problem: why there is no new value; "" if there is one, which may equal the value before.
    judgements: what an external model replied.
    """

    at: int
    problem: str = ""
    judgements: Sequence[Judgement] = ()


def record(
    name: str, value: Mapping[str, Any], *, by: str, since: int, attempt: SettingChange | None = None
) -> Episode:
    """The value of a setting in a step, or after an attempt to change it, as an episode that is not trained.

    by: who set it (of an attempt: who tried to). since: number of steps done when the value came into force.
    """
    text: dict[str, Any] = {"setting": name, "value": dict(value), "by": by, "since": since}
    if attempt is not None:
        text |= {"at": attempt.at, "problem": attempt.problem}
    return Episode(
        role=name,
        policy="none",
        group=name if attempt is None else f"{name}/after {attempt.at}",
        datums=(),
        reward=0.0,
        trained=False,
        text=text,
        judgements=() if attempt is None else tuple(attempt.judgements),
    )
