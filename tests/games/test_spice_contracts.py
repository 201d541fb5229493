"""Strict parsing of the two outputs of SPICE's challenger, on chosen cases and on arbitrary text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_jax.games.spice import contracts
from scope_jax.games.spice.records import MULTIPLE_CHOICE, REASONS, Task
from tests.games.spice_world import card

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
    assert contracts.format_of(CFG, reply) == found


def test_a_card_may_exclude_formats_and_types():
    free = card(formats="free-form", answer_types=["boolean"])
    assert contracts.format_of(free, choice()) == ("", "format_flags")
    assert contracts.format_of(free, choice(False, True, "Boolean")) == ("boolean", "")
    assert contracts.format_of(free, choice(False, True, "Integer")) == ("", "format_type")


OPTIONS = "How far?\nA) 1 km\nB) 2 km\nC) 3 km\nD) 4 km"
POINTS = OPTIONS.replace(")", ".")


def posed(**changes: Any) -> str:
    table = {"multiple_choice_question": OPTIONS, "multiple_choice_correct": "B"} | changes
    return "I look for a relation {x | x > 1}.\n" + json.dumps(table)


MC = Task(MULTIPLE_CHOICE, OPTIONS, "B")


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        (posed(), (MC, "")),
        (posed(exam_question="How far?", correct_answer="2 km, as …", answer_quote=["a", "b"]), (MC, "")),
        (posed(multiple_choice_correct=" B "), (MC, "")),
        (posed(self_test_solution="1.\tB"), (MC, "")),
        (posed(multiple_choice_question=POINTS), (Task(MULTIPLE_CHOICE, POINTS, "B"), "")),
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
def test_a_multiple_choice_task(reply: str, found: tuple[Task | None, str]):
    assert contracts.task_of(reply, MULTIPLE_CHOICE, 3) == found


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
    task, reason = contracts.task_of(reply, kind, 3)
    if wanted in REASONS:
        assert (task, reason) == (None, wanted)
    else:
        assert (task, reason) == (Task(kind, "How many?", wanted), "")


KINDS = (MULTIPLE_CHOICE, "integer", "float", "expression", "string", "boolean")
NAMES = ("question", "answer", "answer_type", "multiple_choice_question", "multiple_choice_correct")
WORDS = (*NAMES, "suitable_for_mcq", "Integer", OPTIONS, "B")
PIECES = [choice(), posed(), free(42), *'{}[]":,\\ \n', "true", "null", "1", "1e999", "NaN", "\\u", "\ud800"]
PIECES += [f'"{word}": ' for word in WORDS] + [json.dumps(word) for word in WORDS]


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14), st.sampled_from(KINDS))
def test_any_text_is_parsed_without_an_error_and_valid_tasks_obey_the_format(pieces: list[str], kind: str):
    text = "".join(pieces)
    chosen, reason = contracts.format_of(CFG, text)
    assert bool(chosen) != bool(reason) and (not reason or reason in REASONS)
    if chosen:
        assert json.loads(text)["suitable_for_mcq"] is (chosen == MULTIPLE_CHOICE)
    task, reason = contracts.task_of(text, kind, 3)
    assert (task is None) == (reason in REASONS)
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
    task, _ = contracts.task_of(json.dumps(table), kind, 3)
    if task is None:
        return
    question, answer = (table[name] for name in (NAMES[3:] if kind == MULTIPLE_CHOICE else NAMES[:2]))
    assert isinstance(question, str) and task.question == question.strip()
    assert not isinstance(answer, list | dict) and answer is not None
