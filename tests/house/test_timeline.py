"""When steps were played and learned, of a run whose steps overlap."""

from __future__ import annotations

from pathlib import Path

import pytest

from scope_jax.games import load_card
from scope_jax.report.page import write_report
from scope_jax.report.timeline import MARKS, timeline_of
from scope_jax.run.folder import RunFolder

BARS = [  # step, kind, begin, end: in 100 s nothing is played from 30 to 40 and from 70 to 90
    (1, "swap", 1000.0, 1000.0),
    (1, "play", 1000.0, 1030.0),
    (1, "update", 1030.0, 1040.0),
    (2, "swap", 1040.0, 1040.0),
    (2, "play", 1010.0, 1030.0),
    (2, "update", 1070.0, 1090.0),
    (3, "play", 1040.0, 1070.0),
    (3, "play", 1090.0, 1100.0),
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    sets = ["train.max_staleness=2", "train.steps=3", "log.trackers=[]"]
    caps = ["ssp.solver.loss.rollout_cap=2.0", "ssp.proposer.loss.rollout_cap=2.0"]
    log = RunFolder(tmp_path / "run", load_card("configs/ssp/atlas.toml", [*sets, *caps]))
    for step, kind, began, ended in BARS:
        log.timeline(step, kind, began, ended)
    for step in (1, 2, 3):
        log.metrics(step, {"solver/reward": 0.5, "solver/staleness_mean": 0.5, "time/play": 1.0, "time/learn": 1.0})
    log.close()
    return tmp_path / "run"


def test_bars_and_idle_time(run: Path) -> None:
    timeline = timeline_of(run)
    assert timeline is not None
    assert timeline.seconds == pytest.approx(100) and timeline.idle == pytest.approx(0.3)
    assert [row.step for row in timeline.rows] == [1, 2, 3]
    second = timeline.rows[1].bars
    assert [(bar.kind, bar.start, bar.end, bar.seconds) for bar in second] == [
        ("swap", pytest.approx(40), pytest.approx(40), 0),
        ("play", pytest.approx(10), pytest.approx(30), 20),
        ("update", pytest.approx(70), pytest.approx(90), 20),
    ]


def test_the_text(run: Path) -> None:
    timeline = timeline_of(run)
    assert timeline is not None
    first, *lines = timeline.text().splitlines()
    assert first == "one column is 1 s; the engine had no step to play for 30%"
    assert lines[1] == "step     2  |" + " " * 9 + MARKS["play"] * 20 + " " * 10 + "|" + " " * 29 + MARKS["update"] * 20


def test_the_report_draws_it(run: Path, tmp_path: Path) -> None:
    page = write_report(run).read_text(encoding="utf-8")
    assert page.count('<rect class="play"') == 4 and page.count('<rect class="update"') == 2
    assert "The engine had no step" in page and "Steps that the weights lacked" in page


def test_a_run_whose_steps_follow_each_other_has_none(tmp_path: Path) -> None:
    log = RunFolder(tmp_path / "run", load_card("configs/ssp/atlas.toml", ["log.trackers=[]"]))
    log.metrics(1, {"solver/reward": 0.5})
    log.close()
    assert timeline_of(tmp_path / "run") is None
    assert "Timeline" not in write_report(tmp_path / "run").read_text(encoding="utf-8")
