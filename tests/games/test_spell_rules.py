"""The equations of SPELL and the parsing of its roles' outputs, on hand-computed cases."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_jax.config import AdvantageCard, LossCard, SamplingSection
from scope_jax.games.spell import rules
from scope_jax.games.spell.options import SpellSection
from scope_jax.games.spell.state import Question, ReadingTask, ResponderAnswer, Verification
from scope_jax.learner.advantages import compute
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent
from scope_jax.play.samples import sample_of
from scope_jax.rollouts.types import Completion
from tests.games.spell_cases import CASES, UNDECIDED
from tests.games.spell_world import OPTIONS, asked

NAN = float("nan")


# ------------------------------------------------------------------------------------------------------- the questioner
def read(text: str, task: str = "qa") -> tuple[Question | None, str]:
    return rules.question_of(text, task, len, 40)


def test_a_question_is_text_with_a_short_answer():
    assert read(asked(" Who? ", " Ada ")) == (Question("Who?", "Ada"), "")
    assert read(f"{asked('First?', 'no')} No, better: {asked('Who?', 'Ada')}") == (Question("Who?", "Ada"), "")
    whole = Question("When?", "B", tuple(OPTIONS.values()))
    assert read(asked("When?", "(B)", options=OPTIONS), "choice") == (whole, "")
    assert whole.whole == "When?\n(A) in May\n(B) in June\n(C) in July\n(D) never"
    assert read(asked("How much?", 12.5), "math") == (Question("How much?", "12.5"), "")
    assert read(asked("How much?", "$3.5 million"), "math") == (Question("How much?", "$3.5 million"), "")
    with pytest.raises(ValueError, match="task is 'poem'"):
        read(asked("Who?", "Ada"), "poem")


@pytest.mark.parametrize(
    ("task", "text", "reason"),
    [
        ("qa", "I have no idea.", "no_object"),
        ("qa", '{"question": "Who?", "answer": "Ada",}', "no_object"),
        ("qa", '{"question": "Who?"}', "wrong_keys"),
        ("qa", asked("Who?", "Ada", options=OPTIONS), "wrong_keys"),
        ("choice", asked("When?", "B"), "wrong_keys"),
        ("qa", asked("", "Ada"), "no_text"),
        ("qa", asked("Who?", "  "), "no_text"),
        ("qa", asked("Who?", ["Ada"]), "no_text"),
        ("qa", asked("Who?", {"name": "Ada"}), "no_text"),
        ("qa", asked("Who?", None), "no_text"),
        ("qa", asked("Who?", "..."), "no_text"),
        ("qa", asked("…", "Ada"), "no_text"),
        ("qa", asked("Who?", 7), "no_text"),
        ("math", asked("How much?", True), "no_text"),
        ("math", asked("How much?", "a lot"), "no_number"),
        ("math", asked("How much?", "between 3 and 5"), "no_number"),
        ("math", asked("How much?", "0.0%"), "zero"),
        ("math", asked("How much?", 0), "zero"),
        ("math", asked("How much?", "-0"), "zero"),
        ("choice", asked("When?", "E", options=OPTIONS), "no_letter"),
        ("choice", asked("When?", "in June", options=OPTIONS), "no_letter"),
        ("choice", asked("When?", "A or B", options=OPTIONS), "no_letter"),
        ("choice", asked("When?", "B", options=[*OPTIONS.values()]), "wrong_options"),
        ("choice", asked("When?", "B", options={**OPTIONS, "E": "now"}), "wrong_options"),
        ("choice", asked("When?", "B", options={**OPTIONS, "C": "In  June"}), "wrong_options"),
        ("choice", asked("When?", "B", options={**OPTIONS, "C": ""}), "wrong_options"),
        ("choice", asked("When?", "B", options={**OPTIONS, "C": ["in July"]}), "wrong_options"),
        ("qa", asked("Who?", "x" * 41), "answer_too_long"),
        ("qa", asked("What?", "x").replace('"x"', r'"\beta decay"'), "no_object"),  # a backspace
        ("choice", asked("When?", "B", options={**OPTIONS, "C": "at \tau"}), "no_object"),  # a tab
    ],
)
def test_malformed_questions_are_rejected_with_a_reason(task: str, text: str, reason: str):
    assert read(text, task) == (None, reason) and reason in rules.MALFORMED


@pytest.mark.parametrize(
    ("success", "reward"),
    [
        (0.0, 0.0),
        (1.0, 0.0),
        (0.5, 1.0),
        (0.25, math.exp(-9 / 8)),  # a quarter away: (1/4)² / (2 (1/6)²) = 36/32
        (0.75, math.exp(-9 / 8)),
        (0.125, math.exp(-81 / 32)),  # (3/8)² · 18
    ],
)
def test_equation_7(success: float, reward: float):
    assert rules.questioner_reward("gaussian", success, 0.5, 0.5 / 3) == pytest.approx(reward, rel=1e-12)


@pytest.mark.parametrize(
    ("success", "absolute_zero", "r_zero"),
    [
        (0.0, 0.0, 0.0),  # as under Eq. (7), nothing for a question that nobody or everybody solves
        (0.125, 0.875, 0.25),  # one of eight answers: Absolute Zero likes it best
        (0.5, 0.5, 1.0),
        (0.75, 0.25, 0.5),
        (1.0, 0.0, 0.0),
    ],
)
def test_the_mappings_of_figure_5(success: float, absolute_zero: float, r_zero: float):
    wanted = {"absolute-zero": absolute_zero, "r-zero": r_zero}
    assert {name: rules.questioner_reward(name, success, 0.5, 0.5 / 3) for name in wanted} == wanted
    with pytest.raises(ValueError, match="name is 'gauss'"):
        rules.questioner_reward("gauss", 0.5, 0.5, 0.5 / 3)


# ------------------------------------------------------------------------------------------------------ the responder
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("So I think. The correct answer is Ada Berg.", "Ada Berg"),
        ("Therefore, the answer is 12.5.", "12.5"),
        ("The answer is: **12.5%**.", "12.5%"),
        ("The answer is Paris? No: the correct answer is\nLyon", "Lyon"),  # the last one
        ("the answer is (1,234)", "(1,234)"),  # parentheses may mean a negative number
        ("**The correct answer is B**", "B"),
        ("the correct answer  is U.S.A.", "U.S.A"),
        ("My answer isn't here.", None),
        ("the answer is", None),
        ("the answer is .", None),
        ("The correct answer is ...", None),  # the prompt's placeholder
        ("Therefore, the answer is **…**.", None),
        ("The correct answer is [...]", None),
        ("The correct answer is ... Paris", "... Paris"),
        ("12.5", None),
        ("", None),
    ],
)
def test_conclusions(text: str, found: str | None):
    assert rules.conclusion_of(text) == found


@pytest.mark.parametrize(
    ("task", "response", "reference", "right"),
    [
        ("qa", "It was Ada Berg, I think. The correct answer is A. Berg.", "Ada Berg", True),  # it contains the answer
        ("qa", "The correct answer is the engineer Ada Berg", "Ada  berg", True),
        ("qa", "The correct answer is Ada", "Ada Berg", False),  # only a part of the answer
        ("qa", "The correct answer is the", "the thermal bath", False),
        ("qa", "The correct answer is twelve", "12", False),  # a paraphrase is for the verifier
        ("math", "1999 and 12.5 give 3. Therefore, the answer is 12.5.", "12.5", True),
        ("math", "12.5", "12.5", False),  # no conclusion
        ("math", "Therefore, the answer is -12.5", "12.5", False),  # the sign counts
        ("math", "Therefore, the answer is (12.5)", "-12.5", True),
        ("math", "Therefore, the answer is 12.5%", "0.125", True),
        ("math", "Therefore, the answer is 1,234,567", "1234567", True),
        ("math", "Therefore, the answer is 3.5 million", "3,500 thousand", True),
        ("math", "Therefore, the answer is 3500", "3.5", False),
        ("math", "Therefore, the answer is 100.15", "100", True),
        ("math", "Therefore, the answer is 100.16", "100", False),
        ("choice", "B is tempting. The correct answer is (C).", "C", True),
        ("choice", "The correct answer is B or C", "C", False),
        ("choice", "The correct answer is (C), (B)", "C", False),
        ("choice", "The correct answer is A. foo B. bar C. baz D. qux", "A", False),
        ("choice", "The correct answer is\nA. foo\nB. bar\nC. baz", "A", False),
        ("choice", "The correct answer is A\nB", "A", False),
        ("choice", "The correct answer is B. bar\nA. foo is smaller.", "B", True),
        ("choice", "C", "C", False),
    ],
)
def test_the_rule(task: str, response: str, reference: str, right: bool):
    conclusion = rules.conclusion_of(response)
    assert rules.matches(task, response, conclusion, [reference], "response", "plain") is right
    if "A. Berg" not in response:  # contained in the reasoning only
        for containment in ("plain", "careful"):
            assert rules.matches(task, response, conclusion, [reference], "answer", containment) is right


def judged(concluded: str, reference: str, containment: str) -> bool:
    """The rule's verdict on a reply with this conclusion."""
    said = f"Let us see. The correct answer is {concluded}."
    return rules.matches("qa", said, rules.conclusion_of(said), [reference], SpellSection().rule_reads, containment)


