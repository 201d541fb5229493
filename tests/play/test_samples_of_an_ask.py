"""Several samples of one prompt that a generator asks an agent for."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.config import SamplingSection
from scope_jax.play.rollouts import Agent, Ask, Context, Interaction, Rollout, sample_name
from scope_jax.play.tool_calls import tool
from scope_jax.rollouts.keys import key_data
from scope_jax.rollouts.local import LocalRollouts
from scope_jax.rollouts.types import Completion, RolloutError
from scope_jax.run.world import StepTools
from scope_jax.text import dialects
from scope_jax.text.dialects import Call
from scope_jax.text.messages import Messages
from tests.games.harness import Characters, ScriptedTools
from tests.play.contexts import Record
from tests.rollouts.world import ENGINE, bits, make_engine, make_paged, make_params
from tests.train.test_requests import Asked, made_world

SAMPLING = SamplingSection(max_tokens=6)
AGENTS = {name: Agent("actor", SAMPLING, max_turns=3) for name in ("solver", "judge")}
MANY = ENGINE.slots + 2


def best_of(samples: int, again: Sequence[int] = (), judged: bool = False) -> Any:
    """Asks for so many samples, a judge as well, and then some of them once more."""

    def play(context: Context) -> Generator[Any, Any, dict[str, Any]]:
        ask = Ask("solver", Messages(f"Question {context.name}"), samples=samples)
        if judged:
            answers, heard = yield ask, Ask("judge", "Ready?")
            assert isinstance(heard.text, str)
        else:
            answers = yield ask
        assert isinstance(answers, tuple) and len(answers) == samples
        for number in again:
            yield Ask(sample_name("solver", number), "Once more.")
        return {"said": [answer.text for answer in answers]}

    return play


@pytest.fixture(scope="module")
def params() -> Any:
    return make_params()


class Engine:
    """What plays interactions, and how many prompts it has computed."""

    def __init__(self, params: Any, ahead: bool = False, paged: bool = False) -> None:
        engine = make_paged(compute_dtype=jnp.float32) if paged else make_engine()
        self.prefilled: list[Any] = []  # the chunks of prompts that were computed; a prompt here has one
        append = engine._append_chunks

        def counted(given: Any, state: Any, drawn: Any) -> None:
            self.prefilled += [chunk for chunks in drawn for chunk in chunks]
            append(given, state, drawn)

        engine._append_chunks = counted  # type: ignore[method-assign]
        local = LocalRollouts(engine, Characters(), seed=0, threads=4, ahead=ahead)
        world = made_world(local, [])
        world.sampler.load({"actor": engine.load_params(params)})
        self._tools = StepTools(world, 0)

    def play(self, *rollouts: Rollout) -> list[Interaction]:
        return [each for (each,) in self._tools.interact("r", rollouts, AGENTS)]

    def alone(self, *rollouts: Rollout, samples: int = 1) -> list[list[Completion]]:
        return self._tools.play("r", rollouts, AGENTS["solver"], samples)


@pytest.fixture(scope="module")
def engine(params: Any) -> Engine:
    return Engine(params)


def solvers(played: Interaction) -> list[tuple[Any, ...]]:
    """The bits of each sample of the solver."""
    return [bits(said) for name, said in played.completions.items() if name.startswith("solver")]


@pytest.fixture(scope="module")
def many(engine: Engine) -> list[tuple[Any, ...]]:
    (played,) = engine.play(Rollout("q", play=best_of(MANY)))
    assert [*played.completions] == [sample_name("solver", number) for number in range(MANY)]
    assert [said.turns[0].text for said in played.completions.values()] == played.value["said"]
    return solvers(played)


def test_a_prompt_is_computed_once_and_samples_differ(engine: Engine, many: list[tuple[Any, ...]]) -> None:
    assert len(set(many)) == MANY
    engine.prefilled.clear()
    engine.play(*(Rollout(name, play=best_of(MANY)) for name in "abc"))
    assert len(engine.prefilled) == 3


@pytest.mark.parametrize("samples", [1, 3, ENGINE.slots])
def test_a_sample_does_not_depend_on_how_many_there_are(
    engine: Engine, many: list[tuple[Any, ...]], samples: int
) -> None:
    (played,) = engine.play(Rollout("q", play=best_of(samples, judged=True)))
    assert solvers(played) == many[:samples]


@pytest.mark.parametrize("ahead", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_sample_does_not_depend_on_company_or_order(params: Any, many: list[tuple[Any, ...]], ahead: bool) -> None:
    rollouts = [Rollout(name, play=best_of(size)) for name, size in (("a", 2), ("q", 5), ("b", MANY))]
    other = Engine(params, ahead)
    assert solvers(other.play(*rollouts)[1]) == many[:5]
    assert solvers(other.play(*rollouts[::-1])[1]) == many[:5]


def test_pages_are_shared_and_change_nothing(params: Any) -> None:
    paged = Engine(params, paged=True)
    more, fewer = (solvers(paged.play(Rollout("q", play=best_of(size)))[0]) for size in (MANY, 2))
    assert more[:2] == fewer and len(paged.prefilled) == 1  # kept for the second


def test_the_first_sample_is_what_a_single_ask_gives(engine: Engine, many: list[tuple[Any, ...]]) -> None:
    def play(context: Context) -> Generator[Any, Any, None]:
        yield Ask("solver", Messages("Question q"))

    assert solvers(engine.play(Rollout("q", play=play))[0]) == many[:1]


@pytest.mark.parametrize("again", [(2,), (0, 2, 1), (2, 2)])
def test_a_sample_goes_on_by_its_name_and_by_itself(engine: Engine, again: tuple[int, ...]) -> None:
    (played,) = engine.play(Rollout("q", play=best_of(3, again)))
    (only,) = engine.play(Rollout("q", play=best_of(3, [number for number in again if number == 2])))
    name = sample_name("solver", 2)
    assert bits(played.completions[name]) == bits(only.completions[name])
    turns = [turn.kind for turn in played.completions[name].turns]
    assert turns == ["sampled", *["observation", "sampled"] * again.count(2)]


def test_prompts_of_single_rollouts_are_computed_once_too(engine: Engine) -> None:
    """Also of given ids; the same bits whatever the number of samples."""
    ids = tuple(map(ord, "given"))
    rollouts = [Rollout("a", Messages("one")), Rollout("b", prompt_ids=ids), Rollout("c", Messages("one"))]
    engine.prefilled.clear()
    groups = engine.alone(*rollouts, samples=3)
    assert len(engine.prefilled) == 2
    assert len({bits(said) for group in groups for said in group}) == 9
    assert groups[1][0].prompt_ids.tolist() == [*ids]
    assert [[bits(said) for said in group] for group in engine.alone(*rollouts[1:], samples=2)] == [
        [bits(said) for said in group[:2]] for group in groups[1:]
    ]


def keys(play: Any, agents: dict[str, Agent]) -> list[list[int]]:
    """Those of the requests that a rollout makes."""
    local = Asked(lambda prompt, turns: "x", 999)
    StepTools(made_world(local, []), 0).interact("r", [Rollout("q", play=play)], agents)
    return [request.key.tolist() for request in local.asked if request.key is not None]


def test_keys_say_seed_step_role_rollout_sample_agent_and_number() -> None:
    """Those of single samples are as ever: without the name of an only agent."""
    place = (0, 0, "r", "q", 0)
    named = [(*place, "solver", number) for number in (1, 2)]
    alone = {"solver": AGENTS["solver"]}
    assert keys(best_of(3), alone) == [key_data(*key).tolist() for key in (place, *named)]
    assert keys(best_of(2), AGENTS) == [key_data(*key).tolist() for key in ((*place, "solver"), named[0])]


def test_calls_of_a_tool_are_those_of_their_sample() -> None:
    @tool
    def double(text: str) -> str:
        """Twice the text."""
        return text * 2

    written = dialects.load("hermes").write(Call("double", {"text": "ab"}), [double.schema])
    record = Record()
    tools = ScriptedTools(
        lambda context: written if not context.turns else "done", dialect="hermes", turns="chat", record=record
    )
    agent = Agent("actor", SamplingSection(max_tokens=200), max_turns=3, tools=(double,))
    seen: list[list[str]] = []

    def play(context: Context) -> Generator[Any, Any, None]:
        answers = yield Ask("solver", "Double.", samples=2)
        seen.append([call.agent for answer in answers for call in answer.calls])

    ((played,),) = tools.interact("r", [Rollout("q", play=play)], {"solver": agent})
    assert seen == [["solver", "solver/1"]] == [[line["agent"] for line in record.written]]
    assert [[call.text for call in said.calls] for said in played.completions.values()] == [["abab"], ["abab"]]


def asking(*asks: Any) -> Any:
    def play(context: Context) -> Generator[Any, Any, None]:
        for ask in asks:
            _ = yield ask

    return play


def ask_of(agent: str = "solver", **fields: Any) -> Ask:
    """An Ask whose fields no one has checked."""
    ask = Ask(agent, "?")
    for name, value in fields.items():
        object.__setattr__(ask, name, value)
    return ask


WRONG: list[tuple[Any, str]] = [
    *(
        (asking(ask_of(samples=samples)), f"'solver' is asked with samples={samples!r}; give a whole number from 1")
        for samples in (0, -1, 2.5, True, "2", 1e30, [2])
    ),
    *(
        (asking(ask_of(), ask_of(keep=keep)), f"'solver' is asked with keep={keep!r}; give a whole number from 0")
        for keep in (-1, 0.5, "1")
    ),
    *(
        (asking(Ask("solver", "?", samples=2), Ask("solver", "?", samples=samples)), "'solver' has been asked before")
        for samples in (1, 2, 3)
    ),
    (asking(Ask("solver", "?"), Ask("solver", "?", samples=2)), "'solver' has been asked before; they can only be"),
    (asking(Ask("solver/1", "?")), "There is no agent 'solver/1'; there are solver, judge."),
    (asking(Ask("solver", "?", samples=2), Ask("solver/2", "?")), "'solver/2'; there are solver, judge, solver/1."),
    (asking((Ask("solver", "?", samples=2), Ask("solver", "?"))), "The agent 'solver' is asked twice at a time."),
    (asking(Ask("solver", "?", samples=2), Ask("solver/1", "?", samples=2)), "'solver/1' has been asked before"),
    *(
        (asking(ask_of("judge", say=say)), f"'judge' is asked to read {type(say).__name__}")
        for say in (5, None, b"?", ["?"])
    ),
    (asking(()), "not nothing."),
    (asking([Ask("judge", "?")]), "not list."),
]


@pytest.mark.parametrize(("play", "sentence"), WRONG)
def test_what_nobody_can_be_asked_ends_the_run_with_a_sentence(play: Any, sentence: str) -> None:
    tools = ScriptedTools(lambda context: "hm", turns="chat")
    with pytest.raises(RolloutError) as raised:
        tools.interact("r", [Rollout("q", play=play)], AGENTS)
    assert sentence in str(raised.value)
    assert raised.value.__notes__ == ["raised in sample 0 of the rollout 'q'"]


def test_a_number_of_samples_may_be_numpys() -> None:
    tools = ScriptedTools(lambda context: "hm", turns="chat")
    play = asking(ask_of(samples=np.int64(2)))
    ((played,),) = tools.interact("r", [Rollout("q", play=play)], AGENTS)
    assert [*played.completions] == ["solver", "solver/1"]
