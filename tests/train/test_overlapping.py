"""Steps that overlap: a run's schedule, forced on another machine, gives its bits, and so does every way to resume."""

from __future__ import annotations

import itertools
import json
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scope_jax.config import Config
from scope_jax.errors import UserError
from scope_jax.games import load_card
from scope_jax.learner.types import Datum, Episode
from scope_jax.multihost import signing
from scope_jax.run.files import SCHEDULE, RunError, read_records
from scope_jax.run.folder import RunFolder
from scope_jax.run.lines import DamagedFile
from scope_jax.run.overlapping import staleness_by_role
from scope_jax.run.records import episode_record
from scope_jax.run.schedule_file import NAMES, check_schedule, lines_of, open_schedule
from tests.flags import fake_devices
from tests.train import runs
from tests.train.several import free_port

STEPS = 6
FILE = f"{SCHEDULE}/0.jsonl"  # of the first process
# For eight devices; with larger updates their rounding may change a token.
EIGHT = ("rollout.slots=16", "learner.micro_batch_rows=8", "optimizer.learning_rate=1e-6", "optimizer.eps=1e-6")
SMALL = "2048"  # bytes from which processes exchange through their devices: a play does both
COMMON = (f"train.steps={STEPS}", "train.max_staleness=2", "train.keep=9", "train.save_every=2", "evaluate.sets=[]")
SSP = (  # with exams in the middle, for which the engine is used otherwise
    'evaluate.sets=[{name="held_out", path="assets/atlas/questions_held_out.jsonl", limit=8}]',
    "evaluate.every=3",
    *("train.batch_size=4", "rollout.slots=8", "ssp.solver.samples=2"),
    *("ssp.solver.loss.rollout_cap=2.0", "ssp.proposer.loss.rollout_cap=2.0"),
)
CARDS = {
    "ssp": SSP,
    # Rollouts go on beside the updates, on a device of their own; few slots, so that they outlast an update.
    "ssp, apart": (*SSP, "rollout.devices=1", "train.batch_size=8", "rollout.slots=4"),
    "spice": ("train.batch_size=6", "rollout.slots=4", "spice.reasoner.samples=2", "spice.loss.rollout_cap=2.0"),
    "spiral": ("spiral.turns=32", "rollout.slots=8", "spiral.loss.rollout_cap=2.0"),
    "spiral/adapters/atlas-two-policies": ("spiral.turns=32", "rollout.slots=8", "spiral.loss.rollout_cap=2.0"),
    # Fewer steps are under way than may be: a later one begins as soon as one is over, also beside an update.
    "ssp, two plays, apart": (*SSP, "rollout.devices=1", "train.plays=2", "train.batch_size=8", "rollout.slots=4"),
}


def command(game: str, run: Path, delays: int, *more: str, sets: Sequence[str] = ()) -> list[str]:
    """A run of a game's card on a machine with these delays."""
    card = game.partition(",")[0]
    file = f"{card}.toml" if "/" in card else f"{card}/atlas.toml"
    _, *arguments = runs.command(file, run, [*COMMON, *CARDS[game], *sets])
    place = arguments.index("train")
    return [sys.executable, "-m", "tests.train.delayed", str(delays), SMALL, *arguments[place:], *more]


def start(*arguments: Any, **options: Any) -> subprocess.Popen[str]:
    """The process of `command`."""
    return runs.start(command(*arguments, **options), **devices(arguments[0]))


def devices(game: str) -> dict[str, str]:
    return {"XLA_FLAGS": fake_devices(2)} if game.endswith("apart") else {}


def finish(*arguments: Any, **options: Any) -> None:
    runs.end(start(*arguments, **options))


def kill_when(moment: Callable[[], bool], *arguments: Any) -> None:
    process = start(*arguments)
    try:
        runs.wait_for(process, moment)
    finally:
        process.send_signal(signal.SIGKILL)
    runs.end(process, -signal.SIGKILL)


def done(run: Path, step: int) -> Callable[[], bool]:
    """Whether a step's metrics are on disk."""
    return lambda: any(line["step"] >= step for line in lines(run, "metrics.jsonl"))


def lines(run: Path, name: str) -> list[dict]:
    """The lines of a file that is being written."""
    path = run / name
    written = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in written if line.endswith("}")]


