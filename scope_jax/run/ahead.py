"""Steps that are played before the update of the step before is made (`train.one_step_off_policy`).

    step s        plays with the weights after update s − 2, while update s − 1 is computed
    checkpoint s  holds the weights after update s, and what step s + 1 has played: nothing is sampled again on a resume

What is played with which weights depends on the number of the step alone: the first step of a run, the first one of a
game's stage (`System.waits`) and, if a run that had ended is made longer, its next step are played with the weights
after all updates before them.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np

from scope_jax.config import Config
from scope_jax.errors import UserError
from scope_jax.learner.types import Datum, Episode, Judgement, Metrics, Reply
from scope_jax.play.game import Game, Memory
from scope_jax.sharding import distributed


class Played(NamedTuple):
    """A step of a game before its update. memory: the game's, after the step."""

    episodes: list[Episode]
    memory: Memory
    metrics: Metrics


def check(cfg: Config, game: Game) -> None:
    """Raises UserError if the card asks for steps played ahead, but its game or its losses do not allow them."""
    if not cfg.train.one_step_off_policy:
        return
    if distributed.count() > 1:
        raise UserError(
            "train.one_step_off_policy works in a run of one process, as several exchange completions over the devices "
            "that learn meanwhile; start one process, or set it to false."
        )
    sampled = len(game.policies(cfg)) + game.uses_base(cfg)
    if cfg.model.adapter is None and sampled > 1:
        raise UserError(
            "train.one_step_off_policy needs all weights that a step samples with in the engine at once, and a step of "
            f"{cfg.system} samples with {sampled} models under this card; add [model.adapter], or set it to false."
        )
    for update in game.updates(cfg):
        card = update.card
        if card.objective == "policy" and not card.rollout_cap and card.old_logprobs == "learner":
            raise UserError(
                f"with train.one_step_off_policy the episodes of {update.name} come from older weights, but its loss "
                "does not correct for that; set rollout_cap there, for example to 2.0."
            )


# ------------------------------------------------------------------------------------------------------ in checkpoints
def packed(played: Played) -> str:
    """The step as text (JSON, compressed, in base64) from which `unpacked` makes the same step, bit for bit."""
    plain = {**played._asdict(), "episodes": [_of_episode(episode) for episode in played.episodes]}
    return base64.b64encode(zlib.compress(json.dumps(plain, default=_plain).encode(), level=1)).decode()


def unpacked(text: str) -> Played:
    plain = json.loads(zlib.decompress(base64.b64decode(text)))
    return Played(**plain | {"episodes": [_to_episode(episode) for episode in plain["episodes"]]})


def _plain(value: Any) -> Any:
    """What JSON does not have: arrays by dtype and bytes, their scalars as numbers."""
    if isinstance(value, np.ndarray):
        return [value.dtype.str, base64.b64encode(value.tobytes()).decode()]
    return dict(value) if isinstance(value, Mapping) else value.item()


def _array(plain: list[str] | None) -> Any:
    return None if plain is None else np.frombuffer(base64.b64decode(plain[1]), plain[0])


def _of_episode(episode: Episode) -> dict[str, Any]:
    plain = {field.name: getattr(episode, field.name) for field in fields(episode)}
    datums = [vars(datum) for datum in episode.datums]
    judgements = [vars(one) | {"replies": [vars(reply) for reply in one.replies]} for one in episode.judgements]
    return plain | {"datums": datums, "judgements": judgements}


def _to_episode(plain: dict[str, Any]) -> Episode:
    datums = tuple(Datum(**{name: _array(value) for name, value in datum.items()}) for datum in plain["datums"])
    judgements = tuple(
        Judgement(**one | {"replies": tuple(Reply(**reply) for reply in one["replies"])}) for one in plain["judgements"]
    )
    return Episode(**plain | {"datums": datums, "judgements": judgements})
