"""RL with a verifiable reward: prompts, answers, graders, the user's function, what is held out, and bad cards."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scope_jax.config import CardError
from scope_jax.data.conversations import conversations
from scope_jax.errors import UserError
from scope_jax.games import load_card, rlvr
from scope_jax.games.rlvr import grading
from scope_jax.games.rlvr.game import prompt
from scope_jax.games.rlvr.options import options
from scope_jax.play.exams import source_of
from scope_jax.play.game import Examined, services_of
from scope_jax.rollouts.types import Completion
from scope_jax.run.config_file import to_toml
from tests.games.harness import play_step, run_exam, sampled_turn
from tests.games.rlvr_world import ROWS, card, rows, world

GAME = rlvr.GAME


def step(cfg: Any, tools: Any, given: Any = ROWS) -> Any:
    return play_step(GAME, cfg, tools, GAME.start(cfg), given, 0)


def rewards(cfg: Any, *replies: str, given: Any = ROWS) -> list[float]:
    return [one.reward for one in step(cfg, world(*([reply] for reply in replies)), given)[0]]


def test_a_step():
    tools = world(["so \\boxed{2}"], ["no box: 4"])
    episodes, memory, metrics = step(card(), tools)
    assert [one.reward for one in episodes] == [1.0, 0.0, 0.0, 0.0] and memory == {}
    assert [one.group for one in episodes] == ["policy/0"] * 2 + ["policy/1"] * 2
    assert all(one.trained and one.policy == "actor" for one in episodes)
    assert episodes[1].text["prediction"] is None and episodes[0].text["prediction"] == "2"
    assert (metrics["policy/reward"], metrics["policy/answered"]) == (0.25, 0.5)
    assert metrics["math/unreadable"] == metrics["math/given_up"] == 0
    assert tools.taken == [(0, 2)] and tools.asked == [("policy", "0", 2), ("policy", "1", 2)]


def test_the_instruction_follows_the_last_message():
    (row,) = rows(
        {
            "system": "Be brief.",
            "messages": [
                {"role": "user", "content": "Hello"},
                {"role": "assistant", "content": "Yes?"},
                {"role": "user", "content": "1 + 1"},
            ],
            "answer": "2",
        }
    )
    asked = prompt(options(card(instruction="In a box.")), row)
    assert asked.text == "Be brief.\n\nHello\n\nYes?\n\n1 + 1\nIn a box."
    assert [message["role"] for message in asked.conversation()] == ["system", "user", "assistant", "user"]
    assert prompt(options(card()), row).user == "1 + 1"


@pytest.mark.parametrize(
    ("grader", "reply", "answer", "reward"),
    [
        ("math", "\\boxed{1/2}", "0.5", 1.0),
        ("math", "0.5", "0.5", 0.0),
        ("exact-match", "The Nile.", "nile", 1.0),
        ("exact-match", "It is the Nile.", "nile", 0.0),
        ("same-text", "C++", "c++", 1.0),
        ("cover-exact-match", "It is Paris, of course", "Paris", 1.0),
        ("numeric", "so 3 · 4 is\n12 %", "0.12", 1.0),
        ("choice", "The answer is (B).", "B", 1.0),
        ("json", 'So: {"a": 1, "b": [2]}.', {"b": [2], "a": 1.0}, 1.0),
        ("json", "[1, 2]", [1, 2], 1.0),
        ("json", "1", [1, 2], 0.0),
        ("f1", "blue green", "green red", 0.5),
        ("exact-match", "  ", "nile", 0.0),
    ],
)
def test_graders(grader, reply, answer, reward):
    given = rows({"prompt": "?", "answer": answer})
    assert rewards(card(grader=grader), reply, reply, given=given) == [reward] * 2


@pytest.mark.parametrize(
    ("place", "reply", "said"),
    [
        ("whole", " a\n\\boxed{b} ", "a\n\\boxed{b}"),
        ("last-line", "a\n b \n\n", "b"),
        ("boxed", "\\boxed{a} \\boxed{b}", "b"),
        ("boxed", "a", None),
        ("tag", "<answer>a</answer> <answer> b </answer>", "b"),
        ("tag", "<answer></answer>", None),
        ("whole", "<think>a</think> b", "b"),
        ("boxed", "<think>\\boxed{a}</think> b", None),
        ("whole", " ", None),
    ],
)
def test_places_of_the_answer(place, reply, said):
    cfg = card(answer_in=place)
    assert grading.answer(options(cfg), Completion((), (sampled_turn(reply),), "eos")) == said
    assert grading.answer(options(cfg), Completion((), (), "overflow")) is None


# --------------------------------------------------------------------------------------------------------- the function
def with_function(folder: Path, body: str, **more: Any) -> Any:
    file = folder / "reward.py"
    file.write_text(body, encoding="utf-8")
    return card(grader="function", function=str(file), **more)


COUNTING = """
def reward(prompt, completion, answer, **row):
    if completion == "late":
        import time
        time.sleep(60)
    if completion == "none":
        return None
    return len(completion) + row.get("bonus", 0) + (prompt == "2 + 2")
