"""Writes the checkpoints of a run, see `checkpoint` for what they hold.

Orbax writes asynchronously into a temporary folder and renames it when everything is on disk; the seal is written just
before that. The arrays are copied to the host in the background, too: none may be donated before it is copied, and all
else happens while the run goes on. As many are copied at a time as the host has room for; if that is less than all, the
next ones follow when those have been written.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint._src.serialization.types import DefaultSerializationStatusCallback, TransferPriority
from orbax.checkpoint.type_handlers import ArrayHandler, create_type_handler_registry

from scope_jax.config import Config
from scope_jax.errors import disk_fault, unwritten
from scope_jax.models.files.seal import SEAL, seal, unfit
from scope_jax.play.game import Memory
from scope_jax.run import host_memory
from scope_jax.run.checkpoint import (
    LAYOUT,
    READABLE,
    REFERENCE,
    CheckpointError,
    Saved,
    check_base,
    checkpoints_in,
    load,
    quiet_orbax,
    reference_of,
    without_references,
)
from scope_jax.run.config_file import fingerprint
from scope_jax.run.lines import Extents
from scope_jax.run.mirror import Mirror
from scope_jax.run.processes import by_one, together, writes

TEMPORARY = ".orbax-checkpoint-tmp"  # orbax: <name> + this (+ more) until all files are there
BATCH_GB: float | None = None  # arrays copied to the host at a time; None: as many as it has room for
GB = 10**9
HOURS = 12  # after which a write counts as failed
LEAST = 2 * GB  # for arrays that are copied at a time; a larger array is alone
SHARE = 0.25  # of the free memory of the host; tensorstore holds as much again, compressed, before it writes
# Of the 64 GB that XLA pins of a GPU's host, unless this variable has another number.
PINNED, PINNED_GB, PINNED_SHARE = "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", 64, 0.75


# ------------------------------------------------------------------------------------------------ copies in host memory
def room(processes: int) -> int:
    """Bytes of host memory for copies. processes: of the run on this machine."""
    most = SHARE * host_memory.available() / processes
    if jax.devices()[0].platform == "gpu":
        most = min(most, PINNED_SHARE * GB * float(os.environ.get(PINNED) or PINNED_GB))
    return max(LEAST, int(most))


class Copying(DefaultSerializationStatusCallback):
    """Has arrays copied in the background (orbax's default is all of them before a save returns), and says when the
    last one has been: `done` is set then. A save that has ended with an error sets it, too."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self._left = 0

    def begin(self, arrays: int) -> None:
        """A save of so many arrays begins."""
        self.done.clear()
        self._left = arrays
        if not arrays:
            self.done.set()

    def key_priority(self, _: Any) -> TransferPriority:
        return TransferPriority.ASYNCHRONOUS_PRIORITIZED

    def on_transfer_end(self, _: Any) -> None:
        self._left -= 1  # by the one thread that transfers
        if not self._left:
            self.done.set()


def writer(most: int, copying: Copying, before_commit: Callable[[], None]) -> ocp.AsyncCheckpointer:
    """Writes asynchronously. most: bytes of arrays that are in host memory at a time."""
    states = ocp.PyTreeCheckpointHandler(
        save_device_host_concurrent_gb=most / GB,  # pyright: ignore[reportArgumentType]: it is multiplied by 10⁹
        enable_pinned_host_transfer=True,  # otherwise JAX keeps the copies as long as the arrays
        type_handler_registry=create_type_handler_registry((jax.Array, ArrayHandler(callback=copying))),
    )
    return ocp.AsyncCheckpointer(
        ocp.CompositeCheckpointHandler(
            states=states, memory=ocp.JsonCheckpointHandler(), meta=ocp.JsonCheckpointHandler()
        ),
        async_options=ocp.options.AsyncOptions(timeout_secs=HOURS * 3600, post_finalization_callback=before_commit),
    )


# -------------------------------------------------------------------------------------------------------------- writing
def _remove_unfinished(folder: Path) -> None:
    """Removes what a failed save has written. tensorstore ends its other writes in the background: files appear and
    vanish while the folder is being removed."""
    while folder.exists():
        try:
            shutil.rmtree(folder)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise


class Checkpoints:
    """The checkpoints of one run: `save` returns while files are being written, `resume` loads the newest valid one.

    mirror: of a run on object storage; gets every checkpoint as soon as it is complete. base: checksum of the base of
    adapters, whose states are nothing without it; None for whole weights. extents: how far the run's files go, which
    every checkpoint records. remat: what the learner keeps for the backward pass, see `checkpoint.remat_of`.
    """

    def __init__(
        self,
        folder: Path,
        cfg: Config,
        mirror: Mirror | None = None,
        base: str | None = None,
        extents: Callable[[], Extents] = dict,
        remat: str | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self.at_resume: Extents = {}  # how far the files went at the checkpoint that was resumed from, if it says so
        self._extents = extents
        self._mirror = mirror
        self.keep = cfg.train.keep
        card = {"seed": cfg.seed, "fingerprint": fingerprint(cfg)}
        self.meta = card | {"layout": LAYOUT, "base": base, "remat": remat}
        self._base = cfg.model.checkpoint
        self._moves = cfg.train.offload  # an update gets copies, on the accelerator
        self._saving: Path | None = None
        self._copying = Copying()
        self._reference: str | None = None  # the folder of the reference, and its arrays
        self._frozen: list[Any] = []
        self._end: Future[None] | None = None  # of writing the checkpoint
        self._reference_end: Future[None] | None = None  # of writing the reference it begins with
        self._threads = ThreadPoolExecutor(2, "checkpoint")
        quiet_orbax()

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
        states, references = without_references(states)
        frozen = jax.tree.leaves(references)
        new = len(frozen) != len(self._frozen) or any(a is not b for a, b in zip(frozen, self._frozen, strict=True))
        if new:
            self._reference, self._frozen = f"{REFERENCE}{step}" if frozen else None, frozen
        place = self._saving = self.folder / (f"{step}-{name}" if name else f"{step}")
        beside = {} if self._reference is None else {"reference": self._reference}
        parts = ocp.args.Composite(
            states=ocp.args.PyTreeSave(dict(states)),
            memory=ocp.args.JsonSave(memory),
            meta=ocp.args.JsonSave({"step": step, **self.meta, **beside, "files": dict(self._extents())}),
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
                _remove_unfinished(unfinished)
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
        self.at_resume = saved.meta.get("files", {})
        self._reference = saved.meta.get("reference")
        self._frozen = [] if self._reference is None else jax.tree.leaves(without_references(saved.states)[1])
        return saved

    def _newest(self, warn: Callable[[str], None]) -> Path | None:
        """The newest valid checkpoint, see `resume`."""
        candidates = checkpoints_in(self.folder)
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
        places = checkpoints_in(self.folder)
        if (place := self._saving) not in places:
            self._saving = None
            raise CheckpointError(
                f"the checkpoint {place} was removed while the run goes on; run the same command again, which goes on "
                "from the one before."
            )
        sealed = [path.name for path in places if path == self._saving or (path / SEAL).is_file()]
        stay = staying(sealed, self._saving.name, self.keep)
        stay |= {reference_of(path) or "" for path in places if path.name in stay}
        others = [path for path in self.folder.iterdir() if path.is_dir() and _others(path.name)]
        for path in (*places, *others):
            if path.name not in stay:
                shutil.rmtree(path)


def _others(name: str) -> bool:
    return TEMPORARY in name or name.startswith(REFERENCE)


def staying(names: list[str], saved: str, keep: int) -> set[str]:
    """Of sealed checkpoints by step, those that stay after `saved`: the `keep` newest ones, and those with a name."""
    past = names[: names.index(saved) + 1]
    return {*past[-keep:], *(name for name in past if "-" in name)}
