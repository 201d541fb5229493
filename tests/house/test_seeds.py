"""Cards × seeds: hand-computed statistics, the figures read from a run, the runner with a fake `scope-jax train`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import astuple
from pathlib import Path

import pytest

from benchmarks.seeds.__main__ import main
from benchmarks.seeds.figures import DERIVED, before_after, drift, drifted, halves
from benchmarks.seeds.runner import Job, card_name, done, jobs, run_all, shares
from benchmarks.seeds.statistics import Estimate, estimate, paired, verdict
from benchmarks.seeds.table import Row, cells, page, place, shown, table
from scope_jax.errors import UserError
from tools.atlas.facts import load_world
from tools.atlas.tasks import entities

ROOT = Path(__file__).parents[2]
WHOLE, CHANGED = ROOT / "configs/ssp/atlas.toml", ROOT / "configs/ssp/ablations/solver-only.toml"


# ------------------------------------------------------------------------------------------------------- statistics
def numbers(estimated: Estimate | None) -> tuple[float | None, ...]:
    assert estimated is not None
    return astuple(estimated)


def test_a_standard_error_is_the_deviation_over_the_root_of_the_count():
    # 1, 2, 6: mean 3, squares 4 + 1 + 9 = 14, variance 14 / 2 = 7, error √(7 / 3)
    assert numbers(estimate([1.0, 2.0, 6.0])) == pytest.approx((3.0, (7 / 3) ** 0.5, 3))
    assert estimate([2.5]) == Estimate(2.5, None, 1)
    assert estimate([]) is None


def test_differences_are_taken_seed_by_seed():
    ours, baseline = {0: 0.9, 1: 0.5, 2: 0.7, 7: 9.0}, {2: 0.6, 1: 0.4, 0: 0.6, 5: 9.0}
    # 0.3, 0.1, 0.1: mean 1/6, deviations 2/15, −1/15, −1/15: squares 6/225, variance 3/225, error √(1/225) = 1/15
    assert numbers(paired(ours, baseline)) == pytest.approx((1 / 6, 1 / 15, 3))
    assert paired({0: 1.0}, {1: 1.0}) is None


@pytest.mark.parametrize(
    ("difference", "word"),
    [
        (Estimate(0.5, None, 1), "n too small"),
        (Estimate(0.5, 0.01, 2), "n too small"),
        (Estimate(0.5, 0.3, 3), "not distinguished"),
        (Estimate(0.5, 0.25, 5), "not distinguished"),  # exactly two standard errors are not enough
        (Estimate(0.5, 0.24, 3), "higher, but n too small"),
        (Estimate(0.5, 0.24, 5), "higher"),
        (Estimate(-0.5, 0.24, 5), "lower"),
        (Estimate(0.0, 0.0, 5), "not distinguished"),
    ],
)
def test_a_difference_needs_five_seeds_and_two_standard_errors(difference: Estimate, word: str):
    assert verdict(difference) == word


# ---------------------------------------------------------------------------------------------------------- figures
def written(run: Path, *records: dict[str, object]) -> Path:
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return run


def test_before_and_after_of_exams_and_of_training_metrics(tmp_path: Path):
    run = written(
        tmp_path / "run",
        {"step": 0, "eval/held_out/accuracy": 0.2},
        {"step": 1, "solver/reward": 0.1, "time/play": 2.0, "time/learn": 1.0},
        {"step": 2, "solver/reward": None, "eval/held_out/accuracy": 0.9, "time/play": 4.0, "time/learn": 1.0},
        {"step": 3, "solver/reward": 0.5, "time/play": 5.0, "time/learn": 2.0},
        {"step": 4, "solver/reward": 0.7, "eval/held_out/accuracy": 0.4, "time/play": 5.0, "time/learn": 4.0},
    )
    assert before_after(run, "eval/held_out/accuracy") == (0.2, 0.4)
    assert before_after(run, "solver/reward") == (0.1, pytest.approx(0.6))  # of 0.1 | 0.5, 0.7
    assert before_after(run, "time/step") == (4.0, 8.0)  # of 3, 5 | 7, 9
    assert before_after(run, "nothing/there") == (None, None)
    assert halves([3.0]) == (None, 3.0)


def test_distance_from_the_target_of_each_iteration(tmp_path: Path):
    run = written(
        tmp_path / "run",
        {"step": 1, "iteration": 1.0},
        {"step": 2, "iteration": 1.0, "iteration/task_score": 0.9},
        {"step": 3, "iteration": 2.0, "iteration/task_score": 0.3},
        {"step": 4, "iteration": 3.0, "iteration/task_score": 0.6},
    )
    shutil.copy(ROOT / "configs/scope/atlas.toml", run / "config.toml")  # its target is 0.5
    assert before_after(run, "scope/off_target") == (pytest.approx(0.4), pytest.approx(0.15))


# What every episode of a run has, where it does not matter.
NOTHING = {"group": "", "reward": None, "parts": {}, "advantage": None, "tokens": 0, "sampled": 0}


def test_tasks_that_name_nothing_from_their_source_count_as_drift(tmp_path: Path):
    known = entities(load_world())
    source = next(thing for thing in known.values() if thing.neighbours)
    other = next(thing for thing in known.values() if thing.name not in source.names)
    assert not drifted(f"Explain {source.name}.", source) and not drifted(f"Explain {source.neighbours[0]}", source)
    assert drifted(f"Explain {other.name}.", source)
    drafts = [(1, source, ""), (1, other, ""), (2, other, ""), (2, source, "gates")]  # the last one was rejected
    lines = [
        NOTHING
        | {
            "step": step,
            "role": "challenger",
            "trained": False,
            "text": {"task": f"Explain {thing.name}.", "rejected": rejected, "document": source.row["id"]},
        }
        for step, thing, rejected in drafts
    ]
    (tmp_path / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert drift(tmp_path, [{"step": 1, "iteration": 1.0}, {"step": 2, "iteration": 2.0}]) == [0.5, 1.0]


def test_the_mean_accuracy_of_an_exam_is_that_of_its_sets(tmp_path: Path):
    lines = [
        {"step": 0, "eval/a/accuracy": 0.2, "eval/b/accuracy": 0.4, "eval/b/accuracy_se": 9.0, "eval/b/cut_off": 9.0},
        {"step": 1, "solver/reward": 1.0},
        {"step": 2, "eval/a/accuracy": 0.5, "eval/b/accuracy": 0.6},
        {"step": 4, "eval/a/accuracy": 0.8, "eval/b/accuracy": 0.4},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert before_after(tmp_path, "eval/mean/accuracy") == (pytest.approx(0.3), pytest.approx(0.6))


def test_right_answers_are_those_of_the_facts(tmp_path: Path):
    fact = next(fact for fact in load_world().facts if fact.attribute == "capital")
    question = f"What is {fact.phrase}?"
    pairs = [  # step, group, question, answer, trained
        (1, "proposer/1 hops", question, fact.value, True),
        (1, "proposer/1 hops", question, "Atlantis", True),
        (1, "proposer/1 hops", question, fact.value, True),
        (1, "proposer/2 hops", "What is it?", fact.value, True),
        (2, "proposer/1 hops", question, fact.value, False),  # of the phase that writes pairs
        (3, "solver/0", question, fact.value, True),
        (3, "solver/0", question, fact.value, True),
        (3, "solver/1", question, "", True),
        (4, "solver/0", question, "Atlantis", True),
    ]
    lines = [
        NOTHING
        | {
            "step": step,
            "role": group.split("/")[0],
            "group": group,
            "trained": trained,
            "text": {"question": asked, "answer": answer},
        }
        for step, group, asked, answer, trained in pairs
    ]
    (tmp_path / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert DERIVED["dr_zero/right_proposals"](tmp_path, []) == [0.5]
    assert DERIVED["dr_zero/right_pairs"](tmp_path, []) == [0.5, 0.0]


# ------------------------------------------------------------------------------------------------------------ table
def test_a_table_compares_every_card_with_the_first():
    rows = [
        Row("whole", {seed: (0.4, after) for seed, after in enumerate((0.5, 0.6, 0.7, 0.6, 0.6))}),
        Row("less", {seed: (0.4, after) for seed, after in enumerate((0.4, 0.5, 0.5, 0.5, 0.5))}),
        Row("unlike", {0: (0.4, 0.9), 1: (0.4, None)}),
    ]
    lines = table("eval/held_out/accuracy", cells(rows, "whole")).splitlines()
    assert lines[0] == "`eval/held_out/accuracy`"
    # whole: squares of −0.1, 0.1: 0.02 / 4 = 0.005, √(0.005 / 5) = 0.032
    assert lines[4] == "| `whole` | 5 | 0.400 ± 0.000 | 0.600 ± 0.032 | +0.200 ± 0.032 | – | – |"
    # less: differences −0.1, −0.1, −0.2, −0.1, −0.1: mean −0.12, squares 0.008 / 4 = 0.002, √(0.002 / 5) = 0.020
    assert lines[5] == "| `less` | 5 | 0.400 ± 0.000 | 0.480 ± 0.020 | +0.080 ± 0.020 | -0.120 ± 0.020 | lower |"
    assert lines[6] == "| `unlike` | 1 | 0.400 ± 0.000 | 0.900 | +0.500 | +0.400 | n too small |"
    assert shown(Estimate(24.04, 1.26, 3)) == "24.0 ± 1.3" and shown(None) == "–"


def test_a_table_is_written_at_its_marker_in_a_document(tmp_path: Path):
    document = tmp_path / "results.md"
    document.write_text("A\n<!-- seeds: a -->\nold\n<!-- end -->\nB\n<!-- seeds: b -->\nkept\n<!-- end -->\n")
    place(document, "a", "new")
    assert document.read_text() == (
        "A\n<!-- seeds: a -->\n\nnew\n\n<!-- end -->\nB\n<!-- seeds: b -->\nkept\n<!-- end -->\n"
    )
    with pytest.raises(UserError, match=r"no place for the table 'c'; write the lines <!-- seeds: c --> and"):
        place(document, "c", "new")


# ----------------------------------------------------------------------------------------------------------- runner
# A fake `scope-jax train CARD --run RUN --set …`: records when and on which cores it ran, fails for seeds in FAIL,
# waits to be killed for those in HANG, and scores 0.5 + seed / 10.
FAKE = """
import json, os, pathlib, sys, time
card, run, sets = sys.argv[1], pathlib.Path(sys.argv[3]), sys.argv[5::2]
seed = int(dict(pair.split("=") for pair in sets)["seed"])
run.mkdir(parents=True, exist_ok=True)
began = time.time()
if str(seed) in os.environ.get("HANG", "").split():
    (run / "hangs").touch()
    time.sleep(60)
