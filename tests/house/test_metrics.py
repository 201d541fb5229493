"""A run's files: tied to one config, and after a kill the same as those of an uninterrupted run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from scope_jax.config import Config, base
from scope_jax.games import load_card, parse_config
from scope_jax.games.ssp.options import SSPSection
from scope_jax.learner.types import Datum, Episode
from scope_jax.run.config_file import differing, fingerprint, to_toml
from scope_jax.run.files import RunError, read_records
from scope_jax.run.folder import RunFolder

TABLE = {
    "system": "ssp",
    "model": {"checkpoint": 'a "quoted" \\ folder\x7f', "chat_template_kwargs": {"enable_thinking": False, "x-y": 3}},
    "retrieval": {"corpus": "corpus.jsonl"},
    "data": {"answers": "answers.jsonl"},
    "evaluate": {"sets": [{"name": "held-out", "path": "q.jsonl", "limit": 3}, {"name": "other", "path": "r.jsonl"}]},
    "train": {"steps": 3},
    "ssp": {"grader": "exact-match", "invalid_reward": -0.1},
    "optimizer": {"learning_rate": 1e-6},
}


@pytest.fixture
def cfg() -> Config:
    return parse_config(TABLE, "test card")


def override(**tables) -> Config:
    merged = {key: value if key == "seed" else TABLE.get(key, {}) | value for key, value in tables.items()}
    return parse_config(TABLE | merged, "test card")


def episode(reward: float) -> Episode:
    datum = Datum(np.arange(5), np.array([False, False, True, True, True]), np.zeros(5, np.float32))
    return Episode("solver", "actor", "g0", (datum,), reward, {"format": 1.0}, 0.5, text={"question": "où?"})


def test_the_written_config_is_a_card_with_the_same_values(cfg: Config, tmp_path: Path) -> None:
    RunFolder(tmp_path / "run", cfg)
    again = load_card(tmp_path / "run" / "config.toml")
    assert again == cfg
    assert fingerprint(again) == fingerprint(cfg)


@pytest.mark.parametrize("name", ["metrics.jsonl", "episodes.jsonl"])
@pytest.mark.parametrize("change", ["removed", "cut", "longer"])
def test_a_file_that_others_change_under_a_run_ends_it(name: str, change: str, cfg: Config, tmp_path: Path) -> None:
    log, path = RunFolder(tmp_path, cfg), tmp_path / name
    assert log.rewind(None) == []

    def step(number: int) -> None:
        log.episodes(number, [episode(1.0)])
        log.metrics(number, {"loss": 0.5})

    step(1)
    step(2)
    whole = path.read_bytes()
    path.unlink() if change == "removed" else path.write_bytes(whole[:-9] if change == "cut" else whole + b"{}\n")
    with pytest.raises(RunError, match=rf"{name} was removed or changed while the run wrote it \({len(whole)} bytes"):
        step(3)
    path.write_bytes(whole)
    assert log.rewind(2) == []
    step(3)
    assert [line["step"] for line in list(read_records(path))] == [1, 2, 3]


def test_a_run_without_its_metrics_says_so_when_it_goes_on(cfg: Config, tmp_path: Path) -> None:
    log = RunFolder(tmp_path, cfg)
    log.rewind(None)
    log.metrics(1, {"loss": 0.5})
    assert log.rewind(1) == []
    (tmp_path / "metrics.jsonl").unlink()
    assert "metrics.jsonl has no line of step 1" in log.rewind(1)[0]


def test_a_run_without_its_config_is_known_by_its_checkpoints(cfg: Config, tmp_path: Path) -> None:
    """Which belong to one config."""
    (tmp_path / "metrics.jsonl").write_text("{}")
    with pytest.raises(RunError, match=r"is not a run \(no config\.toml\)"):
        RunFolder(tmp_path, cfg)
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)
    (tmp_path / "checkpoints" / "1" / "seal.json").write_text("{}")
    RunFolder(tmp_path, cfg)
    assert load_card(tmp_path / "config.toml") == cfg


def test_the_written_config_has_no_tables_of_other_games(cfg: Config) -> None:
    """Their defaults may be others in another version, and a card with values there is refused."""
    assert {"ssp", "model", "train"} <= tomllib.loads(to_toml(cfg)).keys()
    assert not {"scope", "spice", "spell", "score"} & tomllib.loads(to_toml(cfg)).keys()


def test_every_default_survives_the_written_config(tmp_path: Path) -> None:
    judged = override(judge={"url": "http://localhost:1", "model": "m"}, ssp={"grader": "judge"})
    (tmp_path / "card.toml").write_text(to_toml(judged))
    assert load_card(tmp_path / "card.toml") == judged


def test_records_are_json_lines(cfg: Config, tmp_path: Path) -> None:
    log = RunFolder(tmp_path / "run", cfg)
    log.metrics(0, {"eval/held-out/accuracy": 0.25})
    log.metrics(1, {"loss": np.float32(0.5), "ratio": float("nan"), "count": np.int64(3), "skipped": True})
    log.episodes(1, [episode(1.0), episode(float("inf"))])
    log.metrics(2, {"eval/held-out/accuracy": 0.75, "loss": 0.1})
    assert list(read_records(tmp_path / "run" / "metrics.jsonl"))[1] == {
        "step": 1, "loss": 0.5, "ratio": None, "count": 3, "skipped": True,
    }  # fmt: skip
    first, second = list(read_records(tmp_path / "run" / "episodes.jsonl"))
    assert first == {
        "step": 1, "role": "solver", "policy": "actor", "group": "g0", "reward": 1.0, "parts": {"format": 1.0},
        "advantage": 0.5, "trained": True, "tokens": 5, "sampled": 3, "text": {"question": "où?"},
    }  # fmt: skip
    assert second["reward"] is None
    assert log.before_after() == {"before": {"eval/held-out/accuracy": 0.25}, "after": {"eval/held-out/accuracy": 0.75}}


def test_rewound_and_rewritten_files_equal_those_of_an_uninterrupted_run(cfg: Config, tmp_path: Path) -> None:
    def write(log: RunFolder, steps: range) -> None:
        for step in steps:
            log.episodes(step, [episode(step), episode(-step)])
            log.metrics(step, {"loss": 1 / (step + 1)})

    straight = RunFolder(tmp_path / "straight", cfg)
    write(straight, range(8))
    for restored in (None, 3, 5):
        run = tmp_path / str(restored)
        log = RunFolder(run, cfg)
        write(log, range(6))
        with (run / "metrics.jsonl").open("a") as file:
            file.write('{"step": 6, "lo')  # killed in the middle of a line
        log.close()
        log = RunFolder(run, cfg)
        log.rewind(restored)
        write(log, range(0 if restored is None else restored + 1, 8))
        for name in ("metrics.jsonl", "episodes.jsonl"):
            assert (run / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()


def test_rewinding_a_new_run_changes_nothing(cfg: Config, tmp_path: Path) -> None:
    log = RunFolder(tmp_path / "run", cfg)
    log.rewind(None)
    assert log.before_after() == {"before": {}, "after": {}}


def test_another_config_is_refused_with_the_differing_keys(cfg: Config, tmp_path: Path) -> None:
    log = RunFolder(tmp_path, cfg)
    log.metrics(0, {"eval/held-out/accuracy": 0.25})
    log.close()
    other = override(optimizer={"learning_rate": 2e-6}, ssp={"max_chars": 500})
    with pytest.raises(RunError, match=r"was started with different values of") as caught:
        RunFolder(tmp_path, other)
    said = (
        f"the run in {tmp_path} was started with different values of optimizer.learning_rate (1e-06, now 2e-06), "
        f"ssp.max_chars ({cfg.options(SSPSection).max_chars}, now 500); use the same values, or another run folder."
    )
    assert str(caught.value) == said
    assert load_card(tmp_path / "config.toml") == cfg


def test_a_run_with_a_checkpoint_can_be_branched(cfg: Config, tmp_path: Path) -> None:
    RunFolder(tmp_path, cfg).close()
    (tmp_path / "checkpoints" / "3").mkdir(parents=True)
    (tmp_path / "checkpoints" / "3" / "seal.json").touch()
    with pytest.raises(
        RunError, match=rf"seed \(0, now 7\); .* folder that starts from .*: --run OTHER --from {tmp_path}\.$"
    ):
        RunFolder(tmp_path, override(seed=7))


@pytest.mark.parametrize("written", ["metrics.jsonl", "episodes.jsonl", "checkpoints/1/seal.json"])
def test_a_folder_without_a_step_can_be_reused(cfg: Config, tmp_path: Path, written: str) -> None:
    """The folder of a card whose data was not found can be reused after a correction, also with an index in it."""
    RunFolder(tmp_path, override(data={"answers": "anwsers.jsonl"})).close()
    for name in ("index/manifest.json", "metrics.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    RunFolder(tmp_path, cfg).close()
    assert load_card(tmp_path / "config.toml") == cfg
    (tmp_path / written).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / written).write_text("{}\n")
    with pytest.raises(RunError, match=r"different values of data.answers \("):
        RunFolder(tmp_path, override(data={"answers": "others.jsonl"}))


def test_a_run_goes_on_when_the_checkout_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, run = tmp_path / "old", tmp_path / "new", tmp_path / "run"
    (old / "assets").mkdir(parents=True)
    (old / "assets" / "answers.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(base, "HOME", old)
    cfg = override(data={"answers": str(old / "assets/answers.jsonl")})
    RunFolder(run, cfg).metrics(1, {"solver/reward": 0.5})
    before = fingerprint(cfg)
    assert load_card(run / "config.toml") == cfg
    assert not [line for line in (run / "config.toml").read_text().splitlines() if base.prompts_of("ssp") in line]
    old.rename(new)
    monkeypatch.setattr(base, "HOME", new)
    moved = override(data={"answers": str(new / "assets/answers.jsonl")})
    assert load_card(run / "config.toml") == moved and fingerprint(moved) == before
    RunFolder(run, moved)
    with pytest.raises(RunError, match=r"different values of data.answers \("):
        RunFolder(run, override(data={"answers": str(new / "other.jsonl")}))


def test_length_and_intervals_may_change(cfg: Config, tmp_path: Path) -> None:
    longer = override(
        train={"steps": 99, "save_every": 1, "keep": 5}, evaluate={"every": 7}, launch={"fake_devices": 4}
    )
    assert differing(cfg, longer) == []
    assert fingerprint(cfg) == fingerprint(longer)
    RunFolder(tmp_path, cfg).close()
    RunFolder(tmp_path, longer)
    assert load_card(tmp_path / "config.toml") == longer


def test_a_judge_may_change_its_url_but_not_its_model(cfg: Config) -> None:
    def grading(**endpoint: object) -> Config:
        return override(evaluate={"grader": {"temperature": 0.0, "max_tokens": 9, "endpoint": endpoint}})

    here, there = grading(url="http://a/v1", model="m", concurrency=2), grading(url="http://b/v1", model="m", retries=1)
    assert differing(here, there) == [] and fingerprint(here) == fingerprint(there)
    assert differing(here, grading(url="http://b/v1", model="n")) == ["evaluate.grader.endpoint.model"]
    assert "evaluate.grader.endpoint.model" in differing(cfg, here)  # before, the game's own grader graded


def test_one_more_evaluation_set_is_another_config(cfg: Config) -> None:
    fewer = override(evaluate={"sets": TABLE["evaluate"]["sets"][:1]})
    assert differing(cfg, fewer) == ["evaluate.sets"]
    assert fingerprint(cfg) != fingerprint(fewer)


def test_a_folder_with_other_things_is_refused(cfg: Config, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("do not touch")
    with pytest.raises(RunError, match=r"not empty and is not a run"):
        RunFolder(tmp_path, cfg)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(RunError, match="is a file"):
        RunFolder(tmp_path / "thesis.txt", cfg)


HOLDER = """
import json, os, signal, sys
from pathlib import Path
from scope_jax.games import parse_config
from scope_jax.run.folder import RunFolder
log = RunFolder(Path(sys.argv[1]), parse_config(json.loads(sys.argv[2]), "card"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_one_process_at_a_time_and_a_killed_one_leaves_no_lock(cfg: Config, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", HOLDER, str(tmp_path), json.dumps(TABLE)], check=False, env=os.environ.copy())
    assert (tmp_path / ".lock").is_file()
    log = RunFolder(tmp_path, cfg)
    with pytest.raises(RunError, match="another process is using"):
        RunFolder(tmp_path, cfg)
    log.close()
    RunFolder(tmp_path, cfg).close()


def test_a_run_whose_checkpoints_are_gone_is_not_begun_anew(cfg: Config, tmp_path: Path) -> None:
    """While the next checkpoint is played the first one may still be written, so that a kill leaves none."""
    every = {number: override(train={"steps": 99, "save_every": number}) for number in (5, 10)}
    log = RunFolder(tmp_path / "run", every[10])
    for step in range(1, 21):
        log.metrics(step, {"loss": 0.5})
    log.check_begun(0)
    log.close()
    log = RunFolder(tmp_path / "run", every[5])  # the process before still had 10
    log.check_begun(0)
    log.close()
    log = RunFolder(tmp_path / "run", every[5])
    log.check_begun(15)  # after step 15 of another run
    with pytest.raises(RunError, match="has metrics up to step 20 but no checkpoint; put its checkpoints back"):
        log.check_begun(0)
    log.close()
