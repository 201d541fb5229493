"""Checkpoints: the state of every policy and the game's memory, in one folder that is either complete or absent.

    <run>/checkpoints/<step>/          states (orbax on tensorstore), memory, meta (JSON), seal.json
    <run>/checkpoints/<step>-<name>/   the same, but never deleted

Orbax writes asynchronously into a temporary folder and renames it when everything is on disk; the seal, written just
before that, contains size and CRC-32 of every file. A folder without a matching seal is never read: truncated or
changed files are detected before any array is loaded. The arrays are read in the background, too, a few at a time: of
the state there is never a second copy, and no array may be donated before it is written.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint._src.serialization.types import DefaultSerializationStatusCallback, TransferPriority
from orbax.checkpoint.type_handlers import ArrayHandler, create_type_handler_registry

from scope_jax.config import Config
from scope_jax.errors import UserError, disk_fault, unwritten
from scope_jax.models.seal import SEAL, fault, seal
from scope_jax.play.system import Memory
from scope_jax.run.metrics import fingerprint
from scope_jax.run.mirror import CHECKPOINT, Mirror
from scope_jax.run.processes import by_one, writes
from scope_jax.sharding.spec import path_name

LAYOUT = 3  # version of the saved data; 2: memory of game and moving baselines; 3: states count updates
BATCH_GB = 2  # host memory for arrays that are being written; a larger array is alone
TEMPORARY = ".orbax-checkpoint-tmp"  # orbax: <name> + this (+ more) until all files are there


class CheckpointError(UserError):
    """A checkpoint cannot be read; the message is one sentence with its folder and the remedy."""


@dataclass(frozen=True)
class Saved:
    """One checkpoint: `states` by policy name, the memory, and meta = {"step", "seed", "fingerprint", "layout"}."""

    step: int
    states: dict[str, Any]
    memory: Memory
    meta: dict[str, Any]


# ---------------------------------------------------------------------------------------------------------- reading
def run_of(target: Path) -> Path | None:
    """The run folder of `target`: itself, or the run that contains it as a checkpoint or export; None otherwise."""
    absolute = Path(os.path.abspath(target))  # a relative path need not name what it is in
    places = (target, *target.parents[:2], *absolute.parents[:2])
    return next((place for place in places if (place / "config.toml").is_file()), None)


def _name(path: Path) -> str:
    return os.path.basename(os.path.abspath(path))  # also of "."


def parts(path: Path) -> tuple[int, str] | None:
    """(step, name or "") of a checkpoint's folder; None for any other."""
    match = CHECKPOINT.fullmatch(_name(path))
    return (int(match[1]), match[2] or "") if match and path.is_dir() else None


def found(folder: Path) -> list[Path]:
    """The checkpoints under `folder` by step, ascending; not yet checked for validity."""
    known = {path: parts(path) for path in folder.iterdir()} if folder.is_dir() else {}
    return [path for _, path in sorted((step_and_name, path) for path, step_and_name in known.items() if step_and_name)]


def step_of(checkpoint: Path) -> int:
    """The number of completed steps at this checkpoint."""
    return int(_name(checkpoint).partition("-")[0])


def steps(folder: Path) -> list[int]:
    """The steps of the checkpoints under `folder`."""
    return [step_of(path) for path in found(folder)]


def locate(path: Path) -> Path:
    """The checkpoint folder at `path`: itself, or the newest valid one of a run or of its checkpoints folder.

    Raises CheckpointError if there is none.
    """
    if parts(path) and not (path / "checkpoints").is_dir():
        if wrong := fault(path):
            raise CheckpointError(f"the checkpoint {path} cannot be used: {wrong}; choose another one.")
        return path
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    for place in reversed(found(folder)):
        if fault(place) is None:
            return place
    raise CheckpointError(
        f"{path} has no checkpoint: give a run folder, its checkpoints folder or a single checkpoint in it "
        "(a run writes the first one after train.save_every steps)."
    )


