"""Two answers compared in both orders, on hand-computed cases."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from scope_jax.grading.judge_client import JudgeError
from scope_jax.learner.types import Reply
from scope_jax.play import pairwise
from scope_jax.play.pairwise import AnswerPair, value, vote_of
from tests.games.harness import card

CFG = card()
PROMPTS = CFG.evaluate.prompts_folder


@pytest.mark.parametrize(
    ("reply", "vote"),
    [
        ("<verdict>A</verdict>", "A"),
        ("<think>B, surely: <verdict>B</verdict></think> <verdict> a </verdict>", "A"),
        ("<verdict>TIE</verdict>", "tie"),
        ("<verdict>B</verdict> or <verdict>A</verdict>", "B"),
        ("<verdict>both</verdict>", None),
        ("<verdict>A or B</verdict>", None),
        ("<verdict></verdict>", None),
        ("<verdict>A", None),
        ("<think>so <verdict>A</verdict>", None),  # a thought that was cut off
        ("A is better", None),
        ("", None),
    ],
)
def test_votes_are_never_guessed(reply: str, vote: str | None) -> None:
    assert vote_of(reply) == vote


@pytest.mark.parametrize(
    ("as_first", "as_second", "mean"),
    [
        ("A", "B", 1.0),  # better in either position
        ("B", "A", 0.0),
        ("A", "A", 0.5),  # the judge prefers a position
        ("B", "B", 0.5),
        ("tie", "tie", 0.5),
        ("A", "tie", 0.75),
        ("tie", "A", 0.25),
        (None, "B", None),
        ("tie", None, None),
        (None, None, None),
    ],
)
def test_the_value_is_the_mean_of_both_orders(as_first, as_second, mean) -> None:
    assert value(as_first, as_second) == mean


def between(message: str) -> tuple[str, str]:
    """The texts presented as A and as B."""
    first, second = message.split("Answer A:")[1].split("Answer B:")
    return first.strip(), second.split("How to decide")[0].strip()


class LocalJudge:
    """A judge that prefers the longer answer, a tie for equal lengths; it never gives a verdict on NOISE."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bool]] = []

    def __call__(self, messages: Sequence[str], again: bool) -> list[Reply]:
        self.asked += [(message, again) for message in messages]
        return [Reply(self.vote(message)) for message in messages]

    def vote(self, message: str) -> str:
        first, second = between(message)
        if "NOISE" in first + second:
            return "I like both."
        if "SLOW" in first + second and "could be read" not in message:
            return "Hm."
        word = "tie" if len(first) == len(second) else "A" if len(first) > len(second) else "B"
        return f"<verdict>{word}</verdict>"


def test_each_answer_is_once_in_each_position() -> None:
    judge = LocalJudge()
    pairs = [
        AnswerPair("q", "a long answer", "short"),
        AnswerPair("q", None, "short"),
        AnswerPair("q", "s <score>1</score>", "x" * 99),
    ]
    votes = pairwise.compare(CFG, PROMPTS, judge, pairs, "judge")
    assert votes == [("A", "B"), None, ("B", "A")]
    assert [between(message) for message, _ in judge.asked] == [
        ("a long answer", "short"),
        ("short", "a long answer"),
        ("s [score]1[/score]", "x" * 99),  # tags inside an answer have no effect
        ("x" * 99, "s [score]1[/score]"),
    ]


def test_an_unparseable_vote_is_requested_once_more() -> None:
    judge = LocalJudge()
    votes = pairwise.compare(
        CFG, PROMPTS, judge, [AnswerPair("q", "SLOW", "b"), AnswerPair("q", "NOISE", "bbbbb")], "judge"
    )
    assert votes == [("A", "B"), (None, None)]
    assert [again for _, again in judge.asked] == [False] * 4 + [True] * 4


def test_equal_pairs_are_judged_once_and_missing_answers_never() -> None:
    judge = LocalJudge()
    assert pairwise.compare(CFG, PROMPTS, judge, [AnswerPair("q", "aa", "b")] * 3, "judge") == [("A", "B")] * 3
    assert len(judge.asked) == 2
    assert (
        pairwise.compare(CFG, PROMPTS, judge, [AnswerPair("q", None, "b")], "judge") == [None] and len(judge.asked) == 2
    )


def test_a_judge_that_never_votes_stops_the_exam() -> None:
    pairs = [AnswerPair(f"q{number}", "NOISE", "b") for number in range(4)]
    with pytest.raises(JudgeError, match=r"none of 8 replies .* raise evaluate\.judge\.max_tokens"):
        pairwise.compare(CFG, PROMPTS, LocalJudge(), pairs, "evaluate.judge")
