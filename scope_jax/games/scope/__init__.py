"""SCOPE: two policies trained from one checkpoint, a challenger that writes open-ended tasks and a solver. The frozen
base model is the judge.

See docs/scope.md for a description, and for what the paper leaves open or the released code does differently.
"""

from scope_jax.games.scope.game import GAME as GAME
