"""A whole iteration of SCOPE on four documents, in each of the paper's three dialects, computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from scope_jax.config import EvalSet
from scope_jax.evaluation import replay
from scope_jax.evaluation.measuring import ExamSet, Record
from scope_jax.games import GAMES, scope
from scope_jax.games.scope.options import ScopeSection
from scope_jax.learner import advantages
from scope_jax.play import game as play
from scope_jax.play import searching
from scope_jax.play.exams import Answer
from scope_jax.text import dialects
from tests.games.harness import EOS, ROLES, closing, episodes_of, opening, plain, play_step, run_exam
from tests.games.scope_world import (
    CRITERIA,
    DOCUMENTS,
    PROTOCOLS,
    RESULTS,
    Plan,
    World,
    answer,
    card,
    criterion,
    searching_turn,
    task,
    world,
)

LONG = "alpha beta".ljust(39, ".") + "!"  # 40 characters, halfway between the limits 30 and 50


def plan(protocol: str) -> Plan:
    """Drafts and attempts in one dialect, with each kind of failure once."""
    dialect = dialects.load(PROTOCOLS[protocol][0])
    look, broken = searching_turn("Rhine", protocol), f"<think>hm</think> {opening(dialect)}{closing(dialect)}"
    bare = searching.written_search("Aare", dialect)  # a search without a thought
    return Plan(
        drafts={
            ("Aare", 0): (searching_turn("Aare", protocol), look, task("Tell of Aare.")),
            ("Aare", 1): (bare, task("A VAGUE tale.")),
            ("Aare", 2): ("I pass.",),
            ("Bern", 0): (look, task("An ALIEN matter.")),
            ("Bern", 1): ("<think>hm</think> nothing",),
            ("Bern", 2): (look, look, task("A VAGUE story.")),
            ("Cusco", 0): (broken, look, task("Something UNGRADABLE.")),
            ("Cusco", 1): ("I pass.",),
            ("Cusco", 2): ("<task>Something else UNGRADABLE.</task>",),
            ("Delhi", 0): (look, task("Tell of Delhi.")),
            ("Delhi", 1): (look, task("Tell of old Delhi.")),
            ("Delhi", 2): (look, task("Tell of new Delhi.")),
        },
        attempts={
            ("Tell of Aare", 0): (look, answer("alpha beta gamma delta")),
            ("Tell of Aare", 1): ("<answer>none</answer>",),
            ("Tell of Aare", 2): (look, bare, answer(LONG)),
            ("Tell of Delhi", 0): (look, answer("alpha beta gamma")),
            ("Tell of Delhi", 1): (look, answer("alpha beta")),
            ("Tell of Delhi", 2): ("<think>x</think> no idea",),
            ("Tell of old Delhi", 0): (look, answer("alpha")),
            ("Tell of old Delhi", 1): (look, "<think>x</think> no idea"),
            ("Tell of new Delhi", 0): (look, answer("alpha beta gamma delta")),
            ("Tell of new Delhi", 1): (look, answer("delta gamma beta alpha")),
        },
    )


def game(protocol: str, **changes: Any):
    limits = {"soft_limit": 30, "hard_limit": 50}
    options = {"target_tasks": 2, "solver_reward": limits, "iterations": 1}
    roles = {"challenger": {"samples": 3}, "solver": {"samples": 3}}
    return card(protocol=protocol, **options, **roles, **changes)


def test_the_module_has_the_shape_of_a_game():
    game = GAMES["scope"]
    cfg = card()
    assert game.policies(cfg) == ("challenger", "solver")
    assert [(u.name, u.policy) for u in game.updates(cfg)] == [("challenger", "challenger"), ("solver", "solver")]
    assert all(
        (u.card.advantage, u.card.aggregation, u.card.kl_coef) == ("group-zscore", "token-mean", 1e-3)
        for u in game.updates(cfg)
    )
    source = game.rows(cfg)
    assert game.total_steps(cfg) is None and source is not None and source.kind == "documents"
    assert game.exam_of(cfg).measures == ("rubric", "exact") and game.searches(cfg)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_challengers_step(protocol: str):
    cfg, tools = game(protocol), world(plan(protocol), protocol)
    episodes, memory, metrics = play_step(GAMES["scope"], cfg, tools, scope.GAME.start(cfg), DOCUMENTS, 0)
    drafts = episodes_of(episodes, "challenger")
    assert tools.taken == [(0, 4)]
    assert [e.text["searches_asked"] for e in drafts[::3]] == [2, 3, 1, 1]  # 4:3:2 of four: two, one and one
    expected = [
        # group, R_C, think, tool, structure, f_diff, rejected
        ("challenger/0", 1.5, 1.0, 1.0, 1.0, 1.0, ""),  # ḡ = (1 + 0)/2
        ("challenger/0", 0.5 * (0.5 + 0.5 + 1) / 3, 0.5, 0.5, 1.0, 0.0, "entity"),
        ("challenger/0", 0.0, 0.0, 0.0, 0.0, 0.0, "no_task"),  # r_fmt = 0
        ("challenger/1", 0.5 * (1 + 1 / 3 + 1) / 3, 1.0, 1 / 3, 1.0, 0.0, "relevance"),
        ("challenger/1", 0.5 * (1 + 0 + 0) / 3, 1.0, 0.0, 0.0, 0.0, "no_task"),
        ("challenger/1", 0.5 * (1 + 2 / 3 + 1) / 3, 1.0, 2 / 3, 1.0, 0.0, "entity"),
        ("challenger/2", 0.5, 1.0, 1.0, 1.0, 0.0, "no_rubrics"),
        ("challenger/2", 0.0, 0.0, 0.0, 0.0, 0.0, "no_task"),
        ("challenger/2", 0.5 * (0 + 0 + 1) / 3, 0.0, 0.0, 1.0, 0.0, "no_rubrics"),
        ("challenger/3", 1.25, 1.0, 1.0, 1.0, 0.75, ""),  # ḡ = (.75 + .5)/2
        ("challenger/3", 0.75, 1.0, 1.0, 1.0, 0.25, ""),  # ḡ = (.25 + 0)/2
        ("challenger/3", 0.5, 1.0, 1.0, 1.0, 0.0, ""),  # ḡ = 1, too easy
    ]
    names = ("think", "tool", "structure", "difficulty")
    found = [(e.group, e.reward, *(e.parts[n] for n in names), e.text["rejected"]) for e in drafts]
    for got, wanted in zip(found, expected, strict=True):
        assert got == (wanted[0], *map(pytest.approx, wanted[1:6]), wanted[6])
    assert [e.parts.get("solver_mean") for e in drafts] == [0.5, *[None] * 8, 0.625, 0.125, 1.0]
    assert all(e.trained and e.policy == "challenger" for e in drafts)

    tried = episodes_of(episodes, "solver")
    assert [(e.group, e.parts["rubric"], e.trained, e.policy) for e in tried] == [
        ("solver/0", 1.0, False, "solver"),
        ("solver/0", 0.0, False, "solver"),
        ("solver/9", 0.75, False, "solver"),
        ("solver/9", 0.5, False, "solver"),
        ("solver/10", 0.25, False, "solver"),
        ("solver/10", 0.0, False, "solver"),
        ("solver/11", 1.0, False, "solver"),
        ("solver/11", 1.0, False, "solver"),
    ]
    # Eq. (2): (r − mean)/(std + 1e-6), std of three with n − 1
    rated, _ = advantages.assign(drafts, cfg.options(ScopeSection).challenger.loss)
    zscores = [
        *(16 / 201**0.5, -5 / 201**0.5, -11 / 201**0.5),  # 27, 6 and 0 eighteenths, mean 11
        *(1 / 7**0.5, -3 / 7**0.5, 2 / 7**0.5),  # 7, 3 and 8 eighteenths, mean 6
        *(5 / 21**0.5, -4 / 21**0.5, -1 / 21**0.5),  # 9, 0 and 3 eighteenths, mean 4
        *(5 / 21**0.5, -1 / 21**0.5, -4 / 21**0.5),  # 15, 9 and 6 twelfths, mean 10
    ]
    assert [e.advantage for e in rated] == pytest.approx(zscores, abs=5e-5)

    assert {"stage": "tasks", "place": 0, "drawn": 4, "tasks": []}.items() <= memory.items()
    wanted = {
        "challenger/valid": 4 / 12,
        "gates/passed": 6 / 9,
        "gates/entity": 7 / 9,
        "gates/relevance": 8 / 9,
        "challenger/rubrics_parsed": 4 / 6,
        "challenger/rubric_items": 4.0,
        "challenger/reward": ((27 + 6 + 0 + 7 + 3 + 8 + 9 + 0 + 3) / 18 + 1.25 + 0.75 + 0.5) / 12,
        "challenger/searches": (2 + 1 + 0 + 1 + 0 + 2 + 1 + 0 + 0 + 1 + 1 + 1) / 12,
        "challenger/rejected_no_task": 3 / 12,
        "estimate/rubric": 4.5 / 8,
        "estimate/task_score": (0.5 + 0.625 + 0.125 + 1) / 4,
        "estimate/answered": 7 / 8,
        "estimate/searches": 7 / 8,
        "judge/gates/asked": 18.0,
        "judge/rubric_writer/asked": 6.0,
        "judge/rubric_writer/retried": 2.0,
        "judge/rubric_writer/malformed": 2.0,
        "judge/grader/asked": 28.0,  # seven answers by four criteria
        "iteration": 1.0,
    }
    assert {name: metrics[name] for name in wanted} == pytest.approx(wanted)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_task_generation_and_a_solvers_step(protocol: str):
    cfg = game(protocol)
    memory = scope.GAME.start(cfg) | {"stage": "tasks", "drawn": 4}
    episodes, memory, metrics = play_step(GAMES["scope"], cfg, world(plan(protocol), protocol), memory, DOCUMENTS, 1)
    rubric = [{"criterion": text, "weight": 1.0, "priority": priority} for priority, text in CRITERIA]
    made = [
        ("Tell of Aare.", "aare"),  # ḡ = 0.5
        ("Tell of Delhi.", "delhi"),  # ḡ = 0.625
    ]
    assert [(t["question"], t["document"]) for t in memory["tasks"]] == made
    assert all(t["rubric"] == rubric for t in memory["tasks"])
    assert not any(e.trained for e in episodes) and {e.role for e in episodes} == {"challenger", "solver"}
    assert (metrics["tasks/yield"], metrics["tasks/kept"]) == (0.5, 2.0)
    assert metrics["creation/gates/passed"] == 0.75 and metrics["creation/solver/task_score"] == 0.5625
    assert (memory["stage"], memory["place"], memory["drawn"]) == ("solver", 0, 8)

    tools = world(plan(protocol), protocol)
    episodes, after, metrics = play.play_step(scope.GAME, cfg, tools, memory, 2)
    assert tools.taken == [(8, 0)]
    assert {e.role for e in episodes} == {"solver"} and all(e.trained for e in episodes)
    by_task = {name: [e for e in episodes if e.text["task"] == name] for name, *_ in made}
    parts = ("rubric", "length", "format", "search")
    assert [tuple(e.parts[p] for p in parts) for e in by_task["Tell of Aare."]] == [
        (1.0, 1.0, 1.0, pytest.approx(1 / 3)),
        (0.0, 1.0, pytest.approx(1 / 3), 0.0),  # one turn, an answer without thought or search
        (0.5, pytest.approx(0.525), pytest.approx((2 / 3 + 1 + 1) / 3), pytest.approx(2 / 3)),
    ]
    assert [tuple(e.parts[p] for p in parts) for e in by_task["Tell of Delhi."]] == [
        (0.75, 1.0, 1.0, pytest.approx(1 / 3)),
        (0.5, 1.0, 1.0, pytest.approx(1 / 3)),
        (0.0, 1.0, pytest.approx(1 / 3), 0.0),  # a thought, no answer
    ]
    rewards = {
        "Tell of Aare.": [1 + 0.5 + 0.1 / 3, 0.5 / 3, 0.525 * 0.5 + 0.5 * 8 / 9 + 0.2 / 3],
        "Tell of Delhi.": [0.75 + 0.5 + 0.1 / 3, 0.5 + 0.5 + 0.1 / 3, 0.5 / 3],
    }
    zscores = {  # (r − mean)/(std + 1e-6), std of three with n − 1
        "Tell of Aare.": [1.035109, -0.960737, -0.074372],
        "Tell of Delhi.": [0.777362, 0.350761, -1.128123],
    }
    rated, _ = advantages.assign(episodes, cfg.options(ScopeSection).solver.loss)
    for name in rewards:
        assert [e.reward for e in by_task[name]] == pytest.approx(rewards[name])
        assert [e.advantage for e in rated if e.text["task"] == name] == pytest.approx(zscores[name], abs=5e-5)
    assert after["iteration"] == 2 and scope.GAME.finished(cfg, after) and after["tasks"] == []
    assert metrics["solver/rubric"] == pytest.approx((1 + 0 + 0.5 + 0.75 + 0.5 + 0) / 6)
    assert metrics["solver/answer_tokens"] == pytest.approx((22 + 4 + 40 + 16 + 10) / 5)
    assert metrics["solver/searches"] == pytest.approx((1 + 0 + 2 + 1 + 1 + 0) / 6)
    # ḡ of the tasks: .5 and (.75 + .5 + 0)/3
    assert metrics["iteration/task_score"] == pytest.approx((0.5 + 1.25 / 3) / 2)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_training_rows_equal_the_engines_tokens(protocol: str):
    cfg = game(protocol)
    tools = world(plan(protocol), protocol)
    memory = scope.GAME.start(cfg) | {
        "stage": "solver",
        "tasks": [{"question": "Tell of Aare.", "rubric": [CRITERION]}],
    }
    episodes, _, _ = play_step(GAMES["scope"], cfg, tools, memory, [], 0)
    prompt, look = episodes[0].text["prompt"], searching_turn("Rhine", protocol)
    end, (user, assistant) = chr(EOS), (chr(ROLES["user"]), chr(ROLES["assistant"]))
    last, found = answer("alpha beta gamma delta"), f"<information>\n{RESULTS['Rhine']}\n</information>"
    asked = tools.prompts["solver", "0"]
    assert protocol == "raw" or asked.endswith(f"{user}{prompt}{end}{assistant}")
    match protocol:
        case "raw":
            rows = [[(prompt, False), (look, True), (f"\n{found}\n\n", False), (last, True)]]
        case "qwen2.5":
            rows = [[(asked, False), (look, True), (f"{end}{user}{found}{end}{assistant}", False), (last, True)]]
        case "olmo3":
            environment = chr(ROLES["environment"])
            rows = [[(asked, False), (look, True), (f"{end}{environment}{found}{end}{assistant}", False), (last, True)]]
        case _:  # re-rendered without the first turn's thought; the template adds the tag around a tool message
            kept = look.split("</think>")[1]
            again = f"{asked}{kept}{end}{chr(ROLES['tool'])}{RESULTS['Rhine']}{end}{assistant}"
            rows = [[(asked, False), (look, True)], [(again, False), (last, True)]]
    assert len(episodes[0].datums) == len(rows)
    for datum, pieces in zip(episodes[0].datums, rows, strict=True):
        assert "".join(map(chr, datum.ids_T)) == "".join(text for text, _ in pieces)
        assert datum.sampled_T.tolist() == [sampled for text, sampled in pieces for _ in text]
        assert datum.logprobs_T.tolist() == [-0.5 * sampled for text, sampled in pieces for _ in text]


CRITERION = criterion("Names alpha.")


# --------------------------------------------------------------------------------------------------------- variants
def challenge(drafts: dict[tuple[str, int], tuple[str, ...]], **changes: Any) -> tuple[World, list[Any]]:
    """The first document's drafts, in a step where the other drafts are the default ones."""
    tools = world(Plan(drafts=drafts))
    episodes, _, _ = play_step(GAMES["scope"], card(**changes), tools, scope.GAME.start(card(**changes)), DOCUMENTS, 0)
    return tools, episodes_of(episodes, "challenger")


