"""How long steps take that overlap: a discrete-event simulation, with the plan's own seconds of a token and an update.

What is simulated: slots that are filled in the order of steps, one token of every live slot at a time; a play that
begins when at most k updates before it are missing; updates in the order of steps; rows under way that are computed
anew when weights change. What is not: turns, tools and searches, which leave slots waiting, and prompts of a group that
are computed once. Rows of a step are drawn anew for each step, by a seed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

STEPS, FIRST = 24, 4  # steps that are simulated, and those at the beginning that are not counted


@dataclass(frozen=True)
class RowTokens:
    """Tokens of one rollout."""

    read: int
    """Of its prompt and what tools return."""
    sampled: int


@dataclass(frozen=True)
class StageSeconds:
    """Seconds of one machine, or of the parts of it that generate and learn."""

    token: Callable[[float], float]
    """Of a token of every live slot, by their number."""
    read: float
    """Of a token that is computed, not sampled."""
    update: float
    """Of a step's update."""
    slots: int
    """Rollouts that are sampled at a time."""


@dataclass(frozen=True)
class OverlapMode:
    """How steps follow each other."""

    name: str
    staleness: int
    """Updates that the weights may lack with which a step begins."""
    plays: int
    """Steps that are played at a time."""
    apart: bool
    """Engine and learner have devices of their own."""
    swaps: bool = True
    """Newer weights are taken over while rollouts are under way."""


@dataclass(frozen=True)
class OverlapFigures:
    """What a simulation measures, of the steps after the first."""

    seconds: float
    """Of a step."""
    tokens: float
    """Sampled per second."""
    idle: float
    """Share of the time in which the engine computes nothing."""
    recomputed: float
    """Share of the time in which it computes rows anew."""
    staleness: float
    """Updates that the weights of a sampled token lack when it is trained on, on average."""


@dataclass
class _Row:
    step: int
    tokens: RowTokens
    done: int = 0


@dataclass
class _Simulation:
    mode: OverlapMode
    cost: StageSeconds
    rows_of: Callable[[int], Sequence[RowTokens]]
    now: float = 0.0
    busy: float = 0.0
    anew: float = 0.0
    updates: int = 0
    begun: int = 0  # steps
    learned_at: float = math.inf  # when the update under way ends
    live: list[_Row] = field(default_factory=list)
    waiting: deque[_Row] = field(default_factory=deque)
    open: dict[int, int] = field(default_factory=dict)  # rows that are not over, by step
    lacked: dict[int, float] = field(default_factory=dict)  # tokens times updates that were missing, by step
    sampled: dict[int, int] = field(default_factory=dict)
    ends: list[float] = field(default_factory=list)  # of updates
    spent: list[tuple[float, float]] = field(default_factory=list)  # busy and anew at these

    def run(self, steps: int) -> None:
        while self.updates < steps:
            self._begin()
            self._fill()
            if self._due():
                self._learn()
            elif self.live:
                self._decode()
            else:
                self.now = self.learned_at
                self._learned()

    def _begin(self) -> None:
        while self.begun - self.updates <= self.mode.staleness:
            if sum(1 for count in self.open.values() if count) >= self.mode.plays:
                return
            self.begun += 1
            rows = [_Row(self.begun, tokens) for tokens in self.rows_of(self.begun)]
            self.open[self.begun] = len(rows)
            self.lacked[self.begun], self.sampled[self.begun] = 0.0, 0
            self.waiting += rows

    def _fill(self) -> None:
        while self.waiting and len(self.live) < self.cost.slots:
            row = self.waiting.popleft()
            self._compute(row.tokens.read)
            self.live.append(row)

    def _compute(self, tokens: int) -> None:
        self.now += tokens * self.cost.read
        self.busy += tokens * self.cost.read

    def _due(self) -> bool:
        """Whether the next update can be made."""
        return self.learned_at == math.inf and self.open.get(self.updates + 1) == 0

    def _learn(self) -> None:
        if self.mode.apart:
            self.learned_at = self.now + self.cost.update
            return
        self.now += self.cost.update
        self._learned()

    def _decode(self) -> None:
        """Until the next row is over, or the update under way."""
        token = self.cost.token(len(self.live))
        tokens = min(row.tokens.sampled - row.done for row in self.live)
        if self.learned_at < self.now + tokens * token:
            tokens = max(0, math.ceil((self.learned_at - self.now) / token))
        self.now += tokens * token
        self.busy += tokens * token
        for row in self.live:
            row.done += tokens
            self.sampled[row.step] += tokens
            self.lacked[row.step] += tokens * (row.step - 1 - self.updates)
        for row in [row for row in self.live if row.done >= row.tokens.sampled]:
            self.live.remove(row)
            self.open[row.step] -= 1
        if self.now >= self.learned_at:
            self._learned()

    def _learned(self) -> None:
        self.updates += 1
        self.learned_at = math.inf
        self.ends.append(self.now)
        self.spent.append((self.busy, self.anew))
        if self.mode.swaps and self.live:
            before = self.busy
            self._compute(sum(row.tokens.read + row.done for row in self.live))
            self.anew += self.busy - before


