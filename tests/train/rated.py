"""The game of examples/distillation.py, whose rows are also rated under every other model that the run has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scope_jax.config import Config
from scope_jax.games import find
from scope_jax.learner.types import Episode, Metrics
from scope_jax.play.game import Memory
from scope_jax.play.tools import Tools

EXAMPLE = find("examples/distillation.py")


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
    episodes, memory, metrics = EXAMPLE.play(cfg, tools, memory, step)
    rows = [datum for episode in episodes for datum in episode.datums]
    for by in ("actor", "base", *cfg.teachers):
        metrics[f"rated/{by}"] = float(np.mean(np.concatenate(tools.score(by, rows))))
    return episodes, memory, metrics


GAME = replace(EXAMPLE, play=play, uses_base=lambda cfg: True)