def test_dynamic_turns_count_down_and_end_the_episode():
    many = tuple(searching_turn(query) for query in ("Aare", "Rhine", "Nile", "Nile"))
    empty = "<think>hm</think> <search> </search>"
    drafts = {("Aare", 0): (*many, task("late")), ("Bern", 0): (empty, *many[:2], task("Tell of Bern."))}
    tools, found = challenge(drafts, dynamic_turns=True)
    turns = [turn["text"] for turn in found[0].text["turns"]]  # two searches are expected
    assert turns[1].endswith("</information>\nTurns left for searching: 1.\n\n")
    assert "</information>\nThere are no turns left for searching." in turns[3]
    assert len(turns) == 5 and found[0].text["rejected"] == "no_task"  # the third search was not run
    # three searches are expected, and the broken one counts as one of them
    turns = [turn["text"] for turn in found[2].text["turns"]]
    assert turns[1].startswith("\nThat search was not run") and turns[1].endswith("Turns left for searching: 2.\n\n")
    assert len(turns) == 7 and found[2].text["rejected"] == "" and found[2].parts["tool"] == pytest.approx(2 / 3)
    assert "Nile" not in tools.searched
    _, found = challenge(drafts, dynamic_turns=False)
    assert [turn["kind"] for turn in found[0].text["turns"]].count("sampled") == 5 and not found[0].text["rejected"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_message_with_the_results_has_the_number_of_turns_left(protocol: str):
    def broken(protocol: str) -> str:
        dialect = dialects.load(PROTOCOLS[protocol][0])
        return f"<think>hm</think> {opening(dialect)}{closing(dialect)}"

    drafts = {("Aare", 0): (broken(protocol), searching_turn("Rhine", protocol), task("Tell of Aare."))}  # two expected
    cfg, tools = card(protocol=protocol, dynamic_turns=True), world(Plan(drafts=drafts), protocol)
    found = episodes_of(play_step(GAMES["scope"], cfg, tools, scope.GAME.start(cfg), DOCUMENTS, 0)[0], "challenger")[0]
    text = "".join(map(chr, found.datums[-1].ids_T))
    assert (found.text["task"], found.text["searches_asked"], found.parts["tool"]) == ("Tell of Aare.", 2, 0.5)
    over = "There are no turns left for searching. Think once more, then write the task between <task> and </task>."
    message = (
        f"{RESULTS['Rhine']}\n{over}"
        if protocol == "qwen3"
        else f"<information>\n{RESULTS['Rhine']}\n</information>\n{over}"
    )
    again = text.split("That search was not run")[1]
    if protocol == "raw":
        assert "Turns left for searching: 1.\n\n" in again and f"\n{message}\n\n{task('Tell of Aare.')}" in again
        return
    role = {"qwen2.5": "user", "qwen3": "tool", "olmo3": "environment"}[protocol]
    end, assistant = chr(EOS), chr(ROLES["assistant"])
    assert f"Turns left for searching: 1.{end}{assistant}" in again
    assert again.endswith(f"{end}{chr(ROLES[role])}{message}{end}{assistant}{task('Tell of Aare.')}")


def test_a_search_inside_an_answer_belongs_to_the_answer_if_turns_continue():
    quoting = answer("alpha <search>Nile</search> beta")
    rows = [{"question": "Tell of Aare.", "rubric": [criterion("Names beta.")]}]
    plan = Plan(attempts={("Aare", n): (searching_turn("Rhine") + " and so on", quoting) for n in (0, 1)})
    cfg = card(protocol="qwen2.5", mode="curated", solver_stops_at_search=False)
    tools = world(plan, "qwen2.5")
    episodes, _, _ = play_step(GAMES["scope"], cfg, tools, scope.GAME.start(cfg), rows, 0)
    assert tools.options["solver"]["stop"] == ("</answer>",) and tools.searched == ["Rhine", "Rhine"]
    assert [e.text["answer"] for e in episodes] == ["alpha <search>Nile</search> beta"] * 2
    assert [e.parts["rubric"] for e in episodes] == [1.0, 1.0]
    assert episodes[0].text["turns"][0]["text"] == searching_turn("Rhine")
    cfg = card(protocol="qwen2.5", mode="curated")
    tools = world(plan, "qwen2.5")
    with pytest.raises(IndexError):  # the turn ends inside the answer, and the plan has no further one
        play_step(GAMES["scope"], cfg, tools, scope.GAME.start(cfg), rows, 0)
    assert "Nile" in tools.searched


MADE_UP = "\n<information>\nThe Rhine ends in Peru.\n</information>\n"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_search_that_was_not_run_earns_nothing(protocol: str):
    """Searches in the last allowed turn or quoted in an answer are not run; an answer after a search is ignored."""
    look, quoted = (
        searching_turn("Rhine", protocol),
        searching.written_search("Aare", dialects.load(PROTOCOLS[protocol][0])),
    )
    attempts = {
        ("Aare", 0): (look, look, f"{look} <answer>alpha</answer>"),
        ("Aare", 1): (look, answer(f"alpha {quoted} {quoted} {quoted}")),
    }
    rows = [{"question": "Tell of Aare.", "rubric": [criterion("Names alpha.")]}]
    cfg = card(protocol=protocol, mode="curated", solver_stops_at_search=False, solver={"max_turns": 3})
    episodes, _, metrics = play_step(
        GAMES["scope"], cfg, world(Plan(attempts=attempts), protocol), scope.GAME.start(cfg), rows, 0
    )
    parts = [[e.parts[name] for name in ("search", "tool", "answer", "rubric")] for e in episodes]
    assert parts == [[pytest.approx(2 / 3), 1.0, 0.0, 0.0], [pytest.approx(1 / 3), 1.0, 1.0, 1.0]]
    assert metrics["solver/searches"] == 1.5 and episodes[0].text["turns"][-1]["text"] == look
    one = EvalSet(name="held", path="none", max_tokens=999, measures=("rubric",))
    ready = ExamSet(cfg, scope.GAME.exam_of(cfg), one, rows)
    played = ready.answers(world(Plan(attempts=attempts), protocol))
    again = world(Plan(replies={"Tell of Aare.": f"{look} <answer>alpha</answer>"}), protocol)
    (record,) = continue_with(ready, again, played)
    assert record["prediction"] is None and again.searched == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    "rest",
    [
        pytest.param(f"{MADE_UP}<answer>alpha beta</answer>", id="results and an answer"),
        pytest.param(f"{MADE_UP}{{more}} {{more}} and more.", id="two further searches, then the end token"),
        pytest.param(MADE_UP * 40, id="text until max_tokens"),
    ],
)
def test_what_follows_the_search_of_a_turn_is_dropped(protocol: str, rest: str):
    """Rows, texts, rewards and metrics are the same as for a turn that stopped at its search."""
    look = searching_turn("Rhine", protocol)
    rest = rest.format(more=searching.written_search("Aare", dialects.load(PROTOCOLS[protocol][0])))
    rows = [{"question": "Tell of Aare.", "rubric": [criterion(f"Names {word}.") for word in ("alpha", "beta")]}]
    found = []
    for turn, stops in ((look, True), (look + rest, False)):
        plan = Plan(attempts={("Aare", n): (turn, turn, answer("alpha")) for n in (0, 1)})
        cfg = card(
            protocol=protocol,
            mode="curated",
            solver_stops_at_search=stops,
            solver={"sampling": {"max_tokens": 1500}},
        )
        tools = world(plan, protocol)
        episodes, _, metrics = play_step(GAMES["scope"], cfg, tools, scope.GAME.start(cfg), rows, 0)
        assert tools.searched == ["Rhine"] * 4
        found.append((plain(episodes), metrics))
    assert found[0] == found[1]
    cut, metrics = found[1]
    assert metrics["solver/searches"] == 2.0 and cut[0]["text"]["turns"][0]["text"] == look
    assert cut[0]["parts"] == {
        "format": 1.0,
        "think": 1.0,
        "tool": 1.0,
        "answer": 1.0,
        "length": 1.0,
        "search": pytest.approx(2 / 3),
        "rubric": 0.5,
    }


