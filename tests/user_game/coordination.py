"""Coordination: two players who cannot communicate try to name the same letter of a list (Schelling's focal points).

A caller names a letter from the row's list; a guesser tries to name the same one. Both are one policy, trained in one
update. If a caller names no letter, there is nothing to guess, so rows are drawn until enough of them are playable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scope_jax.config import Config, LossCard, Section
from scope_jax.learner.types import Datum, Episode, Metrics, RoleShare, Update
from scope_jax.play.exams import Exam
from scope_jax.play.game import Game, Memory
from scope_jax.play.rewards import mean
from scope_jax.play.tools import Agent, Rollout, Tools, single_turn
from scope_jax.rollouts.types import Completion
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


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
    """Samples callers until `rows` of them named a letter of their list, then the guesses at these letters."""
    options, drawn = cfg.options(Options), memory["drawn"]
    called: dict[str, tuple[Row, Completion]] = {}
    playable: dict[str, Row] = {}
    for _ in range(options.most_draws):
        rows = {f"{drawn + i}": row for i, row in enumerate(tools.rows(drawn, options.rows))}
        drawn += options.rows
        for name, (call,) in zip(rows, say(tools, "caller", rows, 1), strict=True):
            called[name] = rows[name], call
        playable = {name: row for name, (row, call) in called.items() if call.content in row["answers"]}
        if len(playable) >= options.rows:
            break
    guesses = dict(zip(playable, say(tools, "guesser", playable, options.guesses), strict=True))
    hits = {name: [float(guess.content == called[name][1].content) for guess in guesses[name]] for name in playable}
    gains = {name: (1 + mean(hits[name])) / 2 for name in playable}  # half for a letter of the list
    episodes = [episode("caller", "all", call, gains.get(name, 0.0)) for name, (_, call) in called.items()]
    for name in playable:
        episodes += [episode("guesser", name, g, hit) for g, hit in zip(guesses[name], hits[name], strict=True)]
    metrics = {"caller/valid": len(playable) / len(called), "rows/drawn": float(len(called))}
    if hits:
        metrics["guesser/reward"] = mean([hit for own in hits.values() for hit in own])
    return episodes, {"drawn": drawn}, metrics


def say(tools: Tools, role: str, rows: Mapping[str, Row], samples: int) -> list[list[Completion]]:
    told = {name: message(row) for name, row in rows.items()}
    return tools.play(role, [Rollout(*each) for each in told.items()], Agent("actor", single_turn(1.0, 1)), samples)


def message(row: Row) -> Messages:
    return Messages(f"name one of {' '.join(row['answers'])}", system="you say one letter and no more")


def episode(role: str, group: str, said: Completion, reward: float) -> Episode:
    return Episode(role, "actor", group, Datum.from_completion(said), reward, text={"said": said.content})


def updates(cfg: Config) -> tuple[Update, ...]:
    """One update of both roles. Baselines: all callers for a caller, all guessers of the same letter for a guesser."""
    loss = cfg.options(Options).loss
    callers = RoleShare("caller", advantage=loss.model_copy(update={"advantage": "batch-mean"}), weight=0.5)
    return (Update("actor", loss, (callers, RoleShare("guesser"))),)


def exam(cfg: Config) -> Exam:
    return Exam("actor", lambda row, tokens: message(row), lambda said: said.content, ("exact-match",))


GAME = Game("coordination", Options, play, updates, exam, data=("answers",), start=start)
