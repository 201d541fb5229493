"""Which policy plays which role of SCORE, and the tags that end its episodes."""

from __future__ import annotations

from scope_jax.config import Config
from scope_jax.games.score.options import ScoreRole, options
from scope_jax.play import searching
from scope_jax.play.game import ACTOR
from scope_jax.play.tools import BASE
from scope_jax.rollouts.types import Completion
from scope_jax.text import dialects
from scope_jax.text.dialects.calls import calls

REPORT, ASSESSMENT = "answer", "report_evaluations"  # final tags of the episodes with searches


def policy_of(cfg: Config, role: ScoreRole) -> str:
    """The policy of a role: the shared actor, a policy of its own, or the base if that would not be trained."""
    if options(cfg).policies == "shared":
        return ACTOR
    return role if role in options(cfg).train else BASE


def searches_run(cfg: Config, completion: Completion) -> int:
    """Number of searches of an episode that were run. A list of queries in one search, which Listing 4 forbids, is run
    but counts as one."""
    dialect, answered = dialects.load(cfg.model.dialect), completion.turns[:-1]
    found = [call for turn in answered if turn.kind == "sampled" for call in calls(turn.content, dialect)]
    return sum(call.query is not None for call in found)


def last_turn(completion: Completion) -> str:
    """The last turn without thinking; "" if the prompt was not sampled."""
    return searching.contents(completion)[-1] if completion.turns else ""
