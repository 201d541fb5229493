"""Damage to the files of a run at places drawn by a seed, and what a resume, a report and a replay then read."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from scope_jax.config import Config
from scope_jax.errors import UserError
from scope_jax.games import load_data
from scope_jax.report import browsing
from scope_jax.report.panels import panels_of
from scope_jax.run.adapters import base_digest
from scope_jax.run.checkpoint_writer import Checkpoints
from scope_jax.run.files import CALLS, EPISODES, EVALUATIONS, EXAMS, FILES, METRICS, TOOL_CALLS, read_records
from scope_jax.run.folder import RunFolder, missing
from scope_jax.run.inputs import Inputs
from scope_jax.run.recording import Recording

KINDS = ("flip", "digit", "zero", "cut", "lose", "double", "swap")
LEFT_OUT = (".lock", "report", "index", "index.lock", "tensorboard")  # what a run makes anew, and the search's index
GZIP = 31


# --------------------------------------------------------------------------------------------------------------- damage
def files_of(run: Path) -> list[Path]:
    """The files of a run that are read again, relative to it."""
    paths = sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file() and path.stat().st_size)
    return [path for path in paths if path.parts[0] not in LEFT_OUT]


def units_of(path: Path) -> list[bytes]:
    """The lines of a text, the members of a compressed file, pieces of any other."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        members: list[bytes] = []
        while content:
            inflate = zlib.decompressobj(wbits=GZIP)
            inflate.decompress(content)
            members.append(content[: len(content) - len(inflate.unused_data)])
            content = inflate.unused_data
        return members
    if path.suffix in (".jsonl", ".json", ".toml"):
        return content.splitlines(keepends=True)
    return [content[place : place + 64] for place in range(0, len(content), 64)]


def damaged(path: Path, kind: str, rng: random.Random) -> bytes | None:
    """The content of a file after damage; None if it stays the same."""
    content, units = bytearray(path.read_bytes()), units_of(path)
    place, number = rng.randrange(len(content)), rng.randrange(len(units))
    if kind == "flip":
        content[place] ^= 1 << rng.randrange(8)
    elif kind == "zero":
        size = len(content[place : place + 16])
        content[place : place + size] = bytes(size)
    elif kind == "cut":
        del content[place:]
    else:
        changed = {
            "digit": [*units[:number], _other_digit(units[number], path.suffix == ".gz", rng), *units[number + 1 :]],
            "lose": [*units[:number], *units[number + 1 :]],
            "double": [*units[: number + 1], *units[number:]],
            "swap": [*units[:number], *reversed(units[number : number + 2]), *units[number + 2 :]],
        }
        content = bytearray(b"".join(changed[kind]))
    return None if content == path.read_bytes() else bytes(content)


def _other_digit(unit: bytes, packed: bool, rng: random.Random) -> bytes:
    """The unit with another digit, whole as gzip again."""
    text = bytearray(zlib.decompress(unit, wbits=GZIP) if packed else unit)
    digits = [place for place, byte in enumerate(text) if chr(byte).isdecimal()]
    if digits:
        place = rng.choice(digits)
        text[place] = ord("0") + (text[place] - ord("0") + rng.randrange(1, 10)) % 10
    return zlib.compress(text, wbits=GZIP) if packed else bytes(text)


# -------------------------------------------------------------------------------------------------------- what is read
@dataclass
class Reading:
    """What a command reads of a run."""

    said: list[str]
    """Sentences; the last one of an error."""
    refused: bool
    """Whether it ended with one."""
    contents: dict[str, Any]
    """What it then has."""

    def verdict(self, whole: Reading) -> str:
        """What came of damage: "sentence", "same", or what is not the same."""
        if self.said != whole.said or self.refused:
            return "sentence"
        names = whole.contents.keys() | self.contents.keys()
        other = sorted(name for name in names if self.contents.get(name) != whole.contents.get(name))
        return ", ".join(other) or "same"


def reading(work: Callable[[list[str]], dict[str, Any]]) -> Reading:
    said: list[str] = []
    try:
        return Reading(said, False, work(said))
    except UserError as error:
        return Reading([*said, str(error)], True, {})


def resumed(cfg: Config, run: Path, targets: Mapping[str, Any]) -> Reading:
    """What a resume of `cfg` starts from: all that `run.start` reads. The step it plays is a function of that."""

    def work(said: list[str]) -> dict[str, Any]:
        folder, recording = RunFolder(run, cfg), Recording(said.append)
        try:
            Inputs(run, cfg, cfg).check(False, said.append)
            checkpoints = Checkpoints(run / "checkpoints", cfg, base=base_digest(cfg))
            saved = checkpoints.resume(targets, said.append)
            done = 0 if saved is None else saved.step
            if saved is None:
                folder.check_begun(0)
            said += folder.rewind(None if saved is None else done, checkpoints.at_resume)
            recording.open(run, done, checkpoints.at_resume)
            recorded = [str(line) for path in sorted((run / CALLS).glob("*.jsonl")) for line in read_records(path)]
        finally:
            recording.close()
            folder.close()
        lines = {name: list(read_records(run / name)) for name in FILES if name not in (CALLS, EVALUATIONS)}
        arrays = {} if saved is None else _bytes_of(saved.states)
        return {"step": done, "memory": saved and saved.memory, "states": arrays, CALLS: recorded, **lines}

    return reading(work)


def _bytes_of(states: Any) -> dict[str, bytes]:
    leaves = jax.tree_util.tree_leaves_with_path(states)
    return {jax.tree_util.keystr(path): np.asarray(leaf).tobytes() for path, leaf in leaves}


def reported(run: Path) -> Reading:
    """What a report, and a comparison, show of a run."""

    def work(said: list[str]) -> dict[str, Any]:
        cfg = load_data(run / "config.toml")
        metrics = list(read_records(run / METRICS))
        episodes = list(browsing.joined(run, read_records(run / EPISODES)))
        evaluated, answers = browsing.answered(run)
        shown = {"card": cfg, "metrics": metrics, "episodes": episodes, "evaluated": evaluated, "answers": [*answers]}
        said += missing(run)
        return shown | {"exams": list(read_records(run / EXAMS)), "panels": panels_of(run, cfg.system)}

    return reading(work)


def replayed(run: Path, step: int) -> Reading:
    """What a replay of a step reads of the record."""

    def work(said: list[str]) -> dict[str, Any]:
        recording = Recording()
        recording.replay(run, step)
        lines = [line for name in (EPISODES, TOOL_CALLS) for line in read_records(run / name) if line["step"] == step]
        said += missing(run)
        return {"lines": lines}

    return reading(work)


def names(path: Path, verdict: Reading) -> bool:
    """True if a sentence names the file, or the checkpoint that it is in."""
    name = "/".join(path.parts[:2]) if path.parts[0] == "checkpoints" else path.name
    if path.name == "metadata" and len(path.parts) > 2:
        name = "checkpoints"  # of a damaged checkpoint nothing is known
    return any(name in sentence for sentence in verdict.said)
