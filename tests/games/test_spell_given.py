"""SPELL's RLVR baseline: the responder is trained on given questions, with the rule as its only reward (App. C.4)."""

from __future__ import annotations

from typing import Any

import pytest

from scope_jax.config import CardError
from scope_jax.games import spell
from tests.games.harness import ScriptedTools
from tests.games.spell_world import Plan, card

RLVR = {"mode": "rlvr", "train": ["responder"], "verify": False}


def row(question: str, *answers: str, **more: Any) -> dict[str, Any]:
    plain = {"options": [], "task": None, "context": f"Facts for {question}"}
    return {"question": question, "answers": list(answers), **plain, **more}


ROWS = [
    row("Who built it?", "Ada Berg", "A. Berg"),
    row("How much?", "12.5", task="math"),
    row("When?", "B", options=["in May", "in June"]),
    row("Who came last?", "nobody", context="Long. " * 4000),
]
PLAN = Plan(
    {},
    answers={
        "Who built it?": (
            "The answer is Ada Berg.",
            "The correct answer is A. Berg.",
            "The correct answer is Olaf",
            "?",
        ),
        "How much?": ("Therefore, the answer is 12.5",) * 4,
        "When?": ("The correct answer is (B)", "The correct answer is A", "in June", "The correct answer is B or A"),
    },
)


@pytest.fixture(scope="module")
def step() -> tuple[Any, ...]:
    cfg, tools = card(questions="none", **RLVR), ScriptedTools(script=PLAN, data=ROWS)
    return *spell.play(cfg, tools, spell.start(cfg), 0), tools


def test_a_step(step):
    episodes, memory, metrics, tools = step
    assert {e.role for e in episodes} == {role for role, *_ in tools.asked} == {"responder"}
    found: dict[str, list[Any]] = {}
    for e in episodes:
        found.setdefault(e.group, []).append((e.reward, e.trained))
    assert found == {
        "responder/0": [(1.0, True), (1.0, True), (0.0, True), (0.0, True)],  # either of two answers is right
        "responder/1": [(1.0, False)] * 4,
        "responder/2": [(1.0, True), *[(0.0, True)] * 3],
    }  # the prompt of question 3 is too long
    assert memory == {"position": 4, "history": {}}
    expected = {
        "groups/rounds": 1.0,
        "groups/full": 1.0,
        "questions/asked": 4.0,
        "rejected/documents_too_long": 0.25,
        "responder/reward": 7 / 12,
        "difficulty/qa": 0.5,
        "difficulty/math": 0.0,
        "difficulty/choice": 0.75,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected)
    assert "questions/trained" not in metrics  # they come from the data
    assert (
        "Facts for Who built it?" in tools.prompts["responder", "0"]
        and "(B) in June" in tools.prompts["responder", "2"]
    )


def test_one_role_is_trained_by_the_rule():
    cfg = card(questions="none", **RLVR)
    (update,) = spell.updates(cfg)
    assert [share.role for share in update.roles] == ["responder"] and update.card.advantage == "group-zscore"
    assert spell.source(cfg).kind == "readings"


def test_a_step_draws_until_it_is_full_or_reaches_max_rounds():
    cfg = card(questions="none", groups=3, clusters_per_round=2, **RLVR)
    tools = ScriptedTools(script=PLAN, data=ROWS)
    _, memory, metrics = spell.play(cfg, tools, spell.start(cfg), 0)
    assert (memory["position"], metrics["groups/rounds"], metrics["groups/full"]) == (6, 3.0, 1.0)
    _, memory, metrics = spell.play(cfg, ScriptedTools(script=Plan({}), data=ROWS), spell.start(cfg), 0)
    assert (memory["position"], metrics["groups/full"], metrics["responder/reward"]) == (6, 0.0, 0.0)


def test_required_settings_of_the_mode():
    with pytest.raises(CardError, match=r'data.questions is missing; spell.mode = "rlvr" needs'):
        card(**RLVR)
    with pytest.raises(CardError, match=r'set train = \["responder"\] and verify = false'):
        card(questions="none", mode="rlvr")
