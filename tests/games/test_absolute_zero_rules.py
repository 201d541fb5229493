"""The rules of Absolute Zero, and the released code's rewards of the same replies (fixtures/absolute_zero.json)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scope_jax.config import CardError, Config, SamplingSection
from scope_jax.environments import functions
from scope_jax.errors import UserError
from scope_jax.games import parse_config
from scope_jax.games.absolute_zero import rules
from scope_jax.games.absolute_zero.game import GAME
from scope_jax.games.absolute_zero.options import AbsoluteZeroSection, Kind
from scope_jax.games.absolute_zero.roles import grade
from scope_jax.games.absolute_zero.state import AnswerCase, SolverProblem, Task, choose_for_solver, identity
from scope_jax.play.game import play_step
from scope_jax.play.tools import Agent, Rollout
from scope_jax.text.messages import Messages
from tests.games.harness import ScriptedTools, TurnContext

RELEASED = json.loads((Path(__file__).parent / "fixtures" / "absolute_zero.json").read_text(encoding="utf-8"))
CARD = AbsoluteZeroSection()
THOUGHT = "<think>t</think>\n<answer>\n{}\n</answer>"


def card(batch: int = 2, seconds: float = 5.0, **table: Any) -> Config:
    """A card with prompts of any length; one character is one token."""
    long = {"max_prompt_tokens": 90_000, "sampling": {"max_tokens": 9_000, "max_response_tokens": 9_000}}
    tables = {
        "system": "absolute_zero",
        "model": {"checkpoint": "none"},
        "train": {"steps": 1, "batch_size": batch},
        "sandbox": {"seconds": seconds, "workers": 4},
        "absolute_zero": {**long, **table},
    }
    return parse_config(tables, "the test's card")


@pytest.fixture(scope="module", autouse=True)
def sandbox() -> Iterator[None]:
    try:
        functions.service(card().sandbox).start()
    except UserError as error:
        pytest.skip(str(error))
    yield
    functions.service(card().sandbox).close()


# -------------------------------------------------------------------------------------------------------------- replies
@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("<think>a</think><answer>b</answer>", "b"),
        (" \n<think></think> \n <answer>\n b \n</answer> and more", "b"),
        ("<think>a</think><answer>b", None),
        ("<answer>b</answer>", None),
        ("a <think>a</think><answer>b</answer>", None),
        ("<think>a</think> so <answer>b</answer>", None),
        ("<think>a<answer>c</answer></think><answer>b</answer>", "b"),
        ("", None),
    ],
)
def test_a_reply_begins_with_thoughts_and_an_answer(reply: str, said: str | None) -> None:
    assert rules.answer_of(reply) == said


@pytest.mark.parametrize("case", RELEASED["read"], ids=lambda case: f"{case['role']}-{case['task']}")
def test_replies_are_read_as_by_the_release(case: dict[str, Any]) -> None:
    task, reply, read = case["task"], case["reply"], case["read"]
    if case["role"] != "propose":
        assert rules.solution(task, reply, formal=case["role"] == "solve") == read
        return
    options = AbsoluteZeroSection(inputs=3, several_functions=case.get("several", False))
    draft = rules.draft(task, reply, [identity(3)], options)
    if task == "induction":
        assert (draft and [draft["inputs"], draft["message"]]) == read
    else:
        assert (draft and [draft["program"], *draft["inputs"]]) == read


def test_what_a_solver_has_found() -> None:
    assert rules.solution("deduction", THOUGHT.format("```output\n 5\n```")) == "5"
    assert rules.solution("deduction", THOUGHT.format("5")) == "5"
    assert rules.solution("abduction", THOUGHT.format("```input\n1, 2\n```\n```output\n3\n```")) == "1, 2"
    assert rules.solution("induction", THOUGHT.format("```python\na\n```\n```python\nb\n```")) == "b"
    assert rules.solution("induction", THOUGHT.format("def f(x): return x")) is None
    assert rules.solution("deduction", "5") is None


@pytest.mark.parametrize(
    ("said", "program"),
    [
        ("```python\ndef f(x): return x\n```", "def f(x): return x"),
        ("```\ndef g(n): return n and g(n - 1)\n```", "def f(n): return n and f(n - 1)"),
        ("```python\ndef of(x): return soft(x) + of (x)\n```", "def f(x): return soft(x) + f (x)"),
        ("```python\ndef f(x):\n    def g(y): return y\n    return g(x)\n```", ""),  # two functions
        ("```python\nclass A:\n    def f(self): pass\n```", "class A:\n    def f(self): pass"),  # it has no value
        ("```python\nf = lambda x: x\n```", ""),
        ("```python\ndef f(x) return x\n```", ""),
        ("```python\ndef f(x): return " + "(" * 3000 + "\n```", ""),
        ("```python\ndef f(x): return 1\n```\n```python\ndef f(x): return 2\n```", "def f(x): return 1"),
        ("def f(x): return x", ""),
    ],
)
def test_the_function_of_a_proposal(said: str, program: str) -> None:
    draft = rules.draft("deduction", THOUGHT.format(f"{said}\n```input\n1\n```"), [], CARD)
    assert (draft["program"] if draft else "") == program


def proposed(program: str, *inputs: str, message: str | None = None) -> str:
    parts = [f"```python\n{program}\n```"] if program else []
    parts += [f"```input\n{text}\n```" for text in inputs]
    return THOUGHT.format("\n".join([*parts, *([] if message is None else [f"```message\n{message}\n```"])]))


def test_drafts() -> None:
    draft = rules.draft("deduction", proposed("def f(x): return x", "1", "2"), [], CARD)
    assert draft == {"program": "def f(x): return x", "inputs": ["1"], "message": ""}
    assert rules.draft("abduction", proposed("def f(x): return x"), [], CARD) is None
    assert rules.draft("deduction", proposed("import os.path\ndef f(x): return x", "1"), [], CARD) is None
    assert rules.draft("deduction", proposed("import os\ndef f(x): return os.environ", "1"), [], CARD) is None
    assert rules.draft("deduction", proposed("import os\ndef f(x): return os.sep", "1"), [], CARD)
    assert rules.draft("deduction", proposed("def f(x): return x", "1" * 9000), [], CARD) is not None
    three = AbsoluteZeroSection(inputs=3)
    shown = identity(1)
    draft = rules.draft("induction", proposed("", "1", "2", "3", "4", message=" m "), [shown], three)
    assert draft == {"program": shown["program"], "inputs": ["2", "3", "4"], "message": "m"}
    assert rules.draft("induction", proposed("", "1", "2", message="m"), [shown], three) is None
    assert rules.draft("induction", proposed("", "1", "2", "3"), [shown], three) is None


# -------------------------------------------------------------------------------------------------------------- rewards
def test_rewards_by_hand() -> None:
    rates = [None, 0.0, 0.125, 0.5, 0.875, 1.0]
    assert [rules.proposer_reward(rate, CARD) for rate in rates] == [-1.0, 0.0, 0.875, 0.5, 0.125, 0.0]
    released = AbsoluteZeroSection(extreme_reward=-0.5)
    assert [rules.proposer_reward(rate, released) for rate in rates] == [-1.0, -0.5, 0.875, 0.5, 0.125, -0.5]
    assert [rules.solver_reward(right) for right in (None, 0.0, 1.0)] == [-1.0, -0.5, 1.0]


def test_the_second_half_is_hidden() -> None:
    halves = [rules.hidden([*"abcd"[:size]]) for size in (1, 2, 3, 4)]
    assert halves == [["a"], ["b"], ["b", "c"], ["c", "d"]]


def tasks_of(*steps: int) -> list[Task]:
    """A task of each of these steps; its message is its place."""
    return [Task(program="", inputs=[], outputs=[], message=f"{place}", step=step) for place, step in enumerate(steps)]


def places(tasks: Sequence[Task]) -> list[int]:
    return [int(task["message"]) for task in tasks]


def test_the_tasks_of_the_step_are_solved_first() -> None:
    rng = np.random.default_rng(0)
    buffer = tasks_of(0, 0, 1, 1, 3, 3)
    assert {*places(choose_for_solver(buffer, 2, 3, rng))} == {4, 5}
    three = [places(choose_for_solver(buffer, 3, 3, np.random.default_rng(seed))) for seed in range(20)]
    assert all({*chosen[:2]} == {4, 5} for chosen in three)
    assert {chosen[2] for chosen in three} == {0, 1, 2, 3}
    assert sorted(places(choose_for_solver(buffer, 9, 3, rng))) == [0, 1, 2, 3, 4, 5]
    assert places(choose_for_solver(buffer, 1, 3, rng))[0] in (4, 5)


def test_after_a_step_without_a_valid_task_all_are_drawn_alike() -> None:
    buffer = tasks_of(0, 0, 1, 1, 3, 3)
    first = {places(choose_for_solver(buffer, 1, 4, np.random.default_rng(seed)))[0] for seed in range(60)}
    assert first == {0, 1, 2, 3, 4, 5}


# ------------------------------------------------------------------------------------------------- the released rewards
def completions(replies: list[str]) -> list[Any]:
    tools = ScriptedTools(lambda now: replies[int(now.name)])
    long = SamplingSection(max_tokens=9_000, max_response_tokens=9_000)
    groups = tools.play(
        "solve", [Rollout(f"{place}", Messages("?")) for place in range(len(replies))], Agent("actor", long)
    )
    return [completion for (completion,) in groups]


@pytest.mark.parametrize("task", ["deduction", "abduction", "induction"])
def test_solvers_get_the_released_rewards(task: Kind) -> None:
    recorded = RELEASED["solve"][task]
    problem = SolverProblem(task, recorded["item"])
    cases = [AnswerCase(problem, completion.text) for completion in completions(recorded["replies"])]
    right = grade(card(), ScriptedTools(lambda now: ""), cases, formal=True)
    assert [rules.solver_reward(one) for one in right] == recorded["rewards"]


ENDLESS = "while True"
NOT_DETERMINED = "global n"  # the released check does not notice: its own exception has no "error" in its name


@pytest.mark.parametrize("task", ["deduction", "abduction", "induction"])
def test_proposers_get_the_released_rewards(task: str) -> None:
    recorded = RELEASED["propose"][task]
    size = len(recorded["replies"])
    kinds = ["deduction", task] if task == "induction" else [task]
    cfg = card(size, tasks=kinds, estimates=RELEASED["estimates"], extreme_reward=-0.5, inputs=4)
    replies = [proposed("def f(x): return 0", "1") if ENDLESS in reply else reply for reply in recorded["replies"]]
    known = {"program": recorded.get("program", ""), "inputs": ["1"], "outputs": ["2"], "message": "", "step": 0}
    memory = {
        kind: [known if kind != "induction" else known | {"inputs": ["1", "2"], "outputs": ["2", "4"]}]
        for kind in kinds
    }

    def script(now: TurnContext) -> str:
        if now.role == "propose":
            place = int(now.name) - (size if task == "induction" else 0)
            return replies[place] if place >= 0 else "nothing"
        return tried[int(now.name)][now.sample] if now.role == "estimate" else "nothing"

    wrong = [THOUGHT.format("nothing")] * RELEASED["estimates"]
    valid = [
        place
        for place, reward in enumerate(recorded["rewards"])
        if reward > -1 and NOT_DETERMINED not in replies[place]
    ]
    valid += [place for place, reply in enumerate(recorded["replies"]) if ENDLESS in reply]
    tried = [recorded["tries"][place] or wrong for place in sorted(valid)]
    episodes, memory, _ = play_step(GAME, cfg, ScriptedTools(script), memory, 0)
    own = [episode for episode in episodes if episode.role == f"propose_{task}"]
    expected = [
        -1.0 if NOT_DETERMINED in reply else -0.5 if ENDLESS in reply else reward
        for reply, reward in zip(recorded["replies"], recorded["rewards"], strict=True)
    ]
    assert [episode.reward for episode in own] == expected
    values = [
        [item["program"], item["outputs"] if task == "induction" else item["outputs"][0]]
        for item in memory[task]
        if item["step"]
    ]
    released = [value for value in recorded["valid"] if NOT_DETERMINED not in value[0]]
    assert [value for value in values if value[0] != "def f(x): return 0"] == released


def test_the_released_check_of_imports_misses_dotted_names() -> None:
    released = dict(RELEASED["banned"])
    ours = {program: functions.banned(program, CARD.banned) for program in released}
    missed = {"import os.path", "from os import path", "import sys\nsys.exit()", "from os import environ"}
    assert {program for program in ours if ours[program] != released[program]} == missed
    assert all(ours[program] for program in missed)


# ---------------------------------------------------------------------------------------------------------------- cards
@pytest.mark.parametrize("tasks", [["induction"], ["deduction", "deduction"]])
def test_tasks_that_cannot_be_played(tasks: list[str]) -> None:
    with pytest.raises(CardError, match="needs deduction or abduction, and each task once"):
        card(tasks=tasks)


def test_a_run_needs_no_data() -> None:
    assert GAME.rows(card()) is None and GAME.title == "Absolute Zero"
    assert [tool.name for tool in GAME.tools(card())] == ["python"]
