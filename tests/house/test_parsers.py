"""Any text of a policy, a judge or a document is parsed in linear time and without an exception."""

from __future__ import annotations

import contextlib
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_jax.games import score
from scope_jax.games.scope import rules
from scope_jax.games.score import meta_harness, roles
from scope_jax.games.score import rules as score_rules
from scope_jax.games.score.state import Query, Report, Rubric
from scope_jax.games.spell import rules as spell_rules
from scope_jax.games.spice import rules as spice_rules
from scope_jax.games.spice.options import options
from scope_jax.games.spice.state import ReasonerTask
from scope_jax.play import judging, searching
from scope_jax.play.game import step_of
from scope_jax.play.rubrics import score_of
from scope_jax.play.samples import sample_of
from scope_jax.text import parsing
from scope_jax.text.messages import Messages
from tests.games.harness import ScriptedTools, sampled_turn

ROOT = Path(__file__).parents[2]
BENCHMARK = runpy.run_path(str(ROOT / "benchmarks" / "parsers.py"))
PARSERS, PIECES, SPICE, SCORE = (BENCHMARK[name] for name in ("PARSERS", "PIECES", "SPICE", "SCORE"))


@pytest.mark.parametrize("one_of", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_parsers_take_linear_time(one_of: int):
    """16 KiB take a hundredth of a second or two; with quadratic time they would exceed the limit of an eighth.

    In a separate process, with a timer on its CPU time for each text, so that a busy machine makes no difference.
    """
    command = [sys.executable, "benchmarks/parsers.py", "--sizes", str(1 << 14), "--limit", "0.125"]
    command += ["--only", *[*PARSERS][::one_of]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-500:]


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=20, deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=14))
def test_any_text_is_parsed_without_an_error(name: str, pieces: list[str]):
    parse, _ = PARSERS[name]
    parse("".join(pieces))


def outside(text: str, opened: bool = False) -> str:
    """The text outside of thoughts, by definition."""
    marks = re.search("</?think>", text)
    text = f"<think>{text}" if opened or (marks is not None and marks[0] == "</think>") else text
    return re.sub(r"<think>.*?(</think>|\Z)", " ", text, flags=re.DOTALL)


JUDGED = [*PIECES, "0", "1", "<score>1</score>", "Correct", '<rubric priority="bonus">a</rubric>', "\ud800"]
SAID = [*PIECES, "a", "a", "<answer>a</answer>", "<task>a</task>", "<question>a</question>", "<search>a</search>"]
WRITTEN = [  # pieces of tasks, so that some texts are valid ones
    *PIECES,
    '{"question": "Which river?", "answer": "7"}',
    '{"question": "Which river?", "answer": ',
    '{"question": ["Which river?"], "answer": "7"}',
    '"A", "options": {"A": "a", "B": "b", "C": "c", "D": "d"}}',
    '"7", "answer_type": "integer"}',
    '7, "answer_type": "String"}',
    '{"multiple_choice_question": "Which?\\nA) a\\nB) b\\nC) c\\nD) d", "multiple_choice_correct": "B"}',
    '{"suitable_for_mcq": true, "suitable_for_free_form": false, "best_answer_type": null}',
    '{"suitable_for_mcq": false, "suitable_for_free_form": true, "best_answer_type": "String"}',
    '"suitable_for_mcq": true, ',
    "{",
    "}",
    "the answer is 7",
    "\\boxed{7}",
    "[[YES]]",
    "[[NO]]",
]


RUBRICS = [  # pieces of SCORE's rubrics, assessments, reports and harnesses, so that some texts are valid ones
    *("<dimensions>", "</dimensions>", '<dim name="factuality"/>', '<dim name="insight" weight="0.3"/>'),
    *('<dim name="coherence" weight="0.25"/>', '<dim name="insight" weight="0.6"/>'),
    '<dim name="beauty" weight="0.3"/>',
    '<dimensions><dim name="factuality"/><dim name="insight" weight="0.3"/><dim name="fairness" weight="0.5"/>',
    *("<report_evaluations>", "</report_evaluations>", '<report id="1">', "</report>", "<scores>", "</scores>"),
    *('<score dim="factuality" value="8"/>', '<score dim="insight" value="3.5" reason="a > b"/>'),
    *('<score dim="insight" value="11"/>', "<verification>a</verification>", "<gap_analysis>a</gap_analysis>"),
    '<citations><citation source="a" verdict="unknown"/></citations>',
    *(
        '<report_evaluations><report id="1"><scores><score dim="factuality" value="0"/>'
        f'<score dim="insight" value="{value}"/>'
        for value in ("3.5", "11")
    ),
    *("## Conclusion\n", "**Summary**\n", "Conclusion: ", "## Sources\n", "\n\n", "the river made the town grow"),
    "</scores></report></report_evaluations>",
    *(
        f'{{"dimension_constraints": {{"k": 3, "must_include": ["{base}"], "weight_min": 0.1, "weight_max": 0.5}}, '
        '"process_constraints": {"require_gap_analysis": true, "require_verification": true, '
        f'"citation_cross_check": true, "min_number_of_tool_call": {calls}}}, '
        for base, calls in (("factuality", "1"), ("beauty", "1"), ("factuality", '"1"'))
    ),
    *('"notes": "Look twice."}', '"notes": ""}'),
]


