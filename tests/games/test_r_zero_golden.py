"""R-Zero's steps with scripted policies, by hand: what is asked, labelled, rewarded, kept and trained."""

from __future__ import annotations

import json

import pytest

from scope_jax.games.r_zero import roles
from scope_jax.games.r_zero.game import GAME
from scope_jax.play.game import play_step
from tests.games.harness import ScriptedTools, run_exam
from tests.games.r_zero_world import Plan, asked, card, said, world

LONG = "Let n be the least number with 24 divisors."
VOTES = {
    "3 + 4": said(7, 7, 8, 9),  # p = 1/2: the label 7 is right
    "5 + 5": said(9, 10, 9, 9),  # p = 3/4: the label 9 is wrong
    LONG: said("\\frac{1}{2}", "0.5", None, 3),  # p = 1/2: equal in value
    "1 + 1": said(2, 2, 2, 2),
}


def of(episodes, role):
    return [episode for episode in episodes if episode.role == role]


def test_a_challengers_step() -> None:
    cfg = card()
    plan = Plan({"0": [asked("3 + 4"), "3 + 4 = 7"], "1": [asked("5 + 5"), asked(LONG)]}, VOTES)
    tools = world(plan)
    memory = GAME.start(cfg)
    before = json.dumps(memory)
    episodes, after, metrics = play_step(GAME, cfg, tools, memory, 0)
    assert json.dumps(memory) == before and after["phase"] == "pool"
    assert tools.asked == [("challenger", "0", 2), ("challenger", "1", 2), *(("voter", f"{i}", 4) for i in range(3))]
    assert tools.agents["voter"].policy == "solver" and tools.agents["voter"].sampling.top_k == 40
    assert [one.group for one in episodes] == ["challenger/0", "challenger/0", "challenger/1", "challenger/1"]
    # 1 − 2 |p − 1/2| less the share of the batch in the cluster, which each is alone; no question: 0
    assert [one.reward for one in episodes] == pytest.approx([1 - 1 / 4, 0.0, 1 / 2 - 1 / 4, 1 - 1 / 4])
    assert all(one.trained and one.policy == "challenger" for one in episodes)
    assert [one.text.get("label") for one in episodes] == ["7", None, "9", "\\frac{1}{2}"]
    assert metrics["challenger/valid"] == 3 / 4 and metrics["challenger/repetition"] == 1 / 4
    assert metrics["challenger/agreement"] == pytest.approx((1 / 2 + 3 / 4 + 1 / 2) / 3)
    assert metrics["challenger/agreement_0.6"] == 2 / 3 and metrics["challenger/agreement_0.8"] == 1 / 3
    assert metrics["challenger/label_right"] == 1 / 2  # of the two questions that have a value
    assert metrics["challenger/answered"] == 11 / 12 and metrics["challenger/unique"] == 1.0
    assert metrics["iteration"] == 1.0 and metrics["skipped"] == 0.0


def test_repeated_questions_cost_the_challenger_their_share() -> None:
    cfg = card(votes=2)
    plan = Plan(
        {"0": [asked(LONG), asked(LONG)], "1": [asked(LONG), asked("3 + 4")]}, {LONG: said(1, 2), "3 + 4": said(7, 8)}
    )
    episodes, _, metrics = play_step(GAME, cfg, world(plan), GAME.start(cfg), 0)
    assert [one.reward for one in episodes] == pytest.approx([1 / 4, 1 / 4, 1 / 4, 3 / 4])
    assert metrics["challenger/unique"] == 1 / 2


def pool_of(cfg, votes, **changes):
    plan = Plan({f"{place}": [asked(question)] for place, question in enumerate(votes)}, votes, **changes)
    memory = GAME.start(cfg) | {"phase": "pool"}
    tools = world(plan)
    return tools, *play_step(GAME, cfg, tools, memory, 1)


def test_the_pool_keeps_the_questions_in_the_window() -> None:
    tools, episodes, after, metrics = pool_of(card(), VOTES)
    assert [one["question"] for one in after["items"]] == ["3 + 4", "5 + 5", LONG]
    assert [one["label"] for one in after["items"]] == ["7", "9", "\\frac{1}{2}"] and after["phase"] == "solver"
    assert not any(one.trained for one in episodes) and tools.agents["challenger"].sampling.top_p == 0.95
    assert (metrics["pool/kept"], metrics["pool/yield"], metrics["pool/label_right"]) == (3.0, 3 / 4, 2 / 3)
    assert json.loads(json.dumps(after)) == after
    _, _, after, _ = pool_of(card(window=[0.0, 1.0]), VOTES)  # the ablation without a filter
    assert len(after["items"]) == 4
    votes = {"2 + 2": said(None, None, None, 4), "2 + 3": said(None, None, None, None)}
    _, _, after, _ = pool_of(card(pool=2, unanswered_agree=True, window=[0.0, 1.0]), votes)
    assert after["items"] == [] and after["skipped"] == 1  # their majority has no answer


