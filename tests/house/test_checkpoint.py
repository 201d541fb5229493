"""Checkpoints are restored bit for bit, or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from orbax.checkpoint._src.serialization import jax_array_handlers, replica_slices

from scope_jax.config import Config
from scope_jax.errors import UserError
from scope_jax.games import parse_config
from scope_jax.models.files import seal as model_seal
from scope_jax.models.files.seal import SEAL
from scope_jax.run import checkpoint_writer
from scope_jax.run.checkpoint import CheckpointError, fault, load, locate, steps
from scope_jax.run.checkpoint_writer import Checkpoints


class State(struct.PyTreeNode):
    step: jax.Array
    params: dict
    moments: tuple
    ref_params: dict | None


def card(**train: int) -> Config:
    table = {
        "system": "ssp",
        "model": {"checkpoint": "base"},
        "retrieval": {"corpus": "corpus.jsonl"},
        "data": {"answers": "answers.jsonl"},
        "train": {"steps": 3} | train,
        "ssp": {"grader": "exact-match"},
    }
    return parse_config(table, "test card")


def state(seed: int) -> State:
    rng = np.random.default_rng(seed)
    params = {"w": jnp.asarray(rng.normal(size=(300, 200)), jnp.float32), "b": jnp.asarray([1.5, -2.25], jnp.bfloat16)}
    return State(jnp.int32(seed), params, (jax.tree.map(jnp.square, params),), None)


def targets(tree):
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), tree)


def same(a, b) -> bool:
    left, right = jax.tree.leaves(a), jax.tree.leaves(b)
    equal = [
        x.dtype == y.dtype and np.asarray(x).tobytes() == np.asarray(y).tobytes()
        for x, y in zip(left, right, strict=True)
    ]
    return jax.tree.structure(a) == jax.tree.structure(b) and all(equal)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """A checkpoints folder with steps 2 and 3 of two policies (keep = 2, so step 1 is gone)."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    checkpoints = Checkpoints(folder, card(keep=2))
    for step in (1, 2, 3):
        checkpoints.save(
            step, {"actor": state(step), "other": state(10 + step)}, {"pool": [step, "é", None], "history": {}}
        )
    checkpoints.wait()
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written, tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


WANTED = {"actor": state(0), "other": state(0)}


def test_the_newest_is_restored_bit_for_bit(folder: Path) -> None:
    warnings: list[str] = []
    saved = Checkpoints(folder, card()).resume(targets(WANTED), warnings.append)
    assert saved is not None
    assert saved.step == 3
    assert same(saved.states, {"actor": state(3), "other": state(13)})
    assert saved.memory == {"pool": [3, "é", None], "history": {}}
    assert saved.meta["seed"] == 0
    assert warnings == []


