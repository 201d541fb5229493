"""The comparison of runs: paired exam results, differences of cards, one page; and the served report of a live run."""

from __future__ import annotations

import math
import os
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from scope_jax.errors import UserError
from scope_jax.evaluation import evaluations
from scope_jax.evaluation.metrics import set_metrics, standard_error
from scope_jax.games import parse_config
from scope_jax.report import live
from scope_jax.report.comparison import MeasureResult, differences, exam_results, results, titles, write_comparison
from scope_jax.report.page import replace_page
from scope_jax.run.files import EXAMS, read_records
from scope_jax.run.folder import RunFolder
from scope_jax.run.records import last_questions

TABLE: dict[str, Any] = {
    "system": "ssp",
    "model": {"checkpoint": "base"},
    "retrieval": {"corpus": "corpus.jsonl"},
    "data": {"answers": "answers.jsonl"},
    "train": {"steps": 3},
    "ssp": {"grader": "exact-match"},
}


Marks = tuple[tuple[float, ...], ...]  # for each question the accuracy of its answers


def asked(prefix: str, *marks: tuple[float, ...]) -> list[dict[str, Any]]:
    """The records of a set."""
    return [
        {"question": f"{prefix}q{place}", "sample": k, "measures": {"accuracy": mark}, "counts": {}}
        for place, own in enumerate(marks)
        for k, mark in enumerate(own)
    ]


def made(folder: Path, seed: int, before: Marks, after: Marks, prefix: str = "") -> Path:
    log = RunFolder(folder, parse_config(TABLE | {"seed": seed}, "test card"))
    for step, marks in ((0, before), (3, after)):
        log.exams(step, {"held-out": asked(prefix, *marks)})
        values = [sum(own) / len(own) for own in marks]
        measured = {"accuracy": sum(values) / len(values), "accuracy_se": standard_error(values)}
        log.metrics(step, {"solver/reward": 0.1 * step} | {f"eval/held-out/{k}": v for k, v in measured.items()})
    log.close()
    return folder


A = ((1.0, 0.0), (0.0, 0.0), (1.0, 1.0), (0.0, 1.0))
B = ((1.0, 1.0), (0.0, 1.0), (1.0, 1.0), (0.0, 1.0))


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [made(tmp_path / "a", 0, B, A), made(tmp_path / "<b>", 1, A, B)]


def test_measures_of_questions_are_recorded_and_rewound(runs: list[Path]) -> None:
    path = runs[0] / EXAMS
    assert [values["accuracy"] for values in last_questions(read_records(path))["held-out"].values()] == [
        0.5,
        0.0,
        1.0,
        0.5,
    ]
    RunFolder(runs[0], parse_config(TABLE, "test card")).rewind(2)
    assert {line["step"] for line in read_records(path)} == {0}
    assert [values["accuracy"] for values in last_questions(read_records(path))["held-out"].values()] == [
        1.0,
        0.5,
        1.0,
        0.5,
    ]
    assert last_questions([]) == {}


def test_differences_are_paired_by_question(runs: list[Path]) -> None:
    """By hand: differences 1/2, 1/2, 0, 0, with mean 1/4 and a standard error of √(4/16/3/4)."""
    lines = [list(read_records(run / "metrics.jsonl")) for run in runs]
    first, second = results(lines, runs)["held-out/accuracy"]
    assert (first.value, first.difference) == (0.5, None)
    assert second.value == 0.75 and second.difference == 0.25 and second.pairs == 4
    assert second.difference_error == pytest.approx(math.sqrt(4 / 16 / 3 / 4))
    (runs[0] / EXAMS).unlink()
    _, apart = results(lines, runs)["held-out/accuracy"]
    assert apart.error is not None and first.error is not None
    assert apart == MeasureResult(0.75, second.error, 3, 0.25, math.hypot(first.error, apart.error), 0)


def test_other_questions_are_no_pairs(runs: list[Path], tmp_path: Path) -> None:
    paths = [runs[0], made(tmp_path / "c", 2, A, B, prefix="another ")]
    found = results([list(read_records(run / "metrics.jsonl")) for run in paths], paths)["held-out/accuracy"][1]
    assert found.pairs == 0 and found.difference == 0.25


def test_answers_kept_by_eval_are_paired_by_question(runs: list[Path], tmp_path: Path) -> None:
    """The last step of each run counts, and of that the newest answers; differences as above, by hand."""
    paths = [*runs, made(tmp_path / "c", 2, A, B)]
    for run, name, step, marks in (
        (paths[0], "nq", 2, B), (paths[0], "nq", 3, B), (paths[0], "nq", 3, A), (paths[0], "nq", 1, B),
        (paths[1], "nq", 2, B), (paths[1], "popqa", 2, B), (paths[2], "nq", 3, B[:1]),
    ):  # fmt: skip
        records = asked("", *marks)
        evaluations.keep(run, step, name, [r | {"text": {}} for r in records], set_metrics("eval", name, records))
    found = exam_results(paths)
    first, second, alone = found["nq/accuracy"]
    assert (first.value, first.step, first.difference) == (0.5, 3, None)
    assert (second.value, second.step, second.difference, second.pairs) == (0.75, 2, 0.25, 4)
    assert second.difference_error == pytest.approx(math.sqrt(4 / 16 / 3 / 4))
    assert alone == MeasureResult(None, None)  # one question: no standard error
    assert [result.value for result in found["popqa/accuracy"]] == [None, 0.75, None]
    page = write_comparison(paths, tmp_path / "page.html").read_text(encoding="utf-8")
    during, answered = page.split("<h3>By scope-jax eval</h3>")
    assert "<td>held-out/accuracy</td>" in during and "<td>nq/accuracy</td>" in answered
    assert "step 2" in answered and "+0.2500" in answered and "paired, 4 questions" in answered


