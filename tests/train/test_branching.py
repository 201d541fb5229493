"""Runs that start from another run's state: the same bits as one continued run, and the effect of a changed card."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from scope_jax import train
from scope_jax.cli import app
from scope_jax.config import Config, base
from scope_jax.errors import UserError
from scope_jax.games import GAMES, load_card, scope
from scope_jax.games.scope import state
from scope_jax.games.scope.options import options
from scope_jax.learner.types import Datum, Episode
from scope_jax.play.step import Played, Step
from scope_jax.report.progress import Progress
from scope_jax.run import checkpoint
from scope_jax.run.checkpoint import CheckpointError
from scope_jax.run.checkpoint_writer import Checkpoints
from scope_jax.run.files import RunError
from scope_jax.run.folder import RunFolder
from scope_jax.run.start import OriginError, with_origin
from tests.shallow import shallow
from tests.train import runs

CARDS = runs.ROOT / "configs"
SMALL = (
    "rollout.slots=8",
    "rollout.max_length=256",
    "learner.buckets=[256]",
    "learner.micro_batch_rows=4",
    "train.save_every=1",
    "train.keep=9",
)
SSP = (
    *SMALL,
    "evaluate.sets=[]",
    "ssp.train=solver",
    "ssp.solver.loss.advantage=ema",
    "ssp.solver.loss.mini_batches=1",
)
SCOPE = (
    *SMALL,
    "train.save_every=100",
    "train.keep=1",
    "train.keep_iterations=true",
    "scope.iterations=3",
    "scope.steps_per_iteration=1",
    "scope.target_tasks=1",
)


def made(role: str, policy: str, *seed: int) -> list[Episode]:
    """Four episodes of random tokens with different rewards."""
    rng = np.random.default_rng(seed)
    sampled = np.arange(40) >= 20
    return [
        Episode(
            role,
            policy,
            "one",
            (
                Datum(
                    rng.integers(0, 256, 40).astype(np.int32), sampled, np.where(sampled, -5.0, 0.0).astype(np.float32)
                ),
            ),
            float(rng.normal()),
        )
        for _ in range(4)
    ]


def play_ssp(step: Step[Any]) -> Played:
    """A step that depends on all state that a run carries: its number and its pool."""
    pool = step.memory["pool"]
    return Played(made("solver", "actor", step.number, len(pool)), [{"step": step.number}], {"pool": float(len(pool))})


def play_scope(step: Step[Any]) -> Played:
    """The stages in order, of one step each."""
    stage = step.memory["stage"]
    episodes = [] if stage == "tasks" else made(stage, stage, step.number, step.memory["drawn"])
    tasks = [{"question": f"task {step.number}"}] if stage == "tasks" else []
    outcome = state.ScopeOutcome(rows=state.rows_needed(step.card, stage), tasks=tasks, scores=[])
    return Played(episodes, outcome, {"iteration": float(step.memory["iteration"]), f"stage/{stage}": 1.0})


def run_of(card: str, sets: Sequence[str], index: Path) -> Callable[..., dict[str, Any]]:
    def run(folder: Path, *more: str) -> dict[str, Any]:
        with Progress(Console(quiet=True)) as progress:
            return train.train(load_card(CARDS / card, (*sets, f"retrieval.index={index}", *more)), folder, progress)

    return run


def same_from(whole: Path, branch: Path, step: int) -> None:
    """Asserts that the branch has the bits of the whole run from `step` on: weights, moments, memory, files."""
    last = runs.saved(whole)[-1]
    left, right = runs.arrays(whole, last), runs.arrays(branch, last)
    assert left.keys() == right.keys() and any("opt_state" in name for name in left)
    assert [name for name, array in left.items() if array.tobytes() != right[name].tobytes()] == []
    assert runs.memory(whole, last) == runs.memory(branch, last)
    for name in ("metrics.jsonl", "episodes.jsonl"):
        later = [record for record in runs.lines(whole, name) if record["step"] > step]
        assert later and later == [record for record in runs.lines(branch, name) if step < record["step"] <= last]


def test_ssp_continues_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GAMES, "ssp", replace(GAMES["ssp"], play=play_ssp))
    sets = (*SSP, f"model.checkpoint={shallow('ssp')}")
    run, whole, branch = run_of("ssp/atlas.toml", sets, tmp_path / "index"), tmp_path / "whole", tmp_path / "branch"
    run(whole, "train.steps=3")
    assert run(branch, "train.steps=3", f"train.origin={whole}@2")["steps"] == 3
    same_from(whole, branch, 2)
    assert runs.saved(branch) == [3]
    assert runs.memory(branch, 3)["game"] == {"pool": [{"step": 0}, {"step": 1}, {"step": 2}]}
    assert load_card(branch / "config.toml").train.origin == str(whole / "checkpoints" / "2")
    # it records its origin: to resume, the origin need not be given again, and must not differ
    assert run(branch, "train.steps=3")["steps"] == 3
    with pytest.raises(RunError, match=r"different values of train\.origin"):
        run(branch, "train.steps=3", f"train.origin={whole}@1")
    with pytest.raises(UserError, match="is already complete at"):
        run(tmp_path / "done", "train.steps=3", f"train.origin={whole}")


@pytest.mark.slow  # SSP branches in seconds, below
def test_scope_branches_at_the_end_of_an_iteration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three iterations equal two and one more; the second may be played with a frozen challenger."""
    monkeypatch.setitem(GAMES, "scope", replace(GAMES["scope"], play=play_scope))
    monkeypatch.setattr(train, "evaluate", lambda world: ({"eval/held-out/score": 0.5}, {}))
    run, whole = run_of("scope/atlas.toml", SCOPE, tmp_path / "index"), tmp_path / "whole"
    run(whole)
    kept = ["3-iteration-1", "6-iteration-2", "9-iteration-3"]
    assert [path.name for path in checkpoint.checkpoints_in(whole / "checkpoints")] == kept
    assert [r["step"] for r in runs.lines(whole, "metrics.jsonl") if "eval/held-out/score" in r] == [0, 3, 6, 9]

    again = tmp_path / "again"  # made longer in its own folder
    assert run(again, "scope.iterations=2")["steps"] == 6 and run(again)["steps"] == 9
    same_from(whole, again, 0)

    longer = tmp_path / "longer"
    assert run(longer, f"train.origin={whole}@iteration-2", "scope.iterations=4")["steps"] == 12
    assert [path.name for path in checkpoint.checkpoints_in(longer / "checkpoints")] == [
        "9-iteration-3",
        "12-iteration-4",
    ]
    same_from(whole, longer, 6)
    frozen = tmp_path / "frozen"
    run(frozen, f"train.origin={whole}@iteration-1", "scope.freeze_challenger_after=1", "scope.iterations=2")
    stages = [(r["step"], *(key for key in r if key.startswith("stage/"))) for r in runs.lines(frozen, "metrics.jsonl")]
    assert stages == [(3,), (4, "stage/tasks"), (5, "stage/solver")]