def texts(pieces: Sequence[str], most: int) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(pieces), max_size=most).map("".join)


def check_searches_and_answers(text: str, opened: bool) -> None:
    said, turn = outside(text, opened), sampled_turn(text, opened=opened)
    for tag in ("answer", "task", "question", "search"):
        found = parsing.spans(turn.content, tag)
        assert len(found) == len(re.findall(rf"<{tag}>(?:(?!</?{tag}>).)*</{tag}>", said, re.DOTALL))
    parsed = [rules.parse_turn(BENCHMARK["SCOPE"], turn, "answer", False)]
    assert rules.answer_of(parsed) is None or re.search(r"<answer>.*?\S.*?</answer>", said, re.DOTALL)
    queries = searching.queries_of(turn.content, BENCHMARK["DIALECTS"]["xml"])
    assert not queries or re.search(r"<search>.*?\S.*?</search>", said, re.DOTALL)


def check_verdicts(text: str) -> None:
    said = outside(text)
    if score_of(text) is not None:
        assert re.search(r"<score>\s*[01]\s*</score>", said)
    if judging.verdict(text) is not None:
        assert re.search(r"correct|wrong", said, re.IGNORECASE)
    if rules.rubric_of(text, {"bonus": 1.0}, 1, 9) is not None:
        assert re.search(r"<rubrics>.*<rubric[\s>].*</rubric>.*</rubrics>", said, re.DOTALL)
    verdict = spell_rules.verdict_of(text)
    assert verdict is None or ("[[YES]]" in text, "[[NO]]" in text) == (verdict, not verdict)


def objects_at_the_end(text: str) -> list[dict[str, Any]]:
    """Every JSON object at the end of the text, except for white space and a code fence, by the standard library."""
    text = text.rstrip().removesuffix("```").rstrip()
    found = []
    for start in (place for place, sign in enumerate(text) if sign == "{"):
        with contextlib.suppress(ValueError):
            found.append(json.loads(text[start:]))
    return found


def check_tasks(text: str) -> None:
    """SPICE's and SPELL's tasks and conclusions: everything parsed is in the text, in the required format."""
    kind, reason = spice_rules.format_of(options(SPICE), text)
    assert (kind == "") != (reason == "")
    if kind:
        flags = json.loads(text)
        chosen = (flags["suitable_for_mcq"], flags["suitable_for_free_form"])
        assert chosen == ((True, False) if kind == "multiple-choice" else (False, True))
    for kind in ("multiple-choice", "integer", "string"):
        task, reason = spice_rules.task_of(text, kind, 3)
        assert (task is None) != (reason == "")
        if task is not None:
            key = "multiple_choice_question" if kind == "multiple-choice" else "question"
            assert any(str(found.get(key, "")).strip() == task.question for found in objects_at_the_end(text))
            assert task.question and task.answer
    for name in ("qa", "math", "choice"):
        question, reason = spell_rules.question_of(text, name, len, 40)
        assert (question is None) != (reason == "")
        if question is not None:
            assert question.text and question.answer and json.dumps(question.text)[1:-1] in text
            assert name != "choice" or len(set(question.options)) == 4
    boxed = parsing.boxed(text)
    assert boxed is None or (boxed.strip() and "\\boxed" in text)
    concluded = spell_rules.conclusion_of(text)
    assert concluded is None or (concluded in text and re.search(r"answer\s+is", text, re.IGNORECASE))
    if concluded is None:  # without a conclusion an answer earns nothing, except by words that it contains
        for name, reference in (("math", "7"), ("choice", "A")):
            assert not spell_rules.matches(name, text, concluded, [reference], "response", "plain")
        assert not spell_rules.matches("qa", text, concluded, ["7"], "answer", "careful")
    integer = ReasonerTask("integer", "Which number?", "7")
    assert boxed is not None or not spice_rules.right(integer, boxed, "equal")


