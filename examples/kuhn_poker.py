"""Kuhn poker: two players, three cards, one bet. One policy in both seats, or a policy for each.

Each seat is trained on its own turns, with a baseline of its own: what it has won of late (SPIRAL, arXiv:2506.24119).
In the exam the probabilities of all actions in all situations give what the policies win, exactly.
"""

from kuhn_rules import DEALS, LEGAL, against_random, asked, best_responses, news, opening, situation, won
from pydantic import Field

from scope_jax.config import LossCard, SamplingSection, Section
from scope_jax.learner.types import Episode, RoleShare, Update
from scope_jax.play.exams import Exam, chances
from scope_jax.play.game import REWARD, Game, Panel
from scope_jax.play.rewards import mean, means, parts_of
from scope_jax.play.rollouts import Agent, Ask, Rollout
from scope_jax.text.parsing import boxed

SEATS = ("first", "second")


class Options(Section):
    """The [kuhn_poker] table."""

    hands: int
    """Hands of a step with each of the six deals."""
    policies: tuple[str, ...] = Field(default=("actor",), min_length=1, max_length=2, strict=False)
    """One policy for both seats, or one for each."""
    foul: float = 1.5
    """What a player loses with an action that is none; the hand is over."""
    sampling: SamplingSection = SamplingSection()
    loss: LossCard = LossCard(advantage="ema", ema_decay=0.95)


def policies(cfg):
    return cfg.options(Options).policies


def seats(cfg):
    """The policy of each seat."""
    return dict(zip(SEATS, policies(cfg) * 2, strict=False))


def hand(cards, foul):
    def play(context):
        moves = ()
        while moves in LEGAL:
            player = len(moves) % 2
            said = yield Ask(SEATS[player], news(moves) if len(moves) > 1 else opening(cards[player], moves))
            if (move := boxed(said.content)) not in LEGAL[moves]:
                return {"moves": [*moves, str(move)], "won": [-foul if player == place else 0.0 for place in (0, 1)]}
            moves = (*moves, move)
        return {"moves": [*moves], "won": won(cards, moves)}

    return play


def play(cfg, tools, memory, step):
    options, episodes = cfg.options(Options), []
    rollouts = [Rollout("".join(cards), play=hand(cards, options.foul)) for cards in DEALS]
    agents = {seat: Agent(policy, options.sampling, max_turns=2) for seat, policy in seats(cfg).items()}
    for rollout, hands in zip(rollouts, tools.interact("kuhn", rollouts, agents, options.hands), strict=True):
        for each in hands:
            for seat, said in each.completions.items():  # who was never asked has no episode
                text = {"cards": rollout.name, "moves": each.value["moves"]}
                fields = {"role": seat, "policy": agents[seat].policy, "group": f"{seat}/{rollout.name}"}
                reward = each.value["won"][SEATS.index(seat)]
                episodes.append(Episode.from_completion(said, None, text, reward=reward, **fields))
    return episodes, memory, means(parts_of("first", episodes) | parts_of("second", episodes))


def updates(cfg):
    """The seats of one policy in one update; rule `ema` has a baseline for each seat."""
    shares = {name: tuple(RoleShare(seat) for seat, own in seats(cfg).items() if own == name) for name in policies(cfg)}
    return tuple(Update(name, cfg.options(Options).loss, own) for name, own in shares.items())


def strategy(seat, policy, tools, sampling):
    """The chances of all legal actions of a seat by card and moves."""
    places = [(c, moves, action) for c in "JQK" for moves in asked(SEATS.index(seat)) for action in LEGAL[moves]]
    cases = [(situation(c, moves), f"\\boxed{{{action}}}") for c, moves, action in places]
    plan = {(c, moves): {} for c, moves, _ in places}
    for (c, moves, action), chance in zip(places, chances(tools, policy, sampling, cases), strict=True):
        plan[c, moves][action] = chance
    return plan


def measure(cfg, of):
    """What follows from the strategies of both seats; the same number for every row of the exam."""

    def measured(answers, tools):
        players = [strategy(seat, policy, tools, answers[0].sampling) for seat, policy in seats(cfg).items()]
        return [mean(of(players, cfg.options(Options).foul))] * len(answers)

    return measured


def exam(cfg):
    """Rows are situations, `card` and `moves`."""
    return Exam(
        policies(cfg)[0],
        lambda row, tokens: situation(row["card"], tuple(row["moves"])),
        lambda said: boxed(said.content),
        ("won", "exploitable"),
        kind="rows",
        own={"won": measure(cfg, against_random), "exploitable": measure(cfg, best_responses)},
    )


PANELS = (Panel("Chips per hand, exactly", ("/won", "/exploitable"), False, of_exams=True), REWARD)
GAME = Game("kuhn_poker", Options, play, updates, exam, source=lambda cfg: None, policies=policies, panels=PANELS)
