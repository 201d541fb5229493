"""Every equation of SCOPE and every rule of its Appendix F, with hand-computed values."""

from __future__ import annotations

import math

import pytest

from scope_jax.games.scope import rules
from scope_jax.games.scope.options import ChallengerRewardSection, SolverRewardSection
from scope_jax.games.scope.rules import ParsedTurn
from scope_jax.play.rubrics import rubric_score, settled_score
from scope_jax.text import parsing


def turn(text: str, searches: int = 0, malformed: int = 0) -> ParsedTurn:
    return ParsedTurn(text, parsing.without_thinking(text), searches, malformed)


THINK, SEARCH = "<think>a</think>", "<search>q</search>"


def challenger(**changes: object) -> ChallengerRewardSection:
    return ChallengerRewardSection.model_validate(changes)


def solver(**changes: object) -> SolverRewardSection:
    return SolverRewardSection.model_validate(changes)


# ---------------------------------------------------------------------------------------------------------- equations
def test_equation_1_is_a_weighted_mean():
    assert rubric_score([True, False, True, False], [1, 1, 1, 1]) == 0.5
    assert rubric_score([True, False, True], [3, 2, 1]) == pytest.approx(4 / 6)
    assert rubric_score([False, False], [1, 1]) == 0.0
    assert rubric_score([True, False], [0, 1]) == 0.0
    with pytest.raises(ValueError, match="positive sum"):
        rubric_score([True], [0])
    with pytest.raises(ValueError, match="positive sum"):
        rubric_score([True, True], [2, -1])


def test_equation_1_without_every_verdict():
    def settled(verdicts: list[bool | None], ungraded: str, least: float = 0.5) -> float | None:
        return settled_score(verdicts, [1.0] * len(verdicts), ungraded=ungraded, min_graded=least)

    assert settled([True, False, True, None], "leave-out") == pytest.approx(2 / 3)
    assert settled([True, False, True, None], "zero") == 0.5
    assert settled([True, None], "leave-out") == 1.0  # half of the verdicts is enough
    assert settled([True, None, None], "leave-out") is None
    assert settled([True, None, None], "zero") is None
    assert settled([True, None, None], "leave-out", least=0.0) == 1.0
    assert settled([None, None], "leave-out", least=0.0) is None
    weighted = settled_score([None, True, False], [5.0, 3.0, 1.0], ungraded="leave-out", min_graded=0.5)
    assert weighted == pytest.approx(3 / 4)
    assert settled_score([None, True], [1.0, 0.0], ungraded="leave-out", min_graded=0.5) is None


@pytest.mark.parametrize(
    ("form", "passed", "difficulty", "reward"),
    [
        (1.0, True, 1.0, 1.5),  # .5·1 + 1·1
        (1.0, False, 1.0, 0.5),  # a gate failed: only the format reward
        (2 / 3, True, 0.4, 0.5 * 2 / 3 + 0.4),
        (0.0, True, 1.0, 0.0),  # no format, no reward (App. F.1)
    ],
)
def test_equation_4(form: float, passed: bool, difficulty: float, reward: float):
    assert rules.challenger_reward(challenger(), form, passed, difficulty) == pytest.approx(reward)


def test_the_weights_of_equation_4_are_set_in_the_card():
    assert rules.challenger_reward(challenger(format=0.2, difficulty=3.0), 0.5, True, 0.5) == pytest.approx(1.6)


@pytest.mark.parametrize(
    ("mean", "target", "reward"),
    [
        (0.5, 0.5, 1.0),
        (0.0, 0.5, 0.0),
        (1.0, 0.5, 0.0),
        (0.25, 0.5, 0.5),
        (0.8, 0.5, 0.4),
        (0.3, 0.3, 1.0),
        (0.15, 0.3, 0.5),  # 1 − .15/.3
        (0.45, 0.3, 0.5),  # the same slope to the right, as printed
        (0.7, 0.3, 0.0),
    ],
)
def test_equation_5_is_a_triangle(mean: float, target: float, reward: float):
    assert rules.difficulty_reward(mean, target) == pytest.approx(reward)


