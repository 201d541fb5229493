r"""JSON may hold half of a surrogate pair ("\ud800"), which no file and no request can: it is replaced where it enters.

Search results are in tests/retrieval/test_exchange.py; files of rows and passages, which are refused with the place of
the row, in tests/data/test_bad_files.py; requests to our servers in tests/serving and tests/retrieval.
"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scope_jax.cli import app
from scope_jax.cli.program import any_character
from scope_jax.config import JudgeSection
from scope_jax.grading.judge_client import JudgeClient
from scope_jax.learner.types import Episode, Judgement, Reply
from scope_jax.retrieval.search import NOTHING_FOUND, SearchTool
from scope_jax.run.files import JUDGEMENTS, LineWriter, read_records
from scope_jax.run.records import judgement_records
from scope_jax.text import dialects
from scope_jax.text.strict_json import is_text
from tests.games.harness import sampled_turn, search_responder
from tests.judge.endpoint import endpoint

HALF = "a\ud83d b\ude00"  # halves that do not meet
REPLIES = {"choices": [{"message": {"role": "assistant", "content": f"<answer>{HALF}</answer>"}}]}


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def test_a_judges_reply_can_be_recorded_and_sent_on(tmp_path: Path) -> None:
    with endpoint(lambda number, body: (200, REPLIES)) as (url, seen):
        judge = JudgeClient(JudgeSection(url=url, model="m"))
        (reply,) = judge(["q"])
        judge([reply.text])
        judge.close()
    clean = "<answer>a\ufffd b\ufffd</answer>"
    assert reply == Reply(clean) and seen[1]["messages"][0]["content"] == clean
    episode = Episode("solver", "actor", "g", (), 0.0, judgements=(Judgement("grader", "q", (reply,), True),))
    LineWriter(tmp_path / JUDGEMENTS).add(judgement_records(1, [episode]))
    (line,) = read_records(tmp_path / JUDGEMENTS)
    assert line["replies"][0]["text"] == clean


def test_a_refusals_text_can_be_recorded() -> None:
    refusal = 400, {"error": HALF}
    with endpoint(lambda number, body: refusal) as (url, _):
        judge = JudgeClient(JudgeSection(url=url, model="m"))
        (reply,) = judge(["q"])
        judge.close()
    assert reply.refused.startswith("HTTP 400: ") and is_text(reply.refused)


def test_completions_of_an_endpoint_can_be_graded_and_written(tmp_path: Path) -> None:
    (tmp_path / "nq.jsonl").write_text(json.dumps({"question": "q?", "answers": ["a"]}), encoding="utf-8")
    records = tmp_path / "records.jsonl"
    with endpoint(lambda number, body: (200, REPLIES)) as (url, _):
        words = ("eval", url, "--model", "m", "--exam", "nq", "--data", tmp_path, "--records", records, "--json")
        result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, (result.output, result.exception)
    assert json.loads(records.read_text(encoding="utf-8"))["prediction"] == "a\ufffd b\ufffd"


def test_a_policys_escaped_half_character_is_searched_for_as_a_question_mark() -> None:
    """`<search>["\\ud83d"]</search>` is text; only as JSON does it hold half a character."""
    asked: list[str] = []

    def retrieve(queries, top_k):
        asked.extend(queries)
        return [()] * len(queries)

    tool = SearchTool(retrieve, top_k=1, max_tokens=9, truncate=lambda t, n: t, neutralise=str, cache_size=2)
    respond = search_responder(tool, dialects.load("xml"))
    shown = respond((sampled_turn(f"<search>{json.dumps([HALF, 'b'])}</search>"),))
    assert asked == ["a? b?", "b"] and isinstance(shown, str) and shown.count(NOTHING_FOUND) == 2


def test_the_terminal_takes_and_shows_any_character(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that are no text are read as U+FFFD; what the terminal's encoding lacks is shown escaped."""
    screen = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xff\n"), encoding="utf-8"))
    monkeypatch.setattr(sys, "stdout", screen)
    any_character()
    assert input() == "a\ufffd"
    print("日", "\udcff")
    screen.flush()
    assert screen.buffer.getvalue() == b"\\u65e5 \\udcff\n"  # type: ignore[attr-defined]
