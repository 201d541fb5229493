"""R-Zero: a challenger writes questions that leave the solver unsure, and the solver learns from its own majority.

See docs/r_zero.md for a description, and for what the paper leaves open or the released code does differently.
"""

from scope_jax.games.r_zero.game import GAME as GAME