def test_arrays_are_read_in_the_background_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None before `save` has returned, and never more bytes than the limit: no second copy of the state."""
    returned, batches = threading.Event(), []
    transfer = replica_slices.transfer_arrays_to_host

    def watched(arrays, *args, **kwargs):
        assert returned.wait(60), "save waits for its arrays"
        batches.append(sum(x.nbytes for x in arrays))
        return transfer(arrays, *args, **kwargs)

    monkeypatch.setattr(replica_slices, "transfer_arrays_to_host", watched)
    monkeypatch.setattr(checkpoint_writer, "BATCH_GB", 0.0006)
    checkpoints = Checkpoints(tmp_path / "checkpoints", card())
    states = {"actor": state(1), "other": state(2)}
    checkpoints.save(1, states, {})
    returned.set()
    checkpoints.wait()
    assert max(batches) <= 600_000 and sum(batches) == sum(x.nbytes for x in jax.tree.leaves(states)) > 900_000
    saved = checkpoints.resume(targets(WANTED), pytest.fail)
    assert saved is not None and same(saved.states, states)


def test_old_ones_are_removed(folder: Path) -> None:
    assert steps(folder) == [2, 3]
    assert all(fault(folder / str(step)) is None for step in (2, 3))


def test_one_that_is_removed_while_the_run_goes_on_is_said(folder: Path) -> None:
    checkpoints = Checkpoints(folder, card())
    checkpoints.save(9, {"actor": state(9), "other": state(19)}, {})
    checkpoints._checkpointer.wait_until_finished()
    shutil.rmtree(folder / "9")
    with pytest.raises(CheckpointError, match=rf"the checkpoint {folder}/9 was removed while the run goes on"):
        checkpoints.wait()
    checkpoints.wait()  # said once


def test_a_named_checkpoint_is_kept(folder: Path) -> None:
    checkpoints = Checkpoints(folder, card(keep=2))
    for step in range(4, 8):
        checkpoints.save(step, {"actor": state(step), "other": state(1)}, {}, "iteration-1" if step == 4 else "")
    checkpoints.wait()
    assert steps(folder) == [4, 6, 7] and sorted(path.name for path in folder.iterdir()) == ["4-iteration-1", "6", "7"]
    for damaged in ("6", "7"):
        _truncate(folder / damaged)
    saved = Checkpoints(folder, card()).resume(targets(WANTED), lambda text: None)
    assert saved is not None and saved.step == 4 and same(saved.states["actor"], state(4))
    assert locate(folder) == locate(folder / "4-iteration-1") == folder / "4-iteration-1"
    (folder / "8-iteration-2.orbax-checkpoint-tmp-1").mkdir()
    checkpoints.save(5, {"actor": state(5), "other": state(1)}, {})
    checkpoints.wait()
    assert sorted(path.name for path in folder.iterdir()) == ["4-iteration-1", "5"]


def test_a_run_without_checkpoints_starts_from_scratch(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "none", card()).resume(targets(WANTED), pytest.fail) is None


def test_part_of_the_state_can_be_read(folder: Path) -> None:
    saved = load(folder / "3", targets({"other": {"params": state(0).params}}))
    assert same(saved.states, {"other": {"params": state(13).params}})


def _biggest(step: Path) -> Path:
    return max((path for path in step.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def _truncate(step: Path) -> None:
    os.truncate(_biggest(step), 1000)


def _flip(step: Path) -> None:
    content = bytearray(_biggest(step).read_bytes())
    content[len(content) // 2] ^= 8
    _biggest(step).write_bytes(content)


def _remove(step: Path) -> None:
    _biggest(step).unlink()


def _unseal(step: Path) -> None:
    (step / SEAL).unlink()


def _cut_seal(step: Path) -> None:
    os.truncate(step / SEAL, 10)


DAMAGE = [
    (_truncate, "bytes instead of"),
    (_flip, "has changed"),
    (_remove, "missing"),
    (_unseal, "never finished"),
    (_cut_seal, "damaged"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGE)
def test_a_damaged_checkpoint_is_skipped_with_one_message(folder: Path, damage, words: str) -> None:
    damage(folder / "3")
    warnings: list[str] = []
    saved = Checkpoints(folder, card()).resume(targets(WANTED), warnings.append)
    assert saved is not None
    assert saved.step == 2
    assert same(saved.states["actor"], state(2))
    assert saved.memory["pool"] == [2, "é", None]
    assert len(warnings) == 1
    assert str(folder / "3") in warnings[0]
    assert words in warnings[0]


def test_a_damaged_checkpoint_requested_by_name_is_an_error(folder: Path) -> None:
    _truncate(folder / "3")
    with pytest.raises(CheckpointError, match=r"checkpoints/3 cannot be used: .* bytes instead of"):
        locate(folder / "3")
    with pytest.raises(CheckpointError, match="choose another one"):
        load(folder / "3", targets(WANTED))
    assert locate(folder) == folder / "2"
    assert locate(folder.parent) == folder / "2"


def test_only_damaged_ones_is_an_error_not_a_silent_restart(folder: Path) -> None:
    _truncate(folder / "3")
    _flip(folder / "2")
    with pytest.raises(CheckpointError, match="every checkpoint in"):
        Checkpoints(folder, card()).resume(targets(WANTED), lambda _: None)


def test_a_missing_checkpoint_requested_by_name_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        locate(tmp_path / "nothing")


def test_a_damaged_step_is_overwritten_and_later_steps_are_removed(folder: Path) -> None:
    _truncate(folder / "3")
    (folder / ("7" + ".orbax-checkpoint-tmp-1")).mkdir()
    checkpoints = Checkpoints(folder, card(keep=2))
    checkpoints.save(3, {"actor": state(30), "other": state(31)}, {})
    checkpoints.wait()
    assert sorted(path.name for path in folder.iterdir()) == ["2", "3"]
    saved = checkpoints.resume(targets(WANTED), pytest.fail)
    assert saved is not None
    assert same(saved.states, {"actor": state(30), "other": state(31)})


def test_another_layout_is_refused(folder: Path) -> None:
    """The format of checkpoints from before layouts had versions."""
    before = Checkpoints(folder, card())
    del before.meta["layout"]
    before.save(4, {"actor": state(40), "other": state(41)}, {})
    before.wait()
    with pytest.raises(
        CheckpointError, match=r"4 was written by an incompatible version of scope-jax.*another run folder"
    ):
        Checkpoints(folder, card()).resume(targets(WANTED), pytest.fail)


def test_another_config_is_refused(folder: Path) -> None:
    other = card().model_copy(update={"seed": 5})
    with pytest.raises(CheckpointError, match="another config"):
        Checkpoints(folder, other).resume(targets(WANTED), pytest.fail)


def test_another_shape_is_an_error_not_a_skip(folder: Path) -> None:
    wrong = {
        "actor": state(0).replace(params={"w": jnp.zeros((4, 4)), "b": jnp.zeros(2, jnp.bfloat16)}),
        "other": state(0),
    }
    with pytest.raises(CheckpointError, match=r"actor.params.w of shape \(300, 200\) where \(4, 4\) is expected"):
        Checkpoints(folder, card()).resume(targets(wrong), pytest.fail)


def test_memory_that_json_cannot_represent_is_refused(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, card())
    for memory in ({"pool": (1, 2)}, {"by_step": {3: "x"}}):
        with pytest.raises(ValueError, match="plain JSON"):
            checkpoints.save(1, {"actor": state(1)}, memory)
    assert steps(tmp_path) == []


def test_arrays_may_be_donated_once_they_are_written(tmp_path: Path) -> None:
    update = jax.jit(lambda tree: jax.tree.map(lambda x: x * 1.5 + 1, tree), donate_argnums=0)
    tree = {"w": jnp.ones((1000, 1000)), "b": jnp.zeros(3)}
    checkpoints = Checkpoints(tmp_path, card(keep=3))
    expected = {}
    for step in (1, 2, 3):
        expected[step] = jax.tree.map(lambda x: np.array(x, copy=True), tree)
        checkpoints.save(step, {"actor": tree}, {})
        checkpoints.wait()
        for _ in range(3):
            tree = update(tree)
        jax.block_until_ready(tree)
    for step, values in expected.items():
        assert same(load(tmp_path / str(step), targets({"actor": tree})).states, {"actor": values})


WRITER = """
import sys
from pathlib import Path
import jax.numpy as jnp
from scope_jax.run.checkpoint_writer import Checkpoints
from scope_jax.games import parse_config
import json
folder, table = Path(sys.argv[1]), json.loads(sys.argv[2])
checkpoints = Checkpoints(folder, parse_config(table, "card"))
for step in range(1, 1000):
    checkpoints.save(step, {"actor": {"w": jnp.full((700, 700), float(step))}}, {"step": step})
    print(step, flush=True)
