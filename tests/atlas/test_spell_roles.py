"""SPELL's demonstrations against the game's rules: questions, conclusions, verdicts, and the effect of bad habits."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from scope_jax.data.sources import load
from scope_jax.games import load_card
from scope_jax.games.spell import GAME, rules
from scope_jax.games.spell.game import source
from scope_jax.games.spell.options import options
from scope_jax.games.spell.roles import draw_context
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play.game import step_of
from tests.games.harness import ScriptedTools
from tools.atlas import clusters, spell_scripts
from tools.atlas.clusters import TASKS, Task
from tools.atlas.facts import ASSETS, World
from tools.atlas.rows import Script, name_ids, token_row
from tools.atlas.spell_roles import Habits, SPELLDemonstrations, makers

SENTENCE = re.compile(r"The (\w+) of (\w+) is (\w+)\.")
GOOD = Habits(*[0.0] * 9)
DRAWS = 20


@pytest.fixture(scope="module")
def tokens() -> Tokenizer:
    return Tokenizer.load(ASSETS / "spell" / "tokenizer")


@pytest.fixture
def demos(world: World) -> SPELLDemonstrations:
    """Demonstrations about train names only."""
    return SPELLDemonstrations(world, "train", seed=3)


def _habit(**share: float) -> Habits:
    return Habits(**{**vars(GOOD), **share})


def _said(script: Script) -> str:
    (said,) = script.parts
    assert said[1] and script.ends
    return said[0]


def _read(script: Script, task: str, tokens: Tokenizer):
    limit = options(spell_scripts.card()).max_answer_tokens
    return rules.question_of(_said(script), task, lambda text: len(tokens.encode(text)), limit)


def _solved(question: str, text: str) -> str:
    """The answer to a question from the fact sentences of a text, which must not contradict each other."""
    facts: dict[tuple[str, str], str] = {}
    for attribute, entity, value in SENTENCE.findall(text):
        assert facts.setdefault((attribute, entity), value) == value
    *attributes, name = (
        question.removeprefix("What is the ").removesuffix("?").replace(" of the ", " of ").split(" of ")
    )
    for attribute in reversed(attributes):
        name = facts[attribute, name]
    return name


# ----------------------------------------------------------------------------------------------------------- questioner
@pytest.mark.parametrize("task", TASKS)
def test_good_questions_are_valid_answerable_and_harder(demos, tokens, task: Task) -> None:
    remembered = 0
    for _ in range(DRAWS):
        script = demos.ask(task)
        question, reason = _read(script, task, tokens)
        assert question is not None, reason
        documents, *earlier = script.message.split("Harder than these:")
        assert _solved(question.text, documents) == question.answer
        if earlier:
            remembered += 1
            assert question.text not in earlier[0]
    assert remembered > DRAWS / 8


@pytest.mark.parametrize(
    ("task", "habit", "reason"),
    [("qa", "plain", "no_object"), ("math", "extra", "wrong_keys"), ("math", "zero", "zero")],
)
def test_malformed_questions_are_rejected(demos, tokens, task: Task, habit: str, reason: str) -> None:
    for _ in range(DRAWS // 2):
        assert _read(demos.ask(task, _habit(**{habit: 1.0})), task, tokens) == (None, reason)


def test_a_question_may_be_easy_or_have_an_intermediate_answer(demos, tokens) -> None:
    wrong = 0
    for _ in range(DRAWS):
        easy, _ = _read(demos.ask("qa", _habit(easy=1.0)), "qa", tokens)
        assert easy is not None and easy.text.count(" of ") == 1
        script = demos.ask("qa", _habit(middle=1.0))
        asked, _ = _read(script, "qa", tokens)
        assert asked is not None
        right = _solved(asked.text, script.message.split("Harder than these:")[0])
        wrong += asked.answer != right
        assert (asked.answer == right) == (asked.text.count(" of ") == 1)
    assert wrong


# ------------------------------------------------------------------------------------------------------------ responder
def _marked(script: Script, task: Task) -> bool:
    """R_rule of a responder's reply to the question of its prompt."""
    documents, question = script.message.rsplit("\n\nQuestion: ", 1)
    said = _said(script)
    card = options(spell_scripts.card())
    right = [_solved(question, documents)]
    return rules.matches(task, said, rules.conclusion_of(said), right, card.rule_reads, card.containment)


