"""Requests that join and leave a running decode loop: the bits are those of offline runs, what leaves holds nothing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from scope_jax.rollouts.loop import DecodeLoop
from scope_jax.rollouts.online import Closed, Done, Full, OnlineRollouts, Sampled, Ticket, listener_in
from scope_jax.rollouts.tools import BatchedTool
from scope_jax.rollouts.types import Completion, Request, RolloutError, Turn
from tests.rollouts import world
from tests.rollouts.world import ByteTokenizer, bits, mixed, request


class Asked:
    """A request and what its listener was told."""

    def __init__(self, rollouts: OnlineRollouts, one: Request) -> None:
        self.news: list[Any] = []
        self.over = threading.Event()
        (self.ticket,) = rollouts.submit([one], [self.hear])

    def hear(self, news: Any) -> None:
        self.news.append(news)
        if isinstance(news, Done):
            self.over.set()

    def done(self) -> Done:
        assert self.over.wait(120)
        return self.news[-1]

    def completion(self) -> Completion:
        done = self.done()
        assert done.error is None and done.completion is not None
        return done.completion


@contextmanager
def online(engine, params, **changes: Any) -> Iterator[OnlineRollouts]:
    settings: dict[str, Any] = {"waiting": 64, "threads": 4, "ahead": False} | changes
    rollouts = OnlineRollouts(engine, engine.load_params(params), ByteTokenizer(), **settings)
    try:
        yield rollouts
    finally:
        rollouts.close(5)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_invalid_requests_are_refused_and_the_others_go_on(engine, params):
    with online(engine, params) as rollouts:
        first = Asked(rollouts, request("hello", key=1, max_tokens=20, stop_ids=()))
        with pytest.raises(ValueError, match="no adapter of the policy 'nobody'"):
            rollouts.submit([replace(request("x", key=2), policy="nobody")], [print])
        with pytest.raises(ValueError, match="a different prompt from the rest of its group"):
            rollouts.submit([request("a", key=2, group="g"), request("b", key=3, group="g")], [print] * 2)
        asked = [Asked(rollouts, request(text, key=4, group="g", max_tokens=3)) for text in "ab"]  # two calls' groups
        assert all(one.completion() is not None for one in (first, *asked))


def test_nobody_listens_in_a_closed_event_loop():
    loop, told = asyncio.new_event_loop(), []
    listener = listener_in(loop, told.append)
    news = Sampled((1,), (-0.5,))
    listener(news)
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert told == [news]
    loop.close()
    listener(news)
    assert told == [news]


def test_requests_that_join_get_what_they_get_offline(engine, params, rollouts):
    asked = mixed(24)
    expected = [bits(completion) for completion in rollouts.run(asked)]
    for ahead in (False, True):
        with online(engine, params, ahead=ahead) as running:
            first = [Asked(running, one) for one in asked[:12]]
            first[3].done()
            later = [Asked(running, one) for one in asked[12:]]
            assert [bits(one.completion()) for one in (*first, *later)] == expected
            for one in (*first, *later):
                told = [id for news in one.news if isinstance(news, Sampled) for id in news.ids]
                assert told == one.completion().ids_T.tolist()
        assert running.failure is None


@pytest.mark.slow
def test_drafts_change_nothing(params):
    asked = [request("ab" * 30, key=1, temperature=0.0, max_tokens=60, stop_ids=()), *mixed(3)]
    engine = world.make_paged(draft_tokens=3)
    with online(engine, params, ahead=True) as rollouts:
        found = [bits(Asked(rollouts, one).completion()) for one in asked]
    offline = world.make_rollouts(engine, params)
    offline.drafter = None
    assert found == [bits(c) for c in offline.run(asked)]


def test_observations_are_told_and_a_responders_error_ends_its_request_alone(engine, params, rollouts):
    def respond(turns: tuple[Turn, ...]) -> str | None:
        return "seen" if len(turns) == 1 else None

    def fail(turns: tuple[Turn, ...]) -> str | None:
        raise ConnectionError("the search server is down")

    good = request("a question", key=1, max_turns=3, respond=respond, max_tokens=6)
    expected = bits(rollouts.run([good])[0])
    with online(engine, params) as running:
        bad = Asked(running, request("another", key=2, respond=fail, max_turns=3))
        one = Asked(running, good)
        assert bits(one.completion()) == expected
        assert [news.text for news in one.news if isinstance(news, Turn)] == ["seen"]
        assert str(bad.done().error) == "the search server is down"
        assert bits(Asked(running, good).completion()) == expected


def endless(number: int) -> Request:
    return request(f"prompt {number}", key=number, max_tokens=140, stop_ids=())


def test_what_is_cancelled_frees_its_slot_wherever_it_is(engine, params, rollouts):
    blocked = threading.Event()

    def wait(turns: tuple[Turn, ...]) -> str | None:
        blocked.wait(30)
        return None

    one = request("still right", key=5, max_tokens=12)
    expected = bits(rollouts.run([one])[0])
    with online(engine, params) as running:
        asking = Asked(running, request("x", key=3, respond=wait, max_turns=2, max_tokens=2))
        decoding = [Asked(running, endless(number)) for number in range(30)]  # of which seven have a slot
        until(lambda: any(isinstance(news, Sampled) for news in decoding[0].news))
        for gone in (asking, *decoding):
            gone.ticket.cancel()
            gone.ticket.cancel()
        until(lambda: running.running == 0 and running.waiting == 0)
        blocked.set()
        assert bits(Asked(running, one).completion()) == expected
        assert not any(isinstance(news, Done) for gone in decoding[7:] for news in gone.news)


def test_the_loop_rests_while_all_slots_wait_for_a_tool_and_others_for_a_slot(engine, params, monkeypatch):
    """Its thread would take the lock of Python from those that answer."""
    answer, rounds = threading.Event(), []
    one_round = DecodeLoop.round

    def counted(self: DecodeLoop) -> Any:
        rounds.append(time.monotonic())
        return one_round(self)

    def slow(texts: list[str]) -> list[str]:
        assert answer.wait(30)
        return texts

    def respond(turns: tuple[Turn, ...]) -> None:
        tool(["a question"])

    monkeypatch.setattr(DecodeLoop, "round", counted)
    tool = BatchedTool(slow, own_thread=True)
    with online(engine, params, tool=tool, threads=8) as running:
        asked = [Asked(running, request("x", key=i, respond=respond, max_turns=2, max_tokens=2)) for i in range(9)]
        until(lambda: tool.callers == 8 and running.waiting == 1)
        time.sleep(0.1)
        began = time.monotonic()
        time.sleep(1)
        assert sum(at > began for at in rounds) < 100 * (time.monotonic() - began)  # one in 20 ms
        answer.set()
        assert all(one.completion() for one in asked)


def test_more_than_may_wait_is_refused_and_the_end_is_told(engine, params):
    with online(engine, params, waiting=2) as running:
        asked = [Asked(running, endless(number)) for number in range(10)]
        with pytest.raises(Full, match="10 requests are running or waiting"):
            Asked(running, endless(11))
        with pytest.raises(ValueError, match="The prompt has 160 tokens; the engine takes at most 159"):
            Asked(running, request("p" * 160))
        running.close(0)
        assert all(isinstance(one.done().error, Closed) or one.done().completion for one in asked)
        with pytest.raises(Closed):
            Asked(running, endless(12))


def test_an_error_of_the_engine_ends_every_request(engine, params, monkeypatch):
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RolloutError("out of order")

    with online(engine, params) as running:
        monkeypatch.setattr(engine, "generate", broken)
        asked = Asked(running, endless(0))
        error = asked.done().error
        assert isinstance(error, Closed) and str(error.__cause__) == "out of order" == str(running.failure)
        with pytest.raises(Closed):
            Asked(running, endless(1))


def test_an_error_while_compiling_ends_the_requests_that_came_with_it(engine, params, monkeypatch):
    held, go_on = threading.Event(), threading.Event()

    def hold(news: Any) -> None:  # the loop's thread, until it finds both at its next look
        held.set()
        assert go_on.wait(30)

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise RolloutError("out of memory")

    def compile_programs() -> None:
        with pytest.raises(RolloutError, match="out of memory"):
            running.compile(extends=False)

    with online(engine, params) as running:
        monkeypatch.setattr(engine, "compile", broken)
        running.submit([request("x", key=1, max_tokens=2)], [hold])
        assert held.wait(120)
        compiling = threading.Thread(target=compile_programs)
        compiling.start()
        until(lambda: running._to_compile is not None)
        asked = Asked(running, endless(0))
        go_on.set()
        assert isinstance(asked.done().error, Closed)
        compiling.join(30)
        assert not compiling.is_alive()


@pytest.mark.slow
def test_pages_of_cancelled_requests_are_free(params):
    engine = world.make_paged()
    offline = world.make_rollouts(engine, params)
    one = request("still right", key=5, max_tokens=12)
    expected = bits(offline.run([one])[0])
    with online(engine, params, ahead=True) as running:
        asked = [Asked(running, endless(number)) for number in range(20)]
        until(lambda: any(isinstance(news, Sampled) for news in asked[0].news))
        tickets: list[Ticket] = [gone.ticket for gone in asked]
        for ticket in tickets:
            ticket.cancel()
        until(lambda: running.running == 0 and running.waiting == 0)
        assert all(pool.used == 0 for pool in running.loop.state.pools)
        assert bits(Asked(running, one).completion()) == expected
