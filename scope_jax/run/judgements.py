"""The file with all judge replies of a run: <run>/judgements.jsonl.gz.

    {"step": 3, "episode": 17, "role": "solver", "group": "solver/2", "job": "grader", "about": "Names the year.",
     "replies": [{"text": "…", "refused": ""}, …], "read": true}

One line per request; `episode` is the index, from 0, of the episode among the step's lines in episodes.jsonl. Malformed
replies are included, and a reply to several identical requests is repeated for each. The lines of a step form one gzip
member, so that the file can be truncated after any step without being rewritten, and zcat can read it.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from scope_jax.errors import writing
from scope_jax.learner.types import Episode

NAME = "judgements.jsonl.gz"
GZIP = 31  # zlib's window bits for a gzip member
READ = 1 << 20  # bytes


def append(path: Path, step: int, episodes: Sequence[Episode]) -> None:
    """Adds the judgements of a step's episodes; returns when they are on disk. Writes nothing if there are none."""
    lines = [
        json.dumps(
            {"step": step, "episode": place, "role": episode.role, "group": episode.group} | asdict(judgement),
            ensure_ascii=False,
        )
        for place, episode in enumerate(episodes)
        for judgement in episode.judgements
    ]
    if not lines:
        return
    member = zlib.compress("".join(line + "\n" for line in lines).encode(), wbits=GZIP)
    with writing(path), path.open("ab") as file:
        file.write(member)
        file.flush()
        os.fsync(file.fileno())


def cut(path: Path, step: int | None) -> None:
    """Removes all steps after `step` and an incomplete gzip member at the end; None: everything."""
    with path.open("rb+") as file:
        end = 0
        for text, after in _members(file):
            if step is None or json.loads(text.partition(b"\n")[0])["step"] > step:
                break
            end = after
        file.truncate(end)
        os.fsync(file.fileno())


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The records in order, none if there is no file; an incomplete end, as after a kill, is ignored."""
    if path.is_file():
        with path.open("rb") as file:
            for text, _ in _members(file):
                yield from map(json.loads, text.splitlines())


def _members(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """(text of a step, file offset where its member ends), up to the first incomplete member."""
    rest, read = b"", 0
    while True:
        inflate, text = zlib.decompressobj(wbits=GZIP), bytearray()
        while not inflate.eof:
            if not rest:
                rest = file.read(READ)
                read += len(rest)
            if not rest:
                return
            try:
                text += inflate.decompress(rest)
            except zlib.error:
                return
            rest = inflate.unused_data
        yield bytes(text), read - len(rest)
