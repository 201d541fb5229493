"""What the signs of collapse (`play.collapse`) say about a run: how they moved since its first steps, in sentences.

The mean of a sign over the latest steps that have it is compared with that over the first ones. A sentence is due where

    replies        are at least `LENGTH` times as long, or at most one `LENGTH`th as long
    cut replies    are a share of at least `CUT`, and `CUT` / 2 more than in the first steps
    identical ones are a share of at least `IDENTICAL` of the pairs, and `IDENTICAL` / 5 more than in the first steps
    entropy        is at most one `ENTROPY`th, or at least `ENTROPY` times as large
    valid episodes are a share that is lower by at least `VALID`

Such a sentence is said again only when its sign has become worse by the same amount.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from scope_jax.play.collapse import REJECTED

FARTHEST = 1e100  # values of a sign or a curve: with larger ones sums and the scales of a picture overflow
WINDOW = 5  # steps that a mean is taken over, at most half of those that have the sign
FEWEST = 4  # steps with the sign before it says anything
LENGTH, CUT, IDENTICAL, ENTROPY, VALID = 2.0, 0.2, 0.5, 4.0, 0.2
MEANS = ("response_tokens", "cut_off", "identical_pairs", "entropy", "valid")
SHARES = ("cut_off", "identical_pairs", "valid")


@dataclass
class _Series:
    """The first and the latest values of a metric with their standard errors."""

    count: int = 0
    first: list[tuple[float, float | None]] = field(default_factory=list)
    last: list[tuple[float, float | None]] = field(default_factory=list)

    def add(self, value: float, error: float | None) -> None:
        self.count += 1
        self.first = self.first if len(self.first) == WINDOW else [*self.first, (value, error)]
        self.last = [*self.last[1 - WINDOW :], (value, error)]


@dataclass(frozen=True)
class Sign:
    """How a sign moved between the first and the latest `steps` steps that have it."""

    who: str
    """The role; of an entropy, the update: its roles, joined by "+"."""
    name: str
    """The last part of the metric's name."""
    steps: int
    first: float
    """The mean over the first steps."""
    last: float
    """The mean over the latest steps."""
    errors: tuple[float | None, float | None]
    """Standard errors of both, None where a step has none."""
    level: int
    """0: it says nothing; otherwise how bad it is."""
    sentence: str
    """What it says, "" at level 0."""

    @property
    def share(self) -> bool:
        """Its values are in 0..1."""
        return self.name in SHARES or self.name.startswith(REJECTED)