def test_equation_6():
    # 1·L·g + .5·r_fmt + .1·r_search
    assert rules.solver_reward(solver(), 0.75, 1.0, 1.0, 1.0) == pytest.approx(0.75 + 0.5 + 0.1)
    assert rules.solver_reward(solver(), 0.8, 0.05, 2 / 3, 1 / 3) == pytest.approx(0.04 + 1 / 3 + 0.1 / 3)
    other = solver(rubric=2.0, format=0.0, search=1.0)
    assert rules.solver_reward(other, 0.5, 0.5, 1.0, 2 / 3) == pytest.approx(0.5 + 2 / 3)


@pytest.mark.parametrize(
    ("tokens", "factor"),
    [
        (0, 1.0),
        (1024, 1.0),
        (1536, 0.525),  # halfway: .05 + .95/2
        (1280, 0.05 + 0.475 * (1 + math.sqrt(0.5))),  # a quarter: cos 45°
        (1792, 0.05 + 0.475 * (1 - math.sqrt(0.5))),
        (2048, 0.05),
        (4096, 0.05),
        (100_000, 0.05),
    ],
)
def test_equation_7(tokens: int, factor: float):
    assert rules.length_factor(solver(), tokens) == pytest.approx(factor)
    assert rules.length_factor(solver(length_penalty=False), tokens) == 1.0


def test_the_released_code_gives_zero_beyond_twice_the_hard_limit():
    card = solver(zero_beyond_double=True)
    assert [rules.length_factor(card, n) for n in (2048, 4096, 4097)] == [0.05, 0.05, 0.0]


def test_the_length_factor_is_non_increasing():
    card = solver(soft_limit=3, hard_limit=9, floor=0.2)
    factors = [rules.length_factor(card, tokens) for tokens in range(14)]
    assert factors == sorted(factors, reverse=True) and factors[3] == 1.0 and factors[9] == 0.2


# ------------------------------------------------------------------------------------------------------- thoughts, F.1
@pytest.mark.parametrize(
    ("text", "paired", "opening", "starts"),
    [
        ("<think>a</think> b", True, True, True),
        ("b <think>a\nc</think>", True, True, False),
        ("<think>a", False, True, True),
        ("  \n<think>a</think>", True, True, True),
        ("a</think>", False, False, False),
        ("", False, False, False),
    ],
)
def test_what_counts_as_a_thought(text: str, paired: bool, opening: bool, starts: bool):
    found = [rules.has_thought(text, rule) for rule in ("paired", "opening", "starts")]
    assert found == [paired, opening, starts]


def test_think_reward_is_the_share_of_turns():
    turns = [turn(THINK), turn("none"), turn(THINK), turn(THINK)]
    assert rules.think_reward(turns, "paired") == 0.75
    assert rules.think_reward([], "paired") == 0.0


# ------------------------------------------------------------------------------------------------------ challenger, F.1
def test_challenger_tool_reward_compares_turns_with_the_expected_number():
    def reward(turns: list[ParsedTurn], expected: int, subtract: bool = False) -> float:
        return rules.challenger_tool_reward(turns, expected, subtract)

    one, two, none, broken = turn("", 1), turn("", 2), turn(""), turn("", 0, 1)
    assert reward([one, none], 2) == 0.5
    assert reward([one, one, none], 2) == 1.0
    assert reward([two, none], 2) == 0.5  # two calls in one turn are one turn
    assert reward([one, one, one, none], 2) == 1.0  # clamped
    assert reward([none], 3) == 0.0
    assert reward([none], 0) == 1.0
    assert reward([one, broken, one, none], 2) == 1.0
    assert reward([one, broken, one, none], 2, subtract=True) == 0.5  # (2 − 1)/2
    assert reward([broken, broken, one], 2, subtract=True) == 0.0
    assert reward([turn("", 1, 1), one], 2, subtract=True) == 1.0  # a turn with a valid search is valid


@pytest.mark.parametrize(
    ("last", "task", "strict"),
    [
        ("<task>Write.</task>", "Write.", None),
        ("<task>one</task> <task> two </task>", "two", None),
        ("<task><question>Why?</question></task>", "Why?", "Why?"),
        ("<task>Why? <question></question></task>", None, None),
        ("<task></task>", None, None),
        ("<task>Write.", None, None),
        ("Write.", None, None),
    ],
)
def test_structure_reward_and_task(last: str, task: str | None, strict: str | None):
    turns = [turn("<task>an earlier turn</task>"), turn(last)]
    assert rules.task_of(turns, False) == task and rules.structure_reward(turns, False) == float(task is not None)
    assert rules.task_of(turns, True) == strict and rules.structure_reward(turns, True) == float(strict is not None)


