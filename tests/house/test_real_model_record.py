"""What is kept of a run of the real model."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.real_model.record import kept, measured, measured_by_trl
from benchmarks.real_model.table import page
from scope_jax.games import load_card
from scope_jax.run.folder import RunFolder


def test_rewards_seconds_and_scores_of_rows_are_kept_by_task_and_seed(tmp_path: Path) -> None:
    exam = 'evaluate.sets=[{ name = "held", path = "assets/atlas/questions_held_out.jsonl" }]'
    for seed, rewards in ((3, [0.25, 0.5]), (4, [0.125])):
        run = tmp_path / f"run-{seed}"
        log = RunFolder(run, load_card("configs/ssp/atlas.toml", [f"seed={seed}", exam, "log.trackers=[]"]))
        for step in (0, len(rewards)):
            answers = [
                {"question": f"{place}?", "sample": 0, "measures": {"accuracy": float(place == step)}}
                for place in (0, 1)
            ]
            log.exams(step, {"held": answers})
        log.metrics(0, {"eval/held/accuracy": 0.5})
        for step, reward in enumerate(rewards, start=1):
            log.metrics(step, {"solver/reward": reward, "time/play": 2.0, "time/learn": 1.5, "time/evaluate": 9.0})
        log.close()
        kept(tmp_path / "results.json", "search", seed, measured(run, "abcd1234"))
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert results["search"]["3"] == {
        "code": "abcd1234",
        "steps": {"solver/reward": [0.25, 0.5]},
        "seconds": [3.5, 3.5],
        "measure": "accuracy",
        "exams": {"held": {"0": [1.0, 0.0], "2": [0.0, 0.0]}},
    }
    assert results["search"]["4"]["exams"] == {"held": {"0": [1.0, 0.0], "1": [0.0, 1.0]}}


def test_a_run_of_trl_is_kept_beside_it_and_both_are_compared_row_by_row(tmp_path: Path) -> None:
    file, curve = tmp_path / "results.json", tmp_path / "curve.json"
    steps = [{"reward": 0.25, "seconds": 60.02, "generation": 20.04}]
    exams = {"held": {"0": [0.0, 0.0, 1.0, 0.0], "1": [0.0, 1.0, 1.0, 0.0]}}
    versions = {"trl": "1.0", "torch": "2.0"}
    curve.write_text(json.dumps({"steps": steps, "exams": exams, "versions": versions}), encoding="utf-8")
    for seed in (0, 1):
        kept(file, "reading-trl", seed, measured_by_trl(curve))
    figures = {
        "code": "abcd1234",
        "steps": {"policy/reward": [0.25]},
        "seconds": [2.0],
        "measure": "accuracy",
        "exams": {"held": {"0": [0.0, 0.0, 1.0, 0.0], "1": [1.0, 1.0, 1.0, 0.0]}},
    }
    for seed in (0, 1):
        kept(file, "reading", seed, figures)
    results = json.loads(file.read_text(encoding="utf-8"))
    assert results["reading-trl"]["0"] == {
        "code": "trl 1.0 torch 2.0",
        "steps": {"policy/reward": [0.25]},
        "seconds": [60.0],
        "seconds_of_generation": [20.0],
        "measure": "accuracy",
        "exams": exams,
    }
    lines = page(results).splitlines()
    ours = next(line for line in lines if line.startswith("| reading |"))
    assert [cell.strip() for cell in ours.split("|")[2:-1]][:3] == ["held", "4", "0, 1"]
    assert [cell.split(" ±")[0].strip() for cell in ours.split("|")[5:-1]] == ["25.0", "75.0", "+50.0"]
    assert "Code: reading abcd1234; reading-trl trl 1.0 torch 2.0." in lines


def test_scores_of_games_are_points(tmp_path: Path) -> None:
    figures = {"code": "abcd1234", "measure": "score", "exams": {"random": {"0": [-1.0, 0.5], "1": [0.5, 1.0]}}}
    line = next(line for line in page({"games": {"0": figures}}).splitlines() if line.startswith("| games |"))
    assert [cell.split(" ±")[0].strip() for cell in line.split("|")[5:-1]] == ["-0.25", "0.75", "+1.00"]
