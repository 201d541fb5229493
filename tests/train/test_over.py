"""A run that is over says so before anything is loaded."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from rich.console import Console

from scope_jax.config import Config
from scope_jax.games import load_card
from scope_jax.report.progress import Progress
from scope_jax.run import start
from scope_jax.run.checkpoint_writer import Checkpoints
from scope_jax.run.folder import RunFolder
from scope_jax.train import train

DONE = 3  # steps


def card(*sets: str) -> Config:
    return load_card("configs/sft/atlas.toml", [f"train.steps={DONE}", "log.trackers=[]", *sets])


class LoadedError(Exception):
    """Something was loaded."""


def refused(*given: Any, **options: Any) -> None:
    raise LoadedError


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of three steps with its evaluation, in a place where nothing may be loaded."""
    folder, cfg = tmp_path / "run", card()
    log = RunFolder(folder, cfg)
    log.metrics(0, {"eval/asked/accuracy": 0.25})
    for step in range(1, DONE + 1):
        log.metrics(step, {"sft/loss": 1.0 / step} | ({"eval/asked/accuracy": 0.5} if step == DONE else {}))
    log.close()
    checkpoints = Checkpoints(folder / "checkpoints", cfg)
    checkpoints.save(DONE, {"actor": {"weight": jnp.ones(3)}}, {"game": {"drawn": 9}, "baselines": {}})
    checkpoints.wait()
    monkeypatch.setattr(start, "assemble", refused)
    monkeypatch.setattr(start, "keep_programs", lambda folder: None)
    return folder


def test_a_run_that_is_over_says_so_and_loads_nothing(run: Path) -> None:
    out = io.StringIO()
    with Progress(Console(file=out, width=400)) as progress:
        found = train(card(), run, progress)
    assert out.getvalue().splitlines()[1:] == [f"{run} is done: 3 steps; to go on, raise train.steps or the iterations"]
    assert (found["run"], found["steps"], found["programs_compiled"]) == (str(run), DONE, 0)
    assert (found["before"], found["after"]) == ({"eval/asked/accuracy": 0.25}, {"eval/asked/accuracy": 0.5})


@pytest.mark.parametrize("what", ["another step", "not evaluated", "damaged", "a damaged line", "a trace"])
def test_all_others_are_loaded(run: Path, what: str) -> None:
    cfg = card("train.steps=4") if what == "another step" else card()
    if what == "not evaluated":
        log = RunFolder(run, cfg)
        log.rewind(DONE - 1)
        log.metrics(DONE, {"sft/loss": 0.1})
        log.close()
    if what == "damaged":
        (run / "checkpoints" / str(DONE) / "memory" / "metadata").write_text("{}")
    if what == "a damaged line":  # behind the checkpoint: a resume removes it
        with (run / "metrics.jsonl").open("ab") as file:
            file.write(bytes(16) + b"\n")
    with Progress(Console(file=io.StringIO())) as progress, pytest.raises(LoadedError):
        train(cfg, run, progress, profile=1 if what == "a trace" else None)


@pytest.mark.parametrize(
    ("noted", "remat", "taken"), [("dots", "auto", "dots"), ("dots", "full", "full"), (None, "auto", "auto")]
)
def test_what_auto_keeps_for_the_backward_pass_is_that_of_the_run(
    run: Path, noted: str | None, remat: str, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever memory this machine has: another value would round sums otherwise."""
    cfg = card("train.steps=5", f'learner.remat="{remat}"')
    cards: list[Config] = []

    def assemble(cfg: Config, *given: Any, **options: Any) -> None:
        cards.append(cfg)
        raise LoadedError

    monkeypatch.setattr(start, "assemble", assemble)
    (run / "config.toml").unlink()
    later = Checkpoints(run / "checkpoints", cfg, remat=noted)
    later.save(DONE + 1, {"actor": {"weight": jnp.ones(3)}}, {"game": {"drawn": 9}, "baselines": {}})
    later.wait()
    with Progress(Console(file=io.StringIO())) as progress, pytest.raises(LoadedError):
        train(cfg, run, progress)
    assert [cfg.learner.remat for cfg in cards] == [taken]
