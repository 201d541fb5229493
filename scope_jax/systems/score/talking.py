"""Which policy plays which role of SCORE, and how roles search."""

from __future__ import annotations

from rollouts.types import Completion
from scope_jax.config import Config, ScoreRole
from scope_jax.play import searching
from scope_jax.play.defaults import ACTOR
from scope_jax.play.searching import Search
from scope_jax.play.tools import BASE
from scope_jax.play.turns import Respond
from scope_jax.text import dialects

REPORT, ASSESSMENT = "answer", "report_evaluations"  # final tags of the episodes with searches


def policy_of(cfg: Config, role: ScoreRole) -> str:
    """The policy of a role: the shared actor, a policy of its own, or the base if that would not be trained."""
    if cfg.score.policies == "shared":
        return ACTOR
    return role if role in cfg.score.train else BASE


def stops(cfg: Config, final: str) -> tuple[str, ...]:
    """Strings that end a turn of an episode with searches whose final tag is `final`."""
    return (dialects.load(cfg.model.dialect).close, f"</{final}>")


def responder(cfg: Config, search: Search, final: str) -> Respond:
    """The responder for such an episode: runs its searches."""
    ends = cfg.model.turns == "raw"
    return searching.responder(search, dialects.load(cfg.model.dialect), (final,), end_token_ends=ends)


def searches(cfg: Config, completion: Completion) -> int:
    """Number of searches of an episode that were run."""
    return len(searching.queries_run(completion, dialects.load(cfg.model.dialect)))


def last_said(completion: Completion) -> str:
    """The last turn without thinking; "" if the prompt was not sampled."""
    return searching.contents(completion)[-1] if completion.turns else ""
