"""A drafter that knows what will follow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scope_jax.rollouts.drafter import Drafter
from scope_jax.rollouts.episodes import ActiveEpisode
from scope_jax.rollouts.types import Completion, Request

Proposal = Callable[[list[int], int], list[int]]  # of the tokens that will follow, and the length of the row


class Scripted(Drafter):
    """Proposes what a function makes of the tokens that will follow, which are known from an earlier run."""

    def __init__(self, asked: list[Request], completions: list[Completion], propose: Proposal) -> None:
        super().__init__(shares=True)
        rows = zip(asked, completions, strict=True)
        self._known = {
            (one.key.tobytes(), number): row
            for one, said in rows
            if one.key is not None
            for number, row in enumerate(said.rows)
        }
        self._propose = propose

    def draft(self, row: ActiveEpisode, most: int) -> list[int]:
        assert row.request.key is not None
        known = self._known[row.request.key.tobytes(), row.restarts]
        ids = np.concatenate([known.prompt_ids, known.ids_T])[row.length : row.length + most]
        return self._propose(ids.tolist(), row.length)[:most]
