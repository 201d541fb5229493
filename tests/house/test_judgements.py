"""Judges' replies are saved with the episodes, rewound with the run, and shown in its report."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scope_jax.config import Config
from scope_jax.games import GAMES, parse_config, scope, ssp
from scope_jax.learner.types import Datum, Episode, Judgement, Reply
from scope_jax.report.page import write_report
from scope_jax.run.files import JUDGEMENTS, LineWriter, read_records
from scope_jax.run.folder import RunFolder
from tests.games import harness, scope_world
from tests.games.harness import play_step
from tests.games.test_ssp_golden import ITEMS

TABLE = {
    "system": "ssp",
    "model": {"checkpoint": "base"},
    "retrieval": {"corpus": "corpus.jsonl"},
    "data": {"answers": "answers.jsonl"},
    "train": {"steps": 3},
    "ssp": {"grader": "exact-match"},
}


@pytest.fixture
def cfg() -> Config:
    return parse_config(TABLE, "test card")


def episode(step: int, *said: str) -> Episode:
    """An episode with one judge request per reply, or two if the reply begins with a question mark."""
    datum = Datum(np.arange(5), np.array([False, False, True, True, True]), np.zeros(5, np.float32))
    asked = tuple(
        Judgement("grader", f"criterion {k}", (*[Reply("hm")] * text.startswith("?"), Reply(text)), not text)
        for k, text in enumerate(said)
    )
    return Episode(
        "solver", "actor", "g0", (datum,), 1.0, text={"turns": [{"kind": "sampled", "text": "où?"}]}, judgements=asked
    )


def play(log: RunFolder, steps: range) -> None:
    """Every third step has no judge requests."""
    for step in steps:
        said = () if step % 3 == 0 else (f"<score>{step}</score>", "?dass \u2028 ß", "")
        log.episodes(step, [episode(step), episode(step, *said)])
        log.metrics(step, {"loss": 1 / (step + 1)})


def test_every_reply_is_saved_with_its_step_and_episode(cfg: Config, tmp_path: Path) -> None:
    log = RunFolder(tmp_path / "run", cfg)
    play(log, range(1, 4))
    refused = Judgement("gates", "entity", (Reply("", "HTTP 400: 'too long'"),), None)
    log.episodes(4, [Episode("challenger", "c", "g1", (), 0.0, judgements=(refused,))])
    path = tmp_path / "run" / JUDGEMENTS
    records = list(read_records(path))
    assert [(r["step"], r["episode"], r["about"]) for r in records] == [
        *[(step, 1, f"criterion {k}") for step in (1, 2) for k in range(3)], (4, 0, "entity"),
    ]  # fmt: skip
    assert records[1] == {
        "step": 1, "episode": 1, "role": "solver", "group": "g0", "job": "grader", "about": "criterion 1",
        "replies": [{"text": "hm", "refused": ""}, {"text": "?dass \u2028 ß", "refused": ""}], "read": False,
    }  # fmt: skip
    assert (records[2]["replies"], records[2]["read"]) == ([{"text": "", "refused": ""}], True)
    assert records[-1]["replies"] == [{"text": "", "refused": "HTTP 400: 'too long'"}]
    with gzip.open(path, "rt", encoding="utf-8") as file:  # a regular gzip file
        assert [{k: v for k, v in json.loads(line).items() if k != "sum"} for line in file] == records


def test_a_rewound_and_rewritten_file_has_the_same_bits(cfg: Config, tmp_path: Path) -> None:
    straight = RunFolder(tmp_path / "straight", cfg)
    play(straight, range(9))
    expected = (tmp_path / "straight" / JUDGEMENTS).read_bytes()
    for restored in range(6):
        run = tmp_path / str(restored)
        log = RunFolder(run, cfg)
        play(log, range(6))
        path = run / JUDGEMENTS
        whole = path.read_bytes()
        path.write_bytes(expected[: len(whole) + 50])  # killed while writing the next step
        assert expected.startswith(whole)
        log.close()
        log = RunFolder(run, cfg)
        log.rewind(restored or None)
        assert all(record["step"] <= restored for record in read_records(path))
        play(log, range(restored + 1 if restored else 0, 9))
        assert path.read_bytes() == expected
        log.close()


def test_gzip_members_are_found_at_any_block_boundary(
    cfg: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RunFolder(tmp_path / "run", cfg)
    play(log, range(6))
    path = tmp_path / "run" / JUDGEMENTS
    whole, records = path.read_bytes(), list(read_records(path))
    for block in (1, 7, len(whole)):
        monkeypatch.setattr("scope_jax.run.lines.READ", block)
        assert list(read_records(path)) == records
        LineWriter(path).cut(9)
        assert path.read_bytes() == whole
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        found = list(read_records(path))
        assert found == records[: len(found)]
        LineWriter(path).cut(9)
        assert list(read_records(path)) == found


def test_the_report_shows_judge_replies_under_their_episode(cfg: Config, tmp_path: Path) -> None:
    log = RunFolder(tmp_path / "run", cfg)
    log.episodes(1, [episode(1), episode(1, "<score>1</score>", "?so & so")])
    log.metrics(1, {"eval/held-out/accuracy": 0.5})
    for name in ("metrics.jsonl", "episodes.jsonl"):  # killed in the middle of a line, not resumed yet
        with (tmp_path / "run" / name).open("a") as file:
            file.write('{"step": 2, "lo')
    page = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert page.count("judge replies (2)") == 1
    assert "grader: criterion 0" in page and "&lt;score&gt;1&lt;/score&gt;" in page
    assert "<pre>hm</pre><pre>?so &amp; so</pre>" in page.replace("\n", "").replace("    ", "")
    assert "<details><summary>judge replies" in page


# -------------------------------------------------------------------------------------------------- what games save
def about(episodes: list[Any], role: str) -> list[list[tuple[str, str, list[str], Any]]]:
    return [
        [(j.job, j.about, [reply.refused or reply.text for reply in j.replies], j.read) for j in e.judgements]
        for e in harness.episodes_of(episodes, role)
    ]


def test_ssp_keeps_verifications_and_verdicts() -> None:
    cfg = harness.card(
        grader="exact-match-then-judge", judge_table={"url": "http://x/v1", "model": "m"}, solver={"samples": 2}
    )
    world = harness.world(judge_reply=lambda message: "Hm" if "Paris" in message else "Wrong")
    episodes, _, _ = play_step(GAMES["ssp"], cfg, world, ssp.GAME.start(cfg), ITEMS, 0)
    tried = about(episodes, "solver")
    assert tried[0] == [] and tried[1] == [("grader", "", ["Hm", "Hm"], None)]
    assert tried[3] == [("grader", "", ["Wrong"], False)]
    proposed = about(episodes, "proposer")
    assert proposed[0] == [("verifier", "", ["It is written there. Answer: Paris"], "Paris")]


def test_scope_keeps_gates_rubrics_and_verdicts() -> None:
    def judge(ctx: Any) -> str:
        if ctx.role == "grader" and "beta" in ctx.prompt.split("Criterion:")[1]:
            return "<score>perhaps</score>"
        return scope_world.by_words(ctx)

    attempts = {("Aare", 1): ["<think>x</think> no answer"]}
    plan = scope_world.Plan(
        drafts={("Bern", 0): [scope_world.task("ALIEN")], ("Cusco", 0): [scope_world.task("UNGRADABLE")]},
        attempts=attempts,
        judge=judge,
    )
    cfg = scope_world.card()
    episodes, _, _ = play_step(
        GAMES["scope"], cfg, scope_world.world(plan), scope.GAME.start(cfg), scope_world.DOCUMENTS, 0
    )
    drafts = {e.text["task"]: judged for e, judged in zip(episodes, about(episodes, "challenger"), strict=False)}
    passed = ("gates", "entity", ["<think>so</think>\n<score>1</score>"], True)
    assert [one[:2] for one in drafts["ALIEN"]] == [("gates", "entity"), ("gates", "relevance")]
    assert [one[3] for one in drafts["ALIEN"]] == [True, False]
    good = drafts["Tell of Delhi."]
    assert good[0] == passed and good[2] == ("rubric_writer", "", [scope_world.GOOD_RUBRICS], 4)
    assert drafts["UNGRADABLE"][2] == ("rubric_writer", "", ["I cannot.", "I cannot."], None)
    tried = about(episodes, "solver")
    about_delhi = next(judged for judged in tried if judged)
    assert about_delhi[:2] == [
        ("grader", "Names alpha.", ["<score>1</score>"], True),
        ("grader", "Names beta.", ["<score>perhaps</score>"] * 2, None),
    ]
    without = [e for e in harness.episodes_of(episodes, "solver") if e.text["answer"] is None]
    assert len(without) == 2 and all(e.judgements == () for e in without)
