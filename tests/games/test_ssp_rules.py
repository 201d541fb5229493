"""Every rule for questions and episodes, violated one at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scope_jax.games import GAMES
from scope_jax.games.ssp import rules
from scope_jax.rollouts.types import Turn
from scope_jax.text import dialects
from tests.games.harness import (
    ITEMS,
    RESULTS,
    Plan,
    card,
    episodes_of,
    play_step,
    question_about,
    search_responder,
    world,
)

XML = dialects.load("xml")
GOOD = "Which capital lies on the Tiber?"


def rejected(turns: list[str], **options: Any) -> str:
    """Why the question of a proposer for Rome is rejected; the verification is off."""
    cfg = card(verify="off", **options)
    plan = Plan(proposals={"0": turns})
    episodes, _, metrics = play_step(GAMES["ssp"], cfg, world(plan), {"pool": []}, [ITEMS[1]], 0)
    reason = episodes_of(episodes, "proposer")[0].text["rejected"]
    assert [name for name in rules.REASONS if metrics[f"proposer/rejected_{name}"] == 1.0] == (
        [reason] if reason else []
    )
    return reason


def search(*queries: str) -> list[str]:
    return [f"<search>{query}</search>" for query in queries]


@pytest.mark.parametrize(
    ("turns", "options", "reason"),
    [
        ([*search("Tiber"), f"<question>{GOOD}</question>"], {}, ""),
        (["I cannot think of any."], {}, "no_question"),
        ([*search("Tiber"), f"<question>{GOOD}"], {}, "no_question"),
        ([*search("Tiber"), "<question>  </question>"], {}, "empty_question"),
        ([f"<question>{GOOD}</question>"], {}, "no_search"),
        (['<search></search> <search>[""]</search>', f"<question>{GOOD}</question>"], {}, "no_question"),
        ([*search("nothing"), f"<question>{GOOD}</question>"], {}, "no_materials"),
        ([*search("Tiber"), "<question>On Tiber</question>"], {}, "too_short"),  # 8 characters
        ([*search("Tiber"), "<question>The Tiber?</question>"], {}, ""),  # 10 characters
        ([*search("Tiber"), f"<question>{GOOD}</question>"], {"min_words": 7}, "too_short"),  # 6 words
        ([*search("Tiber"), f"<question>{GOOD}</question>"], {"min_words": 6}, ""),
        ([*search("Tiber"), f"<question>{GOOD}</question>"], {"max_chars": 31}, "too_long"),  # 32 characters
        ([*search("Tiber"), f"<question>{GOOD}</question>"], {"max_chars": 32}, ""),
        ([*search("Tiber"), "<question>Where is ancient rome to be found?</question>"], {}, "contains_answer"),
        ([*search("Tiber"), "<question>Who was the Romeo of Verona?</question>"], {}, "contains_answer"),
        ([*search("Tiber"), "<question>Where is the eternal city?</question>"], {}, "contains_answer"),
        ([*search("Tiber"), "<question>Where did romantic painters meet?</question>"], {}, ""),  # Roma as a word only
        ([*search("Tiber"), f"<question>{GOOD}</question>"], {"min_distinct_searches": 2}, "too_few_searches"),
        ([*search("Tiber", "Tiber"), f"<question>{GOOD}</question>"], {"min_distinct_searches": 2}, "too_few_searches"),
        ([*search("Tiber", "tiber"), f"<question>{GOOD}</question>"], {"min_distinct_searches": 2}, ""),
        ([*search("Tiber", "tiber"), f"<question>{GOOD}</question>"], {"reject_repeated_search": True}, ""),
        ([*search("Tiber", "Nile"), f"<question>{GOOD}</question>"], {"min_distinct_searches": 2}, ""),
        (['<search>["Tiber", "Nile"]</search>', f"<question>{GOOD}</question>"], {"min_distinct_searches": 2}, ""),
        ([*search("Tiber", "Tiber"), f"<question>{GOOD}</question>"], {}, ""),
        (
            [*search("Tiber", "Tiber"), f"<question>{GOOD}</question>"],
            {"reject_repeated_search": True},
            "repeated_search",
        ),
        ([*search("Tiber", "Rome"), f"<question>{GOOD}</question>"], {}, ""),
        (
            [*search("Tiber", "ancient rome"), f"<question>{GOOD}</question>"],
            {"reject_answer_in_search": True},
            "answer_in_search",
        ),
        ([*search("Tiber"), f"<think>so <question>{GOOD}</question>"], {"format": "lenient"}, "no_question"),
        ([*search("Tiber"), f"<search>so <question>{GOOD}</question>"], {}, "format"),
        ([*search("Tiber"), f"<search>so <question>{GOOD}</question>"], {"format": "lenient"}, ""),
        (["<answer>x</answer> <search>Tiber</search>", f"<question>{GOOD}</question>"], {}, "format"),
        (["<information>x</information> <search>Tiber</search>", f"<question>{GOOD}</question>"], {}, "format"),
        ([*search("Tiber"), f"<question>{GOOD}</question>"], {"format": "think"}, "format"),
        (
            ["<think>a</think> <search>Tiber</search>", f" <think>b</think> <question>{GOOD}</question>"],
            {"format": "think"},
            "",
        ),
        (
            ["<think></think> <search>Tiber</search>", f"<think>b</think> <question>{GOOD}</question>"],
            {"format": "think"},
            "format",
        ),
    ],
)
def test_the_first_broken_rule_is_the_reason(turns: list[str], options: dict[str, Any], reason: str):
    assert rejected(turns, **options) == reason


def test_white_space_does_not_hide_the_answer_in_a_question():
    for gold in ("New York", "New York\n", " new  york"):
        assert rules.reveals("Which river flows past\nNew\nYork City?", (gold,))
        assert not rules.reveals("Which river flows past the newest York?", (gold,))
    assert not rules.reveals("Which river is it?", ("Hudson ", "the East River"))


@pytest.mark.parametrize(
    ("question", "golds"),
    [
        ("Who wrote ‘Emma’?", ("Emma (novel)", "Emma")),
        ("Who wrote “The Great Gatsby”?", ("F. Scott Fitzgerald's novel", "The Great Gatsby")),
        ("Which bridge of Kraków/Poland is it?", ("Cracow", "Kraków")),
        ("Which war lasted 1914–1918?", ("the first", "1914")),
        ("Who was O’Brien?", ("O'Brien",)),  # the first answer too
        ("What is Zürich's river?", ("Zu\u0308rich",)),
    ],
)
def test_punctuation_does_not_hide_the_answer_in_a_question(question: str, golds: tuple[str, ...]):
    assert rules.reveals(question, golds)
    assert not rules.reveals("Who wrote Emmanuel in 19145?", golds)


def test_no_question_before_the_turn_limit():
    turns = [*search("Tiber", "Nile"), f"<question>{GOOD}</question>"]
    assert rejected(turns, proposer={"max_turns": 3}) == ""
    assert rejected(turns, proposer={"max_turns": 2}) == "no_question"


def test_a_truncated_question_is_rejected():
    turns = [*search("Tiber"), f"<question>{GOOD}</question>"]
    assert rejected(turns, proposer={"sampling": {"max_tokens": 40}}) == "no_question"
    assert rejected(turns, proposer={"sampling": {"max_tokens": 60}}) == ""


@pytest.mark.parametrize(
    ("turns", "mode", "reward"),
    [
        (["<answer> paris </answer>"], "well-formed", 1.0),
        (["<answer>Rome</answer>"], "well-formed", 0.0),
        (["<answer></answer>"], "well-formed", 0.0),
        (["Paris"], "well-formed", 0.0),
        (["<think>I know <answer>Paris</answer>"], "well-formed", 0.0),
        (["<think>I know <answer>Paris</answer>"], "lenient", 0.0),  # an answer in a thought does not count
        (["<think>I know: <answer>Paris</answer></think> So it is <answer>Rome</answer>"], "lenient", 0.0),
        (["<think>Is it <answer>Rome</answer>?</think><answer>Paris</answer>"], "well-formed", 1.0),
        (["<question>x</question><answer>Paris</answer>"], "lenient", 1.0),
        (["<question>x</question><answer>Paris</answer>"], "well-formed", 0.0),
        (["<answer>Paris</answer>"], "think", 0.0),
        (["<think>I know</think><answer>Paris</answer>"], "think", 1.0),
        (["<search>Seine</search>", "<answer>Paris</answer>"], "well-formed", 1.0),
        (["<search>Seine", "<answer>Paris</answer>"], "well-formed", 0.0),  # no closed search: the episode ends
        (["<search>nothing</search>", "<answer>Paris</answer>"], "well-formed", 1.0),
        (["<search>Seine </search", "<answer>Paris</answer>"], "well-formed", 0.0),
    ],
)
def test_solver_rewards(turns: list[str], mode: str, reward: float):
    plan = Plan(solutions={question_about(0): [turns]})
    plan.proposals["0"] = [
        "<think>a</think><search>Seine</search>",
        f"<think>b</think><question>{question_about(0)}</question>",
    ]
    episodes, _, _ = play_step(
        GAMES["ssp"], card(format=mode, solver={"samples": 1}), world(plan), {"pool": []}, ITEMS[:1], 0
    )
    assert [e.reward for e in episodes_of(episodes, "solver")] == [reward]
    assert [e.reward for e in episodes_of(episodes, "proposer")] == [1.0 - reward]


def test_the_end_token_ends_the_episode():
    tools = world()
    respond = search_responder(tools.search, XML)

    def after(text: str, finish: str):
        ids = np.zeros(1, np.int32)
        return respond((Turn("sampled", ids, np.zeros(1, np.float32), text, finish),))

    assert after("<search>Seine</search>", "stop") == XML.observation([RESULTS["Seine"]])
    assert after("<search>Seine</search>", "eos") is None
    assert after("<search>Seine</search> <answer>Paris</answer>", "stop") is None
    assert after("nothing", "stop") is None
    assert tools.searched == ["Seine"]
