"""A dispatch is launched before the one before is read, and no completion changes."""

import time
from typing import Any

import pytest

from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.types import Continuation, Restart
from tests.rollouts.test_pages import conversations
from tests.rollouts.world import bits, make_paged, make_rollouts, mixed, request

LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")


def responder(kind, number):
    """Observations, cuts or restarts after the first two turns, which take a while now and then."""

    def respond(turns):
        time.sleep(0.004 * (number % 3))
        turn = sum(turn.kind == "sampled" for turn in turns)
        if turn > 2:
            return None
        if kind == "cut":
            return Continuation(list(b" seen "), "seen", kept=min(3, len(turns[-1].ids)))
        return Restart(list(b"anew " * (turn + number % 4)), "anew") if kind == "restart" else " observed " * turn

    return respond


def episodes():
    """Three times as many as there are slots: turns that end by stop strings, stop ids and limits, with responders."""
    kinds = ("observation", "cut", "restart")
    asked = [
        request(
            f"prompt {i % 5} " * (5 + i % 3),
            key=i,
            max_tokens=18 + 3 * (i % 5),
            max_turns=4,
            stop=LETTERS if i % 2 else (),
            stop_ids=(256, 40, 41, 42),
            respond=responder(kinds[i % 3], i),
        )
        for i in range(18)
    ]
    return [*asked, *mixed(6)]


@pytest.fixture(scope="module")
def paged():
    return make_paged()


@pytest.fixture(scope="module")
def plain(engine, params):
    completions = make_rollouts(engine, params).run(episodes())
    finishes = {turn.finish for c in completions for turn in c.turns if turn.kind == "sampled"}
    assert finishes >= {"stop", "cut", "length"} and {len(c.rows) for c in completions} == {1, 3}
    return completions


def test_columns(engine, params, plain):
    assert [bits(c) for c in make_rollouts(engine, params, ahead=True).run(episodes())] == [bits(c) for c in plain]


def test_pages_plenty_and_few(paged, params, monkeypatch):
    aside = []
    set_aside = Engine.set_aside
    monkeypatch.setattr(Engine, "set_aside", lambda *given: aside.append(1) or set_aside(*given))
    asked = [*episodes(), *conversations()]
    plain = make_rollouts(paged, params).run(asked)
    ahead = make_rollouts(paged, params, ahead=True)
    assert [bits(c) for c in ahead.run(asked)] == [bits(c) for c in plain] and not aside
    few = make_rollouts(make_paged(pages=9), params, ahead=True)
    assert [bits(c) for c in few.run(asked)] == [bits(c) for c in plain] and len(aside) > 2
    for rollouts, pages in ((ahead, paged.pages[0]), (few, 9)):
        (pool,) = rollouts._state.pools
        assert pool.used == 0 and pool.available() == pages - 1


class Recorded(Engine):
    """Records launches (+1), reads (-1) and pauses (0) of the engine that it wraps."""

    def __init__(self, engine):
        vars(self).update(vars(engine))
        self.order = []

    def generate(self, *given):
        self.order.append(1)
        return super().generate(*given)

    def read(self, *given):
        self.order.append(-1)
        return super().read(*given)

    def pause(self, *given):
        self.order.append(0)
        return super().pause(*given)


@pytest.mark.parametrize("ahead", [False, True])
def test_the_next_dispatch_is_launched_before_the_last_is_read(engine, params, ahead):
    watched: Any = Recorded(engine)
    asked = [request(f"prompt {i}", key=i, max_tokens=30, stop_ids=(), stop=LETTERS) for i in range(16)]
    make_rollouts(watched, params, ahead=ahead).run(asked)
    order = watched.order
    in_flight = [sum(order[:end]) for end, step in enumerate(order, start=1) if step == -1]
    assert len(in_flight) > 5 and set(in_flight) == {int(ahead)}, "after a read, one is still in flight"
    assert 0 in order, "stop strings pause slots"
