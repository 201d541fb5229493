"""Calls of tools: whatever a tool does is an observation, in time, recorded, and no end of the run."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from scope_jax.errors import UserError
from scope_jax.play.searching import search_tool
from scope_jax.play.tool_calls import Tool, ToolError, ToolUnavailable, tool
from scope_jax.play.tool_execution import LEAST, MalformedCall, ToolCall
from scope_jax.text import dialects
from tests.play.contexts import Record, calls, execution


@tool(pure=True)
def double(number: int) -> str:
    """Twice a number."""
    time.sleep(random.random() / 50)
    return str(2 * number)


@tool
def clock() -> str:
    """The time."""
    return str(time.time_ns())


@tool
def broken(kind: str) -> str:
    """Raises."""
    if kind == "told":
        raise ToolError("there is no such city")
    raise ValueError(f"no {kind} in /home/someone/secret/place\nsecond line")


class Counter:
    """A state that opens, counts and closes."""

    opened: int = 0
    closed: int = 0

    @contextmanager
    def open(self, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        self.opened += 1
        yield {"count": 0, "seed": int(rng.integers(1 << 30))}
        self.closed += 1

    def tools(self) -> tuple[Tool, Tool]:
        opened = self.open

        @tool(open=opened)
        def add(state: dict[str, Any], by: int) -> str:
            """Adds."""
            state["count"] += by
            return str(state["count"])

        @tool(open=opened)
        def show(state: dict[str, Any]) -> str:
            """Shows."""
            return f"{state['count']} {state['seed']}"

        return add, show


def test_results_are_in_the_order_of_the_calls() -> None:
    run = calls()
    results = run.run("a", 0, [ToolCall(double, {"number": n}) for n in range(20)])
    assert [result.text for result in results] == [str(2 * n) for n in range(20)]
    assert {result.status for result in results} == {"ok"} and run.results["a"] == results


def test_calls_of_a_turn_run_together() -> None:
    together = threading.Barrier(4, timeout=10)

    @tool
    def meet(number: int) -> str:
        """Waits for three others."""
        return str(together.wait() >= 0)

    results = calls().run("a", 0, [ToolCall(meet, {"number": n}) for n in range(4)])
    assert [result.text for result in results] == ["True"] * 4


def test_a_tool_that_raises_is_an_observation_without_paths() -> None:
    told: list[str] = []
    run = execution()
    run.tell = told.append
    results = calls(run=run).run("a", 3, [ToolCall(broken, {"kind": kind}) for kind in ("told", "x", "y")])
    assert [result.text for result in results] == [
        "error: there is no such city",
        "error: ValueError: no x in place",
        "error: ValueError: no y in place",
    ]
    assert {result.status for result in results} == {"error"} and {result.turn for result in results} == {3}
    assert len(told) == 1 and "Traceback" in told[0]  # once of a kind


def test_malformed_calls_are_answered_and_nothing_is_run() -> None:
    record = Record()
    (result,) = calls(record).run("a", 0, [MalformedCall("pyton", "error: there is no tool pyton")])
    assert (result.status, result.tool, result.arguments) == ("malformed", "pyton", None)
    assert result.text == "error: there is no tool pyton" and record.written == []


def test_a_late_result_is_dropped_and_its_thread_left_behind() -> None:
    late = threading.Event()

    @tool(seconds=0.05)
    def slow() -> str:
        """Waits."""
        late.wait(120)
        return "late"

    run = execution(threads=4)
    began = time.monotonic()
    (result,) = calls(run=run).run("a", 0, [ToolCall(slow, {})])
    assert result.status == "timeout" and result.text == "error: no result within 0.05 s"
    assert time.monotonic() - began < 60
    calls(run=run).run("a", 0, [ToolCall(slow, {})])
    with pytest.raises(UserError, match="3 calls of tools, last of slow, have not come back"):
        calls(run=run).run("a", 0, [ToolCall(slow, {})])
    late.set()


def test_most_calls_of_a_step_that_find_no_service_end_the_run() -> None:
    @tool
    def gone(number: int) -> str:
        """Fails now and then."""
        if number % 3:
            raise ToolUnavailable("the server does not answer")
        return "there"

    run = execution()
    one = calls(run=run)
    with pytest.raises(UserError, match="calls of tools in this step failed, last of gone: the server does not answer"):
        one.run("a", 0, [ToolCall(gone, {"number": n}) for n in range(3 * LEAST)])
    one = calls(run=run.another())
    for number in range(3 * LEAST):  # a policy that calls wrongly is no broken service
        (result,) = one.run("a", 0, [ToolCall(broken, {"kind": str(number)})])
        assert result.status == "error"


@pytest.mark.parametrize("length", [0, 20, 21, 100, 10_000_000])
def test_long_results_are_cut_with_a_mark(length: int) -> None:
    @tool(max_output_tokens=20)
    def long() -> str:
        """Writes much."""
        return "x" * length

    (result,) = calls().run("a", 0, [ToolCall(long, {})])
    assert len(result.text) == min(length, 20) and result.text.endswith("[cut]") == (length > 20)


def test_half_of_a_character_is_replaced() -> None:
    @tool
    def half() -> str:
        """No text that can be encoded."""
        return "a\ud800b"

    (result,) = calls().run("a", 0, [ToolCall(half, {})])
    assert result.text == "a\ufffdb"


def test_a_tool_that_returns_no_text_is_a_bug() -> None:
    wrong = Tool("wrong", lambda: 3, {"type": "function", "function": {"name": "wrong"}})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the tool wrong returned int"):
        calls().run("a", 0, [ToolCall(wrong, {})])


def test_a_state_is_of_one_rollout_shared_by_tools_and_closed_once() -> None:
    counter = Counter()
    add, show = counter.tools()
    first, second = calls(), calls()
    assert [r.text for r in first.run("a", 0, [ToolCall(add, {"by": n}) for n in range(1, 9)])] == [
        str(n * (n + 1) // 2) for n in range(1, 9)
    ]
    assert first.run("a", 1, [ToolCall(show, {})])[0].text.startswith("36 ")
    assert second.run("a", 0, [ToolCall(show, {})])[0].text.startswith("0 ")
    assert counter.opened == 2 and counter.closed == 0
    for each in (first, second, first):
        each.close()
    assert counter.closed == 2


def test_recorded_calls_are_not_run_and_a_state_is_what_it_was() -> None:
    counter = Counter()
    add, show = counter.tools()
    whole = Record()
    before = calls(whole)
    told = [r.text for n in range(4) for r in before.run("a", n, [ToolCall(add, {"by": n}), ToolCall(clock, {})])]
    end = before.run("a", 4, [ToolCall(show, {})])[0].text
    for kept in range(len(whole.written) + 1):
        record = Record(whole.written[:kept])
        after = calls(record)
        again = [r.text for n in range(4) for r in after.run("a", n, [ToolCall(add, {"by": n}), ToolCall(clock, {})])]
        assert again[::2] == told[::2] and again[1:kept:2] == told[1:kept:2]
        assert after.run("a", 4, [ToolCall(show, {})])[0].text == end
        assert len(record.written) == len(whole.written) - kept and record.differed == []


def test_a_call_that_differs_from_the_record_ends_it() -> None:
    whole = Record()
    one = calls(whole)
    times = [one.run("a", n, [ToolCall(clock, {})])[0].text for n in range(3)]
    other = Record(whole.written)
    two = calls(other)
    assert two.run("a", 0, [ToolCall(clock, {})])[0].text == times[0]
    two.run("a", 1, [ToolCall(broken, {"kind": "x"})])
    assert two.run("a", 2, [ToolCall(clock, {})])[0].text != times[2]
    assert other.differed == [1] and [line["number"] for line in other.written] == [1, 2]


@pytest.mark.parametrize("pure", [False, True])
def test_searches_of_a_server_are_recorded_and_those_of_an_index_are_not(pure: bool) -> None:
    asked: list[list[str]] = []

    def search(queries: Sequence[str]) -> list[str]:
        asked.append([*queries])
        return [f"{query} {len(asked)}" for query in queries]

    def texts(record: Record) -> list[str]:
        found, one = search_tool(search, dialects.load("xml"), pure), calls(record)
        return [
            each.text
            for turn, queries in enumerate((["a", "b"], ["c"]))
            for each in one.run("solver", turn, [ToolCall(found, {"query": query}) for query in queries])
        ]

    record = Record()
    assert texts(record) == ["a 1", "b 1", "c 2"] and asked == [["a", "b"], ["c"]]
    assert [line["text"] for line in record.written] == ([] if pure else ["a 1", "b 1", "c 2"])
    again = Record(record.written[:1])
    assert texts(again) == (["a 3", "b 3", "c 4"] if pure else ["a 1", "b 3", "c 4"])
    assert asked[2:] == ([["a", "b"], ["c"]] if pure else [["b"], ["c"]]) and not again.differed
    assert [line["number"] for line in again.written] == ([] if pure else [1, 2])


def test_pure_results_are_shared_and_not_recorded() -> None:
    run, record, counted = execution(), Record(), []

    @tool(pure=True)
    def once(number: int) -> str:
        """Counts its calls."""
        counted.append(number)
        return str(number)

    for _ in range(3):
        assert calls(record, run).run("a", 0, [ToolCall(once, {"number": 1})])[0].text == "1"
    calls(record, run.another()).run("a", 0, [ToolCall(once, {"number": 1})])
    assert counted == [1, 1] and record.written == []


def test_results_are_shared_by_calls_of_one_tool_alone() -> None:
    """Two agents may have tools of one name that answer otherwise."""

    def greeter(word: str) -> Tool:
        @tool(pure=True, name="greet")
        def greet(who: str) -> str:
            """Greets."""
            return f"{word} {who}"

        return greet

    run = execution()
    told = [calls(run=run).run("a", 0, [ToolCall(greeter(word), {"who": "you"})])[0].text for word in ("hello", "bye")]
    assert told == ["hello you", "bye you"]