def load(folder: Path, targets: Mapping[str, Any]) -> Saved:
    """The checkpoint in `folder`, with its arrays placed according to `targets`.

    targets: policy name → tree of jax.ShapeDtypeStruct with shardings. Parts of the state may be left out (to load only
    the weights of one policy, for example), and floats may be requested in another dtype. Raises CheckpointError for a
    damaged folder, and if a requested array is missing or has another shape. All processes of a run must call this.
    """
    if wrong := by_one(lambda: fault(folder)):
        raise CheckpointError(f"the checkpoint {folder} cannot be used: {wrong}; choose another one.")
    _quiet_orbax()
    wanted = dict(targets)
    _check_shapes(folder, wanted)
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        read = checkpointer.restore(
            folder.absolute(),
            args=ocp.args.Composite(
                states=ocp.args.PyTreeRestore(
                    wanted, restore_args=ocp.checkpoint_utils.construct_restore_args(wanted), partial_restore=True
                ),
                memory=ocp.args.JsonRestore(),
                meta=ocp.args.JsonRestore(),
            ),
        )
    return Saved(read["meta"]["step"], read["states"], read["memory"], read["meta"])


def _check_shapes(folder: Path, targets: Mapping[str, Any]) -> None:
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        saved = _shapes(checkpointer.metadata(folder.absolute() / "states").item_metadata.tree)
    for name, shape in _shapes(targets).items():
        if saved.get(name) != shape:
            found = f"{name} of shape {saved[name]}" if name in saved else f"no {name}"
            raise CheckpointError(
                f"the checkpoint {folder} has {found} where {shape} is expected: it belongs to another game or model; "
                "use the card of its run."
            )


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {path_name(path): tuple(leaf.shape) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def check_base(saved: Saved, base: str | None, folder: str) -> None:
    """Raises CheckpointError if the checkpoint's adapters were trained over other weights than those in `folder`, whose
    checksum is `base`."""
    if saved.meta.get("base") != base:
        raise CheckpointError(
            f"the adapters of step {saved.step} were trained over other weights than those that are now in {folder}; "
            "restore the base, or start a new run."
        )


# ---------------------------------------------------------------------------------------------------------- writing
class _Later(DefaultSerializationStatusCallback):
    """Has arrays copied to the host only when they are written. (Orbax's default is all of them before a save returns,
    and of its handler's `is_prioritized_key_fn`, for the same purpose, this version makes no use.)"""

    def key_priority(self, _: Any) -> TransferPriority:
        return TransferPriority.ASYNCHRONOUS_PRIORITIZED


class Checkpoints:
    """The checkpoints of one run: `save` returns while files are being written, `resume` loads the newest valid one.

    mirror: of a run on object storage; gets every checkpoint as soon as it is complete. base: checksum of the base of
    adapters, whose states are nothing without it; None for whole weights.
    """

    def __init__(self, folder: Path, cfg: Config, mirror: Mirror | None = None, base: str | None = None) -> None:
        self.folder = folder.absolute()
        self._mirror = mirror
        self.keep = cfg.train.keep
        self.meta = {"seed": cfg.seed, "fingerprint": fingerprint(cfg), "layout": LAYOUT, "base": base}
        self._base = cfg.model.checkpoint
        self._saving: Path | None = None
        _quiet_orbax()
        states = ocp.PyTreeCheckpointHandler(
            save_device_host_concurrent_gb=BATCH_GB,
            enable_pinned_host_transfer=True,  # otherwise JAX keeps the copies as long as the arrays
            type_handler_registry=create_type_handler_registry((jax.Array, ArrayHandler(callback=_Later()))),
        )
        self._checkpointer = ocp.AsyncCheckpointer(
            ocp.CompositeCheckpointHandler(
                states=states, memory=ocp.JsonCheckpointHandler(), meta=ocp.JsonCheckpointHandler()
            ),
            async_options=ocp.options.AsyncOptions(post_finalization_callback=self._before_commit),
        )

    def save(self, step: int, states: Mapping[str, Any], memory: Memory, name: str = "") -> None:
        """Starts writing the checkpoint of `step`; no array of it may be donated or deleted before `wait` returns.

        A checkpoint with a name is never deleted. Raises ValueError if the memory does not survive a round trip through
        JSON. An error of the previous save is raised here.
        """
        if json.loads(json.dumps(memory)) != memory:
            raise ValueError(
                "the game's memory is not plain JSON data (tuples and numeric keys do not survive a resume)."
            )
        self.wait()
        place = self._saving = self.folder / (f"{step}-{name}" if name else f"{step}")
        parts = ocp.args.Composite(
            states=ocp.args.PyTreeSave(dict(states)),
            memory=ocp.args.JsonSave(memory),
            meta=ocp.args.JsonSave({"step": step, **self.meta}),
        )
        # force: a damaged folder of the same step is replaced
        self._writing(lambda: self._checkpointer.save(place, args=parts, force=True))

    def wait(self) -> None:
        """Returns when the last save is on disk and old checkpoints are deleted; raises any error of that save."""
        self._writing(self._checkpointer.wait_until_finished)
        if self._saving is not None:
            self._prune()
            self._saving = None

    def _writing(self, work: Callable[[], object]) -> None:
        """Runs `work`; a disk error is reported in one sentence, and unfinished files are removed."""
        number = None
        try:
            work()
        except (OSError, ValueError) as error:
            number = disk_fault(error)
            if number is None:
                raise
        if number is not None:  # no longer in `except`: orbax's exception keeps the other half-done writes alive
            place, self._saving = self._saving, None
            assert place is not None  # orbax only writes during a save
            for unfinished in self.folder.glob(f"{place.name}{TEMPORARY}*") if writes() else ():
                shutil.rmtree(unfinished)
            raise unwritten(place, number)

    def resume(self, targets: Mapping[str, Any], warn: Callable[[str], None]) -> Saved | None:
        """The newest valid checkpoint, placed by `targets` (see `load`); None if the run has none yet.

        Newer damaged ones are skipped, with one sentence each to `warn`. Raises CheckpointError if all checkpoints are
        damaged, or if the one found was written with another config or layout. All processes of a run must call this.
        """
        folder = by_one(lambda: self._newest(warn))
        if folder is None:
            return None
        saved = load(folder, targets)
        if saved.meta.get("layout") != LAYOUT:
            raise CheckpointError(
                f"the checkpoint {folder} was written by an incompatible version of scope-jax; use another run folder."
            )
        if saved.meta["fingerprint"] != self.meta["fingerprint"]:
            raise CheckpointError(f"the checkpoint {folder} was written with another config; use another run folder.")
        check_base(saved, self.meta["base"], self._base)
        return saved

    def _newest(self, warn: Callable[[str], None]) -> Path | None:
        """The newest valid checkpoint, see `resume`."""
        candidates = found(self.folder)
        for folder in reversed(candidates):
            if wrong := fault(folder):
                warn(f"skipping the checkpoint {folder}: {wrong}.")
                continue
            return folder
        if candidates:
            raise CheckpointError(
                f"every checkpoint in {self.folder} is damaged; remove that folder to start from step 0."
            )
        return None

    def _before_commit(self) -> None:
        """Orbax calls this on its own thread when all files are written and the folder still has its temporary name."""
        if writes() and self._saving is not None:
            name = self._saving.name
            for folder in self.folder.glob(f"{name}{TEMPORARY}*"):
                seal(folder)
                if self._mirror is not None:
                    self._mirror.push_checkpoint(folder, name, functools.partial(staying, saved=name, keep=self.keep))

    def _prune(self) -> None:
        """Deletes all but the `keep` newest sealed checkpoints up to the one just saved, and those with names.

        Checkpoints of later steps are deleted, too: they were written before the run was rewound.
        """
        if not writes() or self._saving is None:
            return
        places = found(self.folder)
        if (place := self._saving) not in places:
            self._saving = None
            raise CheckpointError(
                f"the checkpoint {place} was removed while the run goes on; run the same command again, which goes on "
                "from the one before."
            )
        sealed = [path.name for path in places if path == self._saving or (path / SEAL).is_file()]
        stay = staying(sealed, self._saving.name, self.keep)
        unfinished = [path for path in self.folder.iterdir() if path.is_dir() and TEMPORARY in path.name]
        for path in (*places, *unfinished):
            if path.name not in stay:
                shutil.rmtree(path)


def staying(names: list[str], saved: str, keep: int) -> set[str]:
    """Of sealed checkpoints by step, those that stay after `saved`: the `keep` newest ones, and those with a name."""
    past = names[: names.index(saved) + 1]
    return {*past[-keep:], *(name for name in past if "-" in name)}


# -------------------------------------------------------------------------------------------------------------- quiet
@functools.cache
def _quiet_orbax() -> None:
    """Suppresses what orbax and tensorstore print about an error that `Checkpoints.wait` raises, and absl's warnings.

    Each of orbax's threads logs the error with its traceback before raising it. When the first of several writes fails,
    orbax closes its event loop, and tensorstore then reports the closed loop for each of the others.
    """
    log = logging.getLogger("absl")
    log.setLevel(logging.ERROR)
    log.addFilter(lambda record: not record.exc_info)
    report = sys.unraisablehook

    def unraisable(found: sys.UnraisableHookArgs) -> None:
        if str(found.exc_value) != "Event loop is closed":
            report(found)

    sys.unraisablehook = unraisable
