"""How rollouts end: what they return, what their clean-ups do, and what cannot be played at all."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from scope_jax.config import SamplingSection
from scope_jax.errors import UserError
from scope_jax.play.driver import EpisodeContext, InteractionDriver
from scope_jax.play.rollouts import Agent, Ask, Context, Interaction, Rollout
from scope_jax.play.tool_calls import tool
from scope_jax.play.turns import Joiner
from scope_jax.rollouts.types import RolloutError
from scope_jax.run.world import StepTools
from scope_jax.text import dialects
from scope_jax.text.messages import Messages
from tests.games.harness import Characters, ScriptedTools
from tests.play.contexts import calls
from tests.train.test_requests import Asked, made_world

AGENT = Agent("actor", SamplingSection(max_tokens=20), max_turns=3)


def played(play: Any, agent: Agent = AGENT) -> Interaction:
    tools = ScriptedTools(lambda context: "hm", turns="chat")
    ((interaction,),) = tools.interact("p", [Rollout("a", play=play)], {"player": agent})
    return interaction


def world_tools(script: Callable[..., str] = lambda prompt, turns: "hm", **toolbox: Any) -> StepTools:
    return StepTools(made_world(Asked(script, 999), [], "hermes", **toolbox), 0)


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value", [{1, 2}, object(), b"text", {"a": {3}}, [1j], math.nan, {"a": math.inf}, deep(5000), print]
)
def test_what_is_no_plain_data_fails_the_rollout_that_returns_it(value: Any) -> None:
    def play(context: Context) -> Generator[Ask, Any, Any]:
        yield Ask("player", "Go.")
        return value

    interaction = played(play)
    assert interaction.failed.startswith("the rollout 'a' returned what is no plain data (")
    assert interaction.value is None and interaction.completions["player"].text


@pytest.mark.parametrize("value", [None, 0, "a", (1, ("b",)), {"a": [True, 0.5]}, {3: None}, []])
def test_plain_data_is_returned_as_it_is(value: Any) -> None:
    def play(context: Context) -> Generator[Ask, Any, Any]:
        yield Ask("player", "Go.")
        return value

    interaction = played(play)
    assert not interaction.failed and interaction.value == value and type(interaction.value) is type(value)


async def coroutine(context: Context) -> None: ...


@pytest.mark.filterwarnings("ignore:coroutine")
@pytest.mark.parametrize(
    ("play", "kind"),
    [
        (lambda context: None, "NoneType"),
        (lambda context: [Ask("player", "Go.")], "list"),
        (lambda context: iter([Ask("player", "Go.")]), "list_iterator"),
        (lambda context: Ask("player", "Go."), "Ask"),
        (coroutine, "coroutine"),
    ],
)
def test_a_play_that_is_no_generator_ends_the_run(play: Any, kind: str) -> None:
    with pytest.raises(RolloutError, match=f"The play of a rollout returned {kind}; it must be a generator function"):
        played(play)


def test_an_agent_whose_prompt_is_too_long_may_be_asked_again() -> None:
    """And is over again."""
    agent = Agent("actor", SamplingSection(max_tokens=20), max_turns=3, max_prompt_tokens=20)

    def play(context: Context) -> Generator[Ask, Any, Any]:
        over = []
        for ask in (Ask("player", "x" * 30), Ask("player", "Go."), Ask("player", "Go.", anew=True)):
            over.append((yield ask).over)
        return over

    assert played(play, agent).value == [True, True, True]


class Boom(RuntimeError):
    """What ends the run first."""


def boom(prompt: str, turns: Any) -> str:
    raise Boom("no weights")


def ending(clean_up: Callable[[], Any], swallows: bool = False) -> Any:
    def play(context: Context) -> Generator[Ask, Any, Any]:
        try:
            yield Ask("player", "Go.")
        except GeneratorExit:
            if swallows:
                yield Ask("player", "And on.")
        finally:
            clean_up()

    return play


def raising(error: BaseException) -> Callable[[], Any]:
    def clean_up() -> Any:
        raise error

    return clean_up


@pytest.mark.parametrize(
    ("play", "told"),
    [
        (ending(raising(KeyError("place"))), "KeyError: 'place'"),
        (ending(raising(UserError("mend it."))), "UserError: mend it."),
        (ending(raising(SystemExit(1))), "SystemExit: 1"),
        (ending(raising(StopIteration())), "generator raised StopIteration"),
        (ending(lambda: None, swallows=True), "generator ignored GeneratorExit"),
    ],
)
def test_a_clean_up_that_fails_does_not_hide_what_has_ended_the_run(
    capsys: pytest.CaptureFixture[str], play: Any, told: str
) -> None:
    closed: list[str] = []
    rollouts = [Rollout("a", play=play), Rollout("b", play=ending(lambda: closed.append("b")))]
    with pytest.raises(Boom, match="no weights"):
        world_tools(boom).interact("p", rollouts, {"player": AGENT})
    said = capsys.readouterr().out
    assert "the clean-up of the rollout 'a' raised" in said and told in said
    assert not closed, "a generator that has not begun has nothing to clean up"


def test_a_state_that_does_not_close_does_not_hide_it_either(capsys: pytest.CaptureFixture[str]) -> None:
    @contextmanager
    def opened(rng: Any) -> Iterator[str]:
        yield "state"
        raise UserError("the sandbox is gone.")

    @tool(open=opened)
    def note(state: str) -> str:
        """Keeps a note."""
        return state

    def play(context: Context) -> Generator[Ask, Any, Any]:
        context.call("note")
        yield Ask("player", "Go.")

    with pytest.raises(Boom, match="no weights"):
        world_tools(boom, note=note).interact("p", [Rollout("a", play=play)], {"player": AGENT})
    assert "the clean-up of the tool note raised" in capsys.readouterr().out


def test_an_error_in_finally_fails_a_rollout_that_ends_by_itself() -> None:
    assert "raised KeyError: 'place'" in played(ending(raising(KeyError("place")))).failed


def test_a_generator_that_is_at_work_is_left_behind() -> None:
    """As when the run ends while it waits in a thread."""
    begun, gate = threading.Event(), threading.Event()

    def play(context: Context) -> Generator[Ask, Any, Any]:
        begun.set()
        assert gate.wait(60)
        yield Ask("player", "Go.")

    context = EpisodeContext("a", 0, lambda: pytest.fail("none is drawn"), calls())
    joiner = Joiner("raw", Characters(), dialects.load("xml"))
    driver = InteractionDriver(
        Rollout("a", play=play), {"player": AGENT}, context, joiner, lambda *asked: pytest.fail("none is sampled")
    )
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(driver._next, None)
        assert begun.wait(60)
        driver.close()
        gate.set()
        assert future.result() == Ask("player", "Go.")


@pytest.mark.parametrize("samples", [0, -1, True])
def test_rollouts_have_a_whole_number_of_samples(samples: Any) -> None:
    with pytest.raises(UserError, match=f"'p' is asked for samples={samples!r}; give a whole number from 1 on"):
        world_tools().play("p", [Rollout("a")], AGENT, samples)


def test_what_cannot_be_played_is_said() -> None:
    tools, generator = world_tools(), Rollout("a", play=ending(lambda: None))
    with pytest.raises(UserError, match=r"the rollout 'a' of role 'p' has a generator; play it by step\.interact"):
        tools.play("p", [generator], AGENT)
    with pytest.raises(UserError, match="'b' of role 'p' has no generator, which says whom of player, other it asks"):
        tools.interact("p", [generator, Rollout("b")], {"player": AGENT, "other": AGENT})
    with pytest.raises(UserError, match="two rollouts of role 'p' have the same name"):
        tools.play("p", [Rollout("b"), Rollout("b")], AGENT)
    with pytest.raises(UserError, match="the rollouts of role 'p' have no agent; name at least one role"):
        tools.interact("p", [generator], {})
    assert tools.play("p", [], AGENT) == tools.interact("p", [], {"player": AGENT}) == []


def test_a_rollout_without_a_generator_asks_the_only_agent_once() -> None:
    ((interaction,),) = world_tools().interact("p", [Rollout("a", Messages("Go."))], {"player": AGENT})
    assert [turn.text for turn in interaction.completions["player"].turns] == ["hm"]
    assert interaction.value is None and not interaction.failed
