"""Environments as rollouts, driven by a script in place of the agent, and the adapters of other projects."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scope_jax.environments.environment import Gymnasium, OpenEnv, SkyRlGym, as_messages, environment
from scope_jax.errors import UserError
from scope_jax.play.rollouts import Ask, Failed, Rollout
from scope_jax.play.tool_calls import ToolError
from scope_jax.text.messages import Messages
from tests.play.contexts import Record, context


@dataclass
class Turn:
    """What the driver sends, as far as environments read it."""

    content: str
    over: bool = False
    finish: str | None = "stop"


def drive(rollout: Rollout, turns: Sequence[Turn], record: Record | None = None) -> tuple[Any, list[Ask]]:
    """(the rollout's value, what it asked)."""
    assert rollout.play is not None
    play, asks, answers = rollout.play(context(record)), [], iter(turns)
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
    play = rollout.play(context())
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
    said = {"role": "assistant", "content": "a"}
    assert as_messages([system, user, said, user]) == Messages("u", "s", before=(user, said))
    assert as_messages([user, said, user]).conversation() == [user, said, user]
    for conversation, sentence in (
        ([], "ends with a user message"),
        ([system], "ends with a user message"),
        ([user, said], "ends with a user message"),
        ([user, system, user], "of the role 'system' cannot stand within"),
        ([user, {"role": "tool", "content": "t"}, user], "of the role 'tool' cannot stand within"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "is not text"),
    ):
        with pytest.raises(UserError, match=sentence):
            as_messages(conversation)


def test_what_an_environment_answers_is_recorded():
    worlds: list[Count] = []

    def make(_: Any) -> Count:
        worlds.append(Count())
        return worlds[-1]

    rollout, turns = environment("count", "player", make), [Turn("1"), Turn("4"), Turn("2"), Turn("3")]
    whole = Record()
    value, asks = drive(rollout, turns, whole)
    assert len(whole.written) == 5 and len(worlds) == 1
    for kept in range(6):
        worlds.clear()
        again = Record(whole.written[:kept])
        assert drive(rollout, turns, again) == (value, asks)
        assert len(again.written) == 5 - kept
        assert [(world.next, world.closed) for world in worlds] == ([(4, 1)] if kept < 5 else [])


def test_an_environment_that_hangs_fails_its_rollout():
    class Slow(Count):
        def step(self, text: str) -> tuple[str, float, bool]:
            time.sleep(0.5)
            return super().step(text)

    with pytest.raises(Failed, match=r"the environment Slow gave no result within 0\.1 s"):
        drive(environment("a", "player", lambda context: Slow(), seconds=0.1), [Turn("1")])


def test_openenv_without_its_client_is_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "openenv", None)
    with pytest.raises(UserError, match=r"pip install 'scope-jax\[openenv\]'"):
        OpenEnv("http://127.0.0.1:9", lambda text: {"message": text})


def test_openenv(tmp_path: Path):
    pytest.importorskip("openenv")
    file = tmp_path / "port"
    server = subprocess.Popen([sys.executable, str(Path(__file__).with_name("openenv_server.py")), str(file)])
    try:
        while not (file.exists() and file.read_text()):
            assert server.poll() is None
            time.sleep(0.1)
        url = f"http://127.0.0.1:{file.read_text()}"

        def to_action(text: str) -> dict[str, str]:
            if not text.islower():
                raise ToolError("in small letters, please")
            return {"message": text.strip()}

        def make(context: Any) -> OpenEnv:
            return OpenEnv(url, to_action, to_text=lambda heard: heard["text"], prompt="Speak.", reset={"seed": 3})

        def play(_: int) -> tuple[Any, list[Any]]:
            turns = [Turn("abc"), Turn("X"), Turn("a?"), Turn("a"), Turn("never")]
            value, asks = drive(environment("a", "player", make), turns)
            return value, [ask.say for ask in asks]

        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(play, range(4)))
        expected = ["Speak.\n\nready 3", "abc", "error: in small letters, please", "a?"]
        assert results == [({"rewards": [3.0, 0.0, 2.0, 1.0], "done": True}, expected)] * 4
        rejected = environment("a", "player", lambda context: OpenEnv(url, lambda text: {"message": "?"}))
        assert "error: " in str(first_asks(rejected, [Turn("x")])[1].say)
    finally:
        server.kill()
        server.wait()
    with pytest.raises(Failed, match="the OpenEnv server http"):
        drive(environment("a", "player", make), [Turn("a")])


def first_asks(rollout: Rollout, turns: Sequence[Turn]) -> list[Ask]:
    """What a rollout asks after each of these turns; then it is closed."""
    assert rollout.play is not None
    play = rollout.play(context())
    asks = [next(play), *(play.send(turn) for turn in turns)]
    play.close()
    return asks
