"""Duel: two players in turns, and a referee's clock. A player says a letter, the other one another, until one repeats.

The players are one policy or two (`policies`), each trained on its own rows with its own baseline; the clock is a tool
whose result no process can foresee, and which decides who wins a draw.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

from pydantic import Field

from scope_jax.config import Config, LossCard, Section
from scope_jax.grading.rewards import mean
from scope_jax.learner.types import Episode
from scope_jax.play.exams import Exam
from scope_jax.play.game import Game
from scope_jax.play.roles import Role, one_update_per_policy
from scope_jax.play.rollouts import Agent, Ask, Context, Response, Rollout
from scope_jax.play.step import Played, Step
from scope_jax.play.tool_calls import Tool
from scope_jax.play.tools import single_turn
from scope_jax.text.messages import Messages

SEATS = ("first", "second")
CLOCK = Tool("clock", lambda: f"{time.time_ns()}", {"type": "function", "function": {"name": "clock"}})


class Options(Section):
    """The card's [duel] table."""

    games: int
    """Games of a step."""
    samples: int
    """Times that each is played."""
    policies: tuple[str, ...] = Field(default=("actor",), strict=False)
    """One policy for both players, or one for each."""
    loss: LossCard
    """The loss of both."""


def roles(cfg: Config) -> tuple[Role, ...]:
    card = cfg.options(Options)
    sampling = single_turn(1.0, 1).model_copy(update={"max_response_tokens": None})
    return tuple(
        Role(seat, Agent(card.policies[place % len(card.policies)], sampling, max_turns=3), loss=card.loss)
        for place, seat in enumerate(SEATS)
    )


def duel(row: Any) -> Any:
    def play(context: Context) -> Generator[Ask, Response, dict[str, Any]]:
        said: list[str] = []
        prompt = Messages(f"letters {' '.join(row['answers'])}")
        for turn in range(6):
            before = f"heard {said[-1]}" if said else "begin"
            response = yield Ask(SEATS[turn % 2], Messages(f"{prompt.user} {before}") if turn < 2 else before)
            letter = response.content[:1]
            if response.over or letter in said:
                return {"loser": turn % 2, "said": said, "at": context.call(CLOCK)}
            said.append(letter)
        return {"loser": int(context.call(CLOCK)[-1]) % 2, "said": said, "at": context.call(CLOCK)}

    return play


def play(step: Step[Options]) -> Played:
    card, tools = step.card, step.tools
    rows = step.rows(step.number * card.games, card.games)
    rollouts = [Rollout(f"{place}", play=duel(row)) for place, row in enumerate(rows)]
    episodes: list[Episode] = []
    for group in step.interact(SEATS, rollouts, samples=card.samples, key="duel"):
        for each in group:
            for place, seat in enumerate(SEATS):
                if seat in each.completions:
                    reward = float(each.value["loser"] != place)
                    episodes.append(each.completions[seat].episode(reward, text={"at": each.value["at"]}))
    lengths = tools.each("length", lambda text: [len(text), time.time_ns()], [e.text["at"] for e in episodes])
    coin = tools.once("coin", time.time_ns)
    return Played(
        episodes, metrics={"games/length": mean([each[0] for each in lengths]), "games/coin": float(coin % 97)}
    )


def exam(cfg: Config) -> Exam:
    return Exam(
        roles(cfg)[0], lambda row, tokens: Messages("say a letter"), lambda said: said.content, ("exact-match",)
    )


GAME = Game(
    name="duel",
    options=Options,
    roles=roles,
    play=play,
    arrange=one_update_per_policy,
    exam=exam,
    data=("answers",),
)