@pytest.mark.parametrize(("frozen_before", "frozen_after"), [(None, 1), (1, None), (None, None), (1, 1)])
def test_an_iteration_that_has_not_begun_is_reopened(frozen_before: int | None, frozen_after: int | None) -> None:
    def card(frozen: int | None) -> Config:
        cfg = load_card(CARDS / "scope" / "atlas.toml")
        return cfg.model_copy(update={"scope": options(cfg).model_copy(update={"freeze_challenger_after": frozen})})

    before, after = card(frozen_before), card(frozen_after)
    memory = state.start(before) | {
        "stage": "solver",
        "place": options(before).steps_per_iteration - 1,
        "drawn": 7,
    }
    opened = state.after_step(before, memory, state.ScopeOutcome(rows=0, tasks=[], scores=[0.5]))
    adopted = scope.GAME.adopt(after, opened, before)
    assert adopted == opened | {"stage": "challenger" if frozen_after is None else "tasks"}
    within = opened | {"stage": "solver", "place": 1, "tasks": ["a task"]}
    assert scope.GAME.adopt(after, within, before) == within
    assert GAMES["scope"].iterations_done(after, opened) == 1 and GAMES["ssp"].iterations_done(after, {}) == 0


# --------------------------------------------------------------------------------------------------- what is refused
def fabricated(run: Path, card: str, *sets: str) -> Path:
    """A run folder with checkpoints of steps 2 and 4, of policies that have one small weight."""
    cfg = load_card(CARDS / card, ("train.keep=9", *sets))
    RunFolder(run, cfg).close()
    checkpoints = Checkpoints(run / "checkpoints", cfg)
    game = GAMES[cfg.system]
    states = {name: {"params": {"w": jnp.zeros(3)}} for name in game.policies(cfg)}
    checkpoints.save(2, states, {})
    checkpoints.save(4, states, {}, "iteration-1")
    checkpoints.wait()
    return run


