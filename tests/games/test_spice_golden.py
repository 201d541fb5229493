"""Whole steps of SPICE with scripted replies: every episode, reward, advantage, row and metric, computed by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scope_jax.games import GAMES, spice
from scope_jax.games.spice.rules import REASONS
from scope_jax.learner import advantages
from scope_jax.play.game import play_step
from tests.games.harness import EOS, episodes_of, plain
from tests.games.spice_world import DOCUMENTS, Plan, card, chosen, open_task, options, world

BOTH = '{"suitable_for_mcq": true, "suitable_for_free_form": true, "best_answer_type": "Integer", "reason": ""}'
STEP = 0  # at this step the second of Aare's two valid tasks is sampled for the reasoner
HALF, QUARTER, NONE = 1.0, 0.8225775623, 0.0439369336  # Eq. (1) at p = 1/2, 1/4, and 0 or 1


def mixed() -> Plan:
    """Aare: two valid attempts of four. Bern: one of eight, in the second round. Cusco: none of eight."""
    failures = {
        ("Aare", 1): (chosen(None), options("Which of Aare?")),
        ("Aare", 2): (BOTH, ""),
        ("Aare", 3): (chosen("Integer"), open_task("How many?", [7])),
    }
    for number in range(8):
        if number != 6:
            failures["Bern", number] = (chosen("Integer"), "I pass.")
        failures["Cusco", number] = ("I pass.", "")
    return Plan(
        failures,
        {
            "Which of Aare": [r"\boxed{B}", r"\boxed{C}", "I do not know.", r"\boxed{\text{A}}"],
            "in Bern": [r"\boxed{7}", r"\boxed{7.0}", r"\boxed{07}", r"<think>\boxed{8}</think> \boxed{7}"],
        },
    )


def test_the_module_has_the_shape_of_a_game():
    game = GAMES["spice"]
    cfg = card()
    assert game.policies(cfg) == ("actor",) and game.start(cfg) == {"drawn": 0}
    assert not game.searches(cfg) and not game.uses_base(cfg) and game.judges(cfg) == {}
    assert game.total_steps(cfg) == 1 and not game.finished(cfg, {"drawn": 9}) and game.iterations_done(cfg, {}) == 0
    source = game.rows(cfg)
    assert source is not None and source.kind == "documents"
    (update,) = game.updates(cfg)
    assert (update.policy, [share.role for share in update.roles]) == ("actor", ["challenger", "reasoner"])
    loss = update.card
    assert (loss.advantage, loss.aggregation, loss.kl, loss.mini_batches) == ("group-mean", "constant", "none", 16)


def test_one_step():
    cfg, tools = card(), world(mixed())
    episodes, memory, metrics = play_step(spice.GAME, cfg, tools, {"drawn": 0}, STEP)
    assert memory == {"drawn": 3} and tools.taken == [(0, 3)]

    posed = episodes_of(episodes, "challenger")
    kept = {name: [e for e in posed if e.group == f"challenger/{place}"] for place, name in enumerate("ABC")}
    assert [len(own) for own in kept.values()] == [4, 4, 4]
    assert [(e.text["attempt"], e.reward, e.text["rejected"]) for e in kept["A"]] == [
        (0, HALF, ""),  # the usual task, half of the answers are right
        (1, pytest.approx(QUARTER, abs=1e-9), ""),
        (2, -0.1, "format_flags"),
        (3, -0.1, "no_answer"),
    ]
    # 1 valid of 8, G = 4: 0.5, halves up
    assert [(e.reward, e.text["rejected"]) for e in kept["B"] if e.text["attempt"] == 6] == [
        (pytest.approx(NONE, abs=1e-9), "")
    ]
    assert [(e.reward, e.text["rejected"]) for e in kept["B"] if e.text["attempt"] != 6] == [(-0.1, "task_no_json")] * 3
    assert [(e.reward, e.text["rejected"]) for e in kept["C"]] == [(-0.1, "format_no_json")] * 4
    assert all(e.trained and e.policy == "actor" for e in posed)

    answers = episodes_of(episodes, "reasoner")
    groups: dict[str, list[Any]] = {}
    for episode in answers:
        groups.setdefault(episode.group, []).append(episode)
    assert {name: [e.reward for e in own] for name, own in groups.items()} == {
        "reasoner/0.0": [1.0, 1.0, 0.0, 0.0],
        "reasoner/0.1": [1.0, 0.0, 0.0, 0.0],
        "reasoner/1.6": [1.0, 1.0, 1.0, 1.0],
    }
    assert [e.text["prediction"] for e in groups["reasoner/0.1"]] == ["B", "C", None, r"\text{A}"]
    learned = {name for name, own in groups.items() if own[0].trained}
    assert learned == {"reasoner/0.1", "reasoner/1.6"}  # one of Aare's two tasks, chosen by the seed
    assert all(len({e.trained for e in own}) == 1 for own in groups.values())

    # Eq. (3), (4): minus the mean of the group
    (update,) = spice.GAME.updates(cfg)
    rated, _ = advantages.assign(posed, update.card)
    mean_a, mean_b = (HALF + QUARTER - 0.2) / 4, (NONE - 0.3) / 4
    assert [e.advantage for e in rated if e.group == "challenger/0"] == pytest.approx(
        [HALF - mean_a, QUARTER - mean_a, -0.1 - mean_a, -0.1 - mean_a], abs=1e-9
    )
    assert sorted(e.advantage or 0.0 for e in rated if e.group == "challenger/1") == pytest.approx(
        [-0.1 - mean_b] * 3 + [NONE - mean_b], abs=1e-9
    )
    assert [e.advantage for e in rated if e.group == "challenger/2"] == [0.0] * 4  # only penalties
    rated, _ = advantages.assign(answers, update.card)
    assert [e.advantage for e in rated if e.group == "reasoner/0.1"] == [0.75, -0.25, -0.25, -0.25]
    assert [e.advantage for e in rated if e.group == "reasoner/1.6"] == [0.0] * 4  # all are right
    assert [e.advantage for e in rated if e.group == "reasoner/0.0"] == [None] * 4

    assert tools.asked == [
        *[("challenger", f"{place} format 0", 4) for place in range(3)],
        *[("challenger", f"0 task {number}", 1) for number in (0, 1, 3)],
        *[("challenger", f"1 task {number}", 1) for number in range(4)],
        *[("reasoner", name, 4) for name in ("0.0", "0.1")],  # Aare has a valid task, and does not wait
        *[("challenger", f"{place} format 4", 4) for place in (1, 2)],
        *[("challenger", f"1 task {number}", 1) for number in range(4, 8)],
        ("reasoner", "1.6", 4),
    ]
    rejected = {reason: metrics.pop(f"challenger/rejected_{reason}") for reason in REASONS}
    assert {reason: share for reason, share in rejected.items() if share} == {
        "format_no_json": 8 / 20,
        "format_flags": 1 / 20,
        "task_no_json": 7 / 20,
        "no_answer": 1 / 20,
    }
    expected = {
        "challenger/valid": 3 / 20,
        "challenger/attempts": 20 / 3,
        "challenger/documents": 2 / 3,
        "challenger/reward": (HALF + QUARTER + NONE - 0.9) / 12,
        "challenger/pass_rate": (0.5 + 0.25 + 1.0) / 3,
        "reasoner/reward": 5 / 8,
        "reasoner/answered": 7 / 8,
        "reasoner/correct": 5 / 8,
        "estimate/reward": 1 / 2,  # of Aare's other task
        "estimate/correct": 1 / 2,
        "estimate/answered": 1.0,
        "reasoner/no_spread": 1 / 2,
        "kinds/multiple_choice": 1 / 3,
        "kinds/integer": 2 / 3,
        "kinds/expression": 0.0,
        "kinds/string": 0.0,
        "math/given_up": 0.0,
        "math/unreadable": 0.0,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-9)
    talk = ("response_tokens", "response_length", "cut_off", "prompt_too_long")
    assert set(metrics) == set(expected) | {f"{role}/{n}" for role in ("challenger", "reasoner") for n in talk}


def test_training_rows_equal_the_engines_tokens():
    tools = world(mixed())
    episodes, _, _ = play_step(spice.GAME, card(), tools, {"drawn": 0}, 0)
    posed = {e.text["attempt"]: e for e in episodes_of(episodes, "challenger") if e.group == "challenger/0"}
    first, second = chosen("Integer"), open_task("How many in Aare?", 7)
    wanted = {
        0: [(tools.prompts["challenger", "0 format 0"], first), (tools.prompts["challenger", "0 task 0"], second)],
        2: [(tools.prompts["challenger", "0 format 0"], BOTH)],  # it never got to the second stage
    }
    for number, rows in wanted.items():
        assert len(posed[number].datums) == len(rows)
        for datum, (prompt, said) in zip(posed[number].datums, rows, strict=True):
            assert "".join(map(chr, datum.ids_T)) == prompt + said + chr(EOS)
            assert datum.sampled_T.tolist() == [False] * len(prompt) + [True] * (len(said) + 1)
            assert datum.logprobs_T.tolist() == [0.0] * len(prompt) + [-0.5] * (len(said) + 1)
    assert [turn["kind"] for turn in posed[0].text["turns"]] == ["sampled", "observation", "sampled"]
    assert "On Aare." in posed[0].text["prompt"] and "On Aare." in tools.prompts["challenger", "0 task 0"]
    assert not any("On Aare." in prompt for (role, _), prompt in tools.prompts.items() if role == "reasoner")
    assert tools.prompts["reasoner", "0.0"].startswith("How many in Aare?\n")


def test_play_is_pure_and_resumes_from_json():
    cfg = card()
    memory = {"drawn": 3}
    one = play_step(spice.GAME, cfg, world(mixed()), memory, 1)
    assert memory == {"drawn": 3} and one[1] == {"drawn": 6}
    two = play_step(spice.GAME, cfg, world(mixed()), json.loads(json.dumps(memory)), 1)
    assert plain(one[0]) == plain(two[0]) and one[1:] == two[1:]


def test_what_is_kept_does_not_depend_on_the_other_documents():
    whole, _, _ = play_step(spice.GAME, card(), world(mixed()), {"drawn": 0}, 0)
    alone, _, _ = play_step(spice.GAME, card(train_table={"batch_size": 2}), world(mixed()), {"drawn": 0}, 0)
    assert plain([e for e in whole if e.text["document"] != "cusco"]) == plain(alone)


def test_a_batch_without_a_valid_task_trains_no_reasoner():
    nothing = Plan({(d["text"][3:-1], n): ("I pass.", "") for d in DOCUMENTS for n in range(8)})
    episodes, memory, metrics = play_step(spice.GAME, card(), world(nothing), {"drawn": 0}, 0)
    assert {e.role for e in episodes} == {"challenger"} and [e.reward for e in episodes] == [-0.1] * 12
    assert memory == {"drawn": 3}
    assert metrics["challenger/documents"] == 0.0 and metrics["challenger/rejected_format_no_json"] == 1.0
    assert "reasoner/reward" not in metrics and "challenger/pass_rate" not in metrics


def test_tags_and_special_tokens_in_documents_are_neutralised():
    text = "On <think>x</think> <|im_end|> <answer>7</answer>."
    tools = world(lambda ctx: "I pass.", data=[{"id": "d", "title": "<task>", "text": text}])
    play_step(spice.GAME, card(train_table={"batch_size": 1}), tools, {"drawn": 0}, 0)
    prompt = tools.prompts["challenger", "0 format 0"]
    assert "(Title: [task])\nOn [think]x[/think] [|im_end|] [answer]7[/answer]." in prompt


def test_tags_in_questions_are_neutralised():
    tools = world(Plan({("Aare", 0): (chosen("Integer"), open_task("How <answer>many</answer> <|im_end|>?", 7))}))
    play_step(spice.GAME, card(train_table={"batch_size": 1}, max_attempts=2), tools, {"drawn": 0}, 0)
    assert tools.prompts["reasoner", "0.0"].startswith("How [answer]many[/answer] [|im_end|]?\n")


def test_a_question_too_long_for_the_reasoner_is_rejected():
    tools = world()
    cfg = card(reasoner={"max_prompt_tokens": 60})
    episodes, _, metrics = play_step(spice.GAME, cfg, tools, {"drawn": 0}, 0)
    assert metrics["challenger/rejected_question_too_long"] == 1.0 and {e.role for e in episodes} == {"challenger"}
    cfg = card()
    short = cfg.model_copy(update={"rollout": cfg.rollout.model_copy(update={"max_length": 60})})  # less than the limit
    _, _, metrics = play_step(spice.GAME, short, world(), {"drawn": 0}, 0)
    assert metrics["challenger/rejected_question_too_long"] == 1.0  # it would get no answers


def test_a_document_too_long_for_a_prompt_is_an_invalid_attempt():
    cfg = card(challenger={"max_prompt_tokens": 100}, document_tokens=50)
    episodes, _, metrics = play_step(spice.GAME, cfg, world(), {"drawn": 0}, 0)
    assert metrics["challenger/rejected_prompt_too_long"] == 1.0 and metrics["challenger/prompt_too_long"] == 1.0
    assert metrics["challenger/attempts"] == 4.0  # of at most 8: a second round would be no shorter
    assert [(e.reward, e.datums) for e in episodes if not any(d.sampled_T.any() for d in e.datums)] and all(
        e.reward == -0.1 for e in episodes
    )


def test_exams_use_the_reasoners_prompt():
    exam = spice.GAME.exam_of(card())
    assert exam.prompt({"question": "How many?"}, len).user.startswith("How many?\n")
    assert (exam.role.agent.policy, exam.measures, exam.accuracy) == ("actor", ("accuracy",), ("same-text", "math"))
