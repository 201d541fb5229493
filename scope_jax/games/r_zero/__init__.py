"""R-Zero (arXiv 2508.05004): a challenger writes questions on which the solver is unsure; docs/r_zero.md."""

from scope_jax.games.r_zero.game import GAME as GAME
