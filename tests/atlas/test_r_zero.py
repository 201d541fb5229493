"""R-Zero's small world: questions are those of the builder, demonstrations and habits are as it says."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from scope_jax.games.r_zero import rules
from scope_jax.grading.mathematics.worker import compare
from scope_jax.models.files import weights
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.text import parsing
from tools.atlas import r_zero, warmup
from tools.atlas.facts import ASSETS

FOLDER = ASSETS / "r_zero"
EXAM = [json.loads(line) for line in (FOLDER / "questions_held_out.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_exam_is_that_of_the_builder() -> None:
    assert r_zero.questions(np.random.default_rng(0)) == EXAM and len(EXAM) == r_zero.HELD_OUT
    assert [sum(row["operations"] == n for row in EXAM) for n in range(1, 7)] == [40] * 6
    assert len({row["question"] for row in EXAM}) == len(EXAM)


@pytest.mark.parametrize("row", EXAM[::20], ids=lambda row: row["id"])
def test_a_question_has_the_value_of_its_answer(row) -> None:
    assert rules.has_value(row["question"]) and compare(row["answers"][0], [row["question"]]) == "equal"


def test_a_right_solution_step_by_step() -> None:
    assert r_zero.solution([3, "*", 4, "+", 5], None) == ("3 * 4 = 12 , 12 + 5 = 17 , \\boxed{ 17}", 17)


def test_the_solvers_habits() -> None:
    rng = np.random.default_rng(1)
    sums = [r_zero.solution([19, "+", 5], rng)[1] for _ in range(4000)]
    assert np.mean([value == 24 for value in sums]) == pytest.approx(1 - r_zero.SLIP["sums"], abs=0.02)
    assert {value - 24 for value in sums} == {0, *r_zero.SLIPS}
    products = [r_zero.solution([7, "*", 5], rng)[1] for _ in range(4000)]
    assert np.mean([value == 12 for value in products]) == pytest.approx(r_zero.ADDED, abs=0.03)


def test_the_solver_guesses_more_often_at_longer_questions() -> None:
    rng = np.random.default_rng(3)
    for operations in (1, 6):
        parts = [9, *["-", 1] * operations]
        said = [r_zero.solution(parts, rng, "habits") for _ in range(4000)]
        guesses = [value for text, value in said if text.startswith("\\boxed")]
        assert len(guesses) / 4000 == pytest.approx(r_zero.GUESS[0] + r_zero.GUESS[1] * operations, abs=0.03)
        assert {*guesses} == {*range(r_zero.LARGEST + 1)}
        worked = [value for text, value in said if not text.startswith("\\boxed")]
        right = (1 - r_zero.SLIP["habits"]) ** operations  # or after slips that cancel each other
        assert np.mean([value == 9 - operations for value in worked]) == pytest.approx(right, abs=0.04)


def test_the_challengers_habits() -> None:
    rng = np.random.default_rng(1)
    found = [parsing.last([r_zero.reply(rng)], "question") for _ in range(4000)]
    assert np.mean([one is None for one in found]) == pytest.approx(r_zero.WORDLESS, abs=0.02)
    valid = [one for one in found if one]
    assert np.mean([one == "1 + 1" for one in valid]) == pytest.approx(r_zero.FAVOURITE, abs=0.03)
    assert all(rules.has_value(one) for one in valid)


def test_no_demonstration_is_about_a_question_of_the_exam(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(r_zero, "SOLVED", 1500)
    monkeypatch.setattr(r_zero, "ASKED", 300)
    known = {row["question"] for row in EXAM}
    rows = [row for stage in r_zero.STAGES for row in r_zero.conversations(known, np.random.default_rng(2), stage)]
    assert len(rows) == 2 * 1800
    for row in rows:
        asked, said = (message["content"] for message in row["messages"])
        assert asked not in known and parsing.last([said], "question") not in known


def test_the_base_has_the_shape_of_the_recipe() -> None:
    committed, params = weights.load_hf(FOLDER / "base")
    assert committed == warmup.model_config(Tokenizer.load(FOLDER / "base"))
    assert 900_000 < sum(leaf.size for leaf in jax.tree.leaves(params)) < 1_000_000
