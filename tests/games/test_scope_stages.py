"""The schedule of a run: task types by the 4:3:2 rule, documents, stages, resuming."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from scope_jax.config import CardError, Config
from scope_jax.games import GAMES, parse_config, scope
from scope_jax.games.scope import roles, rules, state
from scope_jax.games.scope.options import options
from scope_jax.play import game as play
from scope_jax.play.step import Step
from tests.games.harness import plain, play_step
from tests.games.scope_world import DOCUMENTS, Plan, answer, card, criterion, searching_turn, task, world


# ------------------------------------------------------------------------------------------------------------- drawing
@pytest.mark.parametrize(
    ("count", "shares"),
    [
        (9, [4, 3, 2]),
        (64, [29, 21, 14]),  # 28.44, 21.33, 14.22: the remaining one goes to .44
        (1280, [569, 427, 284]),  # 568.89, 426.67, 284.44
        (1, [1, 0, 0]),  # .44, .33, .22
        (2, [1, 1, 0]),  # .89, .67, .44
        (4, [2, 1, 1]),  # 1.78, 1.33, .89
        (0, [0, 0, 0]),
    ],
)
def test_largest_remainders(count: int, shares: list[int]):
    assert rules.stratify(count, (4, 3, 2)) == shares


def test_ties_go_to_the_first():
    assert rules.stratify(2, (1, 1, 1, 1)) == [1, 1, 0, 0]
    assert rules.stratify(5, (0, 1, 1)) == [0, 3, 2]


def first_step(cfg: Config) -> Step[Any]:
    return play.step_of(scope.GAME, cfg, world(), scope.GAME.start(cfg), 0)


def test_the_prompts_of_an_iteration_are_stratified_and_shuffled_together():
    cfg = card(steps_per_iteration=20, challenger_batch=64)
    rows = [{"id": f"{place}", "title": "", "text": f"document {place}"} for place in range(64)]
    turns, kinds, steps = Counter(), Counter(), []
    for place in range(20):
        drawn = roles.draw_orders(first_step(cfg), rows, place * 64, 1280, "iteration 1")
        assert [order.index for order in drawn] == list(range(64))
        turns.update(order.searches for order in drawn)
        kinds.update(order.kind for order in drawn)
        steps.append([order.searches for order in drawn])
    assert turns == {1: 569, 2: 427, 3: 284}
    assert kinds == dict.fromkeys(("long_form_qa", "summarization", "planning", "writing"), 320)
    assert len({tuple(step) for step in steps}) == 20
    again = roles.draw_orders(first_step(cfg), rows, 0, 1280, "iteration 1")
    assert [order.searches for order in again] == steps[0]
    assert [order.searches for order in roles.draw_orders(first_step(cfg), rows, 0, 1280, "iteration 2")] != steps[0]


def test_a_task_type_can_be_left_out():
    cfg = card(task_types={"planning": 0})
    assert options(cfg).task_types == {
        "long_form_qa": 1.0,
        "summarization": 1.0,
        "planning": 0.0,
        "writing": 1.0,
    }
    drawn = roles.draw_orders(first_step(cfg), [{"id": "d", "title": "", "text": "d"}] * 30, 0, 30, "iteration 1")
    assert Counter(order.kind for order in drawn) == {"long_form_qa": 10, "summarization": 10, "writing": 10}


# -------------------------------------------------------------------------------------------------------------- stages
def trace(cfg, plan: Plan | None = None, steps: int = 30) -> list[tuple[int, str, int, int, int]]:
    """(iteration, stage, place, rows taken before, tasks so far) of each step until the run is over."""
    memory, path = scope.GAME.start(cfg), []
    for step in range(steps):
        if scope.GAME.finished(cfg, memory):
            return path
        path.append((*(memory[key] for key in ("iteration", "stage", "place", "drawn")), len(memory["tasks"])))
        stream = [DOCUMENTS[row % 4] | {"id": f"{row}"} for row in range(100)]
        _, memory, _ = play.play_step(scope.GAME, cfg, world(plan, data=stream), memory, step)
    raise AssertionError("the run does not end")


def test_the_stages_of_a_whole_run():
    assert trace(card(target_tasks=6)) == [
        (1, "challenger", 0, 0, 0),
        (1, "tasks", 0, 4, 0),
        (1, "tasks", 1, 8, 4),
        (1, "solver", 0, 12, 6),  # two of the eight tasks were not needed
        (2, "challenger", 0, 12, 0),
        (2, "tasks", 0, 16, 0),
        (2, "tasks", 1, 20, 4),
        (2, "solver", 0, 24, 6),
    ]


def test_the_challenger_can_be_frozen_after_an_iteration():
    stages = [(iteration, stage) for iteration, stage, *_ in trace(card(freeze_challenger_after=1))]
    assert stages == [(1, "challenger"), (1, "tasks"), (1, "solver"), (2, "tasks"), (2, "solver")]
    assert (1, "challenger") not in [(i, s) for i, s, *_ in trace(card(freeze_challenger_after=0))]


def test_task_generation_ends_at_its_limit_and_without_tasks_the_iteration_ends():
    some = trace(card(iterations=1, target_tasks=100, max_batches=2))
    assert [(stage, tasks) for _, stage, _, _, tasks in some] == [
        ("challenger", 0),
        ("tasks", 0),
        ("tasks", 4),
        ("solver", 8),
    ]
    nothing = Plan(drafts={(d["title"], n): ["no task"] for d in DOCUMENTS for n in (0, 1)})
    none = trace(card(max_batches=2), nothing)
    assert [stage for _, stage, *_ in none] == ["challenger", "tasks", "tasks"] * 2


@pytest.mark.parametrize(
    ("stage", "place", "tasks", "after"),
    [
        ("challenger", 1, 0, ("challenger", 1, 1)),
        ("challenger", 2, 0, ("tasks", 0, 1)),
        ("challenger", 3, 0, ("tasks", 0, 1)),
        ("tasks", 3, 0, ("tasks", 3, 1)),
        ("tasks", 1, 2, ("solver", 0, 1)),
        ("tasks", 4, 1, ("solver", 0, 1)),
        ("tasks", 4, 0, ("challenger", 0, 2)),
        ("solver", 1, 2, ("solver", 1, 1)),
        ("solver", 2, 2, ("challenger", 0, 2)),
    ],
)
def test_a_stage_that_is_complete_under_another_card_ends(stage: str, place: int, tasks: int, after: tuple):
    before = card(steps_per_iteration=5, max_batches=9, target_tasks=9)
    shorter = card(steps_per_iteration=2, max_batches=4, target_tasks=2)
    memory = state.start(before) | {"stage": stage, "place": place, "drawn": 7, "tasks": ["t"] * tasks}
    adopted = scope.GAME.adopt(shorter, memory, before)
    assert (adopted["stage"], adopted["place"], adopted["iteration"], adopted["drawn"]) == (*after, 7)
    assert scope.GAME.adopt(before, memory, before) == memory


def test_with_curated_prompts_only_the_solver_is_trained():
    cfg = card(mode="curated", steps_per_iteration=2, iterations=2, solver_batch=3)
    memory = scope.GAME.start(cfg)
    assert scope.GAME.policies(cfg) == ("solver",) and [u.name for u in scope.GAME.updates(cfg)] == ["solver"]
    source = scope.GAME.rows(cfg)
    assert scope.GAME.total_steps(cfg) == 4 and source is not None and source.kind == "tasks"
    rows = [{"question": f"Task {n}", "rubric": [criterion("Names alpha.")]} for n in range(3)]
    taken = []
    for step in range(4):
        tools = world()
        episodes, memory, metrics = play_step(GAMES["scope"], cfg, tools, memory, rows, step)
        taken += tools.taken
        assert len(episodes) == 6 and metrics["solver/rubric"] == 1.0
    assert taken == [(0, 3), (3, 3), (6, 3), (9, 3)] and scope.GAME.finished(cfg, memory)


def test_tasks_are_drawn_without_replacement():
    cfg = card(solver_batch=3, steps_per_iteration=4)
    memory = state.start(cfg) | {"stage": "solver", "tasks": [{"document": n} for n in range(6)]}

    def sampled(**changes: Any) -> list[int]:
        step = play.step_of(scope.GAME, cfg, world(), memory | changes, 0)
        return [task["document"] for task in state.sample_tasks(step)]

    batches = [sampled(place=place) for place in range(4)]
    assert sorted(batches[0] + batches[1]) == list(range(6)) == sorted(batches[2] + batches[3])
    assert batches[:2] != batches[2:]
    other = [sampled(iteration=2, place=place) for place in range(2)]
    assert other != batches[:2] and sorted(other[0] + other[1]) == list(range(6))  # reshuffled
    assert sorted(sampled(tasks=[{"document": 1}, {"document": 2}])) == [1, 2]  # fewer than a batch: all of them


def test_a_document_gives_one_task():
    cfg = card(target_tasks=100, generation_batch=6)
    tools = world()
    memory = scope.GAME.start(cfg) | {"stage": "tasks"}
    items = [*DOCUMENTS, DOCUMENTS[0], DOCUMENTS[1]]  # the stream starts again
    _, memory, metrics = play_step(GAMES["scope"], cfg, tools, memory, items, 0)
    assert [entry["document"] for entry in memory["tasks"]] == ["aare", "bern", "cusco", "delhi"]
    assert metrics["tasks/yield"] == pytest.approx(4 / 6)
    tools = world()
    _, memory, _ = play_step(
        GAMES["scope"], cfg, tools, memory, [*DOCUMENTS, {"id": "elba", "title": "Elba", "text": "x"}], 1
    )
    assert [name for role, name, _ in tools.asked if role == "challenger"] == ["4"]  # the others have a task already
    assert [entry["document"] for entry in memory["tasks"]][4:] == ["elba"]


# ------------------------------------------------------------------------------------------------------------- resuming
def test_play_is_pure_and_resumes_from_json_in_the_middle_of_task_generation():
    drafts = {("Bern", 0): (searching_turn("Aare"), task("Tell of Bern, VAGUE."))}
    plan = Plan(drafts=drafts, attempts={("Cusco", 0): (searching_turn("Rhine"), answer("alpha beta gamma"))})
    cfg = card(target_tasks=7, seed=5)
    memory = scope.GAME.start(cfg)
    for step in range(2):
        _, memory, _ = play_step(GAMES["scope"], cfg, world(plan), memory, DOCUMENTS, step)
    assert (memory["stage"], memory["place"], len(memory["tasks"])) == ("tasks", 1, 3)
    before = json.dumps(memory)
    items = [document | {"id": f"{place}"} for place, document in enumerate(DOCUMENTS)]
    one, two = memory, json.loads(before)
    for step in range(2, 5):
        here, there = world(plan, data=items), world(plan, data=items)
        first, one, said = play.play_step(scope.GAME, cfg, here, one, step)
        second, two, told = play.play_step(scope.GAME, cfg, there, two, step)
        assert here.taken == there.taken
        assert plain(first) == plain(second) and one == two and said == told
    assert json.dumps(memory) == before


# --------------------------------------------------------------------------------------------------------------- cards
@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"scope": {"min_rubrics": 6}}, "min_rubrics must not be larger"),
        ({"scope": {"window": [0.8, 0.2]}}, "window must be"),
        ({"scope": {"task_types": {"planning": -1}}}, "is -1 but must be at least 0"),
        ({"scope": {"search_turns": [0, 0]}}, "search_turns must hold at least one"),
        ({"scope": {"solver_reward": {"soft_limit": 9, "hard_limit": 9}}}, "hard_limit must be larger"),
        ({"scope": {"mode": "curated"}}, "data.prompts is missing"),
        ({"retrieval": {"url": "http://search"}}, "data.documents is missing"),
        ({"data": {"columns": {"text": "body"}}}, r"set those of the corpus in \[retrieval\]"),
        ({"judge": {"url": "http://judge", "model": "m"}}, r"does not use \[judge\]"),
    ],
)
def test_invalid_cards_are_refused_with_the_reason(table: dict, complaint: str):
    base = {"system": "scope", "model": {"checkpoint": "none"}, "retrieval": {"corpus": "c"}, "data": {}, "train": {}}
    with pytest.raises(CardError, match=complaint):
        parse_config(base | table, "a card")


def test_a_partial_table_keeps_the_other_defaults():
    cfg = card(grader={"max_tokens": 5}, solver_reward={"floor": 0.1}, solver={"loss": {"clip_high": 0.28}})
    assert (options(cfg).grader.temperature, options(cfg).grader.max_tokens) == (0.6, 5)
    assert (options(cfg).solver_reward.soft_limit, options(cfg).solver_reward.floor) == (
        1024,
        0.1,
    )
    assert options(cfg).solver.loss.advantage == "group-zscore" and options(cfg).challenger.loss.clip_high == 0.2
