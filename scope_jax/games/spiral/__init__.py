"""SPIRAL: one policy in both seats of two-player games, with a baseline for each game and seat. See docs/spiral.md."""

from scope_jax.games.spiral.game import GAME as GAME
