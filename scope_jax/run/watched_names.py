"""Checks at the start that the rules of [[train.watch]] are on metrics that the card's game can have.

A step lacks a metric for which it has no value, so a name cannot be checked by what the first steps have.
"""

from __future__ import annotations

import difflib
import re

from scope_jax.config import Config
from scope_jax.errors import UserError
from scope_jax.learner.learner import METRICS
from scope_jax.play import exams
from scope_jax.play.game import Game
from scope_jax.run.performance import NAMES, PHASES


def check_names(cfg: Config, game: Game) -> None:
    """Raises UserError for a rule on a metric that the card's game cannot have; one without `metrics` may have any."""
    if not cfg.train.watch or game.metrics is None:
        return
    updates = game.updates(cfg)
    known = {*game.metrics(cfg), "staleness", *NAMES, *(f"time/{phase}" for phase in PHASES)}
    known |= {f"{update.name}/{name}" for update in updates for name in METRICS}
    known |= {f"{share.role}/baseline" for update in updates for share in update.roles}
    known |= {f"eval/{name}" for name in exams.metric_names(cfg, game.exam(cfg))}
    for rule in cfg.train.watch:
        name = re.sub(r"_se$|_pass@[0-9]+$", "", rule.metric) if rule.metric.startswith("eval/") else rule.metric
        if name not in known and not re.match(r"eval/[^/]+/score_", name):
            near = difflib.get_close_matches(rule.metric, sorted(known), n=3, cutoff=0.0)
            raise UserError(
                f"[[train.watch]] names the metric {rule.metric!r}, which {cfg.system} does not have under this card; "
                f"similar names are {', '.join(near)}."
            )
