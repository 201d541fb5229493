"""What a call of `Tools.play` asks the engine for."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scope_jax.config import CardError
from scope_jax.games import load_card
from scope_jax.play.rollouts import Ask, Context, Response
from scope_jax.play.tool_calls import SEARCH, Tool, tool
from scope_jax.play.tool_execution import Execution, ToolCall
from scope_jax.play.tools import Agent, Rollout, single_turn
from scope_jax.play.turns import Joiner
from scope_jax.rollouts.interactions import ActiveInteraction, Driver
from scope_jax.rollouts.scripted import ScriptedRollouts
from scope_jax.rollouts.types import Request
from scope_jax.run.activity import Activity
from scope_jax.run.recording import Recording
from scope_jax.run.sampler import Sampler
from scope_jax.run.world import StepTools, World
from scope_jax.text import dialects
from scope_jax.text.dialects import Call
from scope_jax.text.messages import Messages
from tests.games.harness import Characters


class Asked(ScriptedRollouts):
    """Scripted agents; `asked` has their requests."""

    def __init__(self, script: Any, max_length: int) -> None:
        super().__init__(script, Characters(), max_length=max_length)
        self.asked: list[Request] = []

    def interaction(self, driver: Driver) -> ActiveInteraction:
        interaction = super().interaction(driver)
        row = interaction._row
        interaction._row = lambda request, *which: self.asked.append(request) or row(request, *which)
        return interaction


class Counting(Sampler):
    """`counted` gets the completions."""

    def __init__(self, local: Asked, counted: list[Any]) -> None:
        super().__init__(local)
        self._counted = counted

    def count(self, completions: Any) -> None:
        self._counted += completions


def made_world(local: Any, counted: list[Any], dialect: str = "xml", **toolbox: Tool) -> World:
    """One in which an engine is asked; it counts the completions."""
    sampler = Counting(local, counted)
    sampler.load({"actor": None})
    parts = {
        "cfg": load_card("ssp/atlas", ['model.stop=["User:"]']),
        "tokenizer": SimpleNamespace(eos_ids=(3,)),
        "sampler": sampler,
        "local": local,
        "joiner": Joiner("raw" if dialect == "xml" else "chat", Characters(), dialects.load(dialect)),
        "recording": Recording(),
        "execution": Execution(Characters().encode, Characters().decode, print, 4),
        "toolbox": toolbox,
    }
    world = object.__new__(World)
    object.__setattr__(world, "activity", Activity())
    for name, part in parts.items():
        object.__setattr__(world, name, part)
    return world


@tool(pure=True)
def double(text: str) -> str:
    """Twice the text."""
    return text * 2


@pytest.mark.parametrize("dialect", ["xml", "hermes", "function"])
def test_an_agent_with_pure_tools_is_asked_like_one_without(dialect: str):
    """Equal prompts share a prefill, and the calls of each sample are in its completion."""
    counted: list[Any] = []
    written = dialects.load(dialect).write(Call("double", {"text": "ab"}), [double.schema])
    said = [written, "<answer>x</answer>"]
    engine = Asked(lambda prompt, turns: said[len(turns) // 2], 9999)
    agent = Agent("actor", single_turn(1.0, 999), max_turns=3, tools=("double",), finals=("answer",), calls="stop")
    rollouts = [Rollout(name, Messages("p")) for name in "ab"]
    groups = StepTools(made_world(engine, counted, dialect, double=double), 0).play("writer", rollouts, agent, 2)
    asked = engine.asked
    assert {request.group for request in asked} == {"a"} and len({str(request.key) for request in asked}) == 4
    assert {request.params.stop for request in asked} == {(*dialects.load(dialect).stops("double"), "</answer>")}
    assert "Twice the text." in Characters().decode(asked[0].prompt_ids), "the tool is declared"
    for completion in [completion for group in groups for completion in group]:
        (call,) = completion.calls
        assert (call.tool, call.text, call.status, call.turn) == ("double", "abab", "ok", 0)
        assert [turn.text for turn in completion.turns if turn.kind == "sampled"] == said
        assert "abab" in completion.turns[1].text


@pytest.mark.parametrize("how", ["at once", "recorded", "in play", "at its end"])
def test_a_generator_cannot_call_what_all_processes_call_together(how: str) -> None:
    """With one process, too: with two it would wait for ever."""
    tools = StepTools(made_world(Asked(lambda prompt, turns: "x", 999), []), 0)

    def play(context: Context) -> Generator[Ask, Response, float]:
        try:
            if how == "recorded":
                return context.recorded("coin", {}, lambda: tools.once("coin", lambda: 0.5))
            if how == "at once":
                return tools.once("coin", lambda: 0.5)
            yield Ask("agent", "Heads or tails?")
            if how == "in play":
                tools.play("r", [Rollout("b")], agent)
        finally:
            if how == "at its end":
                tools.once("coin", lambda: 0.5)
        raise AssertionError

    agent = Agent("actor", single_turn(1.0, 1))
    with pytest.raises(RuntimeError, match=r"all processes must call together; use its Context"):
        tools.interact("r", [Rollout("a", play=play)], {"agent": agent})
    assert tools.once("coin", lambda: 0.5) == 0.5


def test_exams_after_a_step_have_records_of_their_own(tmp_path: Path) -> None:
    """A resumed run gives each the results that it had, though both ask alike."""
    numbers = iter(range(100))

    @tool
    def count(text: str) -> str:
        """Another number each time."""
        return str(next(numbers))

    def results(world: World, step: int | str) -> str:
        calls = StepTools(world, step)._calls(("eval", "0", 0))
        return calls.run("agent", 0, [ToolCall(count, {"text": "x"})])[0].text

    told = []
    for _ in range(2):
        world = made_world(Asked(lambda prompt, turns: "x", 9), [])
        world.recording.open(tmp_path, 0)
        told.append([results(world, step) for step in ("exam one", "exam two", 0)])
        world.recording.close()
    assert told == [["0", "1", "2"]] * 2


def test_prompts_that_declare_a_tool_are_compared_by_what_they_declare():
    """A prompt with schemas, which are no keys of a set."""
    engine = Asked(lambda prompt, turns: "x", 999)
    rollouts = [Rollout(name, Messages("p", tools=(SEARCH,) if name != "c" else ())) for name in "abc"]
    StepTools(made_world(engine, []), 0).play("writer", rollouts, Agent("actor", single_turn(1.0, 4)))
    declaring = StepTools(made_world(engine, [], "hermes"), 0)
    declaring.play("writer", rollouts, Agent("actor", single_turn(1.0, 4)))
    assert [request.group for request in engine.asked[3:]] == ["a", "a", "c"]


def test_prompts_of_equal_ids_share_a_prefill_and_no_random_numbers():
    counted: list[Any] = []
    engine = Asked(lambda prompt, turns: "x", 9)
    world = made_world(engine, counted)
    ids = {"a": (1, 2), "b": (1, 3), "c": (1, 2)}
    rollouts = [Rollout(name, Messages(name), prompt_ids=given) for name, given in ids.items()]
    StepTools(world, 0).play("writer", rollouts, Agent("actor", single_turn(1.0, 4)), 2)
    assert len(counted) == 6
    asked = engine.asked
    assert [request.group for request in asked] == ["a", "a", "a", "a", "b", "b"]  # they are played together
    assert len({str(request.key) for request in asked}) == 6
    assert {request.params.ends for request in asked} == {("User:",)}


def test_a_reply_that_a_string_ends_cannot_be_continued_by_a_template():
    with pytest.raises(CardError, match='turns = "chat" cannot continue; remove stop'):
        load_card("configs/score/qwen2.5-7b.toml", ['model.stop=["User:"]'])
