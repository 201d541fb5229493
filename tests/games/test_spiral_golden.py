"""A step of SPIRAL with scripted players: games, rewards, role-conditioned advantages, updates; its exams."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scope_jax.config import CardError, Config
from scope_jax.errors import UserError
from scope_jax.games import GAMES, parse_config
from scope_jax.games.spiral.match import match
from scope_jax.games.spiral.messages import for_player
from scope_jax.games.spiral.options import SpiralSection
from scope_jax.learner import advantages
from scope_jax.learner.types import Datum, Episode
from scope_jax.play import exams
from scope_jax.play.game import play_step
from scope_jax.play.rollouts import Agent, Interaction, Rollout
from scope_jax.rollouts.types import Completion, Row, Turn
from tests.games import harness
from tests.games.harness import ScriptedTools, TurnContext

GAME = GAMES["spiral"]
RELEASED = json.loads(Path(__file__).with_name("fixtures").joinpath("spiral.json").read_text(encoding="utf-8"))["games"]
LONG = {"max_tokens": 64, "max_response_tokens": 4096}  # in characters


def card(evaluate: Mapping[str, Any] | None = None, **spiral: Any) -> Config:
    table = {
        "system": "spiral",
        "model": {"checkpoint": "none", "turns": "chat"},
        "train": {"steps": 1},
        "evaluate": {"temperature": 1.0, "max_tokens": 64, **(evaluate or {})},
        "spiral": {"sampling": LONG, "turns": 8, "games": {"tictactoe": 1}, **spiral},
    }
    return parse_config(table, "the test's card")


def three_games() -> Config:
    """A short step of all games."""
    names = ("tictactoe", "kuhn_poker", "negotiation")
    return card(turns=99, games=dict.fromkeys(names, 1), kuhn_hands=1, negotiation=[2, 2])


def lowest(now: TurnContext) -> str:
    """Takes the first free cell, checks or calls, and passes."""
    asked = now.turns[-1].text if now.turns else now.prompt
    if "free cell" in asked:
        return f"I take\n\\boxed{{{asked.rpartition(': ')[2].split(',')[0].split()[0]}}}\3"
    return "\\boxed{check}" if "check, bet" in asked.rpartition("one of: ")[2] else "\\boxed{[Call]}"


def played(cfg: Config, script: Any = lowest, memory: Any = None, step: int = 0, **tools: Any) -> Any:
    return play_step(GAME, cfg, ScriptedTools(script, turns="chat", **tools), memory or GAME.start(cfg), step)


# ---------------------------------------------------------------------------------------------------------------- games
def test_a_golden_step() -> None:
    """Both take the lowest free cell: 0 to 6, and X has 2, 4, 6: won. Each of seven turns is an episode of its own."""
    episodes, memory, metrics = played(card(turns=7))
    game = {"game": "tictactoe", "players": ["first", "second"], "deal": None, "moves": [*"0123456"]}
    assert [(episode.role, episode.reward, episode.trained) for episode in episodes] == [
        *[("first", 1.0, True)] * 4,
        *[("second", -1.0, True)] * 3,
    ]
    assert {key: episodes[0].text[key] for key in game} == game and episodes[0].text["won"] == [1.0, -1.0]
    assert memory == {"b": {"tictactoe_first": pytest.approx(0.05), "tictactoe_second": pytest.approx(-0.05)}}
    assert metrics["tictactoe_first/reward"] == 1.0 and metrics["tictactoe_first/valid"] == 1.0
    assert metrics["tictactoe_second/baseline"] == pytest.approx(-0.05) and metrics["tictactoe_first/cut_off"] == 0.0
    for episode in episodes:
        (row,) = episode.datums
        said = "".join(chr(token) for token in row.ids_T[row.sampled_T])
        assert said.startswith("I take\n\\boxed{") and episode.policy == "actor"
        assert "I take" not in "".join(chr(token) for token in row.ids_T[~row.sampled_T]), "thinking is not carried on"


def test_a_step_has_its_turns_and_no_more() -> None:
    """Whole games until there are 20 turns, an eighth as many games at a time; 20 of their turns are trained."""
    episodes, _, _ = played(card(turns=20))
    assert len(episodes) == 21 and sum(episode.trained for episode in episodes) == 20
    again, _, _ = played(card(turns=20))
    assert [episode.trained for episode in again] == [episode.trained for episode in episodes]
    other, _, _ = played(card(turns=20), step=1)
    assert [episode.trained for episode in other] != [episode.trained for episode in episodes]
    assert len({episode.group for episode in episodes}) == 6, "turns of a player in a game stay together"


@pytest.mark.parametrize(("moves", "shown", "hidden"), [("04", "O took 4.", "X took 0."), ("", "none", "took")])
def test_tictactoe_shows_the_last_turn(moves: str, shown: str, hidden: str) -> None:
    text = for_player(card(), "tictactoe", None, tuple(moves)).user
    assert shown in text and hidden not in text and "your mark is X" in text


def test_poker_and_negotiation_show_all_hands_and_turns() -> None:
    text = for_player(card(), "kuhn_poker", ["KQ", "JQ"], ("bet", "fold")).user
    assert "Hand 1: bet, fold: +1." in text and "You have -1 chips" in text and "your card is Q" in text
    assert "You are player 2" in text and text.count("check, bet") == 1
    text = for_player(card(), "negotiation", (4, 3), ("pass", "offer: 3 wood -> 1 gold")).user
    assert "3 wood -> 1 gold" in text and "Player 1: pass\nPlayer 2: offer" in text
    assert "3 gold, each worth 15" in text and "left: 2" in text


def test_thinking_and_other_words_do_not_count() -> None:
    """The box of the answer counts; a box inside the thinking does not."""
    said = "<think>\\boxed{1}</think> so \\boxed{0}"
    episodes, _, metrics = played(card(turns=1), lambda now: said + "\3")
    assert metrics["tictactoe_first/valid"] == 1.0 and metrics["tictactoe_second/valid"] == 0.0
    assert episodes[0].text["moves"] == ["0"] and episodes[0].text["invalid"] == 1


@pytest.mark.parametrize(("given", "won"), [({}, [-1.5, 0.5]), ({"invalid_reward": [-1, 1]}, [-1.0, 1.0])])
def test_an_illegal_action_ends_the_game(given: dict[str, Any], won: list[float]) -> None:
    episodes, memory, metrics = played(card(turns=1, **given), lambda now: "I resign")
    assert [(episode.reward, episode.text["moves"]) for episode in episodes] == [(won[0], [])]
    expected = {"tictactoe_first": 0.05 * won[0], "tictactoe_second": 0.05 * won[1]}
    assert memory["b"] == pytest.approx(expected)
    assert metrics["tictactoe_first/valid"] == 0.0 and metrics["tictactoe_second/reward"] == won[1]
    assert "tictactoe_second/response_tokens" not in metrics  # it was not asked


def test_a_game_with_too_many_turns_is_a_draw() -> None:
    episodes, _, _ = played(card(turns=1, max_turns=3))
    assert len(episodes) == 3 and {episode.reward for episode in episodes} == {0.0}
    assert not any(np.signbit(episode.reward) for episode in episodes)


@pytest.mark.parametrize(
    ("chips", "rewards"), [(True, {1.0, -1.0, 2.0, -2.0, 0.0, 3.0, -3.0}), (False, {1.0, -1.0, 0.0})]
)
def test_rewards_of_poker(chips: bool, rewards: set[float]) -> None:
    cfg = card(turns=80, games={"kuhn_poker": 1}, kuhn_hands=3, kuhn_by_chips=chips)
    episodes, _, _ = played(cfg)
    assert {episode.reward for episode in episodes} <= rewards
    for episode in episodes:
        assert sum(episode.text["won"]) == 0 and len(episode.text["deal"]) == 3 and episode.text["invalid"] is None


def test_games_are_drawn_by_their_weights_and_have_roles_of_their_own() -> None:
    cfg = card(turns=160, games={"tictactoe": 1, "kuhn_poker": 3}, kuhn_hands=1)
    episodes, memory, _ = played(cfg)
    games = [episode.text["game"] for episode in {episode.group: episode for episode in episodes}.values()]
    assert 0.6 < games.count("kuhn_poker") / len(games) < 0.9
    assert set(memory["b"]) == {
        f"{name}_{seat}" for name in ("tictactoe", "kuhn_poker") for seat in ("first", "second")
    }


def test_a_random_opponent_has_no_role_and_the_seats_alternate() -> None:
    episodes, memory, _ = played(card(turns=24, opponent="random"))
    roles = {episode.role: episode.text["players"] for episode in episodes}
    assert roles == {"first": ["first", "random"], "second": ["random", "second"]}
    assert set(memory["b"]) == {"tictactoe_first", "tictactoe_second"}
    moves = {tuple(episode.text["moves"]) for episode in episodes}
    assert len(moves) > 3, "its actions are drawn"


def test_two_policies_are_trained_on_their_own_seats() -> None:
    cfg = card(policies=["one", "two"], games={"tictactoe": 1, "kuhn_poker": 1}, passes=1)
    assert GAME.policies(cfg) == ("one", "two")
    trained = {update.policy: [share.role for share in update.roles] for update in GAME.updates(cfg)}
    assert trained == {"one": ["first"], "two": ["second"]}
    episodes, _, _ = played(cfg, known_policies=("one", "two"))
    assert {(episode.policy, episode.role) for episode in episodes} == {("one", "first"), ("two", "second")}


def test_updates_are_repeated_for_every_pass() -> None:
    one, two = GAME.updates(card(passes=2))
    assert one == two and one.name == "first+second"
    assert [share.advantage and share.advantage.advantage for share in one.roles] == ["none", "none"]
    (plain,) = GAME.updates(card(passes=1, loss={"advantage": "none"}))
    assert [share.advantage for share in plain.roles] == [None, None]


# ----------------------------------------------------------------------------------------------------------- advantages
def turns_of(count: int) -> Completion:
    """A player's turns, each after a prompt of its own."""
    said = harness.sampled_turn("x")
    ids = np.array([1], np.int32)
    row = Row(ids, said.ids, np.ones(1, bool), np.zeros(1, np.float32))
    asked = Turn("observation", ids, np.zeros(1, np.float32), "", None, True)
    turns = [turn for _ in range(count) for turn in (asked, said)][1:]
    return Completion((row,) * count, tuple(turns), "eos")


