"""SPELL: one model asks questions about long documents, answers them, and verifies its answers.

See docs/spell.md for a description, and for what the paper leaves open or the released code does
differently.
"""

from scope_jax.games.spell.game import GAME as GAME