@pytest.mark.parametrize("kind", {kind: None for kind, *_ in CASES})
def test_the_careful_rule_pays_the_answer_and_no_other_candidate(kind: str):
    cases = [case for case in CASES if case[0] == kind]
    wrong = {case for case in cases if judged(*case[1:3], "careful") != case[3]} - UNDECIDED
    assert wrong == set()


def test_precision_and_recall_of_both_rules():
    """The figures of `candidates`: (paid and right, paid, right)."""
    figures = {}
    for containment in ("plain", "careful"):
        paid = [right for _, concluded, reference, right in CASES if judged(concluded, reference, containment)]
        figures[containment] = (sum(paid), len(paid))
    assert (sum(right for *_, right in CASES), len(CASES)) == (299, 604)
    assert figures == {"plain": (299, 588), "careful": (294, 294)}
    assert SpellSection().containment == "plain"


def test_what_stands_for_the_text_that_is_withheld_answers_no_question():
    folder = Path(SpellSection().prompts)
    said = f"The correct answer is {(folder / 'nothing.txt').read_text()}"
    for gold in ("No", "Yes", "none", "this", "time", "nothing"):
        assert not rules.matches("qa", said, rules.conclusion_of(said), [gold], "answer", "careful")
    assert not rules.matches("qa", said, None, ["No"], "response", "plain")