def test_no_gates_lets_every_task_pass():
    drafts = {("Aare", 0): (searching_turn("Aare"), task("A VAGUE and ALIEN tale."))}
    tools, found = challenge(drafts, quality_gates=False)
    assert found[0].text["rejected"] == "" and found[0].parts["difficulty"] == 1.0
    assert "gates" not in tools.policies and "gate_entity" not in found[0].parts


def test_the_order_of_gates_and_rubrics_determines_the_requests():
    drafts = {("Aare", n): (searching_turn("Aare"), task("A VAGUE UNGRADABLE tale.")) for n in (0, 1)}
    tools, found = challenge(drafts)
    assert found[0].text["rejected"] == "entity"
    assert not any("UNGRADABLE" in text for (role, _), text in tools.prompts.items() if role == "rubric_writer")
    tools, found = challenge(drafts, gates_first=False)
    assert found[0].text["rejected"] == "no_rubrics"
    assert not any("UNGRADABLE" in text for (role, _), text in tools.prompts.items() if role == "gates")


def test_failures_can_cost_the_format_reward():
    drafts = {
        ("Aare", 0): (searching_turn("Aare"), task("Something UNGRADABLE.")),
        ("Aare", 1): (searching_turn("Aare"), "<think>no task</think>"),
        ("Bern", 0): (searching_turn("Aare"), task("A VAGUE tale.")),
    }
    _, found = challenge(drafts)
    assert [e.reward > 0 for e in found[:3]] == [True, True, True]
    _, found = challenge(drafts, challenger_reward={"failure_zeroes_format": True})
    assert [e.reward > 0 for e in found[:3]] == [False, False, True]  # it is kept if only a gate fails


