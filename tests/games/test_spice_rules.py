"""SPICE's rules: rewards, sub-sampling, grading and the parsers of the challenger's two stages."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_jax.data.keys import rng
from scope_jax.games import spice
from scope_jax.games.spice import roles, rules
from scope_jax.games.spice.options import options
from scope_jax.games.spice.state import (
    MULTIPLE_CHOICE,
    Answers,
    ChallengerAttempt,
    ReasonerAnswer,
    ReasonerTask,
    Segment,
)
from scope_jax.grading.mathematics.worker import compare
from scope_jax.play.game import step_of
from scope_jax.play.rollouts import Rollout
from scope_jax.text.messages import Messages
from tests.games.spice_world import card, world


@pytest.mark.parametrize(
    ("rate", "variance", "absolute_zero", "threshold", "r_zero"),
    [
        (0.0, 0.0439369336, 0.0, 0.0, 0.0),  # Var = 0: exp(−0.0625/0.02) = exp(−3.125), above the penalty
        (0.125, 0.3720341859, 0.875, 1.0, 0.25),  # Var = 7/64: exp(−(9/64)²/0.02)
        (0.25, 0.8225775623, 0.75, 1.0, 0.5),  # Var = 3/16: exp(−(1/16)²/0.02)
        (0.375, 0.9878671723, 0.625, 1.0, 0.75),  # Var = 15/64: exp(−(1/64)²/0.02)
        (0.5, 1.0, 0.5, 1.0, 1.0),
        (0.75, 0.8225775623, 0.25, 1.0, 0.5),
        (1.0, 0.0439369336, 0.0, 0.0, 0.0),
    ],
)
def test_rewards_of_a_challenger(rate, variance, absolute_zero, threshold, r_zero):
    wanted = {"variance": variance, "absolute-zero": absolute_zero, "threshold": threshold, "r-zero": r_zero}
    assert {name: rules.reward(name, rate, 0.01) for name in wanted} == pytest.approx(wanted, abs=1e-9)


def test_the_width_of_the_variance_reward():
    assert rules.reward("variance", 0.0, 0.0625 / 2) == pytest.approx(np.exp(-1), abs=1e-12)
    with pytest.raises(ValueError, match="name is 'gauss'"):
        rules.reward("gauss", 0.5, 0.01)


@pytest.mark.parametrize(
    ("valid", "total", "size", "wanted"),
    [
        (5, 10, 8, 4),
        (7, 10, 8, 6),  # 5.6
        (3, 16, 8, 2),  # 1.5: halves round up
        (1, 16, 8, 1),  # 0.5
        (15, 16, 8, 8),  # 7.5
        (1, 1024, 8, 1),  # 0.008, but at least one valid attempt is kept
        (1023, 1024, 8, 8),
        (0, 1024, 8, 0),
        (1024, 1024, 8, 8),
        (3, 5, 8, 3),  # all are kept
        (0, 3, 8, 0),
        (0, 0, 8, 0),
        (1, 9, 1, 1),
    ],
)
def test_how_many_of_a_subsample_are_valid(valid, total, size, wanted):
    assert rules.valid_share(valid, total, size) == wanted


def attempts(pattern: str) -> list[ChallengerAttempt]:
    """Attempts from a word of v (valid) and i (invalid)."""
    document, task = Segment(0, "d", "text"), ReasonerTask("integer", "How many?", "7")
    return [
        ChallengerAttempt(document, n, task=task) if c == "v" else ChallengerAttempt(document, n, reason="no_answer")
        for n, c in enumerate(pattern)
    ]


@pytest.mark.parametrize(
    ("pattern", "size", "valid", "invalid"),
    [
        ("vviivviivi", 4, 2, 2),
        ("iiiiiiiiiv", 4, 1, 3),
        ("iiiiiiiiii", 4, 0, 4),  # no valid one
        ("vvvvvvvvvv", 4, 4, 0),  # no invalid one
        ("vi", 4, 1, 1),
        ("", 4, 0, 0),
    ],
)
def test_a_subsample_keeps_the_ratio_and_the_order_of_the_attempts(pattern, size, valid, invalid):
    own = attempts(pattern)
    kept = rules.subsample(own, size, rng("test", 1))
    assert Counter(one.valid for one in kept) == Counter({True: valid, False: invalid})
    numbers = [one.number for one in kept]
    assert numbers == sorted(set(numbers))
    assert kept == rules.subsample(own, size, rng("test", 1))


def test_valid_and_invalid_attempts_are_each_sampled_uniformly():
    own, drawn = attempts("vviivviivi"), Counter()
    for seed in range(2000):
        drawn.update(one.number for one in rules.subsample(own, 4, rng("test", seed)))
    assert all(abs(drawn[one.number] / 2000 - 0.4) < 0.05 for one in own)  # 2 of 5 each, about 4.5 standard errors


@pytest.mark.parametrize(
    ("kind", "answer", "prediction", "wanted"),
    [
        (MULTIPLE_CHOICE, "B", "B", True),
        (MULTIPLE_CHOICE, "B", r"\text{(B)}", True),
        (MULTIPLE_CHOICE, "B", "B) 149,600,000 km", True),
        (MULTIPLE_CHOICE, "B", "149,600,000 km", False),  # the letter is required
        (MULTIPLE_CHOICE, "B", "A or B", False),
        (MULTIPLE_CHOICE, "A", "A river", False),
        ("string", "Newton", r"\text{newton}", True),
        ("string", "-5", "5", False),
        ("string", "3/4", "0.75", False),  # text, not a value
        ("boolean", "true", "True", True),
        ("boolean", "true", "false", False),
        ("integer", "42", "42", True),
        ("expression", "x+1", None, False),
        ("integer", "42", "", False),
    ],
)
def test_answers_that_need_no_comparison_of_values(kind, answer, prediction, wanted):
    assert rules.right(ReasonerTask(kind, "q", answer), prediction) is wanted


@pytest.mark.parametrize("kind", ["integer", "float", "expression"])
def test_values_are_compared_where_the_texts_differ(kind):
    task = ReasonerTask(kind, "q", "42")
    assert rules.needs_mathematics(task, "84/2")
    assert not rules.needs_mathematics(task, "42") and not rules.needs_mathematics(task, None)
    assert not rules.needs_mathematics(ReasonerTask("string", "q", "42"), "84/2")
    assert rules.right(task, "84/2", "equal") and not rules.right(task, "84/2", "unreadable")


def test_answers_are_graded_by_value():
    tools = world()
    step = step_of(spice.GAME, card(), tools, {"drawn": 0}, 0)
    document = Segment(0, "d", "text")
    (sample,), *_ = step.play("reasoner", [Rollout("0", Messages("?"))])
    cases = [
        ("expression", "x^2 - 1", [r"(x-1)(x+1)", "x^2 + 1", None]),
        ("float", "0.5", [r"\frac{1}{2}", "5", "0.50"]),
    ]
    answers = [
        Answers(
            ChallengerAttempt(document, n, task=task),
            task,
            tuple(ReasonerAnswer(sample, prediction) for prediction in said),
        )
        for n, (kind, answer, said) in enumerate(cases)
        for task in [ReasonerTask(kind, "q", answer)]
    ]
    graded = roles.grade(step, answers)
    correct = [[answer.correct for answer in group.answers] for group in graded]
    assert correct == [[True, False, False], [True, False, True]]
    assert step.ledger.counts == {"math/given_up": 0.0, "math/unreadable": 0.0}
    verdicts = [compare(*comparison) for comparison in tools.compared]
    assert verdicts == ["equal", "unequal", "equal", "unequal", "equal"]
    assert graded[0].pass_rate == pytest.approx(1 / 3)


# ------------------------------------------------------------------------------------------------------------- parsers
CFG = card()


def choice(mcq: Any = True, free: Any = False, kind: Any = None) -> str:
    return json.dumps(
        {"suitable_for_mcq": mcq, "suitable_for_free_form": free, "best_answer_type": kind, "reason": "it is"}
    )


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        (choice(), (MULTIPLE_CHOICE, "")),
        (choice(kind="Integer"), (MULTIPLE_CHOICE, "")),  # ignored for multiple choice
        (choice(False, True, "Integer"), ("integer", "")),
        (choice(False, True, " string "), ("string", "")),
        (f"\n {choice()} \n", (MULTIPLE_CHOICE, "")),
        (f"I think: {choice()}", ("", "format_no_json")),  # only the object is allowed
        (f"{choice()} That is all.", ("", "format_no_json")),
        (f"```json\n{choice()}\n```", ("", "format_no_json")),
        (choice() + choice(), ("", "format_no_json")),
        (f"[{choice()}]", ("", "format_no_json")),
        ("", ("", "format_no_json")),
        ('{"suitable_for_mcq": true, "suitable_for_mcq": true}', ("", "format_no_json")),  # a duplicate key
        (choice(True, True, "Integer"), ("", "format_flags")),  # both flags
        (choice(False, False, "Integer"), ("", "format_flags")),  # neither flag
        (choice("true", False), ("", "format_flags")),
        (choice(1, 0), ("", "format_flags")),
        (choice([True], False), ("", "format_flags")),
        ('{"suitable_for_mcq": true}', ("", "format_flags")),
        (choice(False, True, None), ("", "format_type")),
        (choice(False, True, ["Integer"]), ("", "format_type")),
        (choice(False, True, {"type": "Integer"}), ("", "format_type")),
        (choice(False, True, ""), ("", "format_type")),
        (choice(False, True, "Boolean"), ("", "format_type")),  # not among the card's types
    ],
)
def test_the_first_stage(reply: str, found: tuple[str, str]):
    assert rules.format_of(options(CFG), reply) == found


def test_a_card_may_exclude_formats_and_types():
    free = card(formats="free-form", answer_types=["boolean"])
    assert rules.format_of(options(free), choice()) == ("", "format_flags")
    assert rules.format_of(options(free), choice(False, True, "Boolean")) == ("boolean", "")
    assert rules.format_of(options(free), choice(False, True, "Integer")) == ("", "format_type")


OPTIONS = "How far?\nA) 1 km\nB) 2 km\nC) 3 km\nD) 4 km"
POINTS = OPTIONS.replace(")", ".")


def posed(**changes: Any) -> str:
    table = {"multiple_choice_question": OPTIONS, "multiple_choice_correct": "B"} | changes
    return "I look for a relation {x | x > 1}.\n" + json.dumps(table)


MC = ReasonerTask(MULTIPLE_CHOICE, OPTIONS, "B")


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        (posed(), (MC, "")),
        (posed(exam_question="How far?", correct_answer="2 km, as …", answer_quote=["a", "b"]), (MC, "")),
        (posed(multiple_choice_correct=" B "), (MC, "")),
        (posed(self_test_solution="1.\tB"), (MC, "")),
        (posed(multiple_choice_question=POINTS), (ReasonerTask(MULTIPLE_CHOICE, POINTS, "B"), "")),
        (posed() + " Done.", (None, "task_no_json")),
        (f"```\n{posed()}\n```", (None, "task_no_json")),
        ("A question: how far?", (None, "task_no_json")),
        (posed()[:-3], (None, "task_no_json")),  # cut off
        (posed(multiple_choice_question=""), (None, "no_question")),
        (posed(multiple_choice_question=[OPTIONS]), (None, "no_question")),
        (posed(multiple_choice_question={"text": OPTIONS}), (None, "no_question")),
        (posed(multiple_choice_question=None), (None, "no_question")),
        (posed(exam_question=""), (None, "no_question")),  # an empty question: the challenger declines
        (posed(exam_question=["How far?"]), (None, "no_question")),
        (posed(multiple_choice_correct=""), (None, "no_answer")),
        (posed(multiple_choice_correct=["B"]), (None, "no_answer")),
        (posed(correct_answer=" "), (None, "no_answer")),
        (posed(multiple_choice_correct="E"), (None, "options")),
        (posed(multiple_choice_correct="b"), (None, "options")),
        (posed(multiple_choice_correct="B) 2 km"), (None, "options")),
        (posed(multiple_choice_question="How far?"), (None, "options")),
        (posed(multiple_choice_question=OPTIONS.split("\n", 1)[1]), (None, "options")),  # no question before them
        (posed(multiple_choice_question=OPTIONS.replace("4", "3")), (None, "options")),  # two equal options
        (posed(multiple_choice_question=OPTIONS.replace("D)", "E)")), (None, "options")),
        (posed(multiple_choice_question=OPTIONS.replace("\nD) 4 km", "")), (None, "options")),
        (posed(multiple_choice_question=OPTIONS + "\nE) 5 km"), (None, "options")),
        (posed(multiple_choice_question=OPTIONS.replace("\n", " ")), (None, "options")),  # options need a line each
    ],
)
def test_a_multiple_choice_task(reply: str, found: tuple[ReasonerTask | None, str]):
    assert rules.task_of(reply, MULTIPLE_CHOICE, 3) == found


def free(answer: Any, kind: str = "Integer", **changes: Any) -> str:
    return "First …\n" + json.dumps({"question": "How many?", "answer": answer, "answer_type": kind} | changes)


@pytest.mark.parametrize(
    ("reply", "kind", "wanted"),
    [
        (free(42), "integer", "42"),
        (free("42"), "integer", "42"),
        (free(" -1,234,567 "), "integer", "-1234567"),
        (free("1,23"), "integer", "answer_form"),
        (free(4.0), "integer", "answer_form"),
        (free("42 km"), "integer", "answer_form"),
        (free("4-5"), "integer", "answer_form"),
        (free(True), "integer", "answer_form"),
        (free([42]), "integer", "no_answer"),
        (free({"value": 42}), "integer", "no_answer"),
        (free(None), "integer", "no_answer"),
        (free(""), "integer", "no_answer"),
        (free(42, "Float"), "integer", "answer_type"),
        (free(42, ""), "integer", "answer_type"),
        (free(42, answer_type=["Integer"]), "integer", "answer_type"),
        (free("1" * 2001), "integer", "answer_form"),
        (free(42, question=""), "integer", "no_question"),
        (free(42, question=["How many?"]), "integer", "no_question"),
        (free(42, question=["Q1", "Q2"]), "integer", "no_question"),
        (free(42, question={"text": "How many?"}), "integer", "no_question"),
        (free(42).replace('"question"', '"Question"'), "integer", "no_question"),
        (free(3.14, "Float"), "float", "3.14"),
        (free(1e-05, "Float"), "float", "0.00001"),
        (free("2.50", "float"), "float", "2.50"),
        (free(3, "Float"), "float", "3"),
        (free("22/7", "Float"), "float", "answer_form"),
        (free("pi", "Float"), "float", "answer_form"),
        (free(False, "Float"), "float", "answer_form"),
        (free("2*x^2 + 3*x - 5", "Expression"), "expression", "2*x^2 + 3*x - 5"),
        (free(7, "Expression"), "expression", "7"),
        (free(["x"], "Expression"), "expression", "no_answer"),
        (free("Newton's Third Law", "String"), "string", "Newton's Third Law"),
        (free("the third law of Newton", "String"), "string", "answer_form"),  # more than three words
        (free(5, "String"), "string", "answer_form"),
        (free(True, "Boolean"), "boolean", "true"),
        (free("false", "Boolean"), "boolean", "false"),
        (free("True", "Boolean"), "boolean", "answer_form"),
        (free("yes", "Boolean"), "boolean", "answer_form"),
        (free(1, "Boolean"), "boolean", "answer_form"),
        (free(42) + "\n```", "integer", "task_no_json"),
        (free("x").replace('"x"', r'"\frac{1}{2}"'), "expression", "task_no_json"),  # a form feed, and rac{1}{2}
        (free(r"\frac{1}{2}", "Expression"), "expression", r"\frac{1}{2}"),
        (free("x", "Expression").replace('"x"', r'"\nu + 1"'), "expression", "answer_form"),  # a line break, and u + 1
        (free("x", "Expression").replace('"x"', r'"2\nabla f"'), "expression", "answer_form"),
        (free("Paris\n", "String"), "string", "Paris"),
        (free(42, relevant_quotes=["Length:\t42 km"], step_by_step_solution="\r"), "integer", "42"),  # not used
        (free(42, question="How\tmany?"), "integer", "task_no_json"),
    ],
)
def test_a_free_form_task(reply: str, kind: str, wanted: str):
    task, reason = rules.task_of(reply, kind, 3)
    if wanted in rules.REASONS:
        assert (task, reason) == (None, wanted)
    else:
        assert (task, reason) == (ReasonerTask(kind, "How many?", wanted), "")


KINDS = (MULTIPLE_CHOICE, "integer", "float", "expression", "string", "boolean")
NAMES = ("question", "answer", "answer_type", "multiple_choice_question", "multiple_choice_correct")
WORDS = (*NAMES, "suitable_for_mcq", "Integer", OPTIONS, "B")
PIECES = [choice(), posed(), free(42), *'{}[]":,\\ \n', "true", "null", "1", "1e999", "NaN", "\\u", "\ud800"]
PIECES += [f'"{word}": ' for word in WORDS] + [json.dumps(word) for word in WORDS]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14), st.sampled_from(KINDS))
def test_any_text_is_parsed_without_an_error_and_valid_tasks_obey_the_format(pieces: list[str], kind: str):
    text = "".join(pieces)
    chosen, reason = rules.format_of(options(CFG), text)
    assert bool(chosen) != bool(reason) and (not reason or reason in rules.REASONS)
    if chosen:
        assert json.loads(text)["suitable_for_mcq"] is (chosen == MULTIPLE_CHOICE)
    task, reason = rules.task_of(text, kind, 3)
    assert (task is None) == (reason in rules.REASONS)
    if task is not None:
        assert text.rstrip().endswith("}") and task.question.strip() and task.answer.strip()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["B", OPTIONS]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6), st.sampled_from(KINDS))
def test_tasks_need_plain_values(table: dict[str, Any], kind: str):
    task, _ = rules.task_of(json.dumps(table), kind, 3)
    if task is None:
        return
    question, answer = (table[name] for name in (NAMES[3:] if kind == MULTIPLE_CHOICE else NAMES[:2]))
    assert isinstance(question, str) and task.question == question.strip()
    assert not isinstance(answer, list | dict) and answer is not None
