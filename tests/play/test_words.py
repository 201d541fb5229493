"""Whether a text contains an answer: every case of every kind, real answers."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from scope_jax.games.ssp.rules import reveals
from scope_jax.grading.measures import cover_exact_match
from scope_jax.grading.words import contains, numbers, plain, spans
from tests.play.word_cases import CASES

ANY_PLACE = ("{}", "It is {}, I think.", "“{}”", "‘{}’", "«{}»", "({})", "so: {}…", "{}—there", "**{}**", "[{}][1]")


@pytest.mark.parametrize("kind", CASES)
def test_texts_that_contain_an_answer_and_texts_that_do_not(kind: str) -> None:
    yes, no = CASES[kind]
    assert [pair for pair in yes if not contains(*pair)] == [] == [pair for pair in no if contains(*pair)]
    # the measure and the leak check have the same notion; the latter also takes the first answer as a substring
    assert all(cover_exact_match(text, [answer]) for text, answer in yes)
    assert not any(cover_exact_match(text, [answer]) for text, answer in no)
    assert all(reveals(text, ("something else", answer)) for text, answer in yes)
    assert not any(reveals(text, ("something else", answer)) for text, answer in no)


def test_where_an_answer_is() -> None:
    text = "From ‘Paris’ to Kraków/Poland, 1,000 km"
    found = {
        answer: [plain(text)[slice(*span)] for span in spans(text, answer)] for answer in ("Paris", "poland", "1000")
    }
    assert found == {"Paris": ["paris"], "poland": ["poland"], "1000": ["1,000"]}
    assert (numbers("1,000 km in 3.5 h"), numbers("the 3rd of May"), numbers("five")) == (2, 0, 0)


def test_latex_is_read_as_it_looks() -> None:
    assert cover_exact_match(r"\boxed{\text{Paris}}", ["Paris"]) and cover_exact_match(r"\fbox{Paris}", ["Paris"])
    assert cover_exact_match(r"$1{,}234$", ["1234"]) and cover_exact_match(r"1\,234", ["1,234"])
    assert cover_exact_match(r"\frac{3}{4}", ["3/4"]) and not cover_exact_match(r"\frac{3}{4}", ["4"])


QA = ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle", "simpleqa", "frames")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("nq", "frames") else pytest.mark.slow) for name in QA]
)
def test_real_answers_are_found_wherever_they_stand(shared_data: Path, name: str) -> None:
    """And an answer of the next row is found only if its words are there, by a plain comparison of the words."""
    lines = (shared_data / "qa" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    answers = [[str(answer) for answer in json.loads(line)["answers"]] for line in lines]
    asked = [
        (form.format(answer), answer) for row in answers for answer in row for form in ANY_PLACE if word_in(answer)
    ]
    assert [pair for pair in asked if not contains(*pair)] == [] and len(asked) > 10 * len(QA)
    wrong = [(one[0], gold) for one, other in pairwise(answers) for gold in other if contains(one[0], gold)]
    assert all(squeezed(gold) in squeezed(text) for text, gold in wrong)


def word_in(answer: str) -> bool:
    return any(map(str.isalnum, answer)) and plain(answer).strip(" .") not in ("a", "an", "the")


def squeezed(text: str) -> str:
    words = "".join(c if c.isalnum() or c == "'" else " " for c in plain(text)).split()
    return "".join(word for word in words if word not in ("a", "an", "the")).replace("'", "")