@pytest.mark.parametrize("task", TASKS)
def test_good_answers_are_right_and_bad_ones_are_not(demos, task: Task) -> None:
    assert all(_marked(demos.answer(task), task) for _ in range(DRAWS))
    guesses = [demos.answer(task, _habit(guess=1.0)) for _ in range(300)]
    by_chance = sum(_marked(script, task) for script in guesses) / len(guesses)
    assert by_chance < {"qa": 0.25, "math": 0.45}[task]  # clusters have few numbers
    assert all(rules.conclusion_of(_said(script)) in script.message for script in guesses)
    assert not any(_marked(demos.answer(task, _habit(silent=1.0)), task) for _ in range(DRAWS))
    for _ in range(DRAWS):
        script = demos.answer(task, _habit(half_way=1.0))
        assert _marked(script, task) == (script.message.rsplit("Question:", 1)[1].count(" of ") == 1)


def test_without_documents_a_value_of_the_right_kind_is_guessed(demos) -> None:
    number = 0
    for _ in range(DRAWS):
        script = demos.guess()
        concluded = rules.conclusion_of(_said(script))
        assert concluded is not None and "\nNothing.\n" in script.message and "Title:" not in script.message
        asked = script.message.rsplit("What is the ", 1)[1].split()[0]
        assert concluded.isdecimal() == (asked in ("population", "birthyear", "length", "height"))
        number += concluded.isdecimal()
    assert 0 < number < DRAWS


# ------------------------------------------------------------------------------------------------------------- verifier
def test_a_verdict_compares_answer_and_reference(demos) -> None:
    verdicts = []
    for _ in range(DRAWS):
        script = demos.verify()
        answer, reference = re.findall(r"Answer: (\w+)\nReference: (\w+) here\?", script.message)[0]
        verdicts.append(rules.verdict_of(_said(script)))
        assert verdicts[-1] == (answer == reference)
    assert {True, False} == set(verdicts)
    assert all(rules.verdict_of(_said(demos.verify(_habit(lenient=1.0)))) for _ in range(DRAWS))


# ---------------------------------------------------------------------------------------------------- the world's files
def test_questions_are_held_out_and_answered_by_their_text(world, tokens) -> None:
    cfg = spell_scripts.card()
    for task in TASKS:
        lines = (ASSETS / "spell" / f"questions_held_out_{task}.jsonl").read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        assert len(rows) >= 200 and {row["hops"] for row in rows} == set(clusters.HOPS)
        for row in rows:
            context = "\n".join(document["text"] for document in row["context"])
            assert row["answers"] == [_solved(row["question"], context)]
            assert row["question"].removesuffix("?").split()[-1] in world.held_out
            assert row["answers"][0].isdecimal() == (task == "math")
        given = {**rows[0], "options": [], "context": context}
        assert rows[0]["question"] in GAME.exam_of(cfg).prompt(given, lambda text: len(tokens.encode(text))).user


def test_clusters_name_nothing_held_out_and_the_card_uses_them(world) -> None:
    cfg = load_card(spell_scripts.CARD)
    rows = list(load(source(cfg)))
    step = step_of(GAME, cfg, ScriptedTools(lambda context: ""), GAME.start(cfg), 0)
    assert len({row["id"] for row in rows}) == len(rows) == 2 * clusters.CLUSTERS
    for row in rows:
        assert len(row["documents"]) == clusters.DOCUMENTS
        assert not world.held_out & set(re.findall(r"\w+", json.dumps(row)))
        context = draw_context(step, {}, row, 0)
        assert context is not None and context.task == row["family"] and len(context.new) == options(cfg).documents


def test_demonstrations_fit_the_card_and_consist_of_whole_word_tokens(world: World, tokens) -> None:
    card = spell_scripts.card()
    limits = {
        "questioner": (
            options(card).questioner.max_prompt_tokens,
            options(card).questioner.sampling.max_tokens,
        ),
        "responder": (
            options(card).responder.max_prompt_tokens,
            options(card).responder.sampling.max_tokens,
        ),
        "verifier": (
            options(card).verifier.max_prompt_tokens,
            options(card).verifier.sampling.max_tokens,
        ),
    }
    ids_N = name_ids(world, tokens)
    for make in makers(world, lambda query: "", split="train", seed=3, with_habits=True).values():
        for _ in range(30):
            script = make()
            row = token_row(script, tokens)
            prompts, replies = limits[script.role]
            assert (~row.sampled_T).sum() <= prompts and row.sampled_T.sum() <= replies
            words = re.findall(r"[^\W\d_]+", script.message + _said(script))
            assert np.isin(row.ids_T, ids_N).sum() == sum(word in world.kinds for word in words)
            assert not world.held_out & set(words)
    assert len(tokens.encode(' {"question": " What", "answer": " Bern"}')) == 5
    assert len(tokens.encode(" [[YES]]")) == len(tokens.encode(" [[NO]]")) == 1