def test_rubrics_are_written_from_the_document_and_all_search_results():
    tools, _ = challenge({("Aare", 0): (searching_turn("Aare"), searching_turn("Rhine"), task("Tell of Aare."))})
    prompt = next(
        text for (role, _), text in tools.prompts.items() if role == "rubric_writer" and "Tell of Aare" in text
    )
    sources = "\n\n---\n\n".join(
        ("(Title: Aare)\nThe Aare is a river in Switzerland.", RESULTS["Aare"], RESULTS["Rhine"])
    )
    assert f"Documents:\n\n{sources}\n\nRules" in prompt


def test_the_solver_never_sees_the_document():
    tools, _ = challenge({})
    prompts = [text for (role, _), text in tools.prompts.items() if role == "solver"]
    assert len(prompts) == 8 and not any("(Title:" in text for text in prompts)
    assert all("up to 4 times" in text and "Task: Tell of" in text for text in prompts)


def test_each_stage_has_its_own_sampling_parameters():
    cfg, tools = card(), world()
    play_step(GAMES["scope"], cfg, tools, scope.GAME.start(cfg), DOCUMENTS, 0)

    def sampled(tools: World, role: str) -> tuple[float, float, int]:
        agent = tools.agents[role]
        return agent.sampling.temperature, agent.sampling.top_p, agent.max_turns

    assert sampled(tools, "challenger") == (1.0, 1.0, 10) and sampled(tools, "solver") == (0.7, 0.9, 5)
    tools = world()
    play_step(GAMES["scope"], cfg, tools, scope.GAME.start(cfg) | {"stage": "tasks"}, DOCUMENTS, 0)
    assert sampled(tools, "challenger")[:2] == sampled(tools, "solver")[:2] == (1.0, 1.0)


