"""A full disk gives one error with the file's name, and the run resumes once there is space."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scope_jax.config import RetrievalSection
from scope_jax.errors import UserError, disk_fault, sentence, writing
from scope_jax.evaluation import evaluations
from scope_jax.learner.types import Episode, Judgement, Reply
from scope_jax.run import checkpoint, checkpoint_writer
from scope_jax.run.checkpoint import fault, steps
from scope_jax.run.checkpoint_writer import Checkpoints
from scope_jax.run.files import EVALUATIONS, JUDGEMENTS, LineWriter, read_records
from scope_jax.run.folder import RunFolder
from scope_jax.run.indexing import open_or_build_index
from tests.house.test_checkpoint import WANTED, card, same, state, targets
from tests.train import runs

FULL = Path("/dev/full")  # every write fails as on a full disk
SENTENCE = r"could not be written \(No space left on device\); free some space and run the same command again\.$"


@contextmanager
def no_file_larger_than(limit: int) -> Iterator[None]:
    """Simulates a disk with that much space per file (with another error number)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("name", ["metrics.jsonl", "episodes.jsonl", JUDGEMENTS])
def test_a_record_that_cannot_be_written_is_named(name: str, tmp_path: Path) -> None:
    log = RunFolder(tmp_path / "run", card())
    (tmp_path / "run" / name).symlink_to(FULL)
    judged = (Judgement("grader", "", (Reply("x"),), None),)

    def write() -> None:
        log.episodes(1, [Episode("solver", "actor", "g", (), 1.0, judgements=judged)])
        log.metrics(1, {"loss": 0.5})

    with pytest.raises(UserError, match=rf"{name} {SENTENCE}"):
        write()
    (tmp_path / "run" / name).unlink()
    log.rewind(0)
    write()
    assert list(read_records(tmp_path / "run" / "metrics.jsonl")) == [{"step": 1, "loss": 0.5}]


def test_answers_of_an_evaluation_are_read_after_one_that_could_not_be_written(tmp_path: Path) -> None:
    """Also after one that was killed while it wrote."""
    answers = [
        {"question": "".join(random.choices("abcdefgh", k=400)), "measures": {"accuracy": 1.0}, "text": {}}
        for _ in range(9)
    ]
    place = tmp_path / EVALUATIONS

    def keep(step: int) -> None:
        evaluations.keep(tmp_path, step, "held_out", answers, {"eval/held_out/accuracy": step / 10})

    keep(1)
    with no_file_larger_than(place.stat().st_size + 500), pytest.raises(UserError, match=EVALUATIONS):
        keep(2)
    keep(2)
    before = place.stat().st_size
    keep(3)
    os.truncate(place, before + 300)  # killed while it wrote
    keep(3)
    assert {line["step"] for line in read_records(place)} == {1, 2, 3}
    assert evaluations.last(tmp_path)["held_out"].metrics == {"accuracy": 0.3}
    whole = place.read_bytes()
    place.write_bytes(whole[:40] + bytes([whole[40] ^ 8]) + whole[41:])
    with pytest.raises(
        UserError,
        match=r"line 1 of .*, or one of the same step, is damaged and cannot be unpacked; put the file back, or move",
    ):
        keep(4)  # nothing of what could still be saved is removed
    assert place.stat().st_size == len(whole)
    LineWriter(place).cut(None)
    assert place.stat().st_size == 0