@dataclass
class Recorded(ScriptedTools):
    """Plays recorded games in their order."""

    games: list[Mapping[str, Any]] = field(default_factory=list)

    def interact(
        self, role: str, rollouts: Sequence[Rollout], agents: Mapping[str, Agent], samples: int = 1
    ) -> list[list[Interaction]]:
        return [[self._game(self.games.pop(0))] for _ in rollouts]

    def _game(self, game: Mapping[str, Any]) -> Interaction:
        value = {"game": "kuhn_poker", "players": ["first", "second"], "deal": ["JQ"], "moves": [], "invalid": None}
        said = {seat: turns_of(count) for seat, count in zip(value["players"], game["turns"], strict=True) if count}
        return Interaction(value | {"won": game["rewards"]}, said)


def advantages_of(cfg: Config, episodes: Sequence[Episode]) -> list[float]:
    """What the loss multiplies the log-probs of every token with: the advantage by the card, and the row's credit."""
    rules = {share.role: share.advantage or update.card for update in GAME.updates(cfg) for share in update.roles}
    rated = [advantages.assign([replace(e, trained=True)], rules[e.role])[0][0] for e in episodes]
    values = []
    for episode in rated:
        (row,) = episode.datums
        assert row.credit_T is not None and episode.advantage is not None
        values += [episode.advantage + float(credit) for credit in row.credit_T[row.sampled_T]]
    return values


