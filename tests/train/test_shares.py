"""How work is divided over processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
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
from scope_jax.play.driver import EpisodeContext, InteractionDriver
from scope_jax.play.rollouts import Ask, Context
from scope_jax.play.tool_execution import Execution
from scope_jax.play.tools import Agent, Rollout
from scope_jax.play.turns import Joiner, raw
from scope_jax.rollouts.keys import key_data
from scope_jax.rollouts.scripted import ScriptedRollouts
from scope_jax.rollouts.types import Request, SamplingParams
from scope_jax.run.activity import Activity
from scope_jax.run.playing import PlayCall, Playing
from scope_jax.run.processes import PeerError, by_one, divided, one_first, shares, together
from scope_jax.run.recording import Recording
from scope_jax.run.sampler import Sampler
from scope_jax.run.world import StepTools, World
from scope_jax.text import dialects
from scope_jax.text.messages import Messages
from tests.games.harness import Characters
from tests.play.contexts import calls
from tests.train.test_requests import Asked, made_world

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
        self.counted: dict[str, int] = {}  # by counter
        self._lock = threading.Lock()
        monkeypatch.setattr(distributed, "number", self._number)
        monkeypatch.setattr(distributed, "forget", lambda counter: self.counted.pop(counter, None))

    def _number(self, counter: str) -> int:
        with self._lock:
            self.counted[counter] = self.counted.get(counter, 0) + 1
            return self.counted[counter]

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


class Recorded(ScriptedRollouts):
    """Agents that repeat the last character of their prompt, on an engine of so many slots; `asked` has what each
    process was given, first that with which it began. late: the process that takes no more until the others have taken
    all."""

    def __init__(self, slots: int, late: int | None = None) -> None:
        super().__init__(lambda prompt, turns: prompt[-1], Characters(), max_length=99)
        self._slots = slots
        self.asked: dict[int, tuple[str, str]] = {}
        self._late, self._taken = late, threading.Barrier(3, timeout=30)

    @property
    def slots(self) -> int:
        return self._slots

    def interact(self, interactions: Any, weights: str = "", more: Any = None) -> None:
        late = distributed.index() == self._late
        if late:
            self._taken.wait()
        later = [each for part in more for each in part]
        if self._late is not None and not late:
            self._taken.wait()
        super().interact([*interactions, *later])
        texts = ["".join(each.completions()["agent"].turns[0].text for each in part) for part in (interactions, later)]
        self.asked[distributed.index()] = (texts[0], texts[1])


SIZES = (30, 20, 30, 5, 20, 50, 5)
PROMPTS = {
    f"{place}": (*[ord(" ")] * size, ord(letter))
    for place, (letter, size) in enumerate(zip("abadbcd", SIZES, strict=True))
}
AGENT = Agent("actor", SamplingSection(max_tokens=8))


def driver(rollout: Rollout, sample: int, group: str) -> InteractionDriver:
    params = SamplingParams(1.0, 0, 1.0, 8, (), Characters.eos_ids, False)

    def request(name: str, messages: Messages, number: int) -> Request:
        return Request(PROMPTS[rollout.name], params, np.zeros(2, np.uint32), group, 1, None)

    context = EpisodeContext(rollout.name, sample, lambda: np.random.default_rng(0), calls())
    return InteractionDriver(rollout, {"agent": AGENT}, context, Joiner("raw", Characters(), XML), request)


def texts(engine: Recorded, step: str = "step 1", samples: int = 1) -> str:
    """What all rollouts have said."""
    sampler = Sampler(engine)
    sampler.load({"actor": None})
    call = PlayCall(
        step=step,
        rollouts=[Rollout(name) for name in PROMPTS],
        samples=samples,
        prompts=PROMPTS,
        tokens=8,
        driver=driver,
    )
    groups = call.played(Playing({"actor": "actor"}, engine, sampler.use))
    return "".join(each.completions["agent"].turns[0].text for group in groups for each in group)


def test_every_process_gets_all_completions_and_equal_prompts_stay_together(three: Threads) -> None:
    engine = Recorded(slots=4)
    assert three.all(lambda: texts(engine)) == ["abadbcd"] * 3
    assert engine.asked == {0: ("aa", ""), 1: ("c", ""), 2: ("bbdd", "")}  # of 78, 59 and 58 + 28 tokens
    assert not three.counted


def test_keys_and_names_of_samples_do_not_depend_on_the_number_of_processes(three: Threads) -> None:
    def play(context: Context) -> Generator[Ask, Any, None]:
        yield Ask("agent", f"Question {context.name}", samples=2)

    local, names = Asked(lambda prompt, turns: "x", 999), [str(place) for place in range(5)]
    tools = StepTools(made_world(local, []), 0)
    rollouts = [Rollout(name, play=play) for name in names]
    found = three.all(lambda: [[*each.completions] for (each,) in tools.interact("r", rollouts, {"agent": AGENT})])
    assert found == [[["agent", "agent/1"]] * 5] * 3
    expected = [key_data(0, 0, "r", name, 0, *more).tolist() for name in names for more in ((), ("agent", 1))]
    assert sorted(np.asarray(request.key).tolist() for request in local.asked) == sorted(expected)


def test_processes_that_play_something_else_are_told_and_do_not_wait(three: Threads) -> None:
    """As in a game that branches by process; what each plays is named by step, role, rollouts and samples."""
    found = three.all(lambda: texts(Recorded(1), f"step 1, role {'judge' if distributed.index() == 2 else 'solver'!r}"))
    assert all(isinstance(error, PeerError) for error in found)
    assert "process 2 does something else (step 1, role 'judge': 7 rollouts of 1 samples, " in str(found[0])
    assert ") than process 0 (step 1, role 'solver': 7 rollouts of 1 samples, " in str(found[0])
    assert "let the game depend on its step, rows and memory alone" in str(found[0])
    assert all(
        isinstance(error, PeerError) for error in three.all(lambda: texts(Recorded(1), samples=1 + distributed.index()))
    )


def test_a_process_that_ends_while_others_play_is_told(three: Threads) -> None:
    found = three.all(lambda: texts(Recorded(4)) if distributed.index() else together(lambda: "ended", "the end"))
    assert "process 0 does something else (the end) than process 1 (step 1: 7 rollouts" in str(found[1])
    assert "process 1 does something else (step 1: 7 rollouts of 1 samples" in str(found[0])


def test_the_same_call_twice_is_handed_out_twice(three: Threads) -> None:
    assert three.all(lambda: texts(Recorded(1)) + texts(Recorded(1))) == ["abadbcd" * 2] * 3
    assert not three.counted


@pytest.mark.parametrize("late", [0, 1, 2])
def test_what_does_not_fit_into_the_slots_goes_to_those_that_ask_and_completions_are_the_same(
    three: Threads, late: int
) -> None:
    """A group of two has a process of one slot alone, and d is left."""
    engine = Recorded(1, late)
    assert three.all(lambda: texts(engine)) == ["abadbcd"] * 3
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


def _world(asked: list[tuple[str, ...]]) -> World:
    """One with what a search takes part in; `asked` gets the queries of each search."""
    cfg = load_card("ssp/atlas")
    joiner = Joiner("raw", Characters(), XML)

    def search(queries: Any) -> list[str]:
        asked.append(tuple(queries))
        return [f"found {query}" for query in queries]

    local = ScriptedRollouts(lambda prompt, turns: "<search>Oslo</search>", Characters(), max_length=9999)
    sampler = Sampler(local)
    sampler.load({"actor": None})
    tokenizer = SimpleNamespace(eos_ids=Characters.eos_ids)
    parts = {"cfg": cfg, "joiner": joiner, "tokenizer": tokenizer, "sampler": sampler, "local": local}
    execution = Execution(lambda text: [*map(ord, text)], str, print, 1)
    toolbox = {"search": searching.search_tool(search, XML)}
    parts |= {"recording": Recording(), "execution": execution, "toolbox": toolbox}
    world = object.__new__(World)
    object.__setattr__(world, "activity", Activity())
    for name, part in (parts | {"search": search}).items():
        object.__setattr__(world, name, part)
    return world


def test_the_search_of_a_responder_is_made_by_its_process_alone(three: Threads) -> None:
    """The other processes, which have no such episode, would not answer."""
    asked: list[tuple[str, ...]] = []
    world = _world(asked)
    agent = searching.with_searches(Agent("actor", SamplingSection()), "answer")

    def play() -> list[str]:
        ((completion,),) = StepTools(world, 0).play(
            "solver", [Rollout("q", Messages("?"))], replace(agent, max_turns=2)
        )
        return [turn.text for turn in completion.turns]

    said = "<search>Oslo</search>"
    assert three.all(play) == [[said, raw(XML.observation(["found Oslo"])), said]] * 3
    assert asked == [("Oslo",), ("Oslo",)]


def test_a_search_of_the_game_is_made_by_all_processes_together_in_whichever_thread(three: Threads) -> None:
    asked: list[tuple[str, ...]] = []
    world = _world(asked)
    queries = ["a", "b", "c"]
    found = three.all(lambda: StepTools(world, 0).search(queries))
    assert found == [["found a", "found b", "found c"]] * 3
    assert sorted(asked) == [("a",), ("b",), ("c",)], "each asks for its share"
