"""The DimensionScheduler: counts how often dimensions are used and how consistent the reports under them are.

Its state is plain data: {"step", "mean", "dimensions": {name: {"uses", "last", "consistency"}}}. `last` is the number
of steps played when the dimension was last used; `mean` and `consistency` are moving averages with decay
`score.scheduler.decay`. The paper names the scheduler's calls (Algorithm 1 l.8, l.34) but not what they do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scope_jax.config import Config
from scope_jax.games.score.harness import Harness
from scope_jax.games.score.options import options
from scope_jax.games.score.records import Constraints, Rubric
from scope_jax.play.rewards import mean

State = dict[str, Any]


def initial_state() -> State:
    """The state before the first step."""
    return {"step": 0, "mean": None, "dimensions": {}}


def get_constraints(cfg: Config, state: Mapping[str, Any], harness: Harness) -> Constraints:
    """(R_t, A_t) and hints, from the pool in force; a rubric of k dimensions can always meet them."""
    card, limits = options(cfg).scheduler, harness.dimension_constraints
    free = [name for name in harness.pool if name not in limits.must_include]
    used = state["dimensions"]
    average = state["mean"]

    def behind(name: str) -> bool:
        own = used.get(name)
        return own is not None and own["uses"] >= card.min_uses and own["consistency"] < average - card.margin

    worst = sorted(filter(behind, free), key=lambda name: used[name]["consistency"])
    avoided = worst[: min(card.avoided, len(harness.pool) - limits.k)]
    left = [name for name in free if name not in avoided]
    # sorted() is stable: where two are equal the order of the pool decides
    idle = sorted(left, key=lambda name: used[name]["last"] if name in used else 0)
    stale = [n for n in idle if state["step"] - (used[n]["last"] if n in used else 0) >= card.patience]
    required = stale[: min(card.required, limits.k - len(limits.must_include))]
    rare = sorted((n for n in left if n not in required), key=lambda name: used[name]["uses"] if name in used else 0)
    return Constraints(tuple(required), tuple(avoided), tuple(rare[: card.hints]))


def update_stats(
    cfg: Config, state: Mapping[str, Any], rubrics: Sequence[Rubric], consistency: Sequence[Sequence[float]]
) -> State:
    """The state after a step. consistency: for each rubric, C_i of the queries that it was used for."""
    decay = options(cfg).scheduler.decay
    step = state["step"] + 1
    average, dimensions = state["mean"], {name: dict(own) for name, own in state["dimensions"].items()}
    for rubric, values in zip(rubrics, consistency, strict=True):
        value = mean(values)
        average = _moved(average, value, decay)
        for name in rubric.dimensions:
            own = dimensions.setdefault(name, {"uses": 0, "last": 0, "consistency": None})
            own["uses"] += 1
            own["last"] = step
            own["consistency"] = _moved(own["consistency"], value, decay)
    return {"step": step, "mean": average, "dimensions": dimensions}


def _moved(average: float | None, value: float, decay: float) -> float:
    """The moving average after one more value; it starts with the first."""
    return value if average is None else decay * average + (1 - decay) * value
