"""A killed run resumes and ends with the bits of an uninterrupted run: weights, metrics, episodes, memory."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from scope_jax import train
from scope_jax.games import GAMES, load_card
from scope_jax.grading import judge_client
from scope_jax.models.files.seal import fault, seal
from scope_jax.play.step import Played, Step
from scope_jax.report.progress import Progress
from scope_jax.run import checkpoint, checkpoint_writer, stopping
from tests.train import runs

SMALL = (
    "train.steps=4",
    "train.save_every=1",
    "train.keep=4",
    "train.batch_size=4",
    "evaluate.sets=[]",
    "rollout.slots=8",
    "ssp.solver.samples=2",
    "ssp.replay_reset_every=3",
    'ssp.proposer.loss.advantage="ema"',
)


def command(run: Path) -> list[str]:
    return runs.command("ssp/atlas.toml", run, SMALL)


def played(run: Path, step: int) -> bool:
    """True once the metrics of `step` are on disk, which happens before its checkpoint is."""
    path = run / "metrics.jsonl"
    written = path.read_text().splitlines() if path.is_file() else []
    return any(json.loads(line)["step"] >= step for line in written if line.endswith("}"))


def writing(run: Path, step: int) -> bool:
    """True while the checkpoint of `step` has its temporary name."""
    return any(path.name.startswith(f"{step}.") for path in (run / "checkpoints").glob("*"))


@pytest.mark.slow  # house/test_checkpoint.py kills a writer in seconds
@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(lambda run: (run / "config.toml").is_file(), id="before the first step"),
        pytest.param(lambda run: played(run, 2), id="between a step's metrics and its checkpoint"),
        pytest.param(lambda run: writing(run, 3), id="while a checkpoint is written"),
    ],
)
def test_a_killed_run_ends_with_the_same_bits(whole: Path, tmp_path: Path, moment: Callable[[Path], bool]) -> None:
    run = tmp_path / "run"
    runs.kill_when(command(run), lambda: moment(run))
    runs.finish(command(run))
    runs.same(whole, run)
    assert any(name.startswith("actor/params") for name in runs.arrays(run, 4))
    metrics = runs.lines(run, "metrics.jsonl")
    assert [record["step"] for record in metrics] == [1, 2, 3, 4]
    assert runs.memory(run, 4)["baselines"] == {"actor/proposer": metrics[-1]["proposer/baseline"]}
    assert len({record["proposer/baseline"] for record in metrics}) == 4


@pytest.mark.slow
def test_a_run_that_gets_sigterm_saves_the_step_and_resumes_with_the_same_bits(whole: Path, tmp_path: Path) -> None:
    """Between two checkpoints, so that the stop makes one of its own."""
    run = tmp_path / "run"
    rarely = runs.command("ssp/atlas.toml", run, [*SMALL, "train.save_every=4"])
    process = runs.start(rarely)
    runs.wait_for(process, lambda: played(run, 1))
    process.send_signal(signal.SIGTERM)
    said = runs.end(process, 143).splitlines()
    (step,) = runs.saved(run)
    assert step in (1, 2) and [line["step"] for line in runs.lines(run, "metrics.jsonl")] == [*range(1, step + 1)]
    last = f"scope-jax: stopped by SIGTERM after step {step}; the same command resumes from the last checkpoint."
    assert said[-1] == last
    assert not [line for line in said[:-1] if not line.startswith((*runs.SAID, "scope-jax: SIGTERM"))]
    assert fault(run / "checkpoints" / f"{step}") is None
    runs.finish(rarely)
    assert runs.saved(run) == [step, 4]
    runs.same(whole, run, steps=[step, 4])


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGPIPE])
def test_a_run_whose_output_nobody_reads_saves_the_step_and_resumes_with_the_same_bits(
    number: signal.Signals, whole: Path, tmp_path: Path
) -> None:
    """A terminal that is closed; Ctrl-C under `2>&1 | tee log`, which ends tee, too; `2>&1 | head`: no signal."""
    if signal.getsignal(number) == signal.SIG_IGN and number != signal.SIGPIPE:
        pytest.skip("what started the tests ignores this signal, as nohup does")
    run = tmp_path / "run"
    rarely = runs.command("ssp/atlas.toml", run, [*SMALL, "train.save_every=4"])
    process = runs.start(rarely)
    assert process.stdout is not None
    runs.wait_for(process, lambda: played(run, 1))
    if number != signal.SIGPIPE:
        process.send_signal(number)
    process.stdout.close()
    assert process.wait(runs.LIMIT) == 128 + number
    (step,) = runs.saved(run)
    assert step in (1, 2) and fault(run / "checkpoints" / f"{step}") is None
    runs.finish(rarely)
    runs.same(whole, run, steps=[step, 4])


@pytest.mark.slow
def test_a_step_longer_than_the_grace_period_is_lost_and_the_run_resumes(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = runs.start(runs.command("ssp/atlas.toml", run, [*SMALL, "train.stop_grace=0.01"]))
    runs.wait_for(process, lambda: played(run, 2) and runs.saved(run)[-1:] == [2])
    process.send_signal(signal.SIGTERM)
    last = "stopped by SIGTERM, before the end of the step; the same command resumes from the last checkpoint."
    assert runs.end(process, 143).splitlines()[-1] == f"scope-jax: {last}"
    runs.finish(command(run))
    runs.same(whole, run)


@pytest.fixture
def listening() -> Iterator[None]:
    """With the program's signal handlers."""
    before = {number: signal.getsignal(number) for number in stopping.SIGNALS}
    for number in before:  # a shell's background job ignores SIGINT
        signal.signal(number, signal.SIG_DFL)
    stopping.listen()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize(
    "end",
    [
        *("an error in the next step", "a signal while it saves"),
        pytest.param("a signal in the next step", marks=pytest.mark.slow),
    ],
)
def test_however_a_run_ends_it_finishes_the_checkpoint_being_written(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One empty step is played and saved; then the run ends, after a signal with the checkpoint of the next step."""

    def play(step: Step[Any]) -> Played:
        if step.number == 1 and "error" in end:
            raise judge_client.JudgeError("the judge is gone.")
        if step.number == 1 and "saves" not in end:
            signal.raise_signal(signal.SIGTERM)
        return Played([], [])

    save = checkpoint_writer.Checkpoints.save

    def signalled(checkpoints: checkpoint_writer.Checkpoints, step: int, *args: Any) -> None:
        if "saves" in end and step == 1:
            signal.raise_signal(signal.SIGINT)
        save(checkpoints, step, *args)

    def slowly(folder: Path) -> None:
        time.sleep(1)
        seal(folder)

    monkeypatch.setitem(GAMES, "ssp", replace(GAMES["ssp"], play=play))
    monkeypatch.setattr(checkpoint_writer, "seal", slowly)
    monkeypatch.setattr(checkpoint_writer.Checkpoints, "save", signalled)
    error = "error" in end
    with (
        Progress(Console()) as progress,
        pytest.raises(judge_client.JudgeError if error else stopping.Stopped) as caught,
    ):
        train.train(load_card(runs.ROOT / "configs" / "ssp" / "atlas.toml", SMALL), tmp_path / "run", progress)
    assert runs.saved(tmp_path / "run") == ([1] if error else [1, 2])
    assert error or str(caught.value).endswith(" after step 2")
    for step in runs.saved(tmp_path / "run"):
        assert fault(tmp_path / "run" / "checkpoints" / f"{step}") is None
    assert checkpoint.remat_of(tmp_path / "run" / "checkpoints") == "none"  # short rows of a small model on a CPU
