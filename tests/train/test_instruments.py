"""What a run measures about itself, without a model: phases, the watchdog, chips, FLOPs of rows, traced steps."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from scope_jax.errors import UserError
from scope_jax.models.decoder import flops
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.run import performance
from scope_jax.run.performance import Phases, Traced, computed_flops, trained_flops
from scope_jax.run.programs import programs
from scope_jax.sharding.chips import CHIPS, chip_of
from tests.learner.conftest import TINY


def test_phases_add_up_until_they_are_taken() -> None:
    phases = Phases()
    for _ in range(2):
        with phases.phase("play", 3):
            assert phases.running is not None and (phases.running.name, phases.running.step) == ("play", 3)
            time.sleep(0.02)
    with phases.phase("play", 3), phases.beside("learn"):
        assert phases.running is not None and phases.running.name == "play"
    assert phases.running is None and phases.seconds("learn") > 0
    assert phases.seconds("play") >= 0.04
    assert list(phases.take()) == ["time/play", "time/learn"] and phases.take() == {}


def wait_for(path: Path, text: str) -> None:
    limit = time.monotonic() + 30
    while not (path.is_file() and text in path.read_text()):
        assert time.monotonic() < limit, path
        time.sleep(0.01)


def test_the_watchdog_names_process_and_phase_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    phases, ticks = Phases(), [0]
    dog = performance.Watchdog(phases, lambda: ticks[0], 0.2, "report", tmp_path)
    stacks = tmp_path / "stacks-0.txt"
    with phases.phase("learn", 1):  # makes progress
        for _ in range(20):
            ticks[0] += 1
            time.sleep(0.02)
    assert not stacks.exists()
    with phases.phase("play", 7):
        wait_for(stacks, "test_the_watchdog_names_process_and_phase_once")
        time.sleep(0.4)
    dog.stop()
    told = capfd.readouterr().err
    assert told.count("has made no progress") == 1
    assert "scope-jax: process 0 of 1 on " in told and "in the phase play of step 7; its stacks are in" in told
    assert stacks.read_text().startswith("step 7, phase play, ")
    assert not any(thread.name == "watchdog" for thread in threading.enumerate())


def test_the_watchdog_does_not_count_the_time_in_which_the_process_was_stopped(tmp_path: Path, monkeypatch) -> None:
    phases, ahead, real = Phases(), [0.0], time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + ahead[0])
    dog = performance.Watchdog(phases, lambda: 0, 2.0, "report", tmp_path)
    with phases.phase("play", 7):
        time.sleep(0.7)
        ahead[0] = 3600.0  # the clock goes on while nothing runs
        time.sleep(0.7)
    dog.stop()
    assert not (tmp_path / "stacks-0.txt").exists()


@pytest.mark.parametrize(("folder", "said"), [("", "its stacks are in"), ("gone", "its stacks are above, as")])
def test_the_watchdog_can_end_the_process(folder: str, said: str, tmp_path: Path, monkeypatch, capfd) -> None:
    """Also if the stacks cannot be written."""
    phases, codes = Phases(), []
    monkeypatch.setattr(os, "_exit", codes.append)
    dog = performance.Watchdog(phases, lambda: 0, 0.1, "exit", tmp_path / folder)
    with phases.phase("checkpoint", 2):
        limit = time.monotonic() + 30
        while not codes:
            assert time.monotonic() < limit
            time.sleep(0.01)
    dog.stop()
    told = capfd.readouterr().err
    assert codes == [124] and "the same command resumes the run" in told and said in told


def test_chips_by_the_names_that_jax_gives_them() -> None:
    names = {"TPU v5 lite": "v5e", "TPU v5p": "v5p", "TPU v5": "v5p", "TPU v6 lite": "v6e", "NVIDIA H200": "H200"}
    names |= {"TPU7x": "v7x", "NVIDIA GB200": "GB200", "NVIDIA B300 SXM6 AC": "B300"}
    names |= {"NVIDIA H100 80GB HBM3": "H100", "NVIDIA A100-SXM4-80GB": "A100", "NVIDIA B200": "B200"}
    assert {kind: chip_of(kind) for kind in names} == {kind: CHIPS[name] for kind, name in names.items()}
    assert chip_of("cpu") is None and chip_of("NVIDIA L4") is None


def test_flops_of_rows_are_those_of_each_row() -> None:
    model: ModelConfig = TINY
    assert trained_flops(model, []) == 0
    expected = flops.update_flops(model, 1, 10, 4) + flops.update_flops(model, 1, 7, 7)
    assert trained_flops(model, [(10, 4), (7, 7)]) == expected
    executed = flops.executed_flops(model, 10, 4, "full").total + flops.executed_flops(model, 7, 7, "full").total
    assert computed_flops(model, [(10, 4), (7, 7)], "full") == executed > expected


def test_compiled_programs_are_counted() -> None:
    made = programs()
    before = made.asked

    @jax.jit
    def new(x: jax.Array) -> jax.Array:
        return jnp.sin(x) * 3.25

    new(jnp.ones(3))
    assert made.asked > before
    before = made.asked
    new(jnp.ones(3))
    assert made.asked == before and 0 <= made.loaded <= made.asked


@pytest.mark.parametrize(
    ("step", "first", "last", "words"),
    [
        (2, 3, 5, "it takes steps 3 to 5"),
        (6, 3, 5, "steps 3 to 5"),
        (2, 3, None, "from 3 on"),
        (3, 6, 5, "no step is left"),
    ],
)
def test_a_step_that_is_not_taken_cannot_be_traced(step: int, first: int, last: int | None, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Traced(step, Path("runs/x"), first=first, last=last)


def test_only_the_chosen_step_is_traced(tmp_path: Path) -> None:
    traced = Traced(2, tmp_path, first=1, last=3)
    with traced.step(1):
        jnp.ones(3).block_until_ready()
    assert not (tmp_path / "profile").exists()
    with traced.step(2):
        jnp.ones(3).block_until_ready()
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))