def test_the_questions_of_the_pool_are_not_clustered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pair of texts is compared, which for 8000 of them are 32 million. The recorded reward lacks the penalty."""
    compared: list[int] = []
    shares = roles.cluster_shares
    monkeypatch.setattr(
        roles, "cluster_shares", lambda texts, apart: compared.append(len(texts)) or shares(texts, apart)
    )
    alike = {"0": [asked("3 + 4")] * 2, "1": [asked("3 + 4")] * 2}
    play_step(GAME, card(), world(Plan(alike, VOTES)), GAME.start(card()), 0)
    assert compared == [4]
    plan = Plan({f"{place}": [asked("3 + 4")] for place in range(4)}, VOTES)
    memory = GAME.start(card()) | {"phase": "pool"}
    episodes, _, metrics = play_step(GAME, card(), world(plan), memory, 1)
    assert compared == [4] and [one.reward for one in episodes] == [1.0] * 4  # p = 1/2, without 4/4 of repetition
    assert not any(one.trained for one in episodes) and "pool/repetition" not in metrics


def test_a_pool_of_which_nothing_is_kept_is_told_and_counted() -> None:
    cfg = card(pool=1, iterations=2)
    tools, _, after, metrics = pool_of(cfg, {"1 + 1": VOTES["1 + 1"]})
    assert (after["phase"], after["iteration"], after["skipped"]) == ("challenger", 2, 1)
    assert metrics["skipped"] == 1.0 and metrics["pool/kept"] == 0.0
    assert tools.told == ["iteration 1: no question is kept (r_zero.window); the solver is not trained."]


def solver_memory(cfg, *questions):
    items = [{"question": q, "label": label, "share": 0.5, "answers": []} for q, label in questions]
    return GAME.start(cfg) | {"phase": "solver", "items": items}


def test_a_solvers_step() -> None:
    cfg = card(iterations=2, format_weight=0.1)
    thought = "<think>Well.</think> \\boxed{7}"
    tools = world(Plan({}, solutions={"3 + 4": [thought, said(8)[0]], "5 + 5": said(9, 10)}))
    episodes, after, metrics = play_step(GAME, cfg, tools, solver_memory(cfg, ("3 + 4", "7"), ("5 + 5", "9")), 2)
    rewards = {(one.text["question"], one.text["prediction"]): one.reward for one in episodes}
    assert rewards == pytest.approx(
        {("3 + 4", "7"): 1.0, ("3 + 4", "8"): 0.0, ("5 + 5", "9"): 0.9, ("5 + 5", "10"): 0.0}
    )
    assert all(one.trained and one.policy == "solver" for one in episodes)
    assert (after["phase"], after["iteration"], after["items"]) == ("challenger", 2, [])
    assert metrics["solver/agrees"] == 1 / 2 and metrics["solver/right"] == 1 / 2  # 7 and 10 are right


def test_each_kept_question_comes_once_before_any_comes_again() -> None:
    cfg = card(solver_steps=3, solver_batch=2)
    questions = [(f"{n} + 0", f"{n}") for n in (1, 2, 3)]
    memory, seen = solver_memory(cfg, *questions), []
    plan = Plan({}, solutions={question: said(0, 0) for question, _ in questions})
    while memory["phase"] == "solver":
        episodes, memory, _ = play_step(GAME, cfg, world(plan), memory, 2)
        seen += [one.text["question"] for one in episodes[::2]]
    assert len(seen) == 6 and sorted(seen[:3]) == sorted(seen[3:]) == ["1 + 0", "2 + 0", "3 + 0"]
    few, _, _ = play_step(GAME, cfg, world(plan), solver_memory(cfg, *questions[:1]), 2)
    assert len(few) == 2  # all there are


def test_a_question_that_the_solver_cannot_read_is_none() -> None:
    cfg = card(solver={"max_prompt_tokens": 300}, challenger_batch=1)
    plan = Plan(
        {"0": [asked("1 + " * 200), asked("<search>x</search> 3 + 4")]}, {"[search]x[/search] 3 + 4": VOTES["3 + 4"]}
    )
    episodes, _, _ = play_step(GAME, cfg, world(plan), GAME.start(cfg), 0)
    assert [one.text["question"] for one in episodes] == [None, "<search>x</search> 3 + 4"]


def test_the_exam_asks_the_solver() -> None:
    rows = [{"question": "3 + 4", "answers": ["7"]}, {"question": "half", "answers": ["1/2"]}]
    answers = {"3 + 4": said(8), "half": said("0.5")}
    tools = world(lambda ctx: answers[ctx.prompt.rpartition("\n\n")[2]][0])
    records = run_exam(GAME, card(), tools, rows)
    assert [one["prediction"] for one in records] == ["8", "0.5"]


def test_one_policy_in_both_roles() -> None:
    """Each phase trains it, and begins with its weights as reference."""
    cfg = card(policies="shared")
    tools = ScriptedTools(Plan({"0": [asked("3 + 4"), "no"], "1": ["no", "no"]}, VOTES), known_policies=("actor",))
    memory = GAME.start(cfg)
    episodes, _, _ = play_step(GAME, cfg, tools, memory, 0)
    assert {one.policy for one in episodes} == {agent.policy for agent in tools.agents.values()} == {"actor"}
    assert GAME.policies(cfg) == ("actor",) and GAME.exam_of(cfg).role.agent.policy == "actor"
    assert [(one.policy, [share.role for share in one.roles]) for one in GAME.updates(cfg)] == [
        ("actor", ["challenger"]),
        ("actor", ["solver"]),
    ]
    assert GAME.new_reference(cfg, memory) == GAME.new_reference(cfg, memory | {"phase": "solver"}) == "actor"