def test_cover_exact_match_may_look_in_the_conclusion_alone():
    said = "It may be Ada Berg. The correct answer is Olaf."
    assert rules.matches("qa", said, "Olaf", ["Ada Berg"], "response", "plain")
    for containment in ("plain", "careful"):
        assert not rules.matches("qa", said, "Olaf", ["Ada Berg"], "answer", containment)
        assert not rules.matches("qa", said, None, ["Ada Berg"], "answer", containment)
    with pytest.raises(ValueError, match="reads is 'all'"):
        rules.matches("qa", said, None, ["Ada Berg"], "all", "plain")
    with pytest.raises(ValueError, match="containment is 'strict'"):
        rules.matches("qa", said, None, ["Ada Berg"], "answer", "strict")


# ------------------------------------------------------------------------------------------------------- the verifier
@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("Explanation: the same.\nDecision: [[YES]]", True),
        ("Decision: [[ no ]]", False),
        ("[[YES]] … [[YES]]", True),
        ("Not [[YES]] but [[NO]]", None),  # two verdicts
        ("Decision: YES", None),
        ("[YES]", None),
        ("I KNOW NOTHING", None),
        ("", None),
    ],
)
def test_verdicts(text: str, verdict: bool | None):
    assert rules.verdict_of(text) is verdict


@pytest.mark.parametrize(
    ("verdicts", "decided"),
    [
        ([True, True, True, False], True),
        ([True, True, False, False], False),  # a tie is not a majority
        ([True, True, True, None], True),
        ([True, True, None, None], False),  # 2 of 4 are not more than half, also if the others have no verdict
        ([True, None, None, False], False),
        ([None, None, None, None], False),
        ([True], True),
        ([], False),
    ],
)
def test_equation_4(verdicts: list[bool | None], decided: bool):
    assert rules.vote(verdicts, "majority") is decided


def test_a_single_vote_is_the_first_judgment():
    assert rules.vote([True, False, False, False], "single") and not rules.vote([None, True, True, True], "single")
    assert not rules.vote([], "single")
    with pytest.raises(ValueError, match="vote is 'most'"):
        rules.vote([True], "most")


