"""SPIRAL's exam: matches that go on from given positions, and what Kuhn poker loses at worst, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from scope_jax.config import Config, SamplingSection
from scope_jax.errors import UserError
from scope_jax.games.spiral import kuhn_poker, messages
from scope_jax.games.spiral.match import OPTIMAL, RANDOM, SEATS, match
from scope_jax.games.spiral.position import Moves
from scope_jax.games.spiral.roles import card_roles
from scope_jax.games.spiral.rules import GAMES
from scope_jax.play.exams import Answer, Exam, Row, chances
from scope_jax.play.rollouts import Rollout
from scope_jax.play.tools import Tools
from scope_jax.text.messages import Messages
from scope_jax.text.parsing import boxed

WORST_CASE = "worst-case"
OPPONENTS = {RANDOM: [*GAMES], OPTIMAL: ["tictactoe"], WORST_CASE: ["kuhn_poker"]}  # with their games


@dataclass(frozen=True)
class Start:
    """Where a match of an exam goes on; the policy has the seat whose turn it is."""

    game: str
    """Its name."""
    opponent: str
    """Who has the other seat."""
    deal: Any
    """What chance has decided."""
    moves: Moves
    """The actions so far."""

    @staticmethod
    def of(row: Row) -> Start:
        """The start that a row of an exam has. Raises UserError for a row without an opponent and its game."""
        opponent = row.get("opponent", "")
        if row.get("game") not in OPPONENTS.get(opponent, ()):
            raise UserError(f"a row of SPIRAL's exam has an opponent and its game, of {OPPONENTS}; not {dict(row)}.")
        return Start(row["game"], opponent, row.get("deal"), tuple(row.get("moves", ())))

    @property
    def player(self) -> int:
        """Whose turn it is."""
        return GAMES[self.game](self.deal, self.moves).player

    @property
    def players(self) -> list[str]:
        """Who plays, by seat."""
        return [seat if place == self.player else self.opponent for place, seat in enumerate(SEATS)]


def exam(cfg: Config) -> Exam:
    """Rows have game, opponent, deal and moves; the measure `score` is what the policy wins from there, in matches of
    its own. The reply to a row that every exam records is the first seat's, and counts for nothing."""
    return Exam(
        role=card_roles(cfg)[0],
        prompt=partial(_prompt, cfg),
        read=lambda completion: boxed(completion.content),
        measures=("score",),
        kind="rows",
        own={"score": partial(score, cfg)},
    )


def _prompt(cfg: Config, row: Row, tokens: object) -> Messages:
    start = Start.of(row)
    return messages.for_player(cfg, start.game, start.deal, start.moves)


def score(cfg: Config, answers: Sequence[Answer], tools: Tools) -> list[float]:
    """What the policy wins: 1, 0 or -1, where an illegal action is a loss; in the worst case chips per hand."""
    sampling = answers[0].sampling
    starts = [Start.of(answer.row) for answer in answers]
    players = {start.player for start in starts if start.opponent == WORST_CASE}
    worst = {player: worst_case(cfg, tools, player, sampling) for player in sorted(players)}
    played = {number: start for number, start in enumerate(starts) if start.opponent != WORST_CASE}
    rollouts = [
        Rollout(f"exam {number}", play=match(cfg, start.game, start.players, (start.deal, start.moves)))
        for number, start in played.items()
    ]
    agents = {role.name: replace(role.agent, sampling=sampling) for role in card_roles(cfg)}
    matches = tools.interact("spiral", rollouts, agents)
    won = {
        number: one.value["won"][start.player] if one.value["invalid"] is None else -1.0
        for (number, start), (one,) in zip(played.items(), matches, strict=True)
    }
    return [won[number] if number in won else worst[start.player] for number, start in enumerate(starts)]


def worst_case(cfg: Config, tools: Tools, player: int, sampling: SamplingSection) -> float:
    """Chips per hand of poker against a best response, from the chances of all actions in their boxes."""
    situations = kuhn_poker.situations(player)
    cases = [
        (messages.for_player(cfg, "kuhn_poker", [card * 2], hand), f"\\boxed{{{move}}}")  # the other's card is not seen
        for card, hand, move in situations
    ]
    policy = card_roles(cfg)[player].agent.policy
    plan = dict(zip(situations, chances(tools, policy, sampling, cases), strict=True))
    return kuhn_poker.worst_case(player, plan)