def test_a_checkpoint_that_cannot_be_written_gives_one_message(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    folder = tmp_path / "checkpoints"
    checkpoints = Checkpoints(folder, card(keep=2))
    memory = {"pool": [1], "history": {}}

    def write(step: int) -> None:
        checkpoints.save(step, {"actor": state(step), "other": state(10 + step)}, memory)
        checkpoints.wait()

    write(1)
    with no_file_larger_than(64 << 10), pytest.raises(UserError) as caught:
        write(2)
    assert str(caught.value) == (
        f"{folder / '2'} could not be written (File too large); free some space and run the same command again."
    )
    assert caught.value.__context__ is None
    checkpoints.wait()  # reported only once
    assert [path.name for path in folder.iterdir()] == ["1"]  # and the incomplete checkpoint is removed
    assert capfd.readouterr() == ("", "")
    again = Checkpoints(folder, card(keep=2))
    saved = again.resume(targets(WANTED), pytest.fail)
    assert saved is not None and saved.step == 1
    again.save(2, {"actor": state(2), "other": state(12)}, memory)
    again.wait()
    assert steps(folder) == [1, 2] and fault(folder / "2") is None
    saved = again.resume(targets(WANTED), pytest.fail)
    assert saved is not None and same(saved.states, {"actor": state(2), "other": state(12)})


def test_an_unfinished_checkpoint_is_removed_while_other_writes_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tensorstore's threads may delete a lock, or create one, between two calls of the removal."""
    folder = tmp_path / "2.orbax-checkpoint-tmp"
    (folder / "states").mkdir(parents=True)
    (folder / "states" / "manifest.__lock").touch()
    (folder / "data").touch()
    unlink, others = os.unlink, [lambda: unlink(folder / "states" / "manifest.__lock"), (folder / "late").touch]

    def unlink_after_another(path: str, *, dir_fd: int | None = None) -> None:
        if others:
            others.pop()()
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", unlink_after_another)
    checkpoint_writer._remove_unfinished(folder)
    assert not folder.exists() and not others
    monkeypatch.setattr(os, "unlink", lambda *_, **__: os.rmdir("/proc"))
    folder.mkdir()
    (folder / "data").touch()
    with pytest.raises(OSError, match="/proc"):  # any other fault is reported
        checkpoint_writer._remove_unfinished(folder)


def test_other_errors_of_orbax_are_passed_on_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(folder: Path) -> None:
        raise ValueError("a fault of our own")

    monkeypatch.setattr("scope_jax.run.checkpoint_writer.seal", broken)
    checkpoints = Checkpoints(tmp_path, card())
    checkpoints.save(1, {"actor": state(1)}, {})
    with pytest.raises(ValueError, match="a fault of our own"):
        checkpoints.wait()


def test_writes_that_fail_beside_the_first_one_are_not_reported_again(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio logs what a task raises after the event loop has been told to close."""

    async def write(error: Exception) -> None:
        try:
            await asyncio.sleep(600)
        finally:
            raise error

    async def save(error: Exception) -> None:
        task = asyncio.ensure_future(write(error))
        await asyncio.sleep(0)
        raise ValueError(f"the first one, not {task}")

    checkpoint.quiet_orbax()
    for error in (ValueError("Failed to write \"x\" [os_error_code='28']"), ValueError("a bug")):
        with pytest.raises(ValueError, match="the first one"):
            asyncio.run(save(error))
    assert "a bug" in caplog.text and "Failed to write" not in caplog.text


def test_which_errors_are_disk_errors() -> None:
    assert disk_fault(OSError(errno.ENOSPC, "x")) == errno.ENOSPC
    assert disk_fault(ValueError("RESOURCE_EXHAUSTED: Failed to write \"x\" [os_error_code='28']")) == errno.ENOSPC
    assert disk_fault(ValueError("shape (3,) is not (4,)")) is None
    with (
        pytest.raises(UserError, match=r"^f could not be written \(Input/output error\); fix the problem and run"),
        writing(Path("f")),
    ):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    with pytest.raises(FileNotFoundError, match="'other'"), writing(Path("f")):  # the message already has the name
        raise FileNotFoundError(errno.ENOENT, "there is none", "other")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    told = "could not be written (No space left on device); free some space and run the same command again."
    assert sentence(full) == f"a file {told}"
    assert sentence(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "a/b")) == f"a/b {told}"
    denied = PermissionError(errno.EACCES, "Permission denied", "a/b")
    assert sentence(denied) == "a/b cannot be used (Permission denied); correct the path or its permissions."


def test_an_index_that_cannot_be_written_gives_one_message(tmp_path: Path) -> None:
    corpus, run = tmp_path / "corpus.jsonl", tmp_path / "run"
    corpus.write_text("".join(f'{{"title": "t{n}", "text": "word{n} again"}}\n' for n in range(40)))
    table = RetrievalSection(corpus=str(corpus))
    told = rf"{run}/index could not be written \(File too large\); free some space"
    with no_file_larger_than(64 << 10), pytest.raises(UserError, match=told):
        open_or_build_index(table, run, None)
    assert len(open_or_build_index(table, run, None).corpus) == 40


SMALL = ("train.steps=4", "train.save_every=1", "train.batch_size=4", "evaluate.sets=[]", "rollout.slots=8")


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
def test_a_run_on_a_full_disk_gives_one_message_and_resumes_with_more_space(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    command = runs.command("ssp/atlas.toml", disk / "run", (*SMALL, "ssp.solver.samples=2"))
    try:
        *before, last = runs.end(runs.start(command), 2).splitlines()
        assert " could not be written (No space left on device); free some space" in last
        assert [line for line in before if not line.startswith(runs.SAID)] == []
        assert steps(disk / "run" / "checkpoints") == [1]
        subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
        runs.finish(command)
        assert [record["step"] for record in list(read_records(disk / "run" / "metrics.jsonl"))] == [1, 2, 3, 4]
    finally:
        subprocess.run(["umount", str(disk)], check=True)
