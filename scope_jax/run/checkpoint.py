"""Checkpoints: the state of every policy and the game's memory, in one folder that is either complete or absent.

    <run>/checkpoints/<step>/            states (orbax on tensorstore), memory, meta (JSON), seal.json
    <run>/checkpoints/<step>-<name>/     the same, but never deleted
    <run>/checkpoints/reference-<step>/  arrays of the frozen reference and seal.json, written once, as all checkpoints
                                         share it. step: of the first one that names it

The seal, written last, contains size and CRC-32 of every file. A folder without a matching seal is never read:
truncated or changed files are detected before any array is loaded. See `checkpoint_writer` for how they are written.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import jax
import orbax.checkpoint as ocp

from scope_jax.errors import UserError, disk_fault
from scope_jax.models.decoder.transformer import Remat
from scope_jax.models.files.seal import fault as fault  # asked of checkpoints, too
from scope_jax.models.files.seal import unfit
from scope_jax.play.game import Memory
from scope_jax.run.processes import by_one
from scope_jax.sharding.spec import path_name

LAYOUT = 4  # version of the saved data; 3: states count updates; 4: the reference is beside the checkpoints
READABLE = (3, LAYOUT)
CHECKPOINT = re.compile(r"([0-9]{1,12})(?:-([a-z]+-[0-9]+))?")  # names: 45, 45-iteration-1
REFERENCE = "reference-"  # and a step, the name of a folder


class CheckpointError(UserError):
    """A checkpoint cannot be read; the message is one sentence with its folder and the remedy."""


@dataclass(frozen=True)
class Saved:
    """One checkpoint: `states` by policy name, the memory, and meta = {"step", "seed", "fingerprint", "layout",
    "base", "remat", "files"}; files: how far those of the run go."""

    step: int
    states: dict[str, Any]
    memory: Memory
    meta: dict[str, Any]


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


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints under `folder` by step, ascending; not yet checked for validity."""
    known = {path: parts(path) for path in folder.iterdir()} if folder.is_dir() else {}
    return [path for _, path in sorted((step_and_name, path) for path, step_and_name in known.items() if step_and_name)]


def step_of(checkpoint: Path) -> int:
    """The number of completed steps at this checkpoint."""
    return int(_name(checkpoint).partition("-")[0])


def steps(folder: Path) -> list[int]:
    """The steps of the checkpoints under `folder`."""
    return [step_of(path) for path in checkpoints_in(folder)]


def locate(path: Path) -> Path:
    """The checkpoint folder at `path`: itself, or the newest valid one of a run or of its checkpoints folder.

    Raises CheckpointError if there is none.
    """
    if parts(path) and not (path / "checkpoints").is_dir():
        if wrong := unfit(path):
            raise CheckpointError(f"the checkpoint {path} cannot be used: {wrong}; choose another one.")
        return path
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    for place in reversed(checkpoints_in(folder)):
        if unfit(place) is None:
            return place
    raise CheckpointError(
        f"{path} has no checkpoint: give a run folder, its checkpoints folder or a single checkpoint in it "
        "(a run writes the first one after train.save_every steps)."
    )


def saved_memory(folder: Path) -> Memory:
    """The memory in a checkpoint that is not damaged, without its arrays."""
    return json.loads((folder / "memory" / "metadata").read_text(encoding="utf-8"))


def load(folder: Path, targets: Mapping[str, Any]) -> Saved:
    """The checkpoint in `folder`, with its arrays placed according to `targets`.

    targets: policy name → tree of jax.ShapeDtypeStruct with shardings. Parts of the state may be left out (to load only
    the weights of one policy, for example), and floats may be requested in another dtype. Raises CheckpointError for a
    damaged folder, and if a requested array is missing or has another shape. All processes of a run must call this.
    """
    _check(folder, f"the checkpoint {folder} cannot be used", "choose another one")
    quiet_orbax()
    beside = by_one(lambda: reference_of(folder))
    states, references = (dict(targets), {}) if beside is None else without_references(targets)
    _check_shapes(folder, states)
    items = {"memory": ocp.args.JsonRestore(), "meta": ocp.args.JsonRestore()}
    read = _restored(folder, states, items)
    found = read["states"]
    if references and beside is not None:
        place = folder.parent / beside
        what = f"the reference {place}, which the checkpoint {folder} needs, cannot be used"
        _check(place, what, "restore it, or start a new run")
        _check_shapes(place, references)
        found = with_references(found, _restored(place, references, {})["states"])
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


# -------------------------------------------------------------------------------------------------------- the reference
def without_references(states: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the states without their references, the references by the state that has one)."""
    references = {name: state.ref_params for name, state in states.items() if has_reference(state)}
    return {n: state.replace(ref_params=None) if n in references else state for n, state in states.items()}, references


def with_references(states: Mapping[str, Any], references: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `without_references`."""
    return {n: state.replace(ref_params=references[n]) if n in references else state for n, state in states.items()}


def has_reference(state: Any) -> bool:
    """Whether a state, or a part of one, has a reference of its own."""
    return getattr(state, "ref_params", None) is not None


def reference_of(checkpoint: Path) -> str | None:
    """The folder of the reference beside a checkpoint, None if it has none or holds it itself, as those of scope-jax
    0.1.0 do. Of a damaged checkpoint the answer means nothing."""
    named = _noted(checkpoint, "reference")
    return named if re.fullmatch(f"{REFERENCE}[0-9]{{1,12}}", named) else None


def remat_of(folder: Path) -> str | None:
    """What `learner.remat = "auto"` was in the run of these checkpoints; None if none says so, as those of before did
    not."""
    noted = (_noted(place, "remat") for place in reversed(checkpoints_in(folder)))
    return next((name for name in noted if name in get_args(Remat)), None)


def _noted(checkpoint: Path, name: str) -> str:
    """A text of the checkpoint's meta; "" if there is none, or it cannot be read."""
    try:
        text = json.loads((checkpoint / "meta" / "metadata").read_text(encoding="utf-8")).get(name)
    except (OSError, ValueError, AttributeError):
        return ""
    return text if isinstance(text, str) else ""


# -------------------------------------------------------------------------------------------------------------- quiet
@functools.cache
def _of_disk(record: logging.LogRecord) -> bool:
    """Whether an error is logged that the disk raised."""
    return bool(record.exc_info and record.exc_info[1] and disk_fault(record.exc_info[1]))


def quiet_orbax() -> None:
    """Suppresses what orbax and tensorstore print about an error that a save raises, and absl's warnings.

    Each of orbax's threads logs the error with its traceback before raising it. When the first of several writes fails,
    orbax closes its event loop; for each of the others tensorstore then reports the closed loop, or asyncio the disk.
    """
    log = logging.getLogger("absl")
    log.setLevel(logging.ERROR)
    log.addFilter(lambda record: not record.exc_info)
    logging.getLogger("asyncio").addFilter(lambda record: not _of_disk(record))
    report = sys.unraisablehook

    def unraisable(found: sys.UnraisableHookArgs) -> None:
        if str(found.exc_value) != "Event loop is closed":
            report(found)

    sys.unraisablehook = unraisable
