"""Whatever a policy, a judge or a document writes is read in time linear in its length, and without an exception."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_jax.play import grading, searching
from scope_jax.play.rubrics import score_of
from scope_jax.systems.scope import judging, rules, talking
from scope_jax.text import parsing
from tests.systems.harness import spoke

ROOT = Path(__file__).parents[2]
BENCHMARK = runpy.run_path(str(ROOT / "benchmarks" / "parsers.py"))
PARSERS, PIECES = BENCHMARK["PARSERS"], BENCHMARK["PIECES"]


def test_no_text_takes_a_parser_longer_than_its_length_does():
    """64 KiB take some hundredths of a second; time that grows with the square of the length exceeds the one allowed.

    In a process of its own, by a timer of its CPU time for each text: a loaded machine changes nothing.
    """
    command = [sys.executable, "benchmarks/parsers.py", "--sizes", str(1 << 16), "--limit", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-500:]


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=40, deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=14))
def test_any_text_is_read_without_an_error(name: str, pieces: list[str]):
    parse, _ = PARSERS[name]
    parse("".join(pieces))


def outside(text: str, opened: bool = False) -> str:
    """What is said outside of thoughts, by the definition."""
    marks = re.search("</?think>", text)
    text = f"<think>{text}" if opened or (marks is not None and marks[0] == "</think>") else text
    return re.sub(r"<think>.*?(</think>|\Z)", " ", text, flags=re.DOTALL)


JUDGED = [*PIECES, "0", "1", "<score>1</score>", "Correct", '<rubric priority="bonus">a</rubric>', "\ud800"]


SAID = [*PIECES, "a", "a", "<answer>a</answer>", "<task>a</task>", "<question>a</question>", "<search>a</search>"]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(SAID), max_size=10), st.booleans())
def test_nothing_is_asked_or_answered_that_was_not_said(pieces: list[str], opened: bool):
    text = "".join(pieces)
    said, turn = outside(text, opened), spoke(text, opened=opened)
    for tag in ("answer", "task", "question", "search"):
        found = parsing.spans(turn.spoken, tag)
        assert len(found) == len(re.findall(rf"<{tag}>(?:(?!</?{tag}>).)*</{tag}>", said, re.DOTALL))
    heard = [talking.heard(BENCHMARK["SCOPE"], turn, "answer", False)]
    assert rules.answer_of(heard) is None or re.search(r"<answer>.*?\S.*?</answer>", said, re.DOTALL)
    queries = searching.queries_of(turn.spoken, BENCHMARK["DIALECTS"]["xml"])
    assert not queries or re.search(r"<search>.*?\S.*?</search>", said, re.DOTALL)


@settings(max_examples=500, deadline=None)
@given(st.lists(st.sampled_from(JUDGED), max_size=10))
def test_no_verdict_is_read_that_was_not_given(pieces: list[str]):
    text = "".join(pieces)
    said = outside(text)
    if score_of(text) is not None:
        assert re.search(r"<score>\s*[01]\s*</score>", said)
    if grading.verdict(text) is not None:
        assert re.search(r"correct|wrong", said, re.IGNORECASE)
    if judging.rubric_of(text, {"bonus": 1.0}, 1, 9) is not None:
        assert re.search(r"<rubrics>.*<rubric[\s>].*</rubric>.*</rubrics>", said, re.DOTALL)
