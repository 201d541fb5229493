"""DPO on given pairs as a `Game`: a step is the next rows of the stream, each a group of two episodes."""

from __future__ import annotations

from collections.abc import Iterator

from scope_jax.config import Config, LossCard
from scope_jax.config.base import GameSection
from scope_jax.data.sources import Source
from scope_jax.errors import UserError
from scope_jax.learner.types import Episode, Metrics, RoleShare, Update
from scope_jax.play import given
from scope_jax.play.game import ACCURACY, ACTOR, GRADIENT, Game, Memory, Panel
from scope_jax.play.tools import Tools

ROLE = "dpo"


class DpoSection(GameSection):
    """The [dpo] table."""

    loss: LossCard = LossCard(objective="dpo")
    """The loss; its `objective` is `dpo`, and `dpo_beta` and `label_smoothing` are its keys."""


def options(cfg: Config) -> DpoSection:
    return cfg.options(DpoSection)


def check(cfg: Config) -> None:
    """Raises ValueError for a loss of another kind, or with keys that this one does not read."""
    if options(cfg).loss.objective != "dpo":
        raise ValueError('dpo.loss.objective must be "dpo"; for conversations there is system = "sft"')
    given.check_loss(cfg, ROLE, options(cfg).loss, ("dpo_beta", "label_smoothing", "tempered"))


def source(cfg: Config) -> Source:
    """The pairs. Raises UserError if the card has none."""
    if cfg.data.preferences is None:
        raise UserError("data.preferences is missing; dpo needs a file of preferences.")
    return Source(cfg.data.preferences, "preferences", cfg.data)


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
    """Two episodes for each of the next `train.batch_size` pairs, of reward 1 and 0; a pair of which one is too long
    for a row is left out."""
    first, size = memory["drawn"], cfg.train.batch_size
    pairs = [
        tuple((given.encoded(tools, row[name]), reward) for name, reward in (("chosen", 1.0), ("rejected", 0.0)))
        for row in tools.rows(first, size)
    ]
    fitting = [all(given.fits(cfg, each) for each, _ in pair) for pair in pairs]
    episodes = [
        given.episode(each, role=ROLE, group=f"{first + place}", reward=reward)
        for place, (pair, fits) in enumerate(zip(pairs, fitting, strict=True))
        if fits
        for each, reward in pair
    ]
    return episodes, {"drawn": first + size}, given.metrics(tools, ROLE, fitting, episodes)


def updates(cfg: Config) -> tuple[Update, ...]:
    """One, of all pairs."""
    return (Update(ACTOR, options(cfg).loss, (RoleShare(ROLE),)),)


def metrics(cfg: Config) -> Iterator[str]:
    """The names of all metrics that a step may have."""
    yield from (f"{ROLE}/{name}" for name in given.METRICS)


GAME = Game(
    name="dpo",
    options=DpoSection,
    play=play,
    updates=updates,
    exam=given.exam,
    check=check,
    start=lambda cfg: {"drawn": 0},
    data=("preferences",),
    source=source,
    panels=(
        ACCURACY,
        Panel("Pairs ranked as given", (f"{ROLE}/implicit_accuracy",), True),
        Panel("Loss", (f"{ROLE}/loss",), False),
        GRADIENT,
    ),
    metrics=metrics,
)