"""


def test_a_function_gets_the_row_and_the_reply_as_it_was_written(tmp_path):
    cfg = with_function(tmp_path, COUNTING)
    given = rows({"question": "1 + 1", "answer": "2", "bonus": 0.5}, {"question": "2 + 2"})
    assert rewards(cfg, "abc", "<think>a</think>b", given=given) == [3.5, 17.5, 4.0, 18.0]
    (*_, record) = run_exam(GAME, cfg, world(["abc"]), given)
    assert record["measures"]["reward"] == 4.0


def test_a_late_call_scores_nothing_and_is_counted(tmp_path):
    cfg = with_function(tmp_path, COUNTING, function_seconds=0.5)
    episodes, _, metrics = step(cfg, world(["late"], ["a"]), ROWS[:1])
    assert [one.reward for one in episodes] == [0.0, 1.0] and metrics["function/late"] == 1.0


def test_an_error_of_the_function_ends_the_run_and_names_the_row(tmp_path):
    with pytest.raises(UserError, match=r"^rows.jsonl, line 2: reward of .*reward.py returns None, not a number; corr"):
        rewards(with_function(tmp_path, COUNTING), "none", "none", given=rows({"question": "1"}, {"question": "2"})[1:])


def test_the_rewards_of_a_function_are_recorded(tmp_path):
    """Of a step that is played again, whatever the function would say now, see `run.recording`."""
    cfg = with_function(tmp_path, COUNTING)
    tools, kept = world(["abc"], ["ab"]), []

    def each(name: str, work: Any, items: Any) -> Any:
        kept.append((name, items))
        return [7.0 for _ in items]

    tools.each = each  # type: ignore[method-assign]
    assert [one.reward for one in step(cfg, tools, ROWS[:1])[0]] == [7.0, 7.0]
    assert kept == [("reward", [["line 1", "abc"], ["line 1", "ab"]])]


# ------------------------------------------------------------------------------------------------------ before training
def looked(cfg: Any, *given: dict[str, Any]) -> Examined:
    assert GAME.examine is not None
    return GAME.examine(cfg, rows(*given))


def test_every_answer_is_graded_against_itself():
    found = looked(card(instruction="In a box."), {"question": "1 + 1", "answer": "2"}, {"question": "?", "answer": 3})
    assert found == Examined("2 rows, whose answers math reads", "1 + 1\nIn a box.\n[answer] 2")
    few = [{"question": "1 + 1", "answer": answer} for answer in ("2", "3", "He has <<2*3=6>>6 of 7.", "5")]
    found = looked(card(), *few)
    assert found.doubtful and found.text.startswith(
        "1 of 4 rows have no answer that the grader math reads (rows.jsonl,"
    )
    assert "line 3: 'He has <<2*3=6>>6 of 7.'); their replies score 0" in found.text


def test_options_and_passages_that_no_prompt_shows_are_a_doubt():
    row = {"question": "Which is the capital?", "answer": "B", "options": ["Bern", "Rome"]}
    found = looked(card(grader="choice"), row)
    assert found.doubtful
    assert found.text.endswith("; their column `options` is not in the prompt: write it there, if replies need it")
    assert not looked(card(grader="choice"), {"prompt": "Which? A. Bern B. Rome", "answer": "B", "level": 1}).doubtful


@pytest.mark.parametrize(
    ("grader", "answer"),
    [
        ("math", "He has <<2*3=6>>6 of 7."),
        ("choice", "Paris"),
        ("numeric", "from 3 to 4"),
        ("json", "{a: 1}"),
        ("json", ["a", "b"]),
        ("exact-match", " "),
        ("f1", None),
    ],
)
def test_answers_that_the_grader_does_not_read_are_refused(grader, answer):
    said = f"2 of 2 rows have no answer that the grader {grader} reads .*; set rlvr.grader to one that reads them"
    with pytest.raises(UserError, match=said):
        looked(card(grader=grader), *[{"question": "?", "answer": answer}] * 2)


@pytest.mark.parametrize("grader", ["math", "exact-match", "cover-exact-match", "numeric", "f1"])
def test_rows_of_gsm8k_as_they_are_published_are_refused(grader):
    raw = {"question": "How many?", "answer": "He has 2 * 3 = <<2*3=6>>6 of them.\n#### 6"}
    with pytest.raises(
        UserError, match=r"they are GSM8K's; convert the file by `scope-jax data gsm8k OUT.jsonl --sour"
    ):
        looked(card(grader=grader), raw)


def test_a_function_is_called_once(tmp_path):
    found = looked(with_function(tmp_path, COUNTING), {"question": "1 + 1", "answer": "22"}, {"question": "none"})
    assert found.text == "the function's reward for the answer of rows.jsonl, line 1 as a reply is 2"
    late = with_function(tmp_path, COUNTING, function_seconds=0.5)
    assert "has not returned in time" in looked(late, {"question": "1", "answer": "late"}).text
    with pytest.raises(UserError, match="returns None"):
        looked(with_function(tmp_path, COUNTING, function_seconds=20), {"question": "1", "answer": "none"})


# ------------------------------------------------------------------------------------------- held out, exams, cards
def test_a_card_without_sets_holds_rows_out(tmp_path):
    cfg = card(tables={"data": {"problems": "rows.jsonl", "columns": {"answers": "gold"}, "limit": 9}})
    (held,) = cfg.evaluate.sets
    assert (held.name, held.path, held.part, held.columns) == (
        "held_out",
        "rows.jsonl",
        "held-out",
        {"answers": "gold"},
    )
    assert held.limit is None and source_of(GAME.exam_of(cfg), held).part == "held-out"
    rows_of = GAME.rows(cfg)
    assert rows_of is not None and rows_of.part == "trained"
    written = tmp_path / "config.toml"
    written.write_text(to_toml(cfg), encoding="utf-8")
    assert load_card(written) == cfg


@pytest.mark.parametrize("sets", [[{"name": "exam", "path": "exam.jsonl"}], []])
def test_a_card_with_sets_or_none_on_purpose_trains_on_all_rows(sets):
    cfg = card(tables={"evaluate": {"sets": sets}})
    assert [one.name for one in cfg.evaluate.sets] == [one["name"] for one in sets]
    rows_of = GAME.rows(cfg)
    assert rows_of is not None and rows_of.part == "all"


def test_an_exam_is_graded_as_training():
    records = run_exam(GAME, card(), world(["\\boxed{2}"]), ROWS)
    assert [record["measures"]["accuracy"] for record in records] == [1.0, 0.0]
    (record, _) = run_exam(GAME, card(grader="json"), world(["It is [2]"]), rows(*[{"prompt": "?", "answer": [2]}] * 2))
    assert record["measures"]["accuracy"] == 1.0 and record["correct"] is True
    (record, _) = run_exam(GAME, card(grader="f1"), world(["a b", ""]), rows(*[{"prompt": "?", "answer": "b"}] * 2))
    assert record["measures"]["reward"] == pytest.approx(1.0)  # "a" is an article


def test_tools_are_turns_of_their_own():
    cfg = card(tools=["python"], max_turns=3)
    (role,) = GAME.roles(cfg)
    assert role.agent.tools == ("python",) and role.agent.max_turns == 3
    assert [tool.name for tool in GAME.tools(cfg)] == ["python"] and GAME.tools(card()) == ()
    raw = card(tools=["search"], max_turns=3, tables={"model": {"checkpoint": "none", "turns": "raw"}})
    chat = card(tools=["search"], max_turns=3, tables={"model": {"checkpoint": "none", "turns": "chat"}})
    assert [GAME.roles(each)[0].agent.calls for each in (raw, chat)] == ["stop", "all"]
    called = Completion((), (sampled_turn("\\boxed{2}"), sampled_turn("3")), "eos")
    assert grading.answer(options(card()), called) is None
    assert GAME.searches(card(tools=["search"], max_turns=2))


def test_a_reply_runs_python_before_it_answers():
    cfg = card(tools=["python"], max_turns=3, tables={"model": {"checkpoint": "none", "turns": "chat"}})
    own = GAME.tools(cfg)
    for service in services_of(own):
        service.start()
    try:
        says = (
            ["<python>1 + 1</python>", "\\boxed{2}"],
            ["<python>1 +</python>", "<python>3</python>", "<python>2</python>"],
        )
        tools = world(
            *([text + "\3" for text in texts] for texts in says), turns="chat", toolbox={t.name: t for t in own}
        )
        episodes, _, metrics = step(cfg, tools, ROWS[:1])
    finally:
        for service in services_of(own):
            service.close()
    assert [one.reward for one in episodes] == [1.0, 0.0] and metrics["policy/answered"] == 0.5
    read = [turn["text"] for turn in episodes[0].text["turns"] if turn["kind"] != "sampled"]
    assert len(read) == 1 and "2" in read[0] and "SyntaxError" in episodes[1].text["turns"][1]["text"]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"grader": "function"}, '`rlvr`: grader = "function" and `function`, the path of a Python file, belong'),
        ({"function": "reward.py"}, "belong together; give both, or none"),
        ({"tools": ["python"]}, "max_turns is 1, with 1 tools; calls and the answer are turns of their own"),
        ({"max_turns": 2}, "max_turns is 2, with 0 tools"),
        ({"tools": ["python", "python"], "max_turns": 2}, "tools names a tool twice"),
        ({"grader": "contains"}, "`rlvr.grader` must be 'math', 'exact-match'"),
        ({"samples": 2, "sampling": {"temperature": 0.0}}, "2 samples at temperature 0 are all the same"),
    ],
)
def test_bad_cards_are_one_sentence(table, said):
    with pytest.raises(CardError) as error:
        card(**table)
    assert said in str(error.value)


def test_a_card_without_rows_is_one_sentence():
    with pytest.raises(UserError, match=r"data.problems is missing; rlvr needs a file of prompts with their answers"):
        GAME.rows(card(tables={"data": {}}))


# ---------------------------------------------------------------------------------------------------------- the page
def of_page(language: str, begins: str) -> str:
    page = (Path(__file__).parents[2] / "docs" / "rlvr.md").read_text(encoding="utf-8")
    (found,) = (one for one in re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL) if one.startswith(begins))
    return found


def test_the_function_of_the_page(tmp_path):
    cfg = with_function(tmp_path, of_page("python", "# reward.py"))
    given = rows({"question": "1 + 1", "answer": "2"})
    assert rewards(cfg, "It is 2", "word " * 150, given=given) == [1.0, -0.1]


def test_the_demonstrations_of_the_page_are_rows_of_both_kinds(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-c", of_page("python", "import json")], check=True)
    shown = [json.loads(line) for line in Path("demonstrations.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(shown) == 200
    for row in shown:
        (problem,) = rows(row)
        answer = conversations(row, "f, line 1", {})["messages"][-1]["content"]
        said = grading.answer(options(card()), Completion((), (sampled_turn(answer),), "eos"))
        assert [said] == problem["answers"] and eval(row["prompt"]) == row["answer"]