def test_cards_differ_key_by_key() -> None:
    cards = [
        parse_config(TABLE, "a"),
        parse_config(TABLE | {"seed": 1, "model": {"checkpoint": "b", "stop": ["x"]}}, "b"),
    ]
    assert differences(cards) == [
        ("model.checkpoint", ['"base"', '"b"']), ("model.stop", ["[]", '["x"]']), ("seed", ["0", "1"]),
    ]  # fmt: skip


def test_the_page_shows_results_and_differences_escaped(runs: list[Path], tmp_path: Path) -> None:
    page = write_comparison(runs, tmp_path / "out" / "page.html").read_text(encoding="utf-8")
    assert "+0.2500" in page and "± 0.1443" in page and "paired, 4 questions" in page
    assert "<td>seed</td>" in page and "&lt;b&gt;" in page and "<b>&" not in page and page.count("<script") == 1
    assert '<figure class="chart">' in page and [*(tmp_path / "out").iterdir()] == [tmp_path / "out" / "page.html"]
    assert titles([Path("x/one"), Path("y/one"), Path("two")]) == ["x/one", "y/one", f"{Path.cwd().name}/two"]
    with pytest.raises(UserError, match="a run is given twice"):
        write_comparison([runs[0], runs[0]], tmp_path / "page.html")
    with pytest.raises(UserError, match="8 runs are too many"):
        write_comparison([Path(str(n)) for n in range(8)], tmp_path / "page.html")


def test_two_processes_may_write_one_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that watches a run writes the page while training, which has ended, does."""
    replace, page = os.replace, tmp_path / "page.html"
    others: list[Path] = []

    def replace_after_another(partial: Path, path: Path) -> None:
        if path not in others:
            others.append(path)
            with monkeypatch.context() as another:
                another.setattr(os, "getpid", lambda: 1)
                replace_page(path, "page")
        replace(partial, path)

    monkeypatch.setattr(os, "replace", replace_after_another)
    replace_page(page, "page")
    assert others == [page] and os.listdir(tmp_path) == ["page.html"]


def test_the_server_answers_only_to_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("page")
    site = live.site(tmp_path)
    here = TestClient(site, base_url="http://127.0.0.1")
    assert here.get("/").text == "page" and here.head("/").headers["etag"]
    assert here.get("/../config.toml").status_code == 404
    assert TestClient(site, base_url="http://elsewhere.example").get("/").status_code == 400


def test_a_watched_run_is_shown_again_after_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report is served from the first step on, is made anew after the next one, also after a run that begins anew,
    and ends with Ctrl-C."""
    monkeypatch.setattr(live, "PAUSE", 0.05)
    monkeypatch.setattr(live, "SHARE", 0.0)
    pages: list[str] = []

    def write(run: Path, live: bool) -> Path:
        (run / "report").mkdir(exist_ok=True)
        replace_page(run / "report" / "index.html", f"{live} {len(list(read_records(run / 'metrics.jsonl')))}")
        return run

    def steps() -> None:
        deadline = time.monotonic() + 60
        while len(told) < 1:
            time.sleep(0.02)
        log.metrics(1, {"solver/reward": 0.1})
        while time.monotonic() < deadline and len(pages) < 3:
            time.sleep(0.05)
            if len(told) < 2:
                continue
            try:
                page = httpx.get(told[1].split()[0], trust_env=False).text
            except httpx.HTTPError:  # the server is about to listen
                continue
            if not pages or page != pages[-1]:
                pages.append(page)
                if len(pages) == 2:
                    log.rewind(None)
                    time.sleep(0.3)
                log.metrics(3 - len(pages), {"solver/reward": 0.2})
        over.set()

    over = threading.Event()
    told: list[str] = []
    sleep = time.sleep

    def pause(seconds: float) -> None:
        if over.is_set() and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        sleep(seconds)

    monkeypatch.setattr(live, "write_report", write)
    monkeypatch.setattr(live.time, "sleep", pause)
    log = RunFolder(tmp_path / "run", parse_config(TABLE, "test card"))
    thread = threading.Thread(target=steps)
    thread.start()
    live.watch(tmp_path / "run", 0, told.append)
    thread.join()
    assert "no finished step yet" in told[0] and told[1].startswith("http://127.0.0.1:")
    assert pages == ["True 1", "True 2", "True 1"]
    with pytest.raises(FileNotFoundError, match="is not a run folder"):
        live.watch(tmp_path, 0, told.append)
