"""Supervised training as a `Game`: a step is the next rows of the stream, each conversation an episode."""

from __future__ import annotations

from collections.abc import Iterator

from scope_jax.config import Config, LossCard
from scope_jax.config.base import GameSection
from scope_jax.learner.types import Episode, Metrics, RoleShare, Update
from scope_jax.play import given
from scope_jax.play.game import ACCURACY, ACTOR, GRADIENT, Game, Memory, Panel
from scope_jax.play.tools import Tools

ROLE = "sft"


class SftSection(GameSection):
    """The [sft] table."""

    loss: LossCard = LossCard(objective="supervised", aggregation="token-mean")
    """The loss; its `objective` is `supervised`."""


def options(cfg: Config) -> SftSection:
    return cfg.options(SftSection)


def check(cfg: Config) -> None:
    """Raises ValueError for a loss of another kind, or with keys that this one does not read."""
    if options(cfg).loss.objective != "supervised":
        raise ValueError('sft.loss.objective must be "supervised"; for pairs of answers there is system = "dpo"')
    given.check_loss(cfg, ROLE, options(cfg).loss, ("aggregation", "constant_length", "tempered"))


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
    """The episodes of the next `train.batch_size` conversations; those that are too long for a row are left out."""
    first, size = memory["drawn"], cfg.train.batch_size
    encoded = [given.encoded(tools, row) for row in tools.rows(first, size)]
    fitting = [given.fits(cfg, each) for each in encoded]
    episodes = [
        given.episode(each, role=ROLE, group=f"{first + place}", reward=0.0)
        for place, (each, fits) in enumerate(zip(encoded, fitting, strict=True))
        if fits
    ]
    return episodes, {"drawn": first + size}, given.metrics(tools, ROLE, fitting, episodes)


def updates(cfg: Config) -> tuple[Update, ...]:
    """One, of all conversations."""
    return (Update(ACTOR, options(cfg).loss, (RoleShare(ROLE),)),)


def metrics(cfg: Config) -> Iterator[str]:
    """The names of all metrics that a step may have."""
    yield from (f"{ROLE}/{name}" for name in given.METRICS)


GAME = Game(
    name="sft",
    options=SftSection,
    play=play,
    updates=updates,
    exam=given.exam,
    check=check,
    start=lambda cfg: {"drawn": 0},
    data=("conversations",),
    panels=(ACCURACY, Panel("Loss", (f"{ROLE}/loss",), False), GRADIENT),
    metrics=metrics,
)
