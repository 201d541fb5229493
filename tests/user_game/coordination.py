"""Coordination: two players who cannot communicate try to name the same letter of a list (Schelling's focal points).

A caller names a letter from the row's list; a guesser tries to name the same one. Both are one policy, trained in one
update. If a caller names no letter, there is nothing to guess, so rows are drawn until enough of them are playable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scope_jax.config import Config, LossCard, Section
from scope_jax.grading.rewards import mean
from scope_jax.learner.types import Episode, Metrics
from scope_jax.play.exams import Exam
from scope_jax.play.game import Game
from scope_jax.play.roles import Role, one_update_per_policy
from scope_jax.play.rollouts import Agent, Rollout
from scope_jax.play.samples import Sample
from scope_jax.play.step import Memory, Played, Step
from scope_jax.play.tools import single_turn
from scope_jax.text.messages import Messages

Row = Mapping[str, Any]


class Options(Section):
    """The card's [coordination] table."""

    rows: int
    """Rows played in each step."""
    most_draws: int
    """Most draws of that many rows."""
    guesses: int
    """Guesses at each caller's letter."""
    loss: LossCard
    """The loss of callers and guessers."""


def start(cfg: Config) -> Memory:
    return {"drawn": 0}


def roles(cfg: Config) -> tuple[Role, ...]:
    """Baselines: all callers for a caller, all guessers of the same letter for a guesser."""
    loss, agent = cfg.options(Options).loss, Agent("actor", single_turn(1.0, 1))
    callers = loss.model_copy(update={"advantage": "batch-mean"})
    return Role("caller", agent, loss=loss, advantage=callers, weight=0.5), Role("guesser", agent, loss=loss)


def play(step: Step[Options]) -> Played:
    """Samples callers until `rows` of them named a letter of their list, then the guesses at these letters."""
    first, card = step.memory["drawn"], step.card
    drawn = first
    called: dict[str, tuple[Row, Sample]] = {}
    playable: dict[str, Row] = {}
    for _ in range(card.most_draws):
        rows = {f"{drawn + i}": row for i, row in enumerate(step.rows(drawn, card.rows))}
        drawn += card.rows
        for name, (call,) in zip(rows, say(step, "caller", rows, 1), strict=True):
            called[name] = rows[name], call
        playable = {name: row for name, (row, call) in called.items() if call.content in row["answers"]}
        if len(playable) >= card.rows:
            break
    guesses = dict(zip(playable, say(step, "guesser", playable, card.guesses), strict=True))
    hits = {name: [float(guess.content == called[name][1].content) for guess in guesses[name]] for name in playable}
    gains = {name: (1 + mean(hits[name])) / 2 for name in playable}  # half for a letter of the list
    episodes = [episode(call, "all", gains.get(name, 0.0)) for name, (_, call) in called.items()]
    for name in playable:
        episodes += [episode(guess, name, hit) for guess, hit in zip(guesses[name], hits[name], strict=True)]
    metrics = {"caller/valid": len(playable) / len(called), "rows/drawn": float(len(called))}
    return Played(episodes, outcome=drawn - first, metrics=metrics)


def remember(cfg: Config, memory: Memory, outcome: int, number: int) -> tuple[Memory, Metrics]:
    """outcome: rows that were drawn."""
    return {"drawn": memory["drawn"] + outcome}, {}


def say(step: Step[Options], role: str, rows: Mapping[str, Row], samples: int) -> list[list[Sample]]:
    rollouts = [Rollout(name, message(row)) for name, row in rows.items()]
    return step.play(role, rollouts, samples=samples)


def message(row: Row) -> Messages:
    return Messages(f"name one of {' '.join(row['answers'])}", system="you say one letter and no more")


def episode(said: Sample, group: str, reward: float) -> Episode:
    return said.episode(reward, group=group, text={"said": said.content})


def exam(cfg: Config) -> Exam:
    return Exam(roles(cfg)[0], lambda row, tokens: message(row), lambda said: said.content, ("exact-match",))


GAME = Game(
    name="coordination",
    options=Options,
    roles=roles,
    play=play,
    remember=remember,
    start=start,
    arrange=one_update_per_policy,
    exam=exam,
    data=("answers",),
)