"""


@pytest.mark.parametrize("delay", [0.02, *(pytest.param(delay, marks=pytest.mark.slow) for delay in (0.0, 0.05))])
def test_sigkill_leaves_a_complete_checkpoint(tmp_path: Path, delay: float) -> None:
    """Killed while writing: the newest checkpoint is always complete, and its states and memory agree."""
    table = json.dumps(card(keep=1).model_dump(mode="json"))
    wanted = targets({"actor": {"w": jnp.zeros((700, 700))}})
    folder = tmp_path / "checkpoints"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder), table], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for _ in range(3):
        line = writer.stdout.readline()
        assert line, "the writer stopped by itself"
    time.sleep(delay)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    saved = Checkpoints(folder, card(keep=1)).resume(wanted, lambda _: None)
    assert saved is not None
    assert saved.step >= 2
    assert saved.memory == {"step": saved.step}
    assert float(saved.states["actor"]["w"][5, 5]) == saved.step


# --------------------------------------------------------------------------------------------- copies and the reference
def test_arrays_may_be_donated_once_they_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any of them is on disk; the checkpoint has what they were."""
    go_on, serialize = threading.Event(), jax_array_handlers._async_serialize_replica_slices

    async def held(*args, **kwargs):
        assert go_on.wait(60)
        return await serialize(*args, **kwargs)

    monkeypatch.setattr(jax_array_handlers, "_async_serialize_replica_slices", held)
    update = jax.jit(lambda tree: jax.tree.map(lambda x: x * 0 - 1, tree), donate_argnums=0)
    states = {"actor": state(1), "other": state(2)}
    expected = jax.tree.map(lambda x: np.array(x, copy=True), states)
    checkpoints = Checkpoints(tmp_path / "checkpoints", card())
    checkpoints.save(1, states, {})
    checkpoints.copied()
    assert steps(tmp_path / "checkpoints") == []
    jax.block_until_ready(update(states))
    go_on.set()
    checkpoints.wait()
    saved = checkpoints.resume(targets(WANTED), pytest.fail)
    assert saved is not None and same(saved.states, expected)


def test_a_save_that_fails_keeps_no_update_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(replica_slices, "transfer_arrays_to_host", full)
    checkpoints = Checkpoints(tmp_path / "checkpoints", card())
    checkpoints.save(1, {"actor": state(1)}, {})

    def updates() -> None:
        for _ in range(600):
            checkpoints.copied()
            time.sleep(0.01)

    with pytest.raises(UserError, match="could not be written"):
        updates()
    assert list((tmp_path / "checkpoints").iterdir()) == []