def test_equation_5():
    assert [rules.verifier_reward(verdict, True, 0.0) for verdict in (True, False, None)] == [1.0, 0.0, 0.0]
    assert [rules.verifier_reward(verdict, False, 0.0) for verdict in (True, False, None)] == [0.0, 1.0, 0.0]
    assert rules.verifier_reward(None, True, -1.0) == -1.0  # released code


@pytest.mark.parametrize(
    ("rewards", "conflicting"), [((), False), ((0.0,), False), ((1.0, 1.0), False), ((0.0, 0.0, 1.0), True)]
)
def test_equal_rewards_give_no_signal(rewards: tuple[float, ...], conflicting: bool):
    agent = Agent("actor", SamplingSection())
    sample = sample_of(Completion((), (), "stop"), Role("verifier", agent), "0 answer 0", None, "verifier")
    reading = ReadingTask(0, "qa", Question("Who?", "Ada Berg"), "A text.")
    verifications = tuple(Verification(sample, None, reward) for reward in rewards)
    assert ResponderAnswer(reading, 0, sample, None, verifications=verifications).conflicting is conflicting


# --------------------------------------------------------------------------------------------------------- advantages
def test_equations_8_and_9_are_advantage_rules_of_the_learner():
    """With the sample standard deviation, as torch.std: ½ for (1, 1, 1, 0), √(35/48) for (1, −½, −1, 0)."""
    card, own = LossCard(advantage="group-zscore"), AdvantageCard(advantage="batch-zscore")
    tokens_N = np.ones(4)
    found_N = compute(np.array([1.0, 1.0, 1.0, 0.0]), ["a"] * 4, tokens_N, card)
    np.testing.assert_allclose(found_N, np.array([0.25, 0.25, 0.25, -0.75]) / (0.5 + 1e-6), rtol=1e-12)
    rewards_N = np.array([1.0, -0.5, -1.0, 0.0])
    found_N = compute(rewards_N, ["qa", "math", "qa", "choice"], tokens_N, own)
    np.testing.assert_allclose(found_N, (rewards_N + 0.125) / (math.sqrt(35 / 48) + 1e-6), rtol=1e-12)
    np.testing.assert_array_equal(compute(np.zeros(4), ["a"] * 4, tokens_N, own), np.zeros(4))


# --------------------------------------------------------------------------------------------------- any text
PIECES = [
    *('{"question": ', '"Who?"', '"answer": ', '"Ada"', '"options": ', json.dumps(OPTIONS), "{", "}", "[", "]", ","),
    *(
        '"B"',
        "12.5",
        "0",
        "[[YES]]",
        "[[NO]]",
        "[[",
        "]]",
        "YES",
        "The answer is ",
        "the correct answer is",
        "\n",
        "\\",
    ),
    *("(", ")", "%", "-", "thousand", "\ud800", "**", "."),
    *(asked("Who?", "Ada"), asked("How much?", 12.5), asked("When?", "B", options=OPTIONS), asked("Who?", ["Ada"])),
]


def whole_object(text: str) -> Any:
    """The JSON object that ends at the last brace, found by brute force."""
    end = text.rindex("}") + 1
    for start in range(end):
        if text.startswith('{"question"', start):
            with contextlib.suppress(ValueError):
                return json.loads(text[start:end])
    raise AssertionError("there is none")


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14))
def test_everything_parsed_is_in_the_text(pieces: list[str]):
    text = "".join(pieces)
    for task in ("qa", "math", "choice"):
        question, reason = rules.question_of(text, task, len, 40)
        assert (question is None) == (reason in rules.MALFORMED)
        if question is not None:
            value = whole_object(text)
            assert question.text == value["question"].strip()
            assert question.answer == (str(value["answer"]) if task != "choice" else "B")
            assert question.options == (tuple(OPTIONS.values()) if task == "choice" else ())
        found = rules.conclusion_of(text)
        assert found is None or "answer is" in text
        assert not rules.matches(task, text, found, ["Ada" if task == "qa" else "B"], "response", "plain") or (
            "Ada" in text if task == "qa" else found is not None
        )
    if rules.verdict_of(text) is not None:
        assert ("[[YES]]" in text) != ("[[NO]]" in text)
