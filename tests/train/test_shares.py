"""How work is divided over processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_jax.config.tables import SamplingSection
from scope_jax.games import load_card
from scope_jax.multihost import distributed
from scope_jax.play import searching
from scope_jax.play.tool_execution import Execution
from scope_jax.play.tools import Agent, Rollout
from scope_jax.play.turns import Joiner, raw
from scope_jax.rollouts.local import LocalRollouts
from scope_jax.rollouts.types import Completion, Request, SamplingParams
from scope_jax.run.activity import Activity
from scope_jax.run.processes import DividedRollouts, PeerError, by_one, divided, one_first, shares, together
from scope_jax.run.recording import Recording
from scope_jax.run.world import StepTools, World
from scope_jax.text import dialects
from scope_jax.text.messages import Messages
from tests.games.harness import Characters, sampled_turn

XML = dialects.load("xml")


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


class Threads:
    """Three processes of this test, each a thread, with an exchange between them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._here = threading.local()
        self._barrier = threading.Barrier(3, timeout=30)
        self._parts = [b""] * 3
        monkeypatch.setattr(distributed, "count", lambda: 3)
        monkeypatch.setattr(distributed, "index", lambda: self._here.index)
        monkeypatch.setattr(distributed, "gather", self._gather)
        self.counted = 0  # by the one counter that a test has: here the processes do not number theirs alike
        self._lock = threading.Lock()
        monkeypatch.setattr(distributed, "number", self._number)
        monkeypatch.setattr(distributed, "forget", lambda counter: setattr(self, "counted", 0))

    def _number(self, counter: str) -> int:
        with self._lock:
            self.counted += 1
            return self.counted

    def _gather(self, payload: bytes) -> list[bytes]:
        self._parts[self._here.index] = payload
        self._barrier.wait()
        found = list(self._parts)
        self._barrier.wait()
        return found

    def all(self, work: Callable[[], Any]) -> list[Any]:
        """What `work` returns, or the exception it raises, in each."""

        def one(index: int) -> Any:
            self._here.index = index
            try:
                return work()
            except (ValueError, ConnectionError, PeerError) as error:
                return error

        with ThreadPoolExecutor(3) as pool:
            return list(pool.map(one, range(3)))


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> Threads:
    return Threads(monkeypatch)


def request(group: str | None, tokens: int) -> Request:
    params = SamplingParams(1.0, 0, 1.0, 8, (), (), False)
    return Request(tuple(range(tokens)), params, np.zeros(2, np.uint32), group, 1, None)


class Recorded(LocalRollouts):
    """Rollouts of so many slots whose completions name their request; `asked` has the groups of each call, first those
    that it began with. late: the process that takes no more work until the others have taken all."""

    def __init__(self, slots: int, late: int | None = None) -> None:
        self.engine: Any = SimpleNamespace(config=SimpleNamespace(slots=slots))
        self.asked: dict[int, tuple[str, str]] = {}
        self._late, self._taken = late, threading.Barrier(3, timeout=30)

    def run_parts(self, parts: Any, more: Any = None) -> Any:
        first, late = len(parts), distributed.index() == self._late
        if late:
            self._taken.wait()
        parts = [*parts, *more]
        if self._late is not None and not late:
            self._taken.wait()
        names = ["".join(request.group for part in some for request in part) for some in (parts[:first], parts[first:])]
        self.asked[distributed.index()] = (names[0], names[1])
        return [
            [Completion((), (sampled_turn(f"{r.group}{len(r.prompt_ids)}"),), "eos") for r in part] for part in parts
        ]


REQUESTS = [request(*each) for each in zip("abadbcd", (30, 20, 31, 5, 21, 50, 6), strict=True)]
TEXTS = ["a30", "b20", "a31", "d5", "b21", "c50", "d6"]


def texts(engine: Recorded) -> list[str]:
    return [completion.text for completion in DividedRollouts(engine).run(REQUESTS)]


def test_every_process_gets_all_completions_and_a_group_stays_together(three: Threads) -> None:
    engine = Recorded(slots=4)
    assert three.all(lambda: texts(engine)) == [TEXTS] * 3
    assert engine.asked == {0: ("aa", ""), 1: ("c", ""), 2: ("bbdd", "")}  # of 77, 58 and 57 + 27 tokens
    assert not three.counted


