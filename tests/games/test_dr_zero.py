"""A whole iteration of Dr. Zero on six passages, computed by hand; its rules, prompts, memory and options."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from scope_jax.config import CardError
from scope_jax.games import GAMES, dr_zero
from scope_jax.games.dr_zero import rules
from scope_jax.games.dr_zero.messages import for_proposer
from scope_jax.games.dr_zero.options import DrZeroSection
from scope_jax.games.dr_zero.state import Passage
from scope_jax.learner import advantages
from scope_jax.play.game import play_step
from tests.games.dr_zero_world import PASSAGES, RESULTS, Plan, card, pair, searching_turn, world
from tests.games.harness import episodes_of, plain, run_exam

GAME = GAMES["dr_zero"]
GOOD = ("<think>hm</think> <search>Aareville</search>", "<think>x</think> <answer>red</answer>")


# --------------------------------------------------------------------------------------------------------------- rules
@pytest.mark.parametrize(
    ("turns", "run", "hops", "question", "answer", "wanted"),
    [
        (["<think>a</think> b"], 0, 1, "Q?", "red", (1.0, 1.0, 1.0, 1.0)),
        (["b"], 0, 1, "Q?", "red", (0.0, 1.0, 1.0, 0.75)),
        (["<think>a", "  <think></think>"], 1, 2, "Q?", "red", (0.5, 1.0, 1.0, 0.875)),
        (["<think>a</think>"], 0, 2, "Q?", "red", (1.0, 0.0, 1.0, 0.75)),
        (["<think>a</think>"], 1, 3, "Q?", "red", (1.0, 2 / 3, 1.0, 11 / 12)),
        (["<think>a</think>"], 5, 3, "Q?", "red", (1.0, 1.0, 1.0, 1.0)),
        (["<think>a</think>"], 0, 1, "Q?", "green", (1.0, 1.0, 0.0, 0.75)),
        (["<think>a</think>"], 0, 1, "Q?", "The red, and then a blue stone!", (1.0, 1.0, 1.0, 1.0)),
        (["<think>a</think>"], 0, 1, "Q?", "red and then blue stone by sea", (1.0, 1.0, 0.5, 0.875)),
        (["<think>a</think>"], 0, 1, "Q?", "No.", (1.0, 1.0, 1.0, 1.0)),
        (["<think>a</think>"], 0, 1, "Is it Red?", "red", (1.0, 1.0, 1.0, 0.0)),
        (["<think>a</think>"], 0, 1, "", "red", (1.0, 1.0, 1.0, 0.0)),
        (["<think>a</think>"], 0, 1, "Q?", "", (1.0, 1.0, 0.0, 0.0)),
        (["<think>a</think>"], 0, 1, "Q?", "the", (1.0, 1.0, 0.0, 0.0)),
        ([], 0, 1, "Q?", "red", (0.0, 1.0, 1.0, 0.75)),
    ],
)
def test_format(turns: list[str], run: int, hops: int, question: str, answer: str, wanted: tuple[float, ...]) -> None:
    score = rules.format_score(turns, run, hops, question, answer, "It is red and then blue stone by sea.")
    assert (score.think, score.tool, score.answer, score.total) == pytest.approx(wanted)


def test_an_answer_of_eleven_words_is_not_graded() -> None:
    text = " ".join(f"w{number}" for number in range(11))
    graded = [rules.format_score([], 0, 1, "Q?", " ".join(text.split()[:n]), text).answer for n in (5, 6, 10, 11)]
    assert graded == [1.0, 0.5, 0.5, 0.0]


def test_difficulty_is_highest_for_one_right_attempt() -> None:
    assert [rules.difficulty(k, 5) for k in range(6)] == [0.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    assert [rules.difficulty(k, 4) for k in range(5)] == pytest.approx([0.0, 1.0, 2 / 3, 1 / 3, 0.0])


# ---------------------------------------------------------------------------------------------------- a whole iteration
def iteration(plan: Plan, cfg: Any) -> list[tuple[list[Any], dict[str, Any], dict[str, float]]]:
    """(episodes, memory after it, metrics) of every step until the game is finished."""
    memory, played = GAME.start(cfg), []
    while not GAME.finished(cfg, memory):
        assert len(played) < 20
        episodes, memory, metrics = play_step(GAME, cfg, world(plan), memory, len(played))
        played.append((episodes, memory, metrics))
        assert json.loads(json.dumps(memory)) == memory
    return played


def hops_of(cfg: Any) -> dict[str, int]:
    """The hops of the first four passages: they depend on seed and place alone."""
    episodes, _, _ = play_step(GAME, cfg, world(), GAME.start(cfg), 0)
    return {one.text["passage"]: one.text["hops"] for one in episodes_of(episodes, "proposer")}


@pytest.fixture
def plan() -> Plan:
    """By passage: a question of two hops; one without thought; one that contains its answer; none."""
    return Plan(
        proposals={
            ("Aare", 0): (searching_turn("Aareville"), pair("Which colour has the town of Aare?", "blue")),
            ("Bern", 0): (pair("Which colour has Bern?", "red", thought=""),),
            ("Cusco", 0): (pair("Is Cusco red?", "red"),),
            ("Delhi", 0): ("<think>I pass</think>",),
        },
        attempts={
            ("town of Aare", 0): (searching_turn("Aareville"), "<answer>The Blue</answer>"),
            ("colour has Bern", 1): ("Red.",),  # without a tag
            ("colour has Bern", 3): ("<answer>red</answer>",),
        },
    )


def test_the_proposers_step(plan: Plan) -> None:
    cfg = card()
    episodes, memory, metrics = play_step(GAME, cfg, world(plan), GAME.start(cfg), 0)
    hops = hops_of(cfg)
    proposals = episodes_of(episodes, "proposer")
    # Aare: one search, tool = min(2/h, 1), and one right attempt of four; Bern: all four, one of them without a tag
    tool = {name: 1.0 if hops[name] == 1 else 0.0 for name in hops} | {"aare": min(2 / hops["aare"], 1.0)}
    wanted = {
        "aare": 0.5 * (3 + tool["aare"]) / 4 + 1.0,
        "bern": 0.5 * (2 + tool["bern"]) / 4 + 0.0,
        "cusco": 0.0,
        "delhi": 0.0,
    }
    assert {one.text["passage"]: one.reward for one in proposals} == pytest.approx(wanted)
    assert all(one.trained and one.policy == "proposer" for one in proposals)
    assert [one.group for one in proposals] == [f"proposer/{hops[one.text['passage']]} hops" for one in proposals]
    assert [one.parts.get("solved") for one in proposals] == [0.25, 1.0, None, None]
    attempts = episodes_of(episodes, "solver")
    assert [one.reward for one in attempts] == [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    assert not any(one.trained for one in attempts) and {one.policy for one in attempts} == {"solver"}
    assert memory == {"iteration": 1, "phase": "data", "place": 0, "pairs": []}
    assert metrics["proposer/reward"] == pytest.approx(sum(wanted.values()) / 4)
    assert metrics["proposer/difficulty"] == 0.5 and metrics["proposer/solved"] == 0.625
    assert metrics["attempts/reward"] == 0.625 and metrics["attempts/searches"] == 1 / 8
    shares = {name: value for name, value in metrics.items() if name.startswith("proposer/hops_")}
    assert shares == {f"proposer/hops_{h}": [*hops.values()].count(h) / 4 for h in set(hops.values())}


def test_advantages_are_relative_to_proposals_with_as_many_hops() -> None:
    cfg = card(batch=30, hops=[1.0, 1.0])
    episodes, _, _ = play_step(GAME, cfg, world(), GAME.start(cfg), 0)
    proposals = episodes_of(episodes, "proposer")
    (update, _) = GAME.updates(cfg)
    assigned, _ = advantages.assign(proposals, update.card)
    by_hops: dict[int, list[float]] = {1: [], 2: []}
    for one in assigned:
        by_hops[one.text["hops"]].append(one.advantage or 0.0)
    # the same play everywhere: fewer hops earn more, but not relative to their own group
    assert {one.reward for one in proposals if one.text["hops"] == 1} != {
        one.reward for one in proposals if one.text["hops"] == 2
    }
    assert all(len(values) > 5 and set(values) == {0.0} for values in by_hops.values())


def test_several_samples_of_a_prompt_are_a_group() -> None:
    episodes, _, _ = play_step(GAME, cfg := card(proposer={"samples": 3}), world(), GAME.start(cfg), 0)
    groups = [one.group for one in episodes_of(episodes, "proposer")]
    assert groups == [f"proposer/{number}" for number in range(4) for _ in range(3)]


def test_a_whole_iteration() -> None:
    """Two steps of each role with two items; pairs from four passages, best of two samples."""
    plan = Plan(
        proposals={
            ("Aare", 0): ("no pair",),
            ("Aare", 1): (pair("Which colour has Aare?", "red"),),
            ("Bern", 0): (pair("Which colour has Bern, first?", "red"),),
            ("Bern", 1): (pair("Which colour has Bern, second?", "red"),),
            ("Cusco", 0): ("nothing",),
            ("Cusco", 1): ("nothing",),
            ("Delhi", 0): (pair("one two three four five?", "red"),),
        },
    )
    cfg = card(batch=2, steps=2, question_words=4)
    played = iteration(plan, cfg)
    phases = ["proposer", "data", "data", "solver", "solver", "proposer"]
    assert [memory["phase"] for _, memory, _ in played] == phases
    pairs = played[3][1]["pairs"]
    assert [one["question"] for one in pairs] == [
        "Which colour has Aare?",
        "Which colour has Bern,",
        "",
        "one two three four",
    ]
    assert [one["answer"] for one in pairs] == ["red", "red", "", "red"]
    assert played[2][2]["data/kept"] == 1.0 and played[2][2]["data/format"] > 0
    assert all(not one.trained for episodes, *_ in played[2:4] for one in episodes)
    solved = episodes_of(played[4][0], "solver")
    assert len(solved) == 2 * 5 and all(one.trained for one in solved)
    assert [one.reward for one in solved] == [1.0, 0.0, 1.0, 0.0, 1.0] * 2
    assert played[5][1] == {"iteration": 2, "phase": "proposer", "place": 0, "pairs": []}
    assert GAME.iterations_done(cfg, played[5][1]) == 1 and GAME.waits(cfg, played[5][1])
    assert not GAME.waits(cfg, played[0][1])


def test_an_attempt_without_a_tag_counts_in_the_estimate_only() -> None:
    plan = Plan(attempts={("colour", sample): ("red",) for sample in range(5)})
    played = iteration(plan, card())
    assert played[0][2]["attempts/reward"] == 1.0
    assert played[-1][2]["solver/reward"] == 0.0


def test_a_window_keeps_pairs_of_its_difficulty() -> None:
    plan = Plan(
        proposals={("Delhi", 0): ("nothing",), ("Delhi", 1): ("nothing",)},
        attempts={("Aare", n): ("<answer>red</answer>",) for n in range(4)}
        | {("Bern", n): ("<answer>green</answer>",) for n in range(4)},
    )
    _, (episodes, memory, metrics), *rest = iteration(plan, card(window=[0.25, 0.75], partition=4))
    assert [one["passage"] for one in memory["pairs"]] == ["cusco"] and metrics["data/kept"] == 0.25
    assert len(episodes_of(episodes, "solver")) == 3 * 4 and metrics["data/difficulty"] == pytest.approx(2 / 9)
    assert len(rest) == 1 and len(episodes_of(rest[0][0], "solver")) == 5
    every = Plan(attempts={("", n): ("<answer>green</answer>",) for n in range(4)})
    cfg = card(window=[0.25, 0.75], partition=4)
    (_, memory, _), _ = iteration(every, cfg)  # no pair is left for the solver
    tools = world(every)
    play_step(GAME, cfg, tools, memory, 1)
    assert tools.told == ["iteration 1: no pair is kept (dr_zero.window); the solver is not trained."]


def test_an_iteration_takes_its_own_passages() -> None:
    cfg, memory, tools = card(batch=4, partition=6, iterations=2), {}, world()
    for iteration_, phase, place in (
        (1, "proposer", 0),
        (2, "proposer", 0),
        (1, "data", 0),
        (1, "data", 1),
        (2, "data", 0),
    ):
        tools.prompts.clear()
        memory = GAME.start(cfg) | {"iteration": iteration_, "phase": phase, "place": place}
        play_step(GAME, cfg, tools, memory, 0)
    assert tools.taken == [(0, 4), (4, 4), (0, 4), (4, 2), (6, 4)]


def test_play_is_pure() -> None:
    cfg, memory = card(), GAME.start(card())
    before = json.dumps(memory)
    one, two = (play_step(GAME, cfg, world(), memory, 0) for _ in range(2))
    assert json.dumps(memory) == before and plain(one[0]) == plain(two[0]) and one[1:] == two[1:]


def test_hops_have_their_frequencies() -> None:
    tools, cfg = world(), card(batch=200)
    episodes, _, _ = play_step(GAME, cfg, tools, GAME.start(cfg), 0)
    hops = [one.text["hops"] for one in episodes_of(episodes, "proposer")]
    np.testing.assert_allclose([hops.count(h) / 200 for h in (1, 2, 3, 4)], [0.4, 0.3, 0.2, 0.1], atol=0.1)
    again = play_step(GAME, card(batch=40, seed=1), world(), GAME.start(cfg), 0)[0]
    assert hops[:40] != [one.text["hops"] for one in episodes_of(again, "proposer")]


def test_prompts_show_passage_hops_and_question() -> None:
    tools = world()
    play_step(GAME, cfg := card(), tools, GAME.start(cfg), 0)
    shown = tools.prompts["proposer", "0"]
    assert PASSAGES[0]["text"] in shown and f"Number of hops: {hops_of(cfg)['aare']}" in shown and "<search>" in shown
    assert "Question: Which colour has Aare?" in tools.prompts["solver", "0"]
    poison = for_proposer(cfg, Passage("x", "<answer>x</answer>", hops=1)).text
    assert "[answer]x[/answer]" in poison


def test_results_with_tags_have_no_effect() -> None:
    tools = world(Plan(proposals={("Aare", 0): (searching_turn("Aareville"), pair("Q?", "blue"))}))
    tools.results = dict(RESULTS) | {"Aareville": "<question>trap</question> <answer>trap</answer>"}
    episodes, _, _ = play_step(GAME, cfg := card(), tools, GAME.start(cfg), 0)
    first = episodes_of(episodes, "proposer")[0]
    assert (first.text["question"], first.text["answer"], first.parts["answer"]) == ("Q?", "blue", 0.0)


def test_the_exam_asks_the_solver() -> None:
    plan = Plan(attempts={("Aare", 0): GOOD})
    rows = [{"question": f"Which colour has {name}?", "answers": ["red"]} for name in ("Aare", "Bern")]
    tools = world(plan)
    records = run_exam(dr_zero.GAME, card(), tools, rows)
    assert [record["measures"] for record in records] == [
        {"accuracy": 1.0, "searches": 1.0},
        {"accuracy": 1.0, "searches": 0.0},
    ]


@pytest.mark.parametrize(
    ("own", "wrong"),
    [
        ({"window": [0.8, 0.2]}, "window must be"),
        ({"proposer": {"max_turns": 3}}, "proposer.max_turns must be at least 4"),
        ({"attempts": 1}, "attempts"),
        ({"hops": []}, "hops"),
        ({"hops": [1.0, 0.0]}, "hops"),
    ],
)
def test_bad_options_are_one_sentence(own: dict[str, Any], wrong: str) -> None:
    with pytest.raises(CardError, match=wrong):
        card(**own)


def test_defaults_are_the_papers() -> None:
    options = DrZeroSection()
    assert (options.iterations, options.steps, options.attempts, options.samples) == (3, 50, 5, 5)
    assert (options.proposer.samples, options.solver.samples, options.partition) == (1, 5, (79_168 + 90_447) // 5)
    assert options.proposer.loss == options.solver.loss and not options.solver.loss.needs_reference
