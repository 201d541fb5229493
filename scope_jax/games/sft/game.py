"""Supervised training as a `Game`: a step is the next rows of the stream, each conversation an episode."""

from __future__ import annotations

from scope_jax.config import Config, LossCard
from scope_jax.config.base import GameSection
from scope_jax.play import given
from scope_jax.play.game import ACCURACY, ACTOR, GRADIENT, Game, Panel
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent
from scope_jax.play.step import Played, Step

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


def roles(cfg: Config) -> tuple[Role, ...]:
    """The actor, whose answers are given; it speaks in exams only."""
    return (Role(ROLE, Agent(ACTOR, given.EXAMINED), loss=options(cfg).loss, table=ROLE),)


def play(step: Step[SftSection]) -> Played:
    """The episodes of the next `train.batch_size` conversations; those that are too long for a row are left out."""
    first, size = step.memory["drawn"], step.cfg.train.batch_size
    encoded = [given.encoded(step.tools, row) for row in step.rows(first, size)]
    fitting = [given.fits(step.cfg, each) for each in encoded]
    episodes = [
        given.episode(each, role=ROLE, group=f"{first + place}", reward=0.0)
        for place, (each, fits) in enumerate(zip(encoded, fitting, strict=True))
        if fits
    ]
    return Played(episodes, metrics=given.metrics(step.tools, ROLE, fitting, episodes))


GAME = Game(
    name="sft",
    options=SftSection,
    roles=roles,
    play=play,
    remember=given.remember,
    start=given.start,
    check=check,
    data=("conversations",),
    panels=(ACCURACY, Panel("Loss", (f"{ROLE}/loss",), False), GRADIENT),
)
