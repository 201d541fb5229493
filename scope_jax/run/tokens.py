"""The file with the tokens of a run's episodes, written with `log.tokens`: <run>/tokens.jsonl.gz.

    {"step": 3, "episode": 17, "rows": [{"pieces": ["<ans", "wer>", …], "logprobs": [-0.02, null, …],
     "entropies": [0.11, null, …]}, …]}

One line per episode with sampled tokens; `episode` is its index, from 0, among the step's lines in episodes.jsonl. A
row of the episode begins with its first sampled token; the prompt before it is in episodes.jsonl. logprobs: natural
logarithm of the probability with which the engine sampled the token, two decimals; null for a token that was read.
entropies: with `log.entropies`, in nats, of the distribution that this probability is of, two decimals, or null.
See `records` for the file format.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scope_jax.learner.types import Datum, Episode
from scope_jax.run.records import COUNT, LIST, append_step, read_steps

__all__ = ["NAME", "append", "pieces", "read"]

NAME = "tokens.jsonl.gz"
FIELDS = {"episode": COUNT, "rows": LIST}
TokenBytes = Callable[[int], bytes]  # the bytes that a token adds to a text


def append(path: Path, step: int, episodes: Sequence[Episode], token_bytes: TokenBytes) -> None:
    """Adds the tokens of a step's episodes; returns when they are on disk. Writes nothing if there are none."""
    lines = [
        {"step": step, "episode": place, "rows": rows}
        for place, episode in enumerate(episodes)
        if (rows := [_row(datum, token_bytes) for datum in episode.datums if datum.sampled_T.any()])
    ]
    append_step(path, lines)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines in order; see `records.read_steps`."""
    return read_steps(path, FIELDS)


def _row(datum: Datum, token_bytes: TokenBytes) -> dict[str, Any]:
    first = int(datum.sampled_T.argmax())
    sampled = datum.sampled_T[first:].tolist()

    def rounded(values_T: np.ndarray) -> list[float | None]:
        return [round(value, 2) if own else None for value, own in zip(values_T[first:].tolist(), sampled, strict=True)]

    row = {
        "pieces": pieces(map(token_bytes, datum.ids_T[first:].tolist())),
        "logprobs": rounded(datum.logprobs_T),
    }
    return row if datum.entropies_T is None else row | {"entropies": rounded(datum.entropies_T)}


def pieces(tokens: Iterable[bytes]) -> list[str]:
    """The text of each token. A character of several tokens belongs to its last one; invalid bytes become U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    found = [decoder.decode(token) for token in tokens]
    if found:
        found[-1] += decoder.decode(b"", final=True)
    return found