time.sleep(0.3)
if str(seed) in os.environ.get("FAIL", "").split():
    print("scope-jax: the base is not there; make it.")
    sys.exit(2)
scores = [{"step": 0, "eval/a/score": 0.1}, {"step": 1, "eval/a/score": 0.5 + seed / 10}]
(run / "metrics.jsonl").write_text("".join(json.dumps(score) + "\\n" for score in scores))
with (run.parent / "worked.jsonl").open("a") as file:
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    file.write(json.dumps({"seed": seed, "began": began, "ended": time.time(), "cores": cores}) + "\\n")
"""


@pytest.fixture
def train(tmp_path: Path) -> list[str]:
    script = tmp_path / "train.py"
    script.write_text(FAKE)
    return [sys.executable, str(script)]


def worked(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for path in out.rglob("worked.jsonl") for line in path.read_text().splitlines()]


def test_finished_runs_are_kept_and_a_failure_does_not_stop_the_others(
    tmp_path: Path, train: list[str], monkeypatch: pytest.MonkeyPatch
):
    asked, said = jobs([WHOLE], [0, 1, 2, 1], tmp_path / "out"), []
    assert [job.seed for job in asked] == [0, 1, 2]
    monkeypatch.setenv("FAIL", "1")
    failed = run_all(asked, 1, said.append, train)
    assert failed == {asked[1]: "failed with exit code 2: the base is not there; make it."}
    assert [done(job) for job in asked] == [True, False, True]
    monkeypatch.delenv("FAIL")
    assert run_all(asked, 1, said.append, train) == {}
    assert [entry["seed"] for entry in worked(tmp_path)] == [0, 2, 1]
    assert said[-4:-2] == ["ssp/atlas seed 0: done before", said[-3]] and "ssp/atlas seed 1: started" in said[-3]
    # the same run with other overrides is passed to `train`, which refuses or resumes it
    assert not any(done(job) for job in jobs([WHOLE], [0], tmp_path / "out", ["train.batch_size=4"]))


def test_workers_do_not_share_cores(tmp_path: Path, train: list[str]):
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("takes two cores that can be pinned")
    before = os.sched_getaffinity(0)
    run_all(jobs([WHOLE], [0, 1, 2], tmp_path / "out"), 2, lambda _: None, train)
    entries = worked(tmp_path)
    cores = {tuple(entry["cores"]) for entry in entries}  # type: ignore[arg-type]
    assert len(entries) == 3 and len(cores) == 2 and not set.intersection(*map(set, cores))
    for entry in entries:  # runs at the same time use different cores
        for other in entries:
            apart = entry["ended"] <= other["began"] or other["ended"] <= entry["began"]  # type: ignore[operator]
            assert entry is other or apart or entry["cores"] != other["cores"]
    assert os.sched_getaffinity(0) == before
    assert shares([3, 4, 5, 6, 7], 2) == [(3, 4), (5, 6)]
    with pytest.raises(UserError, match="use --workers 1 to 2"):
        shares([0, 1], 3)


def test_a_signal_ends_the_started_runs(tmp_path: Path, train: list[str]):
    program = f"import sys; from benchmarks.seeds.__main__ import *; listen(); sys.exit(main(sys.argv[1:], {train!r}))"
    out = tmp_path / "out"
    words = [str(WHOLE), "--seeds", "0", "1", "--out", str(out), "--metrics", "eval/a/score"]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words], cwd=ROOT, env=os.environ | {"HANG": "1"}, stderr=subprocess.PIPE
    )
    limit = time.monotonic() + 60
    while not (out / "ssp/atlas/seed-1/hangs").exists() and time.monotonic() < limit:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 143 and b"stopped by SIGTERM; the same command resumes." in said
    assert [done(job) for job in jobs([WHOLE], [0, 1], out)] == [True, False]


def test_the_whole_command(tmp_path: Path, train: list[str], capsys: pytest.CaptureFixture[str]):
    record = tmp_path / "results.json"
    words = [str(WHOLE), str(CHANGED), "--seeds", "0", "2", "--out", str(tmp_path / "out")]
    words += ["--metrics", "eval/a/score", "--set", "train.steps=2", "--record", str(record)]
    assert main(words, train) == 0
    text = page(json.loads(record.read_text()))
    assert text in capsys.readouterr().out
    assert "| `ssp/atlas` | 2 | 0.100 ± 0.000 | 0.600 ± 0.100 | +0.500 ± 0.100 | – | – |" in text
    assert "| `ssp/ablations/solver-only` | 2 |" in text and "n too small |" in text
    assert "--set train.steps=2" in text and "Not in the tables" not in text
    assert main([*words[:3], "0", "2", "5", *words[5:], "--only-table"], train) == 0
    assert "Not in the tables: ssp/atlas seed 5 (not finished);" in page(json.loads(record.read_text()))
    assert main([*words, "--workers", "1000"], train) == 2 and "use --workers 1 to" in capsys.readouterr().err
    assert main([str(WHOLE), *words], train) == 2 and "two cards have the name ssp/atlas" in capsys.readouterr().err


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks/results").glob("*.json")), ids=lambda path: path.stem)
def test_recorded_results_name_cards_that_exist(path: Path):
    results = json.loads(path.read_text())
    assert str(path.relative_to(ROOT)) in results["command"]
    named = {name for cards in results["tables"].values() for name in cards}
    assert named and [name for name in named if not (ROOT / f"configs/{name}.toml").is_file()] == []
    assert page(results).count("| card | seeds |") == len(results["tables"])


def test_cards_are_named_by_their_path():
    assert card_name(CHANGED) == "ssp/ablations/solver-only" and card_name(Path("mine/own.toml")) == "own"
    assert Job(WHOLE, 3, Path("runs/a/seed-3")).log == Path("runs/a/seed-3.log")
