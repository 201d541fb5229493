"""Kuhn poker: two players, three cards, one bet. One policy in both seats, or a policy for each.

Each seat is trained on its own turns, with a baseline of its own: what it has won of late (SPIRAL, arXiv:2506.24119).
In the exam the probabilities of all actions in all situations give what the policies win, exactly.
"""

from kuhn_rules import DEALS, LEGAL, against_random, asked, best_responses, news, opening, situation, won
from pydantic import Field

from scope_jax.config import LossCard, SamplingSection, Section
from scope_jax.grading.rewards import mean
from scope_jax.play.exams import Exam, chances
from scope_jax.play.game import REWARD, Game, Panel
from scope_jax.play.roles import Role, one_update_per_policy
from scope_jax.play.rollouts import Agent, Ask, Rollout
from scope_jax.play.step import Played
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


def roles(cfg):
    """The seats; rule `ema` has a baseline for each."""
    options = cfg.options(Options)
    policies = (options.policies[0], options.policies[-1])
    return tuple(
        Role(seat, Agent(policy, options.sampling, max_turns=2), loss=options.loss)
        for seat, policy in zip(SEATS, policies, strict=True)
    )


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


def play(step):
    """One step: hands with all deals, an episode for each seat that was asked."""
    rollouts = [Rollout("".join(cards), play=hand(cards, step.card.foul)) for cards in DEALS]
    groups = step.interact(SEATS, rollouts, samples=step.card.hands, key="kuhn")
    episodes = []
    for rollout, group in zip(rollouts, groups, strict=True):
        for played in group:
            for seat, sample in played.completions.items():
                text = {"cards": rollout.name, "moves": played.value["moves"]}
                episodes.append(sample.episode(played.value["won"][SEATS.index(seat)], text=text))
    return Played(episodes)


def strategy(role, tools, sampling):
    """The chances of all legal actions of a seat by card and moves."""
    places = [(c, moves, action) for c in "JQK" for moves in asked(SEATS.index(role.name)) for action in LEGAL[moves]]
    cases = [(situation(c, moves), f"\\boxed{{{action}}}") for c, moves, action in places]
    plan = {(c, moves): {} for c, moves, _ in places}
    for (c, moves, action), chance in zip(places, chances(tools, role.agent.policy, sampling, cases), strict=True):
        plan[c, moves][action] = chance
    return plan


def measure(cfg, of):
    """What follows from the strategies of both seats; the same number for every row of the exam."""

    def measured(answers, tools):
        players = [strategy(role, tools, answers[0].sampling) for role in roles(cfg)]
        return [mean(of(players, cfg.options(Options).foul))] * len(answers)

    return measured


def exam(cfg):
    """Rows are situations, `card` and `moves`."""
    return Exam(
        role=roles(cfg)[0],
        prompt=lambda row, tokens: situation(row["card"], tuple(row["moves"])),
        read=lambda said: boxed(said.content),
        measures=("won", "exploitable"),
        kind="rows",
        own={"won": measure(cfg, against_random), "exploitable": measure(cfg, best_responses)},
    )


PANELS = (Panel("Chips per hand, exactly", ("/won", "/exploitable"), False, of_exams=True), REWARD)
BATCH = ("kuhn_poker.hands",)
GAME = Game("kuhn_poker", Options, roles, play, arrange=one_update_per_policy, exam=exam, batch=BATCH, panels=PANELS)
