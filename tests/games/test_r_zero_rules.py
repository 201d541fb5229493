"""R-Zero's rules by hand: rewards, the phases of an iteration, cards that do not go together."""

from __future__ import annotations

import pytest

from scope_jax.config import CardError
from scope_jax.games.r_zero import game, rules
from scope_jax.games.r_zero.state import POOL
from tests.games.r_zero_world import card, options


def test_the_challengers_reward() -> None:
    paper = options()
    assert [rules.challenger_reward(p, 0.1, paper) for p in (0.5, 0.7, 1.0, 0.0)] == pytest.approx([0.9, 0.5, 0.0, 0.0])
    assert rules.challenger_reward(None, 0.1, paper) == 0.0
    assert rules.challenger_reward(0.7, 0.1, options(repetition_weight=0.0)) == pytest.approx(0.6)
    code = options(uncertainty_weight=0.5, floor=False, invalid_reward=-1.0)
    assert [rules.challenger_reward(p, 0.1, code) for p in (0.5, 0.7, 1.0)] == pytest.approx([0.4, 0.2, -0.1])
    assert rules.challenger_reward(None, 0.1, code) == pytest.approx(-1.1)


@pytest.mark.parametrize(
    ("text", "agrees", "reward"),
    [
        ("<think>a</think> \\boxed{7}", True, 1.0),
        ("\\boxed{7}", True, 0.9),
        ("<think>a</think> \\boxed{7}", False, 0.1),
        (" < think>\na\n</ think>\\boxed{7}.", True, 1.0),  # as there, spaces around signs count for nothing
        ("So <think>a</think> \\boxed{7}", True, 0.9),
        ("<think>a \\boxed{7}", False, 0.0),
    ],
)
def test_the_solvers_reward_with_format(text: str, agrees: bool, reward: float) -> None:
    assert rules.solver_reward(agrees, text, 0.1) == pytest.approx(reward)
    assert rules.solver_reward(agrees, text, 0.0) == float(agrees)


@pytest.mark.parametrize(
    ("question", "has"),
    [("3 + 4 - 2", True), ("(3+4)*2", True), ("7", True), ("+ -", False), ("3 + x", False), ("", False)],
)
def test_which_questions_have_a_value(question: str, has: bool) -> None:
    assert bool(rules.has_value(question)) is has


# -------------------------------------------------------------------------------------------------------------- phases
def phases(cfg, kept: bool) -> list[str]:
    memory, seen = game.GAME.start(cfg), []
    while not game.GAME.finished(cfg, memory):
        seen.append(f"{memory['phase'][0]}{memory['iteration']}")
        pool = [{"question": "q"}] if kept else []
        memory, metrics = game.GAME.remember(cfg, memory, pool if memory["phase"] == POOL else None, 0)
        assert metrics == {"skipped": memory["skipped"]}
    assert memory["skipped"] == (0 if kept else 2)
    return seen


def test_an_iteration_has_its_phases_and_skips_the_solver_without_questions() -> None:
    cfg = card(iterations=2, challenger_steps=2, solver_steps=3)
    assert phases(cfg, True) == ["c1", "c1", "p1", "s1", "s1", "s1", "c2", "c2", "p2", "s2", "s2", "s2"]
    assert phases(cfg, False) == ["c1", "c1", "p1", "c2", "c2", "p2"]


def test_a_challenger_without_steps_is_not_trained() -> None:
    cfg = card(iterations=2, challenger_steps=0)
    assert phases(cfg, True) == ["p1", "s1", "p2", "s2"]


def test_when_the_next_step_needs_all_updates_and_a_new_reference() -> None:
    cfg = card(iterations=2, challenger_steps=2)
    start = game.GAME.start(cfg)
    second, _ = game.GAME.remember(cfg, start, None, 0)
    assert game.GAME.waits(cfg, start) and not game.GAME.waits(cfg, second)
    assert (game.new_reference(cfg, start), game.new_reference(cfg, second)) == ("challenger", None)
    pool, _ = game.GAME.remember(cfg, second, None, 1)
    assert game.GAME.waits(cfg, pool) and game.new_reference(cfg, pool) is None
    solver, _ = game.GAME.remember(cfg, pool, [{}], 2)
    assert game.new_reference(cfg, solver) == "solver"
    assert game.new_reference(card(reference="base"), solver) is None


# --------------------------------------------------------------------------------------------------------------- cards
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"invalid_reward": -1.0}, "no effect below a floor of 0"),
        ({"model": {"adapter": {}}}, 'set r_zero.reference = "base"'),
        ({"train": {"batch_size": 8}}, "r_zero.challenger_batch and r_zero.solver_batch"),
        ({"challenger": {"sampling": {"temperature": 0.0}}}, "samples at temperature 0"),
    ],
)
def test_cards_that_do_not_go_together(changes, sentence: str) -> None:
    with pytest.raises(CardError, match=sentence):
        card(**changes)
