"""Demonstrations that scripts of examples/ write: they are what the games themselves ask, show and accept."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from scope_jax.config import Config
from scope_jax.data.rows import read
from scope_jax.games import load_card
from scope_jax.games.ssp import rules
from scope_jax.grading.words import contains
from scope_jax.play import searching
from scope_jax.play.tool_turns import read_calls
from scope_jax.play.turns import Joiner
from scope_jax.retrieval.search import SearchTool
from scope_jax.rollouts.types import Continuation
from scope_jax.text import dialects, parsing
from scope_jax.text.messages import Messages
from tests.games.harness import EOS, Characters, sampled_turn

ROOT = Path(__file__).parents[2]
Conversation = list[dict[str, Any]]


def script(name: str) -> Any:
    """A script of examples/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def card() -> Config:
    changes = ['model.turns="chat"', "ssp.prompts=assets/short_prompts/ssp", "ssp.noise_documents=2"]
    return load_card(ROOT / "configs" / "ssp" / "atlas.toml", changes)


@pytest.fixture(scope="module")
def search(card: Config, tmp_path_factory: pytest.TempPathFactory) -> SearchTool:
    return script("search_demonstrations").search_of_card(card, tmp_path_factory.mktemp("index"))


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return [row for _, row in read(str(ROOT / "assets" / "atlas" / "questions_train.jsonl"))][:60]


@pytest.fixture(scope="module")
def conversations(card: Config, search: SearchTool, rows: list[dict[str, Any]]) -> dict[str, list[Conversation]]:
    """By the tag that they end with; a reader's has none."""
    kinds: dict[str, list[Conversation]] = {"answer": [], "question": [], "": []}
    for conversation in script("search_demonstrations").demonstrations(card, search, rows):
        said = conversation[-1]["content"]
        kinds[next(tag for tag in kinds if not tag or f"</{tag}>" in said)].append(conversation)
    return kinds


@pytest.fixture(autouse=True, scope="module")
def in_the_root() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        yield


def tagged(conversation: Conversation, tag: str) -> str:
    found = parsing.first([conversation[-1]["content"]], tag)
    assert found is not None
    return found


def test_solvers_search_for_their_question_and_answer_what_they_have_read(
    conversations: dict[str, list[Conversation]], search: SearchTool, rows: list[dict[str, Any]]
) -> None:
    answers = {row["question"]: row["answers"] for row in rows}
    assert len(conversations["answer"]) > 20
    for asked, call, shown, said in conversations["answer"]:
        (query,) = searching.queries_of(call["content"], dialects.load("xml"))
        assert query in answers and query in asked["content"]
        assert search([query])[0] in shown["content"]
        answer = tagged([said], "answer")
        assert answer in answers[query] and contains(shown["content"], answer)


def test_proposers_search_for_the_answer_and_ask_a_valid_question(
    card: Config, conversations: dict[str, list[Conversation]], rows: list[dict[str, Any]]
) -> None:
    answers = {row["question"]: row["answers"] for row in rows}
    assert len(conversations["question"]) > 5
    for asked, call, _, said in conversations["question"]:
        (query,) = searching.queries_of(call["content"], dialects.load("xml"))
        question = tagged([said], "question")
        assert query in answers[question] and f"Answer: {query}" in asked["content"]
        assert not rules.reveals(question, [query])
        assert question not in asked["content"]


def test_readers_find_the_answer_among_passages_of_others(conversations: dict[str, list[Conversation]]) -> None:
    assert len(conversations[""]) == len(conversations["question"])
    for asker, (asked, said) in zip(conversations["question"], conversations[""], strict=True):
        answer = parsing.labelled_answer(said["content"])
        assert answer is not None and contains(asked["content"], answer)
        own = asker[2]["content"].count("Doc ")
        assert asked["content"].count("Doc ") == own + 2  # `noise_documents` others
        assert tagged(asker, "question") in asked["content"]


def test_demonstrations_have_the_tokens_of_rollouts(conversations: dict[str, list[Conversation]]) -> None:
    tokenizer = Characters()
    joiner = Joiner("chat", tokenizer, dialects.load("xml"))
    for asked, call, shown, said in [*conversations["answer"][:5], *conversations["question"][:5]]:
        turn = sampled_turn(call["content"])
        observation = shown["content"]
        reply = joiner.responder(lambda turns, text=observation: text, Messages(asked["content"]))((turn,))
        assert isinstance(reply, Continuation)
        rollout = [*joiner.prompt(Messages(asked["content"])), *turn.ids, *reply.ids, *map(ord, said["content"]), EOS]
        assert tokenizer.encode_chat([asked, call, shown, said], add_generation_prompt=False) == rollout
        assert read_calls(
            call["content"], (searching.reader(dialects.load("xml")),), dialects.load("xml"), searching.ALL
        )


def test_rows_whose_search_finds_no_answer_are_left_out(card: Config, search: SearchTool) -> None:
    demonstrations = script("search_demonstrations").demonstrations
    known, unknown = {"question": "What?", "answers": ["zanzibar"]}, {"question": "Where?", "answers": ["nowhere"]}
    assert demonstrations(card, search, [known, unknown]) == []


def test_moves_are_legal_and_asked_for_as_the_game_does() -> None:
    module = script("legal_moves")
    own = ["spiral.prompts=assets/short_prompts/spiral", "spiral.games={ tictactoe = 1, kuhn_poker = 2 }"]
    conversations = module.demonstrations(load_card("spiral/atlas", own), 120)
    assert len(conversations) == 120
    for asked, said in conversations:
        (legal,) = [line for line in asked["content"].splitlines() if line.startswith("Actions: ")]
        assert said["content"] in [f"\\boxed{{{move}}}" for move in legal.removeprefix("Actions: ").split(", ")]
    assert len({said["content"] for _, said in conversations}) == 9 + 4  # every cell, every action of poker
    assert module.demonstrations(load_card("spiral/atlas", own), 30) == conversations[:30]


def test_moves_of_every_game_of_a_card_are_written(tmp_path: Path) -> None:
    module = script("legal_moves")
    module.main("spiral/atlas", tmp_path / "moves.jsonl", "80")
    lines = (tmp_path / "moves.jsonl").read_text(encoding="utf-8").splitlines()
    messages = [json.loads(line)["messages"] for line in lines]
    assert messages == module.demonstrations(load_card("spiral/atlas"), 80)
    prompts = [asked["content"].split()[0] for asked, _ in messages]
    assert {"poker", "trade"} < {*prompts} and {"X", "O"} < {*prompts}
