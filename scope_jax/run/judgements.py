"""The file with all judge replies of a run: <run>/judgements.jsonl.gz.

    {"step": 3, "episode": 17, "role": "solver", "group": "solver/2", "job": "grader", "about": "Names the year.",
     "replies": [{"text": "…", "refused": ""}, …], "read": true}

One line per request; `episode` is the index, from 0, of the episode among the step's lines in episodes.jsonl. Malformed
replies are included, and a reply to several identical requests is repeated for each. A reply that was cut also has
"cut", the reason. See `records` for the file format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scope_jax.learner.types import Episode, Judgement
from scope_jax.run.records import ANYTHING, COUNT, REPLIES, TEXT, append_step, read_steps

NAME = "judgements.jsonl.gz"
FIELDS = {"episode": COUNT, "job": TEXT, "about": TEXT, "replies": REPLIES, "read": ANYTHING}


def append(path: Path, step: int, episodes: Sequence[Episode]) -> None:
    """Adds the judgements of a step's episodes; returns when they are on disk. Writes nothing if there are none."""
    lines = [
        {"step": step, "episode": place, "role": episode.role, "group": episode.group} | _plain(judgement)
        for place, episode in enumerate(episodes)
        for judgement in episode.judgements
    ]
    append_step(path, lines)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The judgements in order; see `records.read_steps`."""
    return read_steps(path, FIELDS)


def _plain(judgement: Judgement) -> dict[str, Any]:
    plain = asdict(judgement)
    for reply in plain["replies"]:
        if not reply["cut"]:
            del reply["cut"]
    return plain