ASSESSED = Rubric("factuality", {"insight": 0.3})
DEFAULT = meta_harness.default(SCORE)
THREE = DEFAULT.model_copy(update={"dimension_constraints": DEFAULT.dimension_constraints.model_copy(update={"k": 3})})


def check_no_report(text: str) -> None:
    """An episode without a report is not assessed, and earns nothing."""
    step = step_of(score.GAME, SCORE, ScriptedTools(script=lambda ctx: ""), score.GAME.start(SCORE), 0)
    sample = sample_of(BENCHMARK["episode"](text), step.roles["solver"], "0", Messages("Report."), "solver")
    if roles.report_of(sample) is None:
        report = Report(0, Query(0, "Report.", ASSESSED), sample, None, None, reason="no_report")
        (assessed,) = step.map((), lambda step, reports: roles.assess(step, DEFAULT, reports), [[report]])
        assert assessed == [report] and (report.reward, report.assessment) == (0.0, None)


def check_scores(text: str) -> None:
    """SCORE's rubrics, assessments, conclusions and harnesses: everything parsed is in the text and within bounds."""
    rubric, reason = score_rules.rubric_of(text, THREE)
    assert (rubric is None) == (reason in score_rules.RUBRIC_REASONS) and (rubric is None) == bool(reason)
    if rubric is not None:
        assert rubric.base == "factuality" and len(rubric.weights) == 2
        for name, weight in rubric.weights.items():
            assert 0.1 <= weight <= 0.5 and f'<dim name="{name}" weight="{weight:g}"/>' in text
    for one in score_rules.assessments_of(text, 1, ASSESSED, 10) or ():
        assert set(one.scores) == set(ASSESSED.dimensions)
        for name, value in one.scores.items():
            assert 0 <= value <= 10 and f'<score dim="{name}" value="{value:g}"' in text
    concluded = score_rules.conclusion_of(text, "section")
    assert concluded is None or (concluded.strip() and all(line in text for line in concluded.split("\n")))
    check_no_report(text)
    read = BENCHMARK["harness_read"](text)
    if isinstance(read, meta_harness.HarnessError):
        assert str(read).isprintable()
    else:
        written = read.plain()
        del written["dimension_pool"], written["process_constraints"]["require_search"]  # no piece has these
        said = outside(text)
        assert written in objects_at_the_end(said[: said.rfind("}") + 1])


def check_agreement(text: str) -> None:
    """SCORE's consistency of two equal conclusions and a whole report is a share."""
    concluded = score_rules.conclusion_of(text, "section")
    (agreement,) = score_rules.consistency([[concluded, concluded, text]], "query")
    assert 0.0 <= agreement <= 1.0


@settings(max_examples=150, deadline=None)
@given(texts(SAID, 10), st.booleans())
def test_every_search_and_answer_is_in_the_text(text: str, opened: bool):
    check_searches_and_answers(text, opened)


@settings(max_examples=150, deadline=None)
@given(texts(JUDGED, 10))
def test_every_verdict_is_in_the_text(text: str):
    check_verdicts(text)


@settings(max_examples=150, deadline=None)
@given(texts(WRITTEN, 5))
def test_every_task_is_in_the_text(text: str):
    check_tasks(text)


@settings(max_examples=150, deadline=None)
@given(texts(RUBRICS, 8))
def test_every_score_is_in_the_text(text: str):
    check_scores(text)
    check_agreement(text)


ALL_PIECES = sorted({*SAID, *JUDGED, *WRITTEN, *RUBRICS})
SHARES = 8


@pytest.mark.slow
@pytest.mark.parametrize(
    "share", [pytest.param(number, marks=pytest.mark.xdist_group(f"texts {number}")) for number in range(SHARES)]
)
@settings(max_examples=100_000 // SHARES, deadline=None)
@given(data=st.data())
def test_a_hundred_thousand_texts(share: int, data: st.DataObject):
    """Every text through every parser of every game: no exception, and everything parsed is in the text.

    Each share of the texts starts with pieces of its own, so that no text is in two of them.
    """
    first = data.draw(st.sampled_from(["", *ALL_PIECES][share::SHARES]))
    text, opened = first + (data.draw(texts(ALL_PIECES, 9)) if first else ""), data.draw(st.booleans())
    for parse, _ in PARSERS.values():
        parse(text)
    check_searches_and_answers(text, opened)
    check_verdicts(text)
    check_tasks(text)
    check_scores(text)
    check_agreement(text)
