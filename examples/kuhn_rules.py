"""Kuhn poker: its rules and words, and what strategies win, by going through all hands."""

from itertools import permutations, product

from scope_jax.text.messages import Messages

DEALS = tuple(permutations("JQK", 2))  # the cards of the first and the second player
BET, ANSWER = ("check", "bet"), ("call", "fold")
LEGAL = {(): BET, ("check",): BET, ("bet",): ANSWER, ("check", "bet"): ANSWER}  # by the moves so far
RULES = """Two players hold one card each of J < Q < K and have put 1 chip into the pot. In turn they act:
check, bet 1 chip, call the bet or fold. The higher card wins the pot, unless a player folds.
Put your action into \\boxed{}."""


def news(moves):
    return f"Moves so far: {', '.join(moves) or 'none'}. You may {' or '.join(LEGAL[moves])}."


def opening(card, moves):
    return Messages(f"Your card is {card}. {news(moves)}", system=RULES)


def situation(card, moves):
    """What a player has read when it is asked."""
    if len(moves) < 2:
        return opening(card, moves)
    before = ("user", opening(card, ()).user), ("assistant", f"\\boxed{{{moves[0]}}}")
    return Messages(news(moves), RULES, before=tuple({"role": role, "content": text} for role, text in before))


def won(cards, moves):
    """What each player wins in a hand that is over."""
    if moves[-1] == "fold":
        winner = len(moves) % 2  # who did not fold
    else:
        winner = max((0, 1), key=lambda player: "JQK".index(cards[player]))
    stake = 2.0 if moves[-1] == "call" else 1.0
    return [stake if player == winner else -stake for player in (0, 1)]


def expected(cards, players, foul, moves=()):
    """What each player wins on average. players: for each, the chances of the actions by card and moves; what is
    missing to 1 is the chance of a foul, which costs `foul`."""
    if moves not in LEGAL:
        return won(cards, moves)
    player = len(moves) % 2
    chances = players[player][cards[player], moves]
    total = [0.0, 0.0]
    total[player] = -foul * (1 - sum(chances.values()))
    for action, chance in chances.items():
        after = expected(cards, players, foul, (*moves, action))
        total = [before + chance * value for before, value in zip(total, after, strict=True)]
    return total


def asked(player):
    """The moves after which this player is asked."""
    return [moves for moves in LEGAL if len(moves) % 2 == player]


def per_hand(player, players, foul, deals=DEALS):
    """What this player wins per hand in these deals, summed over them and divided by the number of all deals."""
    return sum(expected(cards, players, foul)[player] for cards in deals) / len(DEALS)


def against_random(players, foul):
    """What each player wins per hand against one that draws legal actions."""
    drawn = {(card, moves): dict.fromkeys(LEGAL[moves], 1 / 2) for card in "JQK" for moves in LEGAL}
    return [per_hand(0, [players[0], drawn], foul), per_hand(1, [drawn, players[1]], foul)]


def best_responses(players, foul):
    """What each player would win per hand if it knew the other's strategy: for each card the best pure strategy. The
    mean of both is 0 in equilibrium, and 0.458 if both draw legal actions."""
    totals = [0.0, 0.0]
    for player, card in product((0, 1), "JQK"):
        deals = [cards for cards in DEALS if cards[player] == card]
        values = []
        for actions in product(*(LEGAL[moves] for moves in asked(player))):
            chosen = {(card, moves): {action: 1.0} for moves, action in zip(asked(player), actions, strict=True)}
            both = [chosen if place == player else players[place] for place in (0, 1)]
            values.append(per_hand(player, both, foul, deals))
        totals[player] += max(values)
    return totals
