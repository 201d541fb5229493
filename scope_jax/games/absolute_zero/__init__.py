"""Absolute Zero: one policy writes tasks about programs and solves them; running them says what is right."""

from scope_jax.games.absolute_zero.game import GAME as GAME
