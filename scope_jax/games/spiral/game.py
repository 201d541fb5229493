"""SPIRAL as a `Game`: matches by turns, role-conditioned advantages, and the baselines between steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scope_jax.config import Config
from scope_jax.games.spiral import state
from scope_jax.games.spiral.exam import exam
from scope_jax.games.spiral.match import RANDOM, SEATS, match
from scope_jax.games.spiral.options import SpiralSection, options
from scope_jax.games.spiral.roles import card_roles
from scope_jax.games.spiral.state import SeatResult
from scope_jax.grading.rewards import by_turn, means
from scope_jax.learner.types import Episode, Metrics
from scope_jax.play import searching
from scope_jax.play.game import GRADIENT, REWARD, Game, Panel, Starter
from scope_jax.play.roles import one_update_per_policy
from scope_jax.play.rollouts import Rollout
from scope_jax.play.step import Memory, Played, Step

PLAYERS = {  # by opponent; the matches take turns
    "self": (SEATS, SEATS),
    "random": ((SEATS[0], RANDOM), (RANDOM, SEATS[1])),
}


def play(step: Step[SpiralSection]) -> Played:
    """One step up to the updates: an episode for each turn, and what the seats have won, in order."""
    generator = step.rng("spiral", step.number)
    # 1. to 3. whole matches, until they have enough turns; what each seat wins is the reward of its turns
    results = play_matches(step, generator)
    # 4. role-conditioned advantages: reward − b, with the b of game and seat before this match moves it
    won = [(result.key, result.reward) for result in results]
    baselines, _ = state.move_baselines(step.card.loss, step.memory["b"], won)
    episodes = turn_episodes(results, baselines)
    # 5. of all turns as many as a step trains
    trained = set(generator.permutation(len(episodes))[: step.card.turns].tolist())
    episodes = [replace(episode, trained=place in trained) for place, episode in enumerate(episodes)]
    # the training loop trains on these episodes, `passes` times
    return Played(episodes, outcome=won, metrics=measure(results))


def remember(cfg: Config, memory: Memory, outcome: list[tuple[str, float]], number: int) -> tuple[Memory, Metrics]:
    """The baselines b by game and seat, after all results of the step."""
    _, baselines = state.move_baselines(options(cfg).loss, memory["b"], outcome)
    return {"b": baselines}, {f"{key}/baseline": value for key, value in baselines.items()}


def play_matches(step: Step[SpiralSection], generator: np.random.Generator) -> list[SeatResult]:
    """The results of the policies' seats in matches whose games are drawn by their weights.

    An eighth as many matches as a step trains turns are played at a time.
    """
    card = step.card
    games = list(card.games)
    shares = [weight / sum(card.games.values()) for weight in card.games.values()]
    at_a_time = -(-card.turns // 8)
    results: list[SeatResult] = []
    matches = 0
    turns = 0
    while matches == 0 or 0 < turns < card.turns:
        rollouts = []
        for place in generator.choice(len(games), at_a_time, p=shares):
            game = games[place]
            players = PLAYERS[card.opponent][matches % 2]
            rollouts.append(Rollout(f"{matches}", label=game, play=match(step.cfg, game, players)))
            matches += 1
        for (played,) in step.interact(SEATS, rollouts, key="spiral"):
            results += state.seat_results(played)
        turns = sum(result.turns for result in results)
    return results


def turn_episodes(results: Sequence[SeatResult], baselines: Sequence[float]) -> list[Episode]:
    """An episode for each sampled turn, whose reward is what its seat has won; its tokens have the baseline before the
    match taken off their advantage. Text and end are those of all turns of the seat, which are a group."""
    episodes: list[Episode] = []
    for result, baseline in zip(results, baselines, strict=True):
        if result.sample is None:
            continue
        group = f"{len(episodes)}/{result.key}"
        rows = by_turn(result.sample, [-baseline] * len(searching.contents(result.sample)))
        episodes += [
            result.sample.episode(result.reward, text=result.match, group=group, datums=(row,))
            for row in rows
            if row.sampled_T.any()
        ]
    return episodes


def measure(results: Sequence[SeatResult]) -> Metrics:
    """Of each game and seat, over its matches, whereas its episodes are turns: what it won, and whether all its actions
    were legal."""
    values: dict[str, list[float]] = {}
    for result in results:
        values.setdefault(f"{result.key}/reward", []).append(result.reward)
        values.setdefault(f"{result.key}/valid", []).append(float(result.valid))
    return means(values)


GAME = Game(
    name="spiral",
    options=SpiralSection,
    roles=card_roles,
    play=play,
    remember=remember,
    start=lambda cfg: {"b": {}},
    ahead=lambda cfg, memory, steps: memory,  # baselines of some matches before
    arrange=lambda cfg, updates: one_update_per_policy(cfg, updates) * options(cfg).passes,
    exam=exam,
    batch=("spiral.turns",),
    starter=Starter(conversations={"": ("xml", "raw")}),  # a player's every turn is a conversation of its own
    panels=(Panel("Results against opponents", ("/score",), False, of_exams=True), REWARD, GRADIENT),
)
