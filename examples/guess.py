"""Guess a number: an environment with reset and step says whether it is higher or lower.

See docs/environments.md, and examples/guess.toml for a card.
"""

import re

from scope_jax.config import LossCard, SamplingSection, Section
from scope_jax.environments.environment import environment
from scope_jax.play.game import REWARD, Game
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent
from scope_jax.play.step import Played

MOST = 20


class Options(Section):
    """The [guess] table."""

    numbers: int = 16
    """Numbers of a step."""
    samples: int = 8
    """Times that each is played."""
    max_turns: int = 5
    """Guesses of a game."""
    sampling: SamplingSection = SamplingSection(max_tokens=16)
    loss: LossCard = LossCard()


class Guess:
    """The world of one episode."""

    def __init__(self, number):
        self.number = number

    def reset(self):
        """Returns the prompt."""
        return f"Guess my number from 1 to {MOST}. Write a number."

    def step(self, text):
        """Takes a turn of the agent; returns what it reads next, the reward, and whether the game is over."""
        if (found := re.search(r"\d+", text)) is None:
            return "That is no number.", 0.0, False
        said = int(found[0])
        return "higher" if said < self.number else "lower", float(said == self.number), said == self.number

    def close(self):
        """Releases nothing: this world holds nothing."""


def roles(cfg):
    options = cfg.options(Options)
    return (Role("player", Agent("actor", options.sampling, max_turns=options.max_turns), loss=options.loss),)


def rollout(step, place):
    number = int(step.rng("number", step.number, place).integers(1, MOST + 1))
    return environment(f"{place}", "player", lambda context: Guess(number))


def play(step):
    rollouts = [rollout(step, place) for place in range(step.card.numbers)]
    groups = step.interact(["player"], rollouts, samples=step.card.samples, key="guess")
    played = [each for group in groups for each in group if not each.failed]
    return Played([each.completions["player"].episode(sum(each.value["rewards"])) for each in played])


GAME = Game("guess", Options, roles, play, panels=(REWARD,))
