"""SCORE: an evaluator chooses a rubric and assesses reports, a solver writes them; both roles share one actor.

See docs/score.md for a description, and for what the paper leaves open.
"""

from scope_jax.games.score.game import GAME as GAME
