"""Prompts and given conversations of agents with tools, where the chat template does not declare tools."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scope_jax.data.keys import rng
from scope_jax.errors import UserError
from scope_jax.games import find
from scope_jax.play.rollouts import Agent
from scope_jax.play.tool_calls import Tool, tool
from scope_jax.play.tool_execution import Execution, RolloutCalls
from scope_jax.play.tool_responder import check_answered, tool_responder
from scope_jax.play.tools import single_turn
from scope_jax.play.turns import Joiner
from scope_jax.run.recording import Recording
from scope_jax.text import dialects
from scope_jax.text.messages import Messages
from tests.games.harness import Characters


@tool
def double(number: int) -> str:
    """Doubles a number."""
    return str(2 * number)


def joiner(dialect: str = "xml") -> Joiner:
    return Joiner("chat", Characters(), dialects.load(dialect), {}, (double.schema,))


@pytest.mark.parametrize("dialect", ["xml", "hermes"])
@pytest.mark.parametrize("system", [None, "You count."])
def test_a_given_conversation_shows_its_tools_as_the_game_does(dialect: str, system: str | None) -> None:
    asked = Messages("Twice 4?", system, (double.schema,))
    given = replace(asked, tools=()).conversation()
    messages = [*given, {"role": "assistant", "content": "8"}]
    shown, declared = joiner(dialect).declared(messages, [double.schema])
    first = len(given) + len(shown) - len(messages)
    assert Characters().encode_chat(shown[:first], True, tools=declared) == joiner(dialect).prompt(asked)
    assert shown[first] == messages[-1]
    assert joiner(dialect).declared(messages, None) == (messages, None)


def test_prompts_with_messages_before_them_can_be_compared() -> None:
    one, same, other = (Messages("b", before=({"role": "user", "content": text},)) for text in ("a", "a", "c"))
    assert {one, same} == {one} and len({one, other}) == 2
    assert len({replace(one, tools=(double.schema,)), one}) == 2


def test_an_agent_whose_calls_nothing_could_answer_is_refused() -> None:
    raw = Joiner("raw", Characters(), dialects.load("xml"), {}, (double.schema,))
    agent = Agent("actor", single_turn(1.0, 8), tools=(double,))
    execution = Execution(Characters().encode, Characters().decode, print, 1)
    calls = RolloutCalls(execution, lambda tool: rng("test", tool), Recording().calls(0, "solver", "0", 0))
    with pytest.raises(UserError, match=r"the role 'solver' would read no result.*set model.turns = \"chat\", or in"):
        check_answered("solver", agent, "raw")
    for other in (replace(agent, calls="stop"), replace(agent, calls="first"), replace(agent, stop=("</double>",))):
        check_answered("solver", other, "raw")
        assert callable(tool_responder("solver", other, (double,), calls.run, raw))
    assert isinstance(double, Tool) and callable(tool_responder("solver", agent, (double,), calls.run, joiner()))


def test_a_game_may_import_modules_that_lie_beside_it(tmp_path: Path) -> None:
    (tmp_path / "tic_tac_rules.py").write_text("LINES = 8\n")
    (tmp_path / "tic_tac.py").write_text(
        "from tic_tac_rules import LINES\n"
        "from scope_jax.config import Section\n"
        "from scope_jax.play.game import Game\n"
        "no = lambda *given: None\n"
        "GAME = Game('tic_tac', Section, no, no, data=('questions',), batch=(f'tic_tac.{LINES}_lines',))\n"
    )
    assert find(str(tmp_path / "tic_tac.py")).batch == ("tic_tac.8_lines",)
