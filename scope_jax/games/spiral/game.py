"""SPIRAL as a `Game`: matches by turns, role-conditioned advantages, and matches as exams."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import Field

from scope_jax.config import AdvantageCard, Config, LossCard, SamplingSection
from scope_jax.config.base import CardPath, Count, GameSection, prompts_of
from scope_jax.data.keys import rng
from scope_jax.errors import UserError
from scope_jax.games.spiral.rules import ACTIONS, DEALS, GAMES, Moves, action, perfect, worst_case
from scope_jax.learner.types import Episode, Metrics, RoleShare, Update
from scope_jax.play import exams, metric_names, prompting, rewards, searching
from scope_jax.play.game import GRADIENT, REWARD, Game, Memory, Panel, Tools
from scope_jax.play.rollouts import Agent, Ask, Messages, Play, Rollout
from scope_jax.text.parsing import boxed

Name = Literal["tictactoe", "kuhn_poker", "negotiation"]
Reward = Annotated[float, Field(ge=-100, le=100)]
LOSS = {"advantage": "ema", "ema_decay": 0.95, "old_logprobs": "rollout", "dual_clip": 0.0, "kl": "none"}
SEATS = ("first", "second")
PLAYERS = {"self": [SEATS, SEATS], "random": [("first", "random"), ("random", "second")]}  # by opponent, in turns
OPPONENTS = {"random": [*GAMES], "optimal": ["tictactoe"], "worst-case": ["kuhn_poker"]}  # of exams, and their games


class SpiralSection(GameSection):
    """Defaults are the paper's; where it is silent, the released code's."""

    prompts: CardPath = prompts_of("spiral")
    """Folder with `<game>.txt`, and `player.txt` around that `{observation}` (`player.system.txt`: optional)."""
    games: dict[Name, Count] = Field(default_factory=lambda: {"kuhn_poker": 1}, min_length=1)
    """The games, and how often each is played, relative to the others."""
    turns: Count = 128
    """Turns that a step trains, drawn from those of whole games, of which an eighth as many are played at a time."""
    passes: Count = 2
    """Updates on these turns; after the first, ratios are to the weights that played if `old_logprobs = "rollout"`."""
    policies: tuple[str, ...] = Field(("actor",), min_length=1, max_length=2, strict=False)
    """One policy for both seats, or one for each."""
    opponent: Literal["self", "random"] = "self"
    """Who has the other seat: the policies themselves, or legal actions are drawn, and the seats alternate."""
    invalid_reward: tuple[Reward, Reward] = Field((-1.5, 0.5), strict=False)
    """Rewards if a turn has no legal action in its box, which ends the game: of that player, and of the other."""
    max_turns: Count = 50
    """A game with so many turns is a draw."""
    kuhn_hands: Count = 5
    """Hands of a game of Kuhn poker."""
    kuhn_by_chips: bool = False
    """The reward in Kuhn poker: the number of chips won; false: 1 for more chips than the other, -1 for fewer."""
    negotiation: tuple[Count, Count] = Field((10, 10), strict=False)
    """Turns of a negotiation, and units of wood and of gold that each player begins with."""
    sampling: SamplingSection = SamplingSection(max_tokens=4096, max_response_tokens=8192)
    """How turns are sampled."""
    loss: LossCard = LossCard(aggregation="constant", constant_length=4096, **LOSS)
    """The loss of turns, each a sequence. `ema`: role-conditioned advantages, whose baselines move with every game."""


def prompt(card: SpiralSection, name: str, deal: Any, moves: Moves) -> Messages:
    """What the player whose turn it is reads: rules, position, and earlier turns: in tic-tac-toe the last, else all."""
    now = GAMES[name](deal, moves)
    history = "\n".join(now.events[-1 if name == "tictactoe" else 0 :]) or "none"
    texts = {**now.seen[now.player], "history": history, "legal": ", ".join(now.legal), "player": now.player + 1}
    observation = prompting.filled(card.prompts, name, texts)
    return prompting.for_role(card.prompts, "player", {"observation": observation}, ("observation",))


def match(card: SpiralSection, name: str, players: Sequence[str], start: tuple[Any, Moves] | None = None) -> Play:
    """A game of agents, by seat, and opponents that play by rule; from a new deal, or where it has been left."""

    def play(context: Any) -> Any:
        cards = [DEALS[place] for place in context.rng.integers(len(DEALS), size=card.kuhn_hands)]
        (deal, moves), invalid = start or ({"kuhn_poker": cards, "negotiation": card.negotiation}.get(name), ()), None
        while (now := GAMES[name](deal, moves)).lead is None and invalid is None and len(moves) < card.max_turns:
            if (who := players[now.player]) in SEATS:
                said = yield Ask(who, prompt(card, name, deal, moves), anew=True)
                move = action(boxed(said.content), now.legal)
            else:
                cells = [frozenset(moves[place::2]) for place in (now.player, 1 - now.player)]
                choices = perfect(*cells)[1] if who == "optimal" else now.legal
                move = choices[int(context.rng.integers(len(choices)))]
            moves, invalid = (moves, now.player) if move is None else ((*moves, move), None)
        lead = (now.lead or 0.0) / (1 if name == "kuhn_poker" and card.kuhn_by_chips else abs(now.lead or 1))
        won = [lead, 0.0 - lead] if invalid is None else [card.invalid_reward[seat != invalid] for seat in (0, 1)]
        return {"game": name, "players": [*players], "deal": deal, "moves": [*moves], "invalid": invalid, "won": won}

    return play


def interact(tools: Tools, card: SpiralSection, sampling: SamplingSection, rollouts: Sequence[Rollout]) -> list[Any]:
    """The games, played by agents with the names of their seats."""
    agents = [Agent(policy, sampling, card.max_turns, tempered=card.loss.tempered) for policy in card.policies * 2]
    return [game for (game,) in tools.interact("spiral", rollouts, dict(zip(SEATS, agents, strict=False)))]


def play(cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
    """One step up to the updates, an episode for each turn. The memory: baselines b, by game and seat."""
    card, loss, generator = cfg.options(SpiralSection), cfg.options(SpiralSection).loss, rng("spiral", cfg.seed, step)
    names, shares = [*card.games], [weight / sum(card.games.values()) for weight in card.games.values()]
    episodes, rollouts, b, values, size = [], [], dict(memory["b"]), defaultdict(list), -(-card.turns // 8)
    while not rollouts or 0 < len(episodes) < card.turns:  # whole games, until there are enough turns
        for number, place in enumerate(generator.choice(len(names), size, p=shares), len(rollouts)):
            rollouts.append(Rollout(f"{number}", play=match(card, names[place], PLAYERS[card.opponent][number % 2])))
        for game in interact(tools, card, card.sampling, rollouts[-size:]):
            for player, seat in ((place, who) for place, who in enumerate(game.value["players"]) if who in SEATS):
                key, reward, base = f"{game.value['game']}_{seat}", game.value["won"][player], 0.0
                if loss.advantage == "ema":  # reward - b, with b before this game moves it
                    base = b.get(key, loss.ema_start)
                    b[key] = loss.ema_decay * base + (1 - loss.ema_decay) * reward
                values[f"{key}/reward"].append(reward)
                values[f"{key}/valid"].append(float(game.value["invalid"] != player))
                if said := game.completions.get(seat):  # it was asked
                    for name, each in searching.lengths(key, [said]).items():
                        values[name] += each
                    fields = {"role": seat, "policy": (card.policies * 2)[player], "reward": reward}
                    fields |= {"group": f"{len(episodes)}/{key}", "temperature": card.sampling.temperature}
                    rows = rewards.by_turn(said, [-base] * len(searching.contents(said)))
                    rows = [(row,) for row in rows if row.sampled_T.any()]
                    episodes += [Episode.from_completion(said, None, game.value, datums=row, **fields) for row in rows]
    kept = {*generator.permutation(len(episodes))[: card.turns].tolist()}
    episodes = [replace(episode, trained=place in kept) for place, episode in enumerate(episodes)]
    return episodes, {"b": b}, rewards.means(values) | {f"{key}/baseline": value for key, value in b.items()}


def updates(cfg: Config) -> tuple[Update, ...]:
    """Of every policy, on all turns of its seats, `passes` times."""
    card, shares = cfg.options(SpiralSection), defaultdict(list)
    rule = AdvantageCard(advantage="none") if card.loss.advantage == "ema" else None  # `play` has subtracted b
    for seat, policy in zip(SEATS, card.policies * 2, strict=False):
        shares[policy].append(RoleShare(seat, rule))
    return tuple(Update(policy, card.loss, tuple(roles)) for policy, roles in shares.items()) * card.passes


def worst(tools: Tools, card: SpiralSection, player: int, sampling: SamplingSection) -> float:
    """Chips per hand of poker against a best response, from the chances of all actions in their boxes."""
    asked = [(own, hand, m) for own, hand in product("JQK", ACTIONS) for m in ACTIONS[hand] if len(hand) % 2 == player]
    cases = [(prompt(card, "kuhn_poker", [own * 2], hand), f"\\boxed{{{m}}}") for own, hand, m in asked]
    chances = exams.chances(tools, (card.policies * 2)[player], sampling, cases)
    return worst_case(player, dict(zip(asked, chances, strict=True)))


def exam(cfg: Config) -> exams.Exam:
    """Games go on from positions, rows with game, opponent, deal and moves, for the player whose turn it is."""
    card = cfg.options(SpiralSection)

    def start(row: exams.Row) -> tuple[str, Any, Moves]:
        if row.get("game") not in OPPONENTS.get(row.get("opponent", ""), ()):
            raise UserError(f"a row of SPIRAL's exam has an opponent and its game, of {OPPONENTS}; not {dict(row)}.")
        return row["game"], row.get("deal"), tuple(row.get("moves", ()))

    def score(answers: Sequence[exams.Answer], tools: Tools) -> list[float]:
        """What the player wins, where an action that is none is a loss: 1, 0 or -1, and in the worst case chips."""
        values, games, sampling = {}, {}, answers[0].sampling
        for number, answer in enumerate(answers):
            name, deal, moves = start(answer.row)
            player, opponent = GAMES[name](deal, moves).player, answer.row["opponent"]
            if opponent == "worst-case":
                values[number] = worst(tools, card, player, sampling)
            else:
                players = [seat if place == player else opponent for place, seat in enumerate(SEATS)]
                games[number, player] = Rollout(f"exam {number}", play=match(card, name, players, (deal, moves)))
        for (number, player), game in zip(games, interact(tools, card, sampling, [*games.values()]), strict=True):
            values[number] = game.value["won"][player] if game.value["invalid"] is None else -1.0
        return [values[number] for number in range(len(answers))]

    ask, read = (lambda row, _: prompt(card, *start(row))), (lambda said: boxed(said.content))
    return exams.Exam(card.policies[0], ask, read, ("score",), kind="rows", own={"score": score})


def check_prompts(cfg: Config) -> None:
    for name, deal in {"tictactoe": None, "kuhn_poker": ["JQ"], "negotiation": (2, 2)}.items():
        prompt(cfg.options(SpiralSection), name, deal, ())


METRICS = {f"{name}_{seat}": f"reward valid baseline {metric_names.LENGTHS}" for name in GAMES for seat in SEATS}
GAME = Game(
    name="spiral",
    options=SpiralSection,
    play=play,
    updates=updates,
    exam=exam,
    source=lambda cfg: None,
    policies=lambda cfg: tuple(dict.fromkeys(cfg.options(SpiralSection).policies)),
    check_prompts=check_prompts,
    start=lambda cfg: {"b": {}},
    batch="spiral.turns",
    panels=(Panel("Results against opponents", ("/score",), False, of_exams=True), REWARD, GRADIENT),
    metrics=lambda cfg: metric_names.of(METRICS),
)
