"""Our graders against the reference implementations' rules, on every real row whose answer is given.

The references are re-derived here from their published definitions: SQuAD's and TriviaQA's normalisation, and
lm-evaluation-harness's filters for GSM8K and MMLU-Pro. Mathematics has its pairs in tests/play/test_mathematics.py.
"""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from scope_jax.config.exams import EvalSet
from scope_jax.data.published import RECIPES
from scope_jax.data.sources import Source, load
from scope_jax.grading.measures import choice, f1, same_text
from scope_jax.grading.rewards import exact_match

SHORT = [
    "nq",
    "triviaqa",
    "popqa",
    "hotpotqa",
    "hotpotqa_train",
    "2wikimultihopqa",
    "musique",
    "musique_train",
    "bamboogle",
    "simpleqa",
    "frames",
    "squad_xquad_en",
]
ARTICLES = re.compile(r"\b(a|an|the)\b")


def squad(text: str) -> str:
    """SQuAD v1.1: lower case, ASCII punctuation out, articles out, white space to single spaces."""
    bare = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(ARTICLES.sub(" ", bare).split())


def trivia(text: str) -> str:
    """TriviaQA: underscores and punctuation, including four quotation marks, become spaces."""
    out = set(string.punctuation) | set("‘’´`")
    spaced = "".join(" " if c in out else c for c in text.replace("_", " ").lower())
    return " ".join(ARTICLES.sub(" ", spaced).split()).strip()


def squad_f1(prediction: str, gold: str) -> float:
    one, two = squad(prediction).split(), squad(gold).split()
    common = sum((Counter(one) & Counter(two)).values())
    return 2 * common / (len(one) + len(two)) if common else 0.0


def rows(folder: Path, name: str) -> list[dict]:
    """The rows of a file, through our own reader."""
    card = EvalSet(name=name, path=str(folder / "qa" / f"{name}.jsonl"))
    return list(load(Source(card.path, "questions", card)))


def attempts_of(found: Sequence[dict]) -> list[tuple[str, list[str]]]:
    """(prediction, accepted answers): every accepted answer, one dressed up, and an answer of the next row."""
    pairs = [(gold, row["answers"]) for row in found for gold in row["answers"]]
    pairs += [(f"  The {row['answers'][0].upper()}!", row["answers"]) for row in found]
    return pairs + [(other["answers"][0], row["answers"]) for row, other in pairwise(found)]


def agreement(found: Sequence[dict], normal: Callable[[str], str]) -> tuple[int, int]:
    """(comparisons, those in which our verdict differs from equality after `normal`).

    Predictions of which `normal` leaves nothing, such as "*", are left out: the references accept any of them for an
    answer of which nothing is left either, ours only the same characters.
    """
    pairs = [(prediction, golds) for prediction, golds in attempts_of(found) if normal(prediction)]
    reference = [normal(prediction) in map(normal, golds) for prediction, golds in pairs]
    ours = [exact_match(prediction, golds) for prediction, golds in pairs]
    return len(pairs), sum(one != other for one, other in zip(ours, reference, strict=True))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "triviaqa" else []) for name in SHORT]
)
def test_exact_match_and_f1_are_squads(shared_data: Path, name: str) -> None:
    found = rows(shared_data, name)
    count, differing = agreement(found, squad)
    assert count > 2 * len(found) and differing == 0
    for prediction, golds in attempts_of(found):
        if not squad(prediction):
            continue
        assert f1(prediction, golds) == pytest.approx(max(squad_f1(prediction, gold) for gold in golds))


@pytest.mark.parametrize("name", SHORT)
def test_exact_match_agrees_with_triviaqas(shared_data: Path, name: str) -> None:
    """The two norms differ in what becomes of a hyphen only; no verdict on these rows depends on it."""
    assert agreement(rows(shared_data, name), trivia)[1] == 0


def test_gsm8k_agrees_with_lm_evaluation_harness(shared_data: Path) -> None:
    """strict-match: the number after "####"; compared without commas, dollars and a final full stop, ignoring case."""
    count = 0
    for line in (shared_data / "qa" / "gsm8k.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        text = f"{row['solution'].partition('####')[0].rstrip()}\n#### {row['answers'][0]}"
        (ours,) = RECIPES["gsm8k"].make({"question": row["question"], "answer": text}, "row")["answers"]
        theirs = re.findall(r"#### (\-?[0-9\.\,]+)", text)[-1]
        for pattern in (",", r"\$", r"(?s).*#### ", r"\.$"):
            theirs = re.sub(pattern, "", theirs)
        assert same_text(ours, [theirs]) and same_text(ours, [row["answers"][0].replace(",", "")])
        count += 1
    assert count >= 300


def test_mmlu_pro_agrees_with_lm_evaluation_harness(shared_data: Path) -> None:
    """custom-extract: the first "answer is (X)" of the reply, compared with the letter; here for every letter."""
    count = 0
    for line in (shared_data / "qa" / "mmlu_pro.jsonl").read_text(encoding="utf-8").splitlines():
        golds = json.loads(line)["answers"]
        for letter in "ABCDEFGHIJ":
            for reply in (f"Let us see. The answer is ({letter}).", f"the answer is {letter}"):
                found = re.search(r"answer is \(?([ABCDEFGHIJ])\)?", reply)
                assert choice(reply, golds) == (found is not None and found[1] == golds[0])
                count += 1
    assert count >= 20 * 300
