"""Errors and answers of others' environments, generators and clean-ups: which fail a rollout, and which end the run."""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from scope_jax.config import SamplingSection
from scope_jax.environments import environment as environments
from scope_jax.environments.environment import Gymnasium, SkyRlGym, environment
from scope_jax.errors import UserError
from scope_jax.play import failures
from scope_jax.play.rollouts import Agent, Ask, Context, Failed, Interaction, Rollout
from scope_jax.play.tool_calls import ToolError, tool
from scope_jax.play.tool_execution import ToolCall
from scope_jax.rollouts.types import RolloutError
from scope_jax.text.messages import Messages
from tests.games.harness import ScriptedTools
from tests.play.contexts import Record, calls, context, execution

AGENT = Agent("actor", SamplingSection(max_tokens=20), max_turns=3)
HALF, WHOLE = "a \ud83d b", "a \ufffd b"


def played(rollout: Rollout, record: Record | None = None) -> tuple[Interaction, list[str]]:
    """(the rollout, played by an agent that says "hm", what the user was told)."""
    tools = ScriptedTools(lambda context: "hm", turns="chat", record=record)
    ((interaction,),) = tools.interact("p", [rollout], {"player": AGENT})
    return interaction, tools.told


def raising(error: BaseException) -> Callable[..., Any]:
    def method(*arguments: Any) -> Any:
        raise error

    return method


def world(**methods: Any) -> Rollout:
    """A rollout in an environment of one turn, with other methods in place of its own."""

    class Walk:
        def reset(self) -> Any:
            return "Go."

        def step(self, text: str) -> Any:
            return "done", 1.0, True

        def close(self) -> None: ...

    for name, method in methods.items():
        setattr(Walk, name, lambda self, *arguments, method=method: method(*arguments))
    return environment("walk/1", "player", lambda context: Walk(), seconds=20.0)


def giving(value: Any) -> Callable[..., Any]:
    return lambda *arguments: value


class Twice:
    def __float__(self) -> float:
        raise RuntimeError("two values")


def prompt_of(**fields: Any) -> Messages:
    """Messages whose fields no one has checked."""
    prompt = Messages("Go.")
    for name, value in fields.items():
        object.__setattr__(prompt, name, value)
    return prompt


NO_TEXT = "Walk.reset gave Messages with what is no text"
RESETS: list[tuple[Any, str]] = [
    *((giving(value), f"Walk.reset gave {type(value).__name__}") for value in (b"Go", None, {"text": "Go"}, 3, ["Go"])),
    (giving(np.zeros(3)), "Walk.reset gave ndarray as the prompt"),
    *((giving(prompt_of(user=value)), NO_TEXT) for value in (None, b"Go", 3, ["Go"])),
    *((giving(prompt_of(system=value)), NO_TEXT) for value in (b"Go", 3)),
    *((giving(prompt_of(before=value)), NO_TEXT) for value in (({"role": "user"},), ({"role": 1, "content": "a"},))),
    (giving(prompt_of(tools=({"a": {1}},))), "gave what is no plain data"),
    *((raising(error), "the environment Walk.reset raised") for error in (KeyError("a"), SystemExit(1), OSError())),
]
REWARDS: list[Any] = [None, math.nan, math.inf, -math.inf, "1.0", b"1", "", [1.0], {}, 1j, np.zeros(2), np.nan, Twice()]
STEPS: list[tuple[Any, str]] = [
    *((giving(("say", reward, False)), "Walk.step gave the reward") for reward in (*REWARDS, 10**400, np.str_("1"))),
    *(
        (giving((say, 1.0, False)), "for the agent to read; give text")
        for say in (None, b"a", {"a": 1}, np.zeros(2), 3)
    ),
    *((giving(("say", 1.0, over)), "for whether it is over") for over in (None, "no", 2, np.zeros(2), math.nan)),
    *((giving(answer), "give (text, reward, whether it is over)") for answer in (None, "say", ("say", 1.0), {}, 5)),
    (giving(("say", 1.0, False, False, {})), "gave tuple; give (text, reward, whether it is over)"),
    *((raising(error), "Walk.step raised") for error in (ValueError("two\nlines"), SystemExit(0), RecursionError())),
    (raising(KeyError("a \ud83d")), "Walk.step raised KeyError: 'a "),
    (raising(Failed("the world is gone")), "the world is gone"),
]


@pytest.mark.parametrize(("reset", "sentence"), RESETS)
def test_a_prompt_that_is_none_fails_the_rollout(reset: Any, sentence: str) -> None:
    interaction, _ = played(world(reset=reset))
    assert sentence in interaction.failed and interaction.value is None and "\n" not in interaction.failed