def test_advantages_equal_those_of_the_released_code() -> None:
    """Number for number, in the order of its games; it leaves out those that are exactly 0."""
    cfg = card(turns=128, games={"kuhn_poker": 1})
    tools = Recorded(lowest, games=list(RELEASED))
    episodes, memory, _ = play_step(GAME, cfg, tools, GAME.start(cfg), 0)
    games = RELEASED[: len(RELEASED) - len(tools.games)]
    assert len(games) == 32 and len(episodes) == 128
    values = advantages_of(cfg, episodes)
    theirs = [value for game in games for seat in (0, 1) for value in game["advantages"][seat]]
    assert np.allclose([value for value in values if value != 0], theirs, rtol=0, atol=1e-7)  # credits are float32
    assert memory["b"] == {f"kuhn_poker_{seat}": games[-1]["baselines"][place] for place, seat in
                           enumerate(("first", "second"))}  # fmt: skip


def test_without_role_conditioning_rewards_are_the_advantages() -> None:
    cfg = card(turns=7, loss={"advantage": "none"})
    episodes, memory, metrics = played(cfg)
    assert advantages_of(cfg, episodes[:1]) == [1.0] * len(episodes[0].datums[0].ids_T[episodes[0].datums[0].sampled_T])
    assert memory == {"b": {}} and not any(name.endswith("/baseline") for name in metrics)