def test_each_stage_has_its_own_number_of_samples():
    cfg = card(n_train=3, n_filter=4, challenger={"samples": 5}, solver={"samples": 6})
    tasks = [{"question": "Tell of Aare.", "rubric": [CRITERION]}]
    found = {}
    for stage in ("challenger", "tasks", "solver"):
        tools = world()
        memory = scope.GAME.start(cfg) | {"stage": stage, "tasks": tasks if stage == "solver" else []}
        play_step(GAMES["scope"], cfg, tools, memory, [] if stage == "solver" else DOCUMENTS[:1], 0)
        found[stage] = [(role, samples) for role, _, samples in tools.asked if role in ("challenger", "solver")]
    assert found == {
        "challenger": [("challenger", 5), *[("solver", 3)] * 5],  # G drafts, N attempts at each
        "tasks": [("challenger", 1), ("solver", 4)],  # one draft, N_filter attempts
        "solver": [("solver", 6)],
    }


def test_the_grader_reads_a_truncated_answer_if_the_card_allows_it():
    attempts = {("Aare", n): (searching_turn("Rhine"), answer("alpha beta " + "x " * 20 + "gamma")) for n in (0, 1)}
    rows = [{"question": "About the Aare.", "rubric": [criterion("Names gamma.")]}]
    limits = {"soft_limit": 10, "hard_limit": 20}
    for cut, score in ((False, 1.0), (True, 0.0)):
        cfg = card(mode="curated", cut_answer=cut, solver_reward=limits)
        episodes, _, _ = play_step(GAMES["scope"], cfg, world(Plan(attempts=attempts)), scope.GAME.start(cfg), rows, 0)
        assert [e.parts["rubric"] for e in episodes] == [score, score]


