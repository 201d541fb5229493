"""Plain RL with a verifiable reward: prompts of a file, replies graded by a rule or a function; docs/rlvr.md."""

from scope_jax.games.rlvr.game import GAME as GAME
