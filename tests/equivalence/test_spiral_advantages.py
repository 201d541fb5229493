"""SPIRAL's role-conditioned advantages against a moving average in torch."""

from __future__ import annotations

import numpy as np
import torch

from scope_jax.play.game import play_step
from tests.games.test_spiral_golden import GAME, RELEASED, Recorded, advantages_of, card, lowest


def test_advantages_equal_a_moving_average() -> None:
    cfg = card(turns=128, games={"kuhn_poker": 1}, loss={"ema_decay": 0.8, "ema_start": 0.25})
    tools = Recorded(lowest, games=list(RELEASED))
    episodes, _, _ = play_step(GAME, cfg, tools, GAME.start(cfg), 0)
    theirs: list[float] = []
    base = torch.full((2,), 0.25, dtype=torch.float64)
    for game in RELEASED[:32]:
        rewards = torch.tensor(game["rewards"], dtype=torch.float64)
        for seat in (0, 1):
            theirs += [float(rewards[seat] - base[seat])] * game["turns"][seat]
        base = torch.lerp(rewards, base, torch.tensor(0.8, dtype=torch.float64))
    assert np.allclose(advantages_of(cfg, episodes), theirs, rtol=0, atol=1e-7)
