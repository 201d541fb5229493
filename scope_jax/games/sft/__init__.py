"""Supervised training on given conversations, as a game that samples nothing.

See docs/distillation.md#supervised-training.
"""

from scope_jax.games.sft.game import GAME as GAME