def test_challenger_format_of_a_transcript():
    turns = [
        turn(f"{THINK} {SEARCH}", 1),
        turn(f"{SEARCH}", 1),  # no thought
        turn(f"{THINK} <search>open", 0, 1),
        turn(f"{THINK} <task>Plan it.</task>"),
    ]
    form = rules.challenger_format(challenger(), turns, 3)
    assert (form.think, form.tool, form.result) == (0.75, pytest.approx(2 / 3), 1.0)
    assert form.score == pytest.approx((0.75 + 2 / 3 + 1) / 3)
    coded = rules.challenger_format(challenger(subtract_malformed=True, require_question=True), turns, 3)
    assert (coded.tool, coded.result) == (pytest.approx(1 / 3), 0.0)
    assert rules.challenger_format(challenger(), [], 3).score == 0.0


# ---------------------------------------------------------------------------------------------------------- solver, F.2
def test_solver_tool_reward_counts_calls_before_the_last_turn():
    one, two, none = turn("", 1), turn("", 2), turn("")
    assert rules.solver_tool_reward([one, one, none]) == 1.0
    assert rules.solver_tool_reward([one, none, none]) == 0.5
    assert rules.solver_tool_reward([two, none, none]) == 1.0  # calls, not turns
    assert rules.solver_tool_reward([two, two, none]) == 1.0  # capped
    assert rules.solver_tool_reward([none, one]) == 0.0  # the last turn does not count
    assert rules.solver_tool_reward([one]) == 0.0  # 0/0 in the paper
    assert rules.solver_tool_reward([]) == 0.0


@pytest.mark.parametrize(
    ("last", "answer"),
    [
        ("<answer>a</answer>", "a"),
        ("<answer>a</answer> or <answer> b </answer>", "b"),
        ("<answer> </answer>", None),
        ("<answer>a", None),
        ("a", None),
    ],
)
def test_answers_are_in_the_last_turn(last: str, answer: str | None):
    assert rules.answer_of([turn("<answer>early</answer>"), turn(last)]) == answer
    assert rules.answer_of([]) is None


def test_search_reward_counts_all_turns():
    one = turn("", 1)
    assert rules.search_reward([turn("")], 3) == 0.0
    assert rules.search_reward([one, one], 3) == pytest.approx(2 / 3)
    assert rules.search_reward([turn("", 2), turn("", 1)], 3) == 1.0  # the last turn counts here
    assert rules.search_reward([one] * 7, 3) == 1.0
    assert rules.search_reward([one], 2) == 0.5


def test_solver_format_and_reward_of_a_transcript():
    card = solver()
    turns = [turn(f"{THINK} {SEARCH}", 1), turn(f"well {THINK} {SEARCH}", 1), turn("<answer>a</answer>")]
    form = rules.solver_format(card, turns)
    assert (form.think, form.tool, form.result) == (pytest.approx(2 / 3), 1.0, 1.0)
    assert rules.solver_format(solver(think="starts"), turns).think == pytest.approx(1 / 3)
    reward = rules.solver_reward(card, 0.5, 1.0, form.score, rules.search_reward(turns, card.searches))
    assert reward == pytest.approx(0.5 + 0.5 * (8 / 3) / 3 + 0.1 * 2 / 3)


# ----------------------------------------------------------------------------------------------------- mean and window
def test_mean_score_over_the_attempts_at_a_task():
    scores, answered = [1.0, 0.5, 0.0, None], [True, True, False, True]
    assert rules.mean_score(scores, answered, "zero") == 0.5  # (1 + .5 + 0)/3, without the ungraded one
    assert rules.mean_score(scores, answered, "exclude") == 0.75
    assert rules.mean_score([None], [True], "zero") is None
    assert rules.mean_score([0.0], [False], "zero") == 0.0
    assert rules.mean_score([0.0], [False], "exclude") is None


def test_the_window_includes_its_bounds():
    values = (None, 0.0, 0.19999, 0.2, 0.5, 0.8, 0.80001, 1.0)
    assert [rules.in_window(value, (0.2, 0.8)) for value in values] == [False] * 3 + [True] * 3 + [False] * 2
    # eight attempts that meet one of five criteria each: 1/5, though the floating-point sum is slightly below 8/5
    assert rules.in_window(rules.mean_score([0.2] * 8, [True] * 8, "zero"), (0.2, 0.8))
