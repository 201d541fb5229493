"""Dr. Zero: a proposer writes search questions that a solver finds neither easy nor hopeless. See docs/dr_zero.md."""

from scope_jax.games.dr_zero.game import GAME as GAME