@pytest.fixture(
    scope="module", params=["ssp", *(pytest.param(game, marks=pytest.mark.slow) for game in CARDS if game != "ssp")]
)
def free(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """(game, a run of it that nobody forces)."""
    run = tmp_path_factory.mktemp("free") / "run"
    finish(request.param, run, 1)
    return request.param, run


def test_weights_change_while_rollouts_are_under_way(free: tuple[str, Path]) -> None:
    game, run = free
    episodes = list(read_records(run / "episodes.jsonl"))
    sampled = [episode for episode in episodes if episode["sampled"]]
    assert sampled and all(sum(n for row in one["versions"] for _, n in row) == one["sampled"] for one in sampled)
    if "two plays" not in game:  # with fewer under way, none may outlast an update
        assert any(len(row) > 1 for one in sampled for row in one["versions"])  # a row of two weights
    stale = {one["step"] - 1 - version for one in sampled for row in one["versions"] for version, _ in row}
    assert stale <= {0, 1, 2} and len(stale) > 1
    metrics = [line for line in read_records(run / "metrics.jsonl") if line["step"]]  # without the first exam
    assert [line["step"] for line in metrics] == [*range(1, STEPS + 1)]
    assert any("staleness_mean" in name for name in metrics[-1])
    assert any("/mismatch_kl@stale1" in name for line in metrics for name in line)
    schedule = lines_of(run)["0.jsonl"]
    assert [line["step"] for line in schedule if "swap" in line] == [*range(1, STEPS + 1)]
    assert all(line["step"] <= line["play"] for line in schedule if "play" in line)  # none by weights it has trained


def test_a_schedule_gives_the_bits_of_its_run_on_another_machine(free: tuple[str, Path], tmp_path: Path) -> None:
    game, run = free
    finish(game, tmp_path / "forced", 2, "--schedule", str(run))
    runs.same(run, tmp_path / "forced")
    assert pairs(run) == pairs(tmp_path / "forced")


def pairs(run: Path) -> list[str]:
    """The lines of the schedule, sorted, as rows that are computed together come in the order of their slots."""
    return sorted(json.dumps(line) for part in lines_of(run).values() for line in part)


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 1, 2, 3, 5])
def test_a_killed_run_resumes_and_its_whole_schedule_gives_its_bits(
    free: tuple[str, Path], tmp_path: Path, step: int
) -> None:
    """What was recorded before the kill stands; what comes after is free."""
    game, _ = free
    run = tmp_path / "killed"
    kill_when(done(run, step) if step else lambda: bool(lines(run, FILE)), game, run, 3 + step)
    before = pairs(run)
    finish(game, run, 13 + step)
    assert {*before} <= {*pairs(run)}
    finish(game, tmp_path / "forced", 23, "--schedule", str(run))
    runs.same(run, tmp_path / "forced")


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 1, 2, 3, 5])
def test_a_forced_run_that_is_killed_ends_with_the_bits(free: tuple[str, Path], tmp_path: Path, step: int) -> None:
    game, run = free
    again = tmp_path / "forced"
    forced = (game, again, 33 + step, "--schedule", str(run))
    kill_when(done(again, step) if step else lambda: bool(lines(again, FILE)), *forced)
    finish(*forced)
    runs.same(run, again)


@pytest.mark.slow
def test_a_run_that_ends_between_checkpoints_goes_on(free: tuple[str, Path], tmp_path: Path) -> None:
    """With fewer steps, then with more: plays of steps that were not to be taken have not begun."""
    game, _ = free
    shorter = tmp_path / "shorter"
    finish(game, shorter, 4, sets=["train.steps=3"])
    assert max(line.get("play", 0) for line in read_records(shorter / FILE)) == 3
    finish(game, shorter, 5)
    finish(game, tmp_path / "forced", 6, "--schedule", str(shorter))
    for name in ("metrics.jsonl", "episodes.jsonl"):
        assert runs.lines(shorter, name) == runs.lines(tmp_path / "forced", name)


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 2, 5])
def test_a_step_is_played_again_from_the_record(free: tuple[str, Path], step: int) -> None:
    game, run = free
    words = [sys.executable, "-m", "scope_jax", "replay", str(run), "--step", str(step)]
    assert "all the same" in runs.end(runs.start(words, **devices(game)))


