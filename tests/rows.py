"""Rows of texts for tests."""

from collections.abc import Sequence
from typing import Any

import numpy as np

Text = tuple[int, Sequence[Any]]  # a number of tokens, and the texts that continue it


def ends(segments: Any) -> np.ndarray:
    """The ends of rows of texts, each of them a run of equal numbers: of the same shape [B, T]."""
    numbers = np.asarray(segments)
    width = numbers.shape[-1]
    last = np.concatenate([numbers[..., 1:] != numbers[..., :-1], np.ones((*numbers.shape[:-1], 1), bool)], -1)
    behind = np.where(last, np.arange(1, width + 1), width)
    return np.minimum.accumulate(behind[..., ::-1], -1)[..., ::-1].astype(np.int32)


def laid_out(texts: Sequence[Text], width: int) -> tuple[np.ndarray, np.ndarray]:
    """(ends, positions) of a row [T] of trees of texts in depth-first order, followed by padding."""
    behind, positions = np.arange(1, width + 1, dtype=np.int32), np.zeros(width, np.int32)

    def lay(at: int, position: int, text: Text) -> int:
        tokens, others = text
        positions[at : at + tokens] = position + np.arange(tokens)
        stop = at + tokens
        for other in others:
            stop = lay(stop, position + tokens, other)
        behind[at : at + tokens] = stop
        return stop

    place = 0
    for text in texts:
        place = lay(place, 0, text)
    return behind, positions
