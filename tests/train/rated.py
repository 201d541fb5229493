"""The game of examples/distillation.py, whose rows are also rated under every other model that the run has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scope_jax.config import Config
from scope_jax.games import find
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent
from scope_jax.play.step import Played, Step
from scope_jax.play.tools import BASE, single_turn

EXAMPLE = find("examples/distillation.py")


def roles(cfg: Config) -> tuple[Role, ...]:
    return *EXAMPLE.roles(cfg), Role("rater", Agent(BASE, single_turn(1.0, 1)))


def play(step: Step) -> Played:
    played = EXAMPLE.play(step)
    rows = [datum for episode in played.episodes for datum in episode.datums]
    rated = {
        f"rated/{by}": float(np.mean(np.concatenate(step.tools.score(by, rows))))
        for by in ("actor", "base", *step.cfg.teachers)
    }
    return replace(played, metrics={**played.metrics, **rated})


GAME = replace(EXAMPLE, roles=roles, play=play)
