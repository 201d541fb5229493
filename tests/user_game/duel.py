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
from scope_jax.learner.types import Episode, Metrics, RoleShare, Update
from scope_jax.play.exams import Exam
from scope_jax.play.game import Game, Memory
from scope_jax.play.rewards import mean
from scope_jax.play.rollouts import Agent, Ask, Context, Response, Rollout
from scope_jax.play.tool_calls import Tool
from scope_jax.play.tools import Tools, single_turn
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


def policies(cfg: Config) -> tuple[str, ...]:
    return cfg.options(Options).policies


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


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
    options = cfg.options(Options)
    rows = tools.rows(step * options.games, options.games)
    rollouts = [Rollout(f"{place}", play=duel(row)) for place, row in enumerate(rows)]
    names = options.policies
    agents = {seat: Agent(names[i % len(names)], single_turn(1.0, 1), max_turns=3) for i, seat in enumerate(SEATS)}
    for seat in SEATS:
        agents[seat] = Agent(
            agents[seat].policy,
            agents[seat].sampling.model_copy(update={"max_response_tokens": None}),
            max_turns=3,
        )
    episodes: list[Episode] = []
    for rollout, group in zip(rollouts, tools.interact("duel", rollouts, agents, options.samples), strict=True):
        for each in group:
            for place, seat in enumerate(SEATS):
                if seat in each.completions:
                    episodes.append(
                        Episode.from_completion(
                            each.completions[seat],
                            None,
                            {"at": each.value["at"]},
                            role=seat,
                            policy=agents[seat].policy,
                            group=f"{seat}/{rollout.name}",
                            reward=float(each.value["loser"] != place),
                        )
                    )
    lengths = tools.each("length", lambda text: [len(text), time.time_ns()], [e.text["at"] for e in episodes])
    coin = tools.once("coin", time.time_ns)
    return episodes, memory, {"games/length": mean([each[0] for each in lengths]), "games/coin": float(coin % 97)}


def updates(cfg: Config) -> tuple[Update, ...]:
    options = cfg.options(Options)
    if len(options.policies) == 1:
        return (Update(options.policies[0], options.loss, tuple(map(RoleShare, SEATS))),)
    return tuple(
        Update(name, options.loss, (RoleShare(seat),)) for name, seat in zip(options.policies, SEATS, strict=True)
    )


def exam(cfg: Config) -> Exam:
    first = policies(cfg)[0]
    return Exam(first, lambda row, tokens: Messages("say a letter"), lambda said: said.content, ("exact-match",))


GAME = Game("duel", Options, play, updates, exam, data=("answers",), policies=policies)
