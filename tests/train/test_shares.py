"""How work is divided over processes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rollouts.types import Request, SamplingParams
from scope_jax.run import processes
from scope_jax.run.processes import DividedRollouts, divided, shares
from sharding import distributed


def test_the_costliest_come_first_and_go_where_there_is_least() -> None:
    # 9 → 0, 7 → 1, 5 → 1 (7 < 9), 4 → 0 (9 < 12), 1 → 1 (12 < 13), 1 → 0 (13 = 13, the first).
    assert shares([4, 9, 1, 7, 5, 1], 2) == [0, 0, 1, 1, 1, 0]
    assert shares([], 3) == []


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 8))
def test_no_process_has_more_than_another_by_more_than_one_item(costs: list[int], count: int) -> None:
    places = shares(costs, count)
    loads = [sum(cost for cost, place in zip(costs, places, strict=True) if place == one) for one in range(count)]
    assert sum(loads) == sum(costs) and max(loads) - min(loads) <= max(costs, default=0)


def test_one_process_does_all_work_itself() -> None:
    asked = []
    assert divided(lambda items: asked.append(items) or [item + 1 for item in items], (3, 1), [1, 1]) == [4, 2]
    assert asked == [[3, 1]]


def request(group: str | None, tokens: int) -> Request:
    params = SamplingParams(1.0, 0, 1.0, 8, (), (), False)
    return Request(tuple(range(tokens)), params, np.zeros(2, np.uint32), group, 1, None)


def test_every_process_gets_all_completions_in_order(monkeypatch) -> None:
    """Three processes, one after the other; the exchange of the last has everything that the others sent."""
    requests = [request(name, size) for name, size in zip("aabbcdd", (30, 30, 20, 20, 50, 5, 5), strict=True)]
    sent: list[list] = []

    class Rollouts:
        load_params = take_params = use = None

        def run(self, asked):
            assert asked == [r for r in requests if r in asked]
            return [f"{r.group}/{len(r.prompt_ids)}" for r in asked]

    monkeypatch.setattr(distributed, "count", lambda: 3)
    monkeypatch.setattr(processes, "together", lambda work: sent.append(work()) or [*sent, *[[]] * (3 - len(sent))])
    for one in range(3):
        monkeypatch.setattr(distributed, "index", lambda one=one: one)
        try:
            found = DividedRollouts(Rollouts()).run(requests)  # type: ignore[arg-type]
        except (StopIteration, RuntimeError):  # the others' results are not there yet
            assert one < 2
    assert found == ["a/30", "a/30", "b/20", "b/20", "c/50", "d/5", "d/5"]
    assert sent == [[["a/30", "a/30"]], [["c/50"]], [["b/20", "b/20"], ["d/5", "d/5"]]]
