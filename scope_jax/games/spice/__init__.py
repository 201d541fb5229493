"""SPICE: one policy writes tasks from documents and, without the documents, solves them.

See docs/spice.md for a description, and for what the paper leaves open.
"""

from scope_jax.games.spice.game import GAME as GAME