@pytest.mark.parametrize("late", [0, 1, 2])
def test_what_does_not_fit_into_the_slots_goes_to_those_that_ask_and_completions_are_the_same(
    three: Threads, late: int
) -> None:
    """A group of two has a process of one slot alone, and d is left."""
    engine = Recorded(1, late)
    assert three.all(lambda: texts(engine)) == [TEXTS] * 3
    assert [engine.asked[process][0] for process in range(3)] == ["aa", "c", "bb"]
    assert engine.asked[late][1] == "" and sorted(later for _, later in engine.asked.values()) == ["", "", "dd"]
    assert not three.counted  # forgotten


def test_a_prompt_that_a_stranger_has_counted_away_is_missed(three: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "number", lambda counter: 2)
    found = three.all(lambda: texts(Recorded(1)))
    assert all("a prompt has come to no process" in str(error) for error in found)


def test_an_error_of_one_process_ends_all(three: Threads) -> None:
    def work() -> int:
        if distributed.index() == 1:
            raise ValueError("the judge is gone")
        return distributed.index()

    first, own, last = three.all(lambda: together(work))
    assert isinstance(own, ValueError) and str(own) == "the judge is gone"
    assert str(first) == str(last) == "process 1 has failed: the judge is gone."
    assert three.all(lambda: by_one(distributed.index)) == [0, 0, 0]


def test_the_first_process_works_before_the_others(three: Threads) -> None:
    order: list[int] = []
    assert three.all(lambda: one_first(lambda: order.append(distributed.index()) or distributed.index())) == [0, 1, 2]
    assert order[0] == 0 and sorted(order) == [0, 1, 2]


class _Engine:
    """A sampler whose engine asks the responder of each request once, in the thread that plays."""

    def use(self, policy: str) -> _Engine:
        return self

    def named(self, policy: str) -> None:
        return None

    def run(self, requests: Any) -> Any:
        turn = sampled_turn("<search>Oslo</search>")
        return [
            Completion((), (sampled_turn(request.respond((turn,)).text),), "eos", calls=tuple(request.calls()))
            for request in requests
        ]

    def count(self, completions: Any) -> None: ...


def _world(asked: list[tuple[str, ...]]) -> World:
    """One with what a search takes part in; `asked` gets the queries of each search."""
    cfg = load_card("ssp/atlas")
    joiner = Joiner("raw", Characters(), XML)

    def search(queries: Any) -> list[str]:
        asked.append(tuple(queries))
        return [f"found {query}" for query in queries]

    parts = {"cfg": cfg, "joiner": joiner, "tokenizer": SimpleNamespace(eos_ids=()), "sampler": _Engine()}
    execution = Execution(lambda text: [*map(ord, text)], str, print, 1)
    toolbox = {"search": searching.search_tool(search, XML)}
    parts |= {"recording": Recording(), "execution": execution, "toolbox": toolbox}
    world = object.__new__(World)
    object.__setattr__(world, "activity", Activity())
    for name, part in (parts | {"search": search}).items():
        object.__setattr__(world, name, part)
    return world


def test_the_search_of_a_responder_is_made_by_its_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the main thread: the other processes, which have no such episode, would not answer."""
    monkeypatch.setattr(distributed, "count", lambda: 3)
    monkeypatch.setattr(distributed, "index", lambda: 0)
    monkeypatch.setattr(distributed, "gather", lambda payload: pytest.fail("the others were asked"))
    asked: list[tuple[str, ...]] = []
    world = _world(asked)
    tools = StepTools(world, 0)
    agent = searching.with_searches(Agent("actor", SamplingSection()), "answer")
    found = tools.play("solver", [Rollout("q", Messages("?"))], agent)
    assert [[completion.text for completion in samples] for samples in found] == [
        [raw(XML.observation(["found Oslo"]))]
    ]
    assert asked == [("Oslo",)]


def test_a_search_of_the_game_is_made_by_all_processes_together_in_whichever_thread(three: Threads) -> None:
    asked: list[tuple[str, ...]] = []
    world = _world(asked)
    queries = ["a", "b", "c"]
    found = three.all(lambda: StepTools(world, 0).search(queries))
    assert found == [["found a", "found b", "found c"]] * 3
    assert sorted(asked) == [("a",), ("b",), ("c",)], "each asks for its share"
