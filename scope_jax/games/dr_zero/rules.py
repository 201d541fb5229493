"""The rules of Dr. Zero: a proposal's format score, difficulty and reward, which pairs are kept; pure functions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scope_jax.games.dr_zero.options import DrZeroSection
from scope_jax.games.dr_zero.state import FormatScore, PairProposal, Passage, QuestionPair
from scope_jax.grading.rewards import normalise
from scope_jax.play import searching
from scope_jax.rollouts.types import Completion
from scope_jax.text import parsing
from scope_jax.text.dialects import Dialect

_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)


def pair_of(completion: Completion, passage: Passage) -> QuestionPair:
    """The last closed <question> and <answer> of a proposer's episode."""
    said = searching.contents(completion)
    question = parsing.last(said, "question") or ""
    answer = parsing.last(said, "answer") or ""
    return QuestionPair(question, answer, passage.id, passage.hops)


def format_of(completion: Completion, passage: Passage, pair: QuestionPair, dialect: Dialect) -> FormatScore:
    """The score of an episode that wrote this pair; its searches count only if every one was answered."""
    asked = sum(len(searching.queries_of(text, dialect)) for text in searching.contents(completion))
    run = len(searching.queries_run(completion, dialect))
    counted = run if run == asked else 0
    results = searching.results_read(completion, dialect) if counted else []
    turns = [turn.written for turn in completion.turns if turn.kind == "sampled"]
    read = "\n\n".join([passage.text, *results])
    return format_score(turns, counted, passage.hops, pair.question, pair.answer, read)


def format_score(turns: Sequence[str], searches: int, hops: int, question: str, answer: str, read: str) -> FormatScore:
    """The score of an episode with these turns and so many searches, whose documents and results are `read`.

    think: share of turns that begin with a closed thought. tool: min((1 + searches)/hops, 1); without a search 1 for
    one hop, else 0. answer: of "yes", "no" or what stands in `read`, 1 up to five words, ½ up to ten, else 0. total: 0
    for a pair without question or answer, or whose question contains the answer.
    """
    think = sum(_THOUGHT.match(turn) is not None for turn in turns) / max(1, len(turns))
    tool = min((1 + searches) / hops, 1.0) if searches else float(hops == 1)
    bare = normalise(answer)
    known = bare in ("yes", "no") or bare in normalise(read)
    short = _shortness(len(bare.split())) if known else 0.0
    well_formed = question != "" and answer != "" and bare not in normalise(question)
    total = (1 + think + tool + short) / 4 if well_formed else 0.0
    return FormatScore(think, tool, short, total)


def _shortness(words: int) -> float:
    """1 for one to five words, ½ up to ten, else 0."""
    if words == 0 or words > 10:
        return 0.0
    return 1.0 if words <= 5 else 0.5


def difficulty(right: int, attempts: int) -> float:
    """(n − k)/(n − 1) for k right ones of n > 1 attempts, 0 for k = 0 and k = n: most for one right attempt."""
    return (attempts - right) / (attempts - 1) if 0 < right < attempts else 0.0


def proposer_reward(card: DrZeroSection, proposal: PairProposal) -> tuple[float, dict[str, float]]:
    """The weighted sum of format score and difficulty, without attempts that of the format alone; and its parts, with
    what they follow from."""
    parts = {
        "think": proposal.format.think,
        "tool": proposal.format.tool,
        "answer": proposal.format.answer,
        "format": proposal.format.total,
        "searches": float(proposal.searches),
    }
    if proposal.solved is not None:
        parts["difficulty"] = difficulty(proposal.right, len(proposal.attempts))
        parts["solved"] = proposal.solved
    return card.format * parts["format"] + card.difficulty * parts.get("difficulty", 0.0), parts


def keeps(window: tuple[float, float] | None, solved: float | None) -> bool:
    """True if a pair is kept for the solver: of the share of right attempts that the window has; without one, any.

    solved: None for a pair that was not attempted.
    """
    if window is None:
        return True
    lowest, highest = window
    return solved is not None and lowest <= solved <= highest


def answer_of(completion: Completion, whole: bool = False) -> str | None:
    """The last closed <answer>; without one None, or with `whole` the last turn."""
    said = searching.contents(completion)
    tagged = parsing.last(said, "answer")
    if tagged is None and whole and said:
        return said[-1].strip()
    return tagged
