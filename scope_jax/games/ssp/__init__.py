"""Search Self-play (SSP): one policy proposes search questions for known answers and solves them.

See docs/ssp.md for a description, and for what the paper leaves open or the released code does differently.
"""

from scope_jax.games.ssp.game import GAME as GAME