def begin_two(
    run: Path, delays: int, *more: str, devices: int = 1, sets: Sequence[str] = ()
) -> list[subprocess.Popen[str]]:
    """The processes of a run of SSP on two machines with delays of their own, of so many devices each."""
    key, address = secrets.token_hex(), f"localhost:{free_port()}"
    place = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2", signing.KEY: key}
    flags = fake_devices(devices)
    return [
        runs.start(
            command("ssp", run, delays + 100 * n, *more, sets=sets), XLA_FLAGS=flags, JAX_PROCESS_ID=f"{n}", **place
        )
        for n in range(2)
    ]


def finish_two(run: Path, delays: int, *more: str, **options: Any) -> None:
    for process in begin_two(run, delays, *more, **options):
        runs.end(process)


def kill_one(processes: Sequence[subprocess.Popen[str]], killed: int, moment: Callable[[], bool]) -> None:
    """Kills a process at a moment of the first, upon which the other ends with a sentence."""
    try:
        runs.wait_for(processes[0], moment)
    finally:
        processes[killed].send_signal(signal.SIGKILL)
    runs.end(processes[killed], -signal.SIGKILL)
    assert f"process {killed} is gone" in runs.end(processes[1 - killed], 1)


@pytest.fixture(scope="module")
def free_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes that nobody forces."""
    run = tmp_path_factory.mktemp("free two") / "run"
    finish_two(run, 1)
    return run


@pytest.mark.slow
def test_two_processes_have_rows_of_their_own_and_a_schedule_gives_their_bits(free_two: Path, tmp_path: Path) -> None:
    files = lines_of(free_two)
    assert [*files] == ["0.jsonl", "1.jsonl"]
    rows = [{tuple(line[name] for name in NAMES) for line in part if "swap" not in line} for part in files.values()]
    assert rows[0] and rows[1] and not rows[0] & rows[1]
    stale = {
        line[name] for line in read_records(free_two / "metrics.jsonl") for name in line if "staleness_max" in name
    }
    assert max(stale) > 0
    finish_two(tmp_path / "forced", 2, "--schedule", str(free_two))
    runs.same(free_two, tmp_path / "forced")
    assert pairs(free_two) == pairs(tmp_path / "forced")


@pytest.mark.slow
@pytest.mark.parametrize(("step", "killed"), [(0, 1), (2, 0), (3, 1)])
def test_a_run_of_two_processes_one_of_which_is_killed_resumes(tmp_path: Path, step: int, killed: int) -> None:
    """What both have recorded stands; the whole schedule gives the bits again."""
    run = tmp_path / "killed"
    moment = done(run, step) if step else lambda: bool(lines(run, f"{SCHEDULE}/1.jsonl"))
    kill_one(begin_two(run, 3 + step), killed, moment)
    before = pairs(run)
    finish_two(run, 13 + step)
    assert {*before} <= {*pairs(run)}
    finish_two(tmp_path / "forced", 23, "--schedule", str(run))
    runs.same(run, tmp_path / "forced")


@pytest.mark.slow
def test_a_run_of_two_processes_goes_on_in_one(free_two: Path, tmp_path: Path) -> None:
    """From a checkpoint in the middle: what both have recorded after it is repeated by the one."""
    run = tmp_path / "run"
    shutil.copytree(free_two, run)
    for step in (4, 6):
        shutil.rmtree(runs.saved_at(run, step))
    finish("ssp", run, 4)
    assert {*pairs(free_two)} == {*pairs(run)}
    first = [line for line in runs.lines(run, "episodes.jsonl") if line["step"] <= 3]
    assert first == [line for line in runs.lines(free_two, "episodes.jsonl") if line["step"] <= 3]


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_mesh_of_eight_in_one_process_and_in_two_one_of_which_is_killed(tmp_path: Path, killed: int) -> None:
    """What one process has recorded is repeated by two on the same mesh: the same tokens by the same weights, which
    differ by rounding of updates alone, as sums over devices are formed in another order."""
    one, two = tmp_path / "one", tmp_path / "two"
    runs.end(runs.start(command("ssp", one, 1, sets=EIGHT), XLA_FLAGS=fake_devices(8)))
    again = {"devices": 4, "sets": EIGHT}
    kill_one(begin_two(two, 2, "--schedule", str(one), **again), killed, done(two, 3))
    finish_two(two, 12, "--schedule", str(one), **again)
    assert pairs(one) == [line for line, _ in itertools.groupby(pairs(two))]  # both record when weights change
    assert runs.lines(one, "episodes.jsonl") == runs.lines(two, "episodes.jsonl")
    left, right = runs.arrays(one, STEPS), runs.arrays(two, STEPS)
    assert left.keys() == right.keys()
    for name in (name for name in left if "/params/" in name):
        np.testing.assert_allclose(right[name], left[name], rtol=0, atol=1e-6, err_msg=name)


def card(game: str, *more: str) -> Config:
    return load_card(runs.ROOT / "configs" / f"{game}/atlas.toml", [*COMMON, *CARDS[game], *more])


@pytest.fixture
def scheduled(tmp_path: Path) -> Path:
    """The folder of a run with a schedule, of which nothing but the card matters."""
    run = tmp_path / "scheduled"
    RunFolder(run, card("ssp")).close()
    (run / FILE).parent.mkdir()
    (run / FILE).touch()
    return run


@pytest.mark.parametrize(
    ("sets", "sentence"),
    [
        (["train.batch_size=5"], "is of a card with different values of train.batch_size (4, now 5); use the same."),
        (["seed=9"], "is of a card with different values of seed (0, now 9); use the same."),
        (["train.max_staleness=1"], "different values of train.max_staleness (2, now 1); use the same."),
        (["train.max_staleness=0"], "--schedule repeats when weights changed under way"),
    ],
)
def test_a_schedule_of_another_run_is_refused(scheduled: Path, tmp_path: Path, sets: list[str], sentence: str) -> None:
    check_schedule(card("ssp"), tmp_path / "other", scheduled)
    with pytest.raises(UserError, match=re.escape(sentence)):
        check_schedule(card("ssp", *sets), tmp_path / "other", scheduled)


def test_a_run_without_a_schedule_and_the_run_itself_are_refused(scheduled: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is the run itself, which repeats its own schedule anyway; leave it out"):
        check_schedule(card("ssp"), scheduled, scheduled)
    (scheduled / FILE).unlink()
    with pytest.raises(UserError, match=f"has no {SCHEDULE}; give the folder of a run with train.max_staleness"):
        check_schedule(card("ssp"), tmp_path / "other", scheduled)


def test_a_torn_schedule_is_refused_with_its_line(scheduled: Path) -> None:
    """But for its last line, which a kill may have cut."""
    schedule = open_schedule(scheduled, 0)
    schedule.swapped(0)
    for tokens in (5, 9):
        schedule.computed((1, "solver", "0", 0, "agent", 0), tokens, 0)
    schedule.flush()
    whole = (scheduled / FILE).read_text(encoding="utf-8")
    (scheduled / FILE).write_text(whole[:-10], encoding="utf-8")
    assert len(lines_of(scheduled)["0.jsonl"]) == 2
    (scheduled / FILE).write_text(whole.replace('"tokens": 5', '"tokens": 6'), encoding="utf-8")
    with pytest.raises(DamagedFile, match=f"line 2 of .*{FILE} does not fit its check sum"):
        lines_of(scheduled)


@pytest.mark.parametrize("sets", ["train.max_staleness=1", "train.plays=2"])
def test_a_resume_with_another_staleness_is_refused(scheduled: Path, sets: str) -> None:
    (scheduled / "metrics.jsonl").write_text("{}\n", encoding="utf-8")  # it has begun
    with pytest.raises(RunError, match=f"was started with different values of {sets.split('=')[0]}"):
        RunFolder(scheduled, card("ssp", sets))


def test_staleness_is_counted_by_token() -> None:
    ids, sampled = np.arange(5, dtype=np.int32), np.array([False, True, True, False, True])
    datum = Datum(ids, sampled, np.zeros(5, np.float32), versions_T=np.array([0, 3, 4, 0, 5], np.int32))
    old = Datum(ids, sampled, np.zeros(5, np.float32), versions_T=np.array([0, 3, 3, 0, 3], np.int32))
    episodes = [
        Episode("solver", "actor", "0", (datum, old), 1.0, learned=5),
        Episode("proposer", "actor", "0", (), 0.0, learned=5),
    ]
    assert staleness_by_role(episodes) == {"solver/staleness_mean": 9 / 6, "solver/staleness_max": 2.0}
    record = episode_record(6, episodes[0])
    assert record["versions"] == [[[3, 1], [4, 1], [5, 1]], [[3, 3]]]
    assert "versions" not in episode_record(6, episodes[1])
