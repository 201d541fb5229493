"""DPO on given pairs as a `Game`: a step is the next rows of the stream, each a group of two episodes."""

from __future__ import annotations

from scope_jax.config import Config, LossCard
from scope_jax.config.base import GameSection
from scope_jax.play import given
from scope_jax.play.game import ACCURACY, ACTOR, GRADIENT, Game, Panel
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent
from scope_jax.play.step import Played, Step

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


def roles(cfg: Config) -> tuple[Role, ...]:
    """The actor, whose answers are given; it speaks in exams only."""
    return (Role(ROLE, Agent(ACTOR, given.EXAMINED), loss=options(cfg).loss, table=ROLE),)


def play(step: Step[DpoSection]) -> Played:
    """Two episodes for each of the next `train.batch_size` pairs, of reward 1 and 0; a pair of which one is too long
    for a row is left out."""
    first, size = step.memory["drawn"], step.cfg.train.batch_size
    pairs = [
        tuple((given.encoded(step.tools, row[name]), reward) for name, reward in (("chosen", 1.0), ("rejected", 0.0)))
        for row in step.rows(first, size)
    ]
    fitting = [all(given.fits(step.cfg, each) for each, _ in pair) for pair in pairs]
    episodes = [
        given.episode(each, role=ROLE, group=f"{first + place}", reward=reward)
        for place, (pair, fits) in enumerate(zip(pairs, fitting, strict=True))
        if fits
        for each, reward in pair
    ]
    return Played(episodes, metrics=given.metrics(step.tools, ROLE, fitting, episodes))


GAME = Game(
    name="dpo",
    options=DpoSection,
    roles=roles,
    play=play,
    remember=given.remember,
    start=given.start,
    check=check,
    data=("preferences",),
    panels=(
        ACCURACY,
        Panel("Pairs ranked as given", (f"{ROLE}/implicit_accuracy",), True),
        Panel("Loss", (f"{ROLE}/loss",), False),
        GRADIENT,
    ),
)