def test_baselines_go_on_from_the_memory() -> None:
    episodes, memory, _ = played(card(turns=1), memory={"b": {"tictactoe_first": 0.5, "kuhn_poker_first": 9.0}})
    assert advantages_of(card(), episodes[:1])[0] == 0.5  # won, and expected half of that
    assert memory["b"]["tictactoe_first"] == pytest.approx(0.525) and memory["b"]["kuhn_poker_first"] == 9.0


# ---------------------------------------------------------------------------------------------------------------- exams
def records(
    cfg: Config, rows: Sequence[Mapping[str, Any]], script: Any = lowest, **changes: Any
) -> list[dict[str, Any]]:
    changes = {"max_tokens": 64, "temperature": 1.0} | changes
    return harness.run_exam(GAME, cfg, Scored(script, turns="chat"), rows, **changes)


def examined(cfg: Config, rows: Sequence[Mapping[str, Any]], script: Any = lowest, **changes: Any) -> list[float]:
    return [record["measures"]["score"] for record in records(cfg, rows, script, **changes)]


@dataclass
class Scored(ScriptedTools):
    """Every legal action of poker is as probable as the other."""

    def encode(self, messages: Any, first: int = 0, tools: Any = None) -> tuple[Datum, ...]:
        assert messages[-1]["content"].startswith("\\boxed{") and first == len(messages) - 1
        return (Datum(np.zeros(1, np.int32), np.ones(1, bool), np.zeros(1, np.float32)),)

    def score(self, by: str, rows: Sequence[Datum], *, temperature: float = 1.0, **options: Any) -> list[np.ndarray]:
        return [np.full(1, np.log(0.5) / temperature, np.float32) for _ in rows]


def test_exams_play_on_from_a_position() -> None:
    board = {"game": "tictactoe", "opponent": "optimal", "deal": None}
    rows = [{**board, "moves": []}, {**board, "moves": ["4"]}, {**board, "moves": [*"01"]}]
    rows += [{**board, "opponent": "random", "moves": [*"03142"[:4]]}]
    assert examined(card(), rows) == [-1.0, -1.0, -1.0, 1.0]  # 2, next, completes the row
    assert examined(card(), rows[:1], lambda now: "I pass") == [-1.0]
    assert exams.max_turns_of(card(), GAME.exam_of(card())) == 1, "nothing can be called"


