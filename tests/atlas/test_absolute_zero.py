"""The small world of Absolute Zero: held-out tasks are in no demonstration, and demonstrations have their habits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scope_jax.games.absolute_zero import rules
from scope_jax.games.absolute_zero.messages import for_solver
from scope_jax.games.absolute_zero.options import options
from scope_jax.games.absolute_zero.state import identity, task_of
from tools.atlas import absolute_zero
from tools.atlas.absolute_zero import Demonstrations, Function

WORLD = Path(__file__).parents[2] / "assets" / "atlas" / "absolute_zero"


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])


def test_functions_go_from_left_to_right() -> None:
    one = Function((("-", 2), ("+", 5)))
    assert (one.program, one(3), one.message, one.simplest.program) == (
        "def f(x): return x - 2 + 5",
        6,
        "add",
        "def f(x): return x + 3",
    )
    assert Function((("*", 3),)).item([0, 4])["outputs"] == ["0", "12"]
    assert absolute_zero.walk(3, one.steps) == ("3 - 2 = 1, 1 + 5 = 6", 6)
    assert len(absolute_zero.functions()) == 8 + 2 + 64


def test_held_out_tasks_are_those_of_the_files_and_in_no_demonstration() -> None:
    shown = Demonstrations(0)
    tasks = [*shown.tasks()]
    for kind in ("deduction", "abduction", "induction"):
        rows = [json.loads(line) for line in (WORLD / f"{kind}.jsonl").read_text().splitlines()]
        assert rows == [row for row in tasks if row["task"] == kind] and len(rows) == absolute_zero.HELD_OUT
    prompts = {row["messages"][0]["content"] for row in shown.rows(3000)}
    asked = {for_solver(shown.card, row["task"], task_of(row)).user for row in tasks if row["task"] != "induction"}
    assert len(asked) == 2 * absolute_zero.HELD_OUT and not prompts & asked
    programs = {row["program"] for row in tasks if row["task"] == "induction"}  # others have the same values
    assert len(programs) == absolute_zero.HELD_OUT // 4 and not any(one.program in programs for one in shown.open)


def test_without_habits_every_reply_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(absolute_zero, "HABITS", dict.fromkeys(absolute_zero.HABITS, 0.0))
    shown, card = Demonstrations(1), options(Demonstrations(1).card)
    for row in shown.rows(600):
        prompt, reply = (message["content"] for message in row["messages"])
        assert rules.answer_of(reply) is not None
        if prompt.endswith("Output?"):
            program, x = prompt.split("return ")[1].split("\n")[0], int(prompt.split("```input\n")[1].split("\n")[0])
            first, *steps = program.split()
            value = Function(tuple(zip(steps[::2], map(int, steps[1::2]), strict=True)))(x)
            assert first == "x" and rules.solution("deduction", reply) == str(value)
        elif "Another one" in prompt or prompt.endswith("Inputs, and a message."):
            kind = "induction" if "message" in prompt else "deduction"
            assert rules.draft(kind, reply, [identity(1)], card) is not None


def test_habits_are_as_frequent_as_they_say() -> None:
    rows = [*Demonstrations(2).rows(3000)]
    bad = sum(rules.answer_of(row["messages"][1]["content"]) is None for row in rows) / len(rows)
    assert bad == pytest.approx(absolute_zero.HABITS["bare"], abs=0.03)