def simulate(
    mode: OverlapMode, cost: StageSeconds, rows_of: Callable[[int], Sequence[RowTokens]], steps: int = STEPS
) -> OverlapFigures:
    """The figures of steps FIRST + 1 to `steps`. rows_of: the rows of a step, by its number from 1."""
    run = _Simulation(mode, cost, rows_of)
    run.run(steps)
    time = run.ends[-1] - run.ends[FIRST - 1]
    (busy, anew), (busy_before, anew_before) = run.spent[-1], run.spent[FIRST - 1]
    counted = range(FIRST + 1, steps + 1)
    tokens = sum(run.sampled[step] for step in counted)
    return OverlapFigures(
        time / len(counted),
        tokens / time,
        1 - (busy - busy_before) / time,
        (anew - anew_before) / time,
        sum(run.lacked[step] for step in counted) / tokens,
    )


def bound(cost: StageSeconds, rows_of: Callable[[int], Sequence[RowTokens]], apart: bool, steps: int = STEPS) -> float:
    """Seconds of a step in which the engine always has all its slots at work, and on shared devices learns besides."""
    rows = [row for step in range(FIRST + 1, steps + 1) for row in rows_of(step)]
    decoding = sum(row.sampled for row in rows) * cost.token(cost.slots) / cost.slots
    reading = sum(row.read for row in rows) * cost.read
    engine = (decoding + reading) / (steps - FIRST)
    return max(engine, cost.update) if apart else engine + cost.update


def modes(apart: bool, staleness: Sequence[int] = (1, 2, 4)) -> list[OverlapMode]:
    """Those of a card: steps that follow each other, one step ahead, and steps that overlap."""
    ahead = [OverlapMode("one step ahead", 1, 1, apart, swaps=False)] if apart else []
    return [
        OverlapMode("synchronous", 0, 1, apart),
        *ahead,
        *(OverlapMode(f"max_staleness = {k}", k, k + 1, apart) for k in staleness),
    ]


def drawn_rows(lengths: Sequence[RowTokens], count: int, seed: int = 0) -> Callable[[int], list[RowTokens]]:
    """Rows of a step, drawn from these with replacement."""

    def rows(step: int) -> list[RowTokens]:
        places = np.random.default_rng((seed, step)).integers(len(lengths), size=count)
        return [lengths[place] for place in places]

    return rows


def lognormal_rows(mean: float, spread: float, most: int, read: int, count: int, seed: int = 0) -> list[RowTokens]:
    """Rows whose sampled tokens have this mean before a limit cuts them. spread: of the logarithm."""
    draw = np.random.default_rng(seed).lognormal(math.log(mean) - spread**2 / 2, spread, count)
    return [RowTokens(read, int(min(max(tokens, 1), most))) for tokens in draw]