@pytest.mark.parametrize(("step", "sentence"), STEPS)
def test_an_answer_that_is_none_fails_the_rollout(step: Any, sentence: str) -> None:
    interaction, _ = played(world(step=step))
    assert sentence in interaction.failed and interaction.value is None and "\n" not in interaction.failed
    interaction.failed.encode()


@pytest.mark.parametrize("reward", [1, True, np.float32(1), np.int64(1), np.bool_(True), Fraction(1), np.array(1.0)])
def test_numbers_of_libraries_are_rewards(reward: Any) -> None:
    for over in (True, np.True_, 1, np.array(True)):
        interaction, _ = played(world(step=giving(["say", reward, over])))
        assert interaction.value == {"rewards": [1.0], "done": True} and not interaction.failed


def test_the_place_and_the_traceback_are_told_once() -> None:
    def step(text: str) -> Any:
        return {}["place"]

    interaction, told = played(world(step=step))
    line = step.__code__.co_firstlineno + 1
    assert f"the environment Walk.step raised KeyError: 'place' (test_failures.py, line {line})" == interaction.failed
    assert len(told) == 1 and "Traceback" in told[0] and 'return {}["place"]' in told[0]


def test_making_an_environment_may_fail() -> None:
    interaction, _ = played(environment("a", "player", raising(ZeroDivisionError("no"))))
    assert "making the environment raised ZeroDivisionError: no (test_failures.py" in interaction.failed


@pytest.mark.parametrize("error", [KeyError("a"), SystemExit(1), Failed("b"), OSError("c")])
def test_an_error_in_close_changes_nothing_and_is_told(error: BaseException) -> None:
    interaction, told = played(world(close=raising(error)))
    assert interaction.value == {"rewards": [1.0], "done": True} and not interaction.failed
    assert len(told) == 1 and "the clean-up of the environment Walk.close raised" in told[0]


