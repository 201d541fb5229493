"""Absolute Zero: one policy proposes tasks about programs and solves them; running them says what is right.

docs/absolute_zero.md describes it, and what the paper leaves open or the released code does differently."""

from scope_jax.games.absolute_zero.game import GAME as GAME