def with_reference(seed: int, reference: dict) -> dict[str, State]:
    return {"actor": state(seed).replace(ref_params=reference), "other": state(10 + seed)}


WITH_REFERENCE = with_reference(0, state(0).params)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def stamps(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_the_reference_is_written_once_and_read_with_every_checkpoint(tmp_path: Path) -> None:
    folder, frozen = tmp_path / "checkpoints", state(99).params
    checkpoints = Checkpoints(folder, card(keep=2))
    for step in (3, 4, 5):
        checkpoints.save(step, with_reference(step, frozen), {})
    checkpoints.wait()
    assert names(folder) == ["4", "5", "reference-3"]
    once = stamps(folder / "reference-3")
    for _ in range(2):  # two more lives
        checkpoints = Checkpoints(folder, card(keep=2))
        saved = checkpoints.resume(targets(WITH_REFERENCE), pytest.fail)
        assert saved is not None and same(saved.states, with_reference(saved.step, frozen))
        checkpoints.save(saved.step + 1, with_reference(saved.step + 1, saved.states["actor"].ref_params), {})
        checkpoints.wait()
    assert names(folder) == ["6", "7", "reference-3"] and stamps(folder / "reference-3") == once
    saved = load(folder / "7", targets({"actor": {"params": state(0).params}}))  # for an export
    assert same(saved.states["actor"]["params"], state(7).params)


def test_another_reference_is_another_folder_which_goes_with_its_checkpoints(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    checkpoints = Checkpoints(folder, card(keep=2))
    first, second = state(50).params, state(51).params
    for step in (1, 2, 3):
        checkpoints.save(step, with_reference(step, first if step < 3 else second), {})
    checkpoints.wait()
    assert names(folder) == ["2", "3", "reference-1", "reference-3"]
    for step, frozen in ((2, first), (3, second)):
        assert same(load(folder / str(step), targets(WITH_REFERENCE)).states, with_reference(step, frozen))
    checkpoints.save(4, with_reference(4, second), {})
    checkpoints.wait()
    assert names(folder) == ["3", "4", "reference-3"]
    checkpoints.save(5, {"actor": state(5), "other": state(6)}, {})
    checkpoints.wait()
    assert names(folder) == ["4", "5", "reference-3"]


@pytest.mark.parametrize(("damage", "words"), DAMAGE)
def test_a_damaged_reference_is_named(tmp_path: Path, damage, words: str) -> None:
    folder = tmp_path / "checkpoints"
    checkpoints = Checkpoints(folder, card())
    checkpoints.save(1, with_reference(1, state(9).params), {})
    checkpoints.wait()
    damage(folder / "reference-1")
    with pytest.raises(
        CheckpointError, match=rf"the reference .*reference-1, which .*: .*{words}.*restore it, or start"
    ):
        Checkpoints(folder, card()).resume(targets(WITH_REFERENCE), pytest.fail)
    assert load(folder / "1", targets(WANTED)).step == 1  # who needs no reference does not ask for it


def test_checkpoints_that_hold_the_reference_themselves_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of scope-jax 0.1.0, layout 3."""
    folder, frozen = tmp_path / "checkpoints", state(99).params
    before = Checkpoints(folder, card())
    before.meta["layout"] = 3
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_writer, "without_references", lambda states: (dict(states), {}))
        before.save(1, with_reference(1, frozen), {})
        before.wait()
    assert names(folder) == ["1"]
    checkpoints = Checkpoints(folder, card())
    saved = checkpoints.resume(targets(WITH_REFERENCE), pytest.fail)
    assert saved is not None and same(saved.states, with_reference(1, frozen))
    checkpoints.save(2, with_reference(2, saved.states["actor"].ref_params), {})
    checkpoints.wait()
    assert names(folder) == ["1", "2", "reference-2"]
    assert same(load(folder / "2", targets(WITH_REFERENCE)).states, with_reference(2, frozen))


def test_a_resumed_run_reads_each_file_for_its_checksum_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "checkpoints"
    checkpoints = Checkpoints(folder, card())
    checkpoints.save(1, with_reference(1, state(9).params), {})
    checkpoints.wait()
    read: list[Path] = []
    crc = model_seal._crc
    monkeypatch.setattr(model_seal, "_crc", lambda path: read.append(path) or crc(path))
    assert Checkpoints(folder, card()).resume(targets(WITH_REFERENCE), pytest.fail) is not None
    assert len(read) == len(set(read)) > 10
    read.clear()
    assert load(locate(folder), targets(WANTED)).step == 1  # the same process has just read it
    assert not read
    _flip(folder / "1")
    with pytest.raises(CheckpointError, match="has changed"):
        load(folder / "1", targets(WANTED))