@pytest.mark.parametrize("method", ["reset", "step", "close"])
def test_a_method_that_hangs_is_left_behind(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, closed = threading.Event(), threading.Event()

    class Slow:
        def reset(self) -> str:
            return "Go." if method != "reset" else str(gate.wait(60))

        def step(self, text: str) -> Any:
            return ("", 1.0, True) if method != "step" else (str(gate.wait(60)), 0.0, True)

        def close(self) -> None:
            if method == "close":
                gate.wait(60)
            closed.set()

    interaction, told = played(environment("a", "player", lambda context: Slow(), seconds=0.2))
    assert not closed.is_set()  # it may not run beside the method that hangs
    if method == "close":
        assert interaction.value["done"] and "Slow.close raised" in told[0] and "no result within 0.2 s" in told[0]
    else:
        assert "gave no result within 0.2 s" in interaction.failed
    gate.set()
    assert closed.wait(60)


class Half:
    def reset(self) -> Messages:
        return Messages(HALF, system=HALF, before=({"role": "user", "content": HALF},))

    def step(self, text: str) -> tuple[str, float, bool]:
        return HALF, 1.0, False

    def close(self) -> None:
        raise OSError(HALF)


def test_half_an_emoji_of_an_environment_is_the_replacement_character() -> None:
    record = Record()
    rollout = environment("a", "player", lambda context: Half())
    asks: list[Ask] = []
    generator = rollout.play(context(record))  # type: ignore[misc]
    asks = [next(generator), generator.send(Said())]
    generator.close()
    assert asks[0].say == Messages(WHOLE, system=WHOLE, before=({"role": "user", "content": WHOLE},))
    assert asks[1].say == WHOLE
    json.dumps(record.written, ensure_ascii=False).encode()


class Said:
    content, over, finish = "hm", False, "stop"


@pytest.mark.parametrize("value", [HALF, {HALF: [HALF]}, [[HALF, 1]], "\ud83d\ude00", {"a": "\udc00"}])
def test_half_characters_in_what_a_generator_stores_or_asks(value: Any) -> None:
    def play(context: Context) -> Generator[Ask, Any, Any]:
        kept = context.store("mine", {"by": HALF}, value)
        json.dumps(kept, ensure_ascii=False).encode()
        assert json.dumps(kept) == json.dumps(context.recorded("other", {}, lambda: value))
        yield Ask("player", HALF)
        return kept

    interaction, _ = played(Rollout("a", play=play))
    assert not interaction.failed
    assert "\ud83d" not in interaction.completions["player"].text


def test_a_recorded_value_is_found_by_arguments_with_half_a_character() -> None:
    record = Record()
    calls(record).store("mine", {"by": HALF}, 5)
    kept = json.loads(json.dumps(record.written).replace("\\ud83d", "\\ufffd"))
    assert calls(Record(kept)).stored("mine", {"by": HALF}) == 5


def test_adapters_name_what_others_give() -> None:
    class Gym:
        def reset(self, seed: Any) -> Any:
            return np.zeros(2), {}

        def step(self, action: Any) -> Any:
            return 1, np.float32(0.5), np.False_, np.True_, {}

        def close(self) -> None: ...

    def gym(**options: Any) -> Rollout:
        return environment("a", "player", lambda context: Gymnasium(Gym(), str, **options))

    assert "an observation has no text (Object of type ndarray" in played(gym())[0].failed
    assert played(gym(to_text=str))[0].value == {"rewards": [0.5], "done": True}

    class Sky:
        def init(self, prompt: Any) -> Any:
            return [*prompt, {"role": "assistant", "content": "a"}], {}

        def close(self) -> None: ...

    rollout = environment("a", "player", lambda context: SkyRlGym(Sky(), [{"role": "user", "content": "a"}]))
    assert "Sky.init: a prompt ends with a user message" in played(rollout)[0].failed


@pytest.mark.parametrize(
    "error",
    [
        KeyError("a"),
        SystemExit(1),
        ValueError("b"),
        ToolError("c"),
        TimeoutError("d"),
        AssertionError(),
        GeneratorExit(),
    ],
)
def test_an_error_of_a_generator_fails_its_rollout(error: BaseException) -> None:
    def play(context: Context) -> Generator[Ask, Any, Any]:
        yield Ask("player", "Go.")
        raise error

    interaction, told = played(Rollout("a/1", play=play))
    assert interaction.failed.startswith(f"the rollout 'a/1' raised {type(error).__name__}")
    assert "(test_failures.py, line " in interaction.failed and len(told) == 1 and "Traceback" in told[0]
    assert interaction.completions["player"].text


@pytest.mark.parametrize("error", [UserError("mend it."), MemoryError(), KeyboardInterrupt(), RolloutError("an agent")])
def test_an_error_that_ends_the_run_names_sample_and_rollout(error: BaseException) -> None:
    def play(context: Context) -> Generator[Ask, Any, Any]:
        yield Ask("player", "Go.")
        raise error

    with pytest.raises(type(error)) as raised:
        played(Rollout("a/1", play=play))
    assert raised.value.__notes__ == ["raised in sample 0 of the rollout 'a/1'"]
    with pytest.raises(type(error)):
        played(world(step=raising(error)))


def test_a_bug_of_this_package_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(context: Context) -> Generator[Ask, Any, Any]:
        yield Ask("player", environments._readable(5))

    monkeypatch.setattr(environments, "json", None)  # an AttributeError in a frame of the package
    with pytest.raises(AttributeError):
        played(Rollout("a", play=play))
    with pytest.raises(RolloutError, match="yields an Ask"):
        played(Rollout("a", play=lambda context: iter([5])))  # type: ignore[arg-type]


def test_a_game_may_be_installed_beside_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scope_jax.errors._LIBRARIES", ("/",))

    def play(context: Context) -> Generator[Ask, Any, Any]:
        yield Ask("player", "Go.")
        raise KeyError("a")

    assert "KeyError" in played(Rollout("a", play=play))[0].failed


def test_many_rollouts_that_all_fail_end_the_run() -> None:
    def groups(*reasons: str) -> list[list[Interaction]]:
        return [[Interaction(None, {}, failed=reason) for reason in reasons]]

    failures.check_failures("solver", groups(*["the world is gone"] * 19))
    failures.check_failures("solver", groups(*["the world is gone"] * 30, ""))
    failures.check_failures("solver", [])
    with pytest.raises(UserError, match="all 20 rollouts of the role 'solver' failed, the first because the world is"):
        failures.check_failures("solver", groups(*["the world is gone"] * 20))


def test_a_tool_that_exits_or_does_not_close_ends_nothing() -> None:
    @tool
    def leave() -> str:
        """Leaves."""
        sys.exit(1)

    (result,) = calls().run("a", 0, [ToolCall(leave, {})])
    assert (result.status, result.text) == ("error", "error: SystemExit: 1")

    @contextmanager
    def opened(rng: Any) -> Iterator[str]:
        yield "state"
        raise OSError("still busy")

    @tool(open=opened)
    def ask(state: str) -> str:
        """Asks."""
        return "yes"

    told: list[str] = []
    of_rollout = calls(run=execution(told))
    assert of_rollout.run("a", 0, [ToolCall(ask, {})])[0].text == "yes"
    of_rollout.close()
    assert len(told) == 1 and "the clean-up of the tool ask raised" in told[0] and "still busy" in told[0]
