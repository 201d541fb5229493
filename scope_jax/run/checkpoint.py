"""Checkpoints: the state of every policy and the game's memory, in one folder that is either complete or absent.

    <run>/checkpoints/<step>/            states (orbax on tensorstore), memory, meta (JSON), seal.json
    <run>/checkpoints/<step>-<name>/     the same, but never deleted
    <run>/checkpoints/reference-<step>/  the frozen reference, which checkpoints share (`run.reference`)

Orbax writes asynchronously into a temporary folder and renames it when everything is on disk; the seal, written just
before that, contains size and CRC-32 of every file. A folder without a matching seal is never read: truncated or
changed files are detected before any array is loaded. The arrays are copied to the host in the background, too
(`run.copying`): none may be donated before it is copied, and all else happens while the run goes on.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from scope_jax.config import Config
from scope_jax.errors import UserError, disk_fault, unwritten
from scope_jax.models.seal import SEAL, seal, unfit
from scope_jax.models.seal import fault as fault  # asked of checkpoints, too
from scope_jax.play.game import Memory
from scope_jax.run import reference
from scope_jax.run.copying import GB, LEAST, Copying, room, writer
from scope_jax.run.metrics import fingerprint
from scope_jax.run.mirror import CHECKPOINT, Mirror
from scope_jax.run.processes import by_one, together, writes
from scope_jax.sharding.spec import path_name

LAYOUT = 4  # version of the saved data; 3: states count updates; 4: the reference is beside the checkpoints
READABLE = (3, LAYOUT)
BATCH_GB: float | None = None  # arrays copied to the host at a time; None: as many as it has room for
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
        if wrong := unfit(path):
            raise CheckpointError(f"the checkpoint {path} cannot be used: {wrong}; choose another one.")
        return path
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    for place in reversed(found(folder)):
        if unfit(place) is None:
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
    _check(folder, f"the checkpoint {folder} cannot be used", "choose another one")
    _quiet_orbax()
    beside = by_one(lambda: reference.named_by(folder))
    states, references = (dict(targets), {}) if beside is None else reference.apart(targets)
    _check_shapes(folder, states)
    items = {"memory": ocp.args.JsonRestore(), "meta": ocp.args.JsonRestore()}
    read = _restored(folder, states, items)
    found = read["states"]
    if references and beside is not None:
        place = folder.parent / beside
        what = f"the reference {place}, which the checkpoint {folder} needs, cannot be used"
        _check(place, what, "restore it, or start a new run")
        _check_shapes(place, references)
        found = reference.together(found, _restored(place, references, {})["states"])
    return Saved(read["meta"]["step"], found, read["memory"], read["meta"])


def _check(folder: Path, what: str, remedy: str) -> None:
    if wrong := by_one(lambda: unfit(folder)):
        raise CheckpointError(f"{what}: {wrong}; {remedy}.")


def _restored(folder: Path, wanted: dict[str, Any], items: Mapping[str, Any]) -> Any:
    """The arrays of a folder, placed by `wanted`, and other items of it."""
    arrays = ocp.args.PyTreeRestore(
        wanted, restore_args=ocp.checkpoint_utils.construct_restore_args(wanted), partial_restore=True
    )
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        return checkpointer.restore(folder.absolute(), args=ocp.args.Composite(states=arrays, **items))


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
        self._moves = cfg.train.offload  # an update gets copies, on the accelerator
        self._saving: Path | None = None
        self._copying = Copying()
        self._reference: str | None = None  # the folder of the reference, and its arrays
        self._frozen: list[Any] = []
        self._end: Future[None] | None = None  # of writing the checkpoint
        self._reference_end: Future[None] | None = None  # of writing the reference it begins with
        self._threads = ThreadPoolExecutor(2, "checkpoint")
        _quiet_orbax()

    @functools.cached_property
    def _checkpointer(self) -> ocp.AsyncCheckpointer:
        """Made at the first save, when the memory is in use that a run needs."""
        own = socket.gethostname()
        most = room(together(lambda: own).count(own)) if BATCH_GB is None else int(BATCH_GB * GB)
        return writer(most, self._copying, self._before_commit)

    @functools.cached_property
    def _reference_writer(self) -> ocp.AsyncCheckpointer:
        return writer(LEAST, Copying(), self._before_reference)

    def save(self, step: int, states: Mapping[str, Any], memory: Memory, name: str = "") -> None:
        """Starts writing the checkpoint of `step`; no array of it may be donated or deleted before `copied` returns.

        The references of the states must never be; they are written when they are not those of the save before. A
        checkpoint with a name is never deleted. Raises ValueError if the memory does not survive a round trip through
        JSON. An error of the previous save is raised here.
        """
        if json.loads(json.dumps(memory)) != memory:
            raise ValueError(
                "the game's memory is not plain JSON data (tuples and numeric keys do not survive a resume)."
            )
        self.wait()
        states, references = reference.apart(states)
        frozen = jax.tree.leaves(references)
        new = len(frozen) != len(self._frozen) or any(a is not b for a, b in zip(frozen, self._frozen, strict=True))
        if new:
            self._reference, self._frozen = f"{reference.PREFIX}{step}" if frozen else None, frozen
        place = self._saving = self.folder / (f"{step}-{name}" if name else f"{step}")
        beside = {} if self._reference is None else {"reference": self._reference}
        parts = ocp.args.Composite(
            states=ocp.args.PyTreeSave(dict(states)),
            memory=ocp.args.JsonSave(memory),
            meta=ocp.args.JsonSave({"step": step, **self.meta, **beside}),
        )
        if new and self._reference is not None:
            arrays = ocp.args.Composite(states=ocp.args.PyTreeSave(references))
            self._reference_end = self._begun(self._reference_writer, self.folder / self._reference, arrays)
        self._copying.begin(len(jax.tree.leaves(states)))
        self._end = self._begun(self._checkpointer, place, parts)
        self._end.add_done_callback(lambda _: self._copying.done.set())

    def _begun(self, writer: ocp.AsyncCheckpointer, place: Path, parts: Any) -> Future[None]:
        """Begins to write a folder, in the place of a damaged one of the same name; the end of it."""
        self._writing(lambda: writer.save(place, args=parts, force=True))
        return self._threads.submit(writer.wait_until_finished)

    def copied(self) -> None:
        """Returns when the arrays of the last save may be donated; raises its error if it has failed already."""
        if self._end is None:
            return
        if not self._moves:
            self._copying.done.wait()
        if self._end.done():
            self.wait()

    def wait(self) -> None:
        """Returns when the last save is on disk and old checkpoints are deleted; raises any error of that save."""
        ends = [end for end in (self._reference_end, self._end) if end is not None]
        self._reference_end = self._end = None
        wait(ends)
        while ends:
            self._writing(ends.pop(0).result)
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
            self._reference, self._frozen = None, []
            for unfinished in self.folder.glob(f"*{TEMPORARY}*") if writes() else ():
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
        if saved.meta.get("layout") not in READABLE:
            raise CheckpointError(
                f"the checkpoint {folder} was written by an incompatible version of scope-jax; use another run folder."
            )
        if saved.meta["fingerprint"] != self.meta["fingerprint"]:
            raise CheckpointError(f"the checkpoint {folder} was written with another config; use another run folder.")
        check_base(saved, self.meta["base"], self._base)
        self._reference = saved.meta.get("reference")
        self._frozen = [] if self._reference is None else jax.tree.leaves(reference.apart(saved.states)[1])
        return saved

    def _newest(self, warn: Callable[[str], None]) -> Path | None:
        """The newest valid checkpoint, see `resume`."""
        candidates = found(self.folder)
        for folder in reversed(candidates):
            if wrong := unfit(folder):
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
        if not writes() or self._saving is None:
            return
        if self._reference_end is not None:
            self._reference_end.result()  # a checkpoint is nothing without it
        name = self._saving.name
        for folder in self.folder.glob(f"{name}{TEMPORARY}*"):
            seal(folder)
            if self._mirror is not None:
                stays = functools.partial(staying, saved=name, keep=self.keep)
                self._mirror.push_checkpoint(folder, name, stays, self._reference)

    def _before_reference(self) -> None:
        """The same, of the reference."""
        for folder in self.folder.glob(f"{self._reference}{TEMPORARY}*") if writes() else ():
            seal(folder)

    def _prune(self) -> None:
        """Deletes all but the `keep` newest sealed checkpoints up to the one just saved, and those with names.

        Checkpoints of later steps are deleted, too: they were written before the run was rewound; and references that
        none of those that stay names.
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
        stay |= {reference.named_by(path) or "" for path in places if path.name in stay}
        others = [path for path in self.folder.iterdir() if path.is_dir() and _others(path.name)]
        for path in (*places, *others):
            if path.name not in stay:
                shutil.rmtree(path)


def _others(name: str) -> bool:
    return TEMPORARY in name or name.startswith(reference.PREFIX)


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