class Signs:
    """Collects the signs of a run, record by record of metrics.jsonl. state: of another `Signs`."""

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        series = {} if state is None else state["series"]
        self._series = {name: _Series(count, [*first], [*last]) for name, (count, first, last) in series.items()}
        self._said: dict[str, int] = {} if state is None else dict(state["said"])  # the highest level by name

    @property
    def state(self) -> dict[str, Any]:
        """All of it as plain data."""
        series = {name: (one.count, one.first, one.last) for name, one in self._series.items()}
        return {"series": series, "said": self._said}

    @staticmethod
    def after(records: Iterable[Mapping[str, Any]]) -> Signs:
        """The signs of these records, all of which have said what there was to say."""
        signs = Signs()
        for record in records:
            signs.add(record)
        return signs

    def add(self, record: Mapping[str, Any]) -> list[str]:
        """The sentences that are due after one more record."""
        values = {name: value for name in record if _tracked(name) and (value := _number(record[name])) is not None}
        for name in [name for name in values if name.endswith("/valid")]:
            own = f"{name.removesuffix('valid')}{REJECTED}"  # a reason that the step does not name has rejected nothing
            values |= {other: 0.0 for other in self._series if other.startswith(own) and other not in values}
        for name in sorted(values, key=lambda name: REJECTED not in name):
            if name not in self._series:
                self._series[name] = _Series()
                valid = self._series.get(f"{name.rpartition('/')[0]}/valid") if REJECTED in name else None
                for _ in range(0 if valid is None else valid.count):
                    self._series[name].add(0.0, None)
            self._series[name].add(values[name], _number(record.get(f"{name}_se")))
        due = []
        for sign in self:
            name = f"{sign.who}/{sign.name}"
            if name in values and sign.level > self._said.get(name, 0):
                self._said[name] = sign.level
                due.append(sign.sentence)
        return due

    def __iter__(self) -> Iterator[Sign]:
        """All signs of at least two steps, by role."""
        for name in sorted(self._series, key=lambda name: name.rpartition("/")):
            if self._series[name].count > 1:
                yield self._sign(name)

    def _sign(self, name: str) -> Sign:
        one, (who, _, sign) = self._series[name], name.rpartition("/")
        steps = min(WINDOW, one.count // 2)
        (first, before), (last, after) = _mean(one.first[:steps]), _mean(one.last[-steps:])
        level, sentence = _judged(sign, who, first, last) if one.count >= FEWEST else (0, "")
        if sign == "valid":
            sentence += self._reason(who)
        return Sign(who, sign, steps, first, last, (before, after), level, f"{sentence}." if level else "")

    def _reason(self, who: str) -> str:
        """The reason whose share rose most, in words; "" if none rose."""
        own = [self._sign(name) for name in self._series if name.startswith(f"{who}/{REJECTED}")]
        most = max(own, key=lambda sign: sign.last - sign.first, default=None)
        if most is None or most.last <= most.first:
            return ""
        return f"; more are rejected for {most.name.removeprefix(REJECTED)} ({_percent(most.first, most.last)})"


def _tracked(name: str) -> bool:
    last = name.rpartition("/")[2]
    return not name.startswith("eval/") and (last in MEANS or last.startswith(REJECTED))


def _number(value: Any) -> float | None:
    """A finite value, at most `FARTHEST` from 0; None for any other."""
    if not isinstance(value, int | float) or value != value or abs(value) == math.inf:
        return None
    return float(min(max(value, -FARTHEST), FARTHEST))


def _mean(values: list[tuple[float, float | None]]) -> tuple[float, float | None]:
    """The mean of independent values and its standard error."""
    errors = [error for _, error in values if error is not None]
    known = math.sqrt(sum(error**2 for error in errors)) / len(values) if len(errors) == len(values) else None
    return sum(value for value, _ in values) / len(values), known


def _judged(sign: str, who: str, first: float, last: float) -> tuple[int, str]:
    """(level, sentence without its full stop) of a sign."""
    if sign == "response_tokens" and min(first, last) > 0:
        length = f"as long as in the first steps ({first:.0f} → {last:.0f} tokens)"
        words = f"replies of the {who} are {last / first:.1f} times {length}"
        if last < first:
            words = f"replies of the {who} are only {100 * last / first:.0f} % {length}"
        return _times(first, last, LENGTH), words
    if sign == "entropy" and min(first, last) > 0:
        words = f"the entropy of a token in the update of the {who} has {'fallen' if last < first else 'risen'}"
        return _times(first, last, ENTROPY), f"{words} from {first:.2g} to {last:.2g} nats"
    if sign == "cut_off":
        level = int(last / CUT + 1e-9) if last - first >= CUT / 2 else 0
        return level, f"{100 * last:.0f} % of the replies of the {who} are cut ({_percent(first, last)})"
    if sign == "identical_pairs":
        level = 1 + int((last - IDENTICAL) / (IDENTICAL / 2)) if last >= IDENTICAL and last - first >= 0.1 else 0
        words = f"{100 * last:.0f} % of the pairs of replies of the {who} to one prompt are identical"
        return level, f"{words} ({_percent(first, last)})"
    if sign == "valid":
        level = max(0, int((first - last) / VALID + 1e-9))
        return level, f"only {100 * last:.0f} % of the episodes of the {who} are valid ({_percent(first, last)})"
    return 0, ""


def _times(first: float, last: float, factor: float) -> int:
    """How often the larger one has the factor over the smaller one."""
    return int(abs(math.log(last) - math.log(first)) / math.log(factor) + 1e-9)


def _percent(first: float, last: float) -> str:
    return f"{100 * first:.0f} → {100 * last:.0f} %"