def test_the_worst_case_of_poker_is_computed_from_log_probs() -> None:
    hand = {"game": "kuhn_poker", "opponent": "worst-case", "deal": ["JQ"]}
    rows = [{**hand, "moves": []}, {**hand, "moves": ["check"]}]
    assert examined(card(), rows) == pytest.approx([-5 / 12, -1 / 2])


def test_games_of_an_exam_are_sampled_as_their_set_says() -> None:
    """Turns that are longer than the set allows are cut, and have no box."""
    row = {"game": "tictactoe", "opponent": "random", "deal": None, "moves": [*"0314"]}
    assert examined(card(), [row]) == [1.0]
    assert examined(card(), [row], max_tokens=4) == [-1.0]
    assert examined(card({"max_tokens": 4}), [row], max_tokens=64) == [1.0]
    asked: list[Any] = []

    @dataclass
    class Asked(Scored):
        def interact(
            self, role: str, rollouts: Sequence[Rollout], agents: Mapping[str, Agent], samples: int = 1
        ) -> list[list[Interaction]]:
            asked.extend(agent.sampling for agent in agents.values())
            return super().interact(role, rollouts, agents, samples)

    own = {"temperature": 0.5, "top_p": 0.9, "top_k": 3}
    harness.run_exam(GAME, card(), Asked(lowest, turns="chat"), [row], **own)
    assert [{name: getattr(one, name) for name in own} for one in asked] == [own, own]


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"top_p": 0.9}, {"top_k": 5}])
def test_a_worst_case_needs_all_probabilities(wrong: dict[str, Any]) -> None:
    row = {"game": "kuhn_poker", "opponent": "worst-case", "deal": ["JQ"], "moves": []}
    with pytest.raises(UserError, match=r"needs a temperature above 0, top_p = 1 and top_k = 0"):
        examined(card(), [row], **wrong)


def test_a_worst_case_is_that_of_the_temperature() -> None:
    """Every chance is a half at temperature 1, and a quarter at one half, so that half of all turns are no action. The
    second player then wins, by the other's card: K (either way) -5/4, Q (which bets) -3/4, J (which bets) -1/4."""
    row = {"game": "kuhn_poker", "opponent": "worst-case", "deal": ["JQ"], "moves": ["check"]}
    assert examined(card(), [row], temperature=0.5) == pytest.approx([-3 / 4])


@pytest.mark.parametrize(
    "row", [{}, {"game": "chess", "opponent": "random"}, {"game": "kuhn_poker", "opponent": "optimal"}]
)
def test_a_row_without_its_game_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"an opponent and its game"):
        exams.check_prompts(card(), GAME.exam_of(card()), {"held_out": [row]})


@pytest.mark.parametrize(
    "wrong",
    [
        {"games": {}},
        {"games": {"chess": 1}},
        {"games": {"tictactoe": 0}},
        {"policies": []},
        {"invalid_reward": [-1e9, 0]},
    ],
)
def test_cards_that_cannot_be_played_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(CardError):
        card(**wrong)


def test_a_match_is_the_same_whoever_plays_beside_it() -> None:
    """What chance decides depends on the rollout alone."""
    cfg = card(games={"kuhn_poker": 1}, kuhn_hands=2)
    plays = match(cfg, "kuhn_poker", ("first", "second"))
    tools = ScriptedTools(lowest, turns="chat")
    agents = {seat: Agent("actor", cfg.options(SpiralSection).sampling, 9) for seat in ("first", "second")}
    alone = tools.interact("spiral", [Rollout("7", play=plays)], agents)
    among = tools.interact("spiral", [Rollout(f"{name}", play=plays) for name in range(9)], agents)
    assert alone[0][0].value == among[7][0].value