def test_evaluation_grades_every_row():
    rows = [
        {
            "question": "Tell of Delhi.",
            "rubric": [criterion("Names alpha.", 3.0), criterion("Names gamma.")],
        },
        {"question": "Tell of Cusco.", "rubric": [criterion("Names delta.", 3.0)]},
    ]
    tools = world(Plan(attempts={("Cusco", 0): ("<think>x</think>",)}))
    records = run_exam(GAMES["scope"], card(), tools, rows)
    assert [r["measures"] for r in records] == [
        {"score": 0.75, "ungraded": 0.0, "searches": 1.0, "answer_tokens": 10.0},
        {"score": 0.0, "ungraded": 0.0, "searches": 0.0, "answer_tokens": 0.0},
    ]
    assert records[0]["prediction"] == "alpha beta" and records[0]["verdicts"] == [True, False]
    assert tools.policies["eval"] == "solver"
    assert (tools.options["eval"]["temperature"], tools.options["eval"]["max_tokens"]) == (0.0, 99)


def continue_with(ready: ExamSet, tools: World, played: list[Answer]) -> list[Record]:
    """Records of the answers that one solver gives after the searches of another solver's episodes."""
    return ready.records(tools, replay.answers_after(ready, tools, played))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_solver_answers_from_the_searches_of_another(protocol: str):
    rows = [{"question": "Tell of Aare.", "rubric": [criterion(f"Names {word}.") for word in ("alpha", "beta")]}]
    look = searching_turn("Rhine", protocol)
    before = world(Plan(attempts={("Aare", 0): (look, look, answer("alpha"))}), protocol)
    cfg, one = card(protocol=protocol), EvalSet(name="held", path="none", max_tokens=99, measures=("rubric",))
    ready = ExamSet(cfg, scope.GAME.exam_of(cfg), one, rows)
    played = ready.answers(before)
    (found,) = played
    text = "".join(map(chr, replay.before_last_turn(found.completion)))
    assert found.searches == 2 and text.count(RESULTS["Rhine"]) == 2 and "Names" not in text
    assert "<answer>alpha" not in text and text.count('Rhine"}' if protocol == "qwen3" else "Rhine") >= 2

    after = world(Plan(replies={"Tell of Aare.": answer("alpha beta")}), protocol)
    (record,) = continue_with(ready, after, played)
    assert after.prompts["replay", "0"] == text and after.policies["replay"] == "solver" and after.searched == []
    assert record["measures"] == {"score": 1.0, "ungraded": 0.0, "searches": 2.0, "answer_tokens": 10.0}
    again = world(Plan(replies={"Tell of Aare.": look}), protocol)  # it searches again instead of answering
    (record,) = continue_with(ready, again, played)
    assert record["prediction"] is None and record["measures"]["score"] == 0.0
