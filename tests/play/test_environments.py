"""Environments as rollouts, driven by a script in place of the agent, and the adapters of other projects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from scope_jax.errors import UserError
from scope_jax.play.environments import Gymnasium, OpenEnv, SkyRlGym, as_messages, environment
from scope_jax.play.rollouts import Ask, Failed, Rollout
from scope_jax.play.tool_calls import ToolError
from scope_jax.text.messages import Messages


@dataclass
class Turn:
    """What the driver sends, as far as environments read it."""

    content: str
    over: bool = False
    finish: str | None = "stop"


def drive(rollout: Rollout, turns: Sequence[Turn]) -> tuple[Any, list[Ask]]:
    """(the rollout's value, what it asked)."""
    assert rollout.play is not None
    play, asks, answers = rollout.play(None), [], iter(turns)
    try:
        asks.append(next(play))
        while True:
            asks.append(play.send(next(answers)))
    except StopIteration as end:
        return end.value, asks


class Count:
    """Wants the numbers from 1 to 3."""

    def __init__(self, fails: bool = False) -> None:
        self.next, self.fails, self.closed = 1, fails, 0

    def reset(self) -> Messages:
        return Messages("Count to 3.", system="One number a turn.")

    def step(self, text: str) -> tuple[str, float, bool]:
        if self.fails:
            raise Failed("the world is gone")
        right = text == str(self.next)
        self.next += right
        return ("right" if right else "wrong"), float(right), self.next > 3

    def close(self) -> None:
        self.closed += 1


def test_an_environment_is_a_rollout():
    world = Count()
    rollout = environment("count/7", "player", lambda context: world)
    value, asks = drive(rollout, [Turn(" 1\n"), Turn("4"), Turn("2"), Turn("3")])
    assert value == {"rewards": [1.0, 0.0, 1.0, 1.0], "done": True} and world.closed == 1
    assert asks == [
        Ask("player", say) for say in (Messages("Count to 3.", "One number a turn."), "right", "wrong", "right")
    ]
    assert rollout.name == "count/7" and json.dumps(value)


def test_an_agent_that_cannot_go_on_ends_it():
    world = Count()
    value, _ = drive(environment("a", "player", lambda context: world), [Turn("1"), Turn("2", over=True)])
    assert value == {"rewards": [1.0, 1.0], "done": False} and world.closed == 1
    value, _ = drive(environment("a", "player", lambda context: world), [Turn("", over=True, finish=None)])
    assert value == {"rewards": [], "done": False} and world.closed == 2


def test_a_world_is_closed_however_its_rollout_ends():
    world = Count(fails=True)
    with pytest.raises(Failed, match="the world is gone"):
        drive(environment("a", "player", lambda context: world), [Turn("1")])
    assert world.closed == 1
    rollout = environment("a", "player", lambda context: world)
    assert rollout.play is not None
    play = rollout.play(None)
    next(play)
    play.close()
    assert world.closed == 2


class Text:
    """An environment as SkyRL-gym has them."""

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        return [{"role": "system", "content": "Guess."}, *prompt], {}

    def step(self, action: str) -> dict[str, Any]:
        hints = [{"role": "user", "content": "lower"}, {"role": "user", "content": "again"}]
        done = action == "4"
        return {"observations": [] if done else hints, "reward": 1.0 if done else -0.5, "done": done, "metadata": {}}

    def close(self) -> None:
        pass


def test_skyrl_gym():
    rollout = environment("a", "player", lambda context: SkyRlGym(Text(), [{"role": "user", "content": "1 to 9"}]))
    value, asks = drive(rollout, [Turn("7"), Turn("4")])
    assert value == {"rewards": [-0.5, 1.0], "done": True}
    assert [ask.say for ask in asks] == [Messages("1 to 9", system="Guess."), "lower\n\nagain"]


class Walk:
    """An environment as Gymnasium has them: from 0 to 2."""

    def reset(self, *, seed: int | None = None) -> tuple[int, dict[str, Any]]:
        self.place = seed or 0
        return self.place, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.place += action
        return self.place, float(action), self.place >= 2, self.place <= -2, {}

    def close(self) -> None:
        pass


def number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ToolError(f"{text!r} is no number") from None


def test_gymnasium():
    def make(context: Any) -> Gymnasium:
        return Gymnasium(Walk(), number, to_text=lambda place: f"at {place}", prompt="Go to 2.", seed=1)

    value, asks = drive(environment("a", "player", make), [Turn("left"), Turn("-1"), Turn("2")])
    assert value == {"rewards": [0.0, -1.0, 2.0], "done": True}
    assert [ask.say for ask in asks] == ["Go to 2.\n\nat 1", "error: 'left' is no number", "at 0"]
    assert drive(environment("a", "player", make), [Turn("-5")])[0]["done"]


def test_prompts_of_openai_messages():
    user, system = {"role": "user", "content": "u"}, {"role": "system", "content": "s"}
    assert as_messages([user]) == Messages("u") and as_messages([system, user]) == Messages("u", system="s")
    for conversation in ([], [system], [user, user], [user, {"role": "assistant", "content": "a"}, user]):
        with pytest.raises(UserError, match="a prompt of the roles"):
            as_messages(conversation)
    with pytest.raises(UserError, match="a prompt of the roles user"):
        as_messages([{"role": "user", "content": [{"type": "image_url"}]}])


def test_openenv_without_its_client_is_a_sentence(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "openenv", None)
    with pytest.raises(UserError, match=r"pip install 'scope-jax\[openenv\]'"):
        OpenEnv("http://127.0.0.1:9", lambda text: {"message": text})