def test_origins_are_checked_before_anything_is_written(tmp_path: Path) -> None:
    other = fabricated(tmp_path / "other", "scope/atlas.toml")

    def settled(origin: Path | str, card: str = "scope/atlas.toml", *sets: str) -> str | None:
        cfg = load_card(CARDS / card, (f"train.origin={origin}", *sets))
        return with_origin(cfg, tmp_path / "run").train.origin

    newest = str(other / "checkpoints" / "4-iteration-1")
    assert settled(other) == settled(f"{other}@4") == settled(f"{other}@iteration-1") == settled(newest) == newest
    assert settled(f"{other}@2") == str(other / "checkpoints" / "2")
    log = RunFolder(tmp_path / "branch", load_card(CARDS / "scope" / "atlas.toml", [f"train.origin={newest}"]))
    log.close()
    for again in ("", f"train.origin={other}", f"train.origin={other}@4", f"train.origin={other}@iteration-1"):
        cfg = load_card(CARDS / "scope" / "atlas.toml", [again] if again else [])
        assert with_origin(cfg, tmp_path / "branch").train.origin == newest
    cfg = load_card(CARDS / "scope" / "atlas.toml", ["seed=5"])
    assert with_origin(cfg, tmp_path / "branch").train.origin is None, "another card, and no step is done"
    (tmp_path / "branch" / "metrics.jsonl").write_text('{"step": 5}\n')
    assert with_origin(cfg, tmp_path / "branch").train.origin == newest
    with pytest.raises(CheckpointError, match=r"has no checkpoint 3; it has: 2, 4-iteration-1\.$"):
        settled(f"{other}@3")
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        settled(tmp_path / "nowhere")
    with pytest.raises(OriginError, match=r"is from a run of scope, but the card is for ssp\.$"):
        settled(other, "ssp/atlas.toml")
    curated = ("scope.mode=curated", "data.prompts=assets/atlas/tasks_train.jsonl")
    with pytest.raises(OriginError, match=r"has the policies challenger, solver, but the card trains solver\.$"):
        settled(other, "scope/atlas.toml", *curated)
    assert not (tmp_path / "run").exists()


def test_an_origin_in_the_checkout_stays_the_same_while_its_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the recorded config has a relative path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(base, "HOME", tmp_path)
    other = fabricated(tmp_path / "runs" / "other", "ssp/atlas.toml")
    cfg = load_card(CARDS / "ssp" / "atlas.toml", ["train.origin=runs/other"])
    branch = tmp_path / "runs" / "branch"
    log = RunFolder(branch, with_origin(cfg, branch))
    log.metrics(5, {"solver/reward": 0.5})
    log.close()
    assert 'origin = "runs/other/checkpoints/4-iteration-1"' in (branch / "config.toml").read_text().splitlines()
    shutil.copytree(other / "checkpoints" / "4-iteration-1", other / "checkpoints" / "6")
    RunFolder(branch, with_origin(cfg, branch)).close()


def test_an_origin_that_cannot_be_used_gives_one_clear_error(tmp_path: Path) -> None:
    """One of another model; and one that its run has deleted since, so that the same command finds it no more."""
    other = fabricated(tmp_path / "other", "ssp/atlas.toml")
    words = ["train", str(CARDS / "ssp" / "atlas.toml"), "--run", str(tmp_path / "run"), "--from", f"{other}@2"]

    def refused() -> str:
        result = CliRunner().invoke(app, [*words, "--set", "evaluate.sets=[]"])
        assert result.exit_code == 2
        (said,) = [line for line in result.stderr.splitlines() if line.startswith("scope-jax: ")]
        return said

    said = refused()
    assert f"the checkpoint {other}/checkpoints/2 has no " in said and "it belongs to another game or model" in said
    shutil.rmtree(other / "checkpoints" / "2")
    assert f"{other}/checkpoints/2, from which this run starts, is gone" in refused()
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_ssp_has_no_iterations_to_keep() -> None:
    with pytest.raises(ValueError, match=r"train\.keep_iterations is set, but SSP has no iterations"):
        load_card(CARDS / "ssp" / "atlas.toml", ["train.keep_iterations=true"])


# --------------------------------------------------------------------------------------------------------- whole runs
@pytest.mark.slow  # real steps of both games in separate processes
@pytest.mark.parametrize("game", ["ssp", "scope"])
def test_three_iterations_equal_two_and_one_more(tmp_path: Path, game: str) -> None:
    whole, first, more = tmp_path / "whole", tmp_path / "first", tmp_path / "more"
    if game == "ssp":
        sets = ("train.save_every=1", "train.batch_size=4", "rollout.slots=8", "ssp.solver.samples=2")
        short, long, last = ("train.steps=2",), ("train.steps=3",), "2"
        sets = (*sets, "evaluate.sets=[]", 'ssp.proposer.loss.advantage="ema"')
    else:
        sets = (*runs.SCOPE, "scope.max_batches=2", "train.save_every=100", "train.keep_iterations=true")
        short, long, last = ("scope.iterations=2",), ("scope.iterations=3",), "iteration-2"
    card = f"{game}/atlas.toml"
    runs.finish(runs.command(card, whole, (*sets, *long)))
    runs.finish(runs.command(card, first, (*sets, *short)))
    runs.finish([*runs.command(card, more, (*sets, *long)), "--from", f"{first}@{last}"])
    same_from(whole, more, json.loads((first / "metrics.jsonl").read_text().splitlines()[-1])["step"])
