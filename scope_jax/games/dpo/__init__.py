"""Direct preference optimisation on given pairs of answers, as a game that samples nothing.

See docs/distillation.md#preferences.
"""

from scope_jax.games.dpo.game import GAME as GAME
