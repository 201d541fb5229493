"""Exams of a single-turn game with every measure, computed by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from scope_jax.config import CardError, Config, EvalSet, SamplingSection
from scope_jax.evaluation.measuring import ExamSet
from scope_jax.evaluation.metrics import set_metrics
from scope_jax.games import GAMES, parse_config
from scope_jax.games.scope.options import options
from scope_jax.play import exams, searching
from scope_jax.play.exams import Exam
from scope_jax.play.roles import Role
from scope_jax.play.rollouts import Agent
from scope_jax.text import parsing
from scope_jax.text.messages import Messages
from scope_jax.text.templates import PromptError
from tests.games import harness, scope_world
from tests.games.harness import TurnContext

JUDGE = {"url": "http://judge/v1", "model": "m"}
EXAM = Exam(
    role=Role("solver", Agent("actor", SamplingSection())),
    prompt=lambda row, tokens: Messages(row["question"]),
    read=lambda completion: parsing.last(searching.contents(completion), "answer") or None,
    measures=("accuracy",),
)
GOLDS = {"Sum of 2 and 2?": ["4"], "Capital of France?": ["Paris", "Lutetia"], "Largest city?": ["Tokyo"]}
SAID = {
    "Sum of 2 and 2?": "<answer>4.0</answer>",
    "Capital of France?": "<answer>It is Paris</answer>",
    "Largest city?": "I do not know.",
}
ROWS = [{"question": question, "answers": golds} for question, golds in GOLDS.items()]


def card(**evaluate: Any) -> Config:
    table: dict[str, Any] = harness.card().model_dump(mode="json")
    table["evaluate"] |= evaluate
    return parse_config(table, "the test's card")


def tools(judge: Callable[[str], str] | None = None) -> scope_world.World:
    def script(ctx: TurnContext) -> str:
        if ctx.role == "exam grader":
            return scope_world.by_words(replace(ctx, role="grader"))
        assert ctx.role == "eval"
        return SAID.get(ctx.prompt) or "<answer>alpha beta</answer>"

    return scope_world.World(script, judge_reply=judge or (lambda message: "Wrong"))


def take(exam: Exam, cfg: Config, world: Any, rows: list[Any], *measures: str, **changes: Any) -> list[Any]:
    one = EvalSet(**{"name": "exam", "path": "none", "measures": measures} | changes)
    ready = ExamSet(cfg, exam, one, rows)
    return ready.records(world, ready.answers(world))


def test_text_measures_compare_with_every_accepted_answer():
    names = ("accuracy", "exact-match", "cover-exact-match", "f1", "numeric", "choice")
    sums, capital, city = take(EXAM, card(), tools(), ROWS, *names)
    assert sums["measures"] == dict.fromkeys(names, 0.0) | {"numeric": 1.0}
    assert capital["measures"] == dict.fromkeys(names, 0.0) | {
        "cover-exact-match": 1.0,
        "f1": 0.5,
    }  # 1 of 3 words, 1 of 1
    assert city["measures"] == dict.fromkeys(names, 0.0) and city["prediction"] is None
    assert capital["question"] == "Capital of France?" and capital["answers"] == ["Paris", "Lutetia"]
    assert [record["counts"] for record in (sums, capital, city)] == [{}, {}, {}] and not capital["correct"]


def test_prompts_that_do_not_fit_are_told_and_counted():
    """One character is one token; the scripted engine takes 100,000 of them, the card 12,288."""
    world, long = tools(), {"question": "x" * 100_001, "answers": ["x"]}
    records = take(EXAM, card(), world, [ROWS[1], long, ROWS[2]], "exact-match")
    assert [record["counts"] for record in records] == [{}, {"not_sampled": 1}, {}]
    (sentence,) = world.told
    assert sentence.startswith("exam: 1 of 3 prompts do not fit into rollout.max_length = 12288;")
    assert set_metrics("eval", "exam", records)["eval/exam/not_sampled"] == 1.0

    world = tools()
    take(EXAM, card(max_length=10, max_tokens=5), world, [ROWS[1]], "exact-match")
    assert world.told[0].startswith("exam: 1 of 1 prompts do not fit into evaluate.max_length = 10;")


def test_that_a_limit_cut_most_replies_is_one_sentence_with_the_lowest_limit():
    """One character is one token; the replies have 20, 28 and 14."""
    role = Role("solver", Agent("actor", SamplingSection(max_tokens=16)))
    exam, world = replace(EXAM, role=role), tools()
    records = take(exam, card(max_tokens=None), world, ROWS[:2], "exact-match")
    assert [record["counts"] for record in records] == [{"cut_off": 1}, {"cut_off": 1}]
    assert world.told == [
        "exam: 2 of 2 replies were cut by a limit, and few of these can be right; the lowest is 16 tokens "
        "(evaluate.max_tokens, by default as in training): raise it, or train the model to end its replies."
    ]
    for limits, key in (({"max_tokens": 16}, "the set's max_tokens"), ({}, "evaluate.max_tokens")):
        world = tools()
        take(exam, card(max_tokens=15), world, ROWS, "exact-match", **limits)
        assert len(world.told) == 1 and "2 of 3 replies were cut" in world.told[0] and f"({key})" in world.told[0]
    world = tools()
    take(exam, card(max_tokens=28), world, ROWS, "exact-match")
    assert world.told == []


def test_an_exam_may_have_more_turns_than_training():
    """SCOPE section 4.1: up to five searches in evaluation; the prompt says how many."""

    def script(ctx: TurnContext) -> str:
        return scope_world.searching_turn("Aare") if ctx.turn < 5 else "<answer>alpha</answer>"

    item = scope_world.criterion("Names alpha.") | {"fact": ["alpha", "alpha"]}
    rows = [{"question": "Tell of Bern.", "rubric": [item]}]
    found = {}
    for turns in (None, 6, 3):
        usual = scope_world.card()
        cfg = usual.model_copy(update={"evaluate": usual.evaluate.model_copy(update={"max_turns": turns})})
        (record,) = harness.run_exam(GAMES["scope"], cfg, scope_world.World(script), rows, measures=["exact"])
        found[turns] = record["measures"]["searches"], record["prediction"]
        assert f"up to {(turns or options(cfg).solver.max_turns) - 1} times" in record["text"]["prompt"]
    assert found == {None: (4.0, None), 6: (5.0, "alpha"), 3: (2.0, None)}


def test_turns_of_an_exam_without_searches_are_refused():
    with pytest.raises(ValueError, match=r"evaluate.max_turns is 6, but in exams of ssp nothing is searched"):
        exams.check_prompts(card(max_turns=6), EXAM, {"exam": ROWS})


def test_an_exam_leaves_room_for_a_prompt():
    with pytest.raises(CardError, match=r"max_tokens is 1024, which leaves nothing of max_length = 1000 for a prompt"):
        card(max_length=1000, max_tokens=1024)
    one = {"name": "exam", "path": "none", "max_tokens": 2000}
    with pytest.raises(CardError, match=r"sets.exam.max_tokens is 2000, which leaves nothing of max_length = 1500"):
        card(max_length=1500, sets=[one])


def test_an_answer_is_right_if_any_of_the_games_measures_accepts_it():
    """SPELL App. C: the larger of cover exact match and a judge, which gets only the answers that do not match."""
    spell = replace(EXAM, accuracy=("cover-exact-match", "judge"))
    world = tools(lambda message: "Correct" if "4.0" in message else "Wrong")
    records = take(spell, card(judge=JUDGE), world, ROWS, "accuracy", "judge", "cover-exact-match")
    assert [record["measures"] for record in records] == [
        {"accuracy": 1.0, "judge": 1.0, "cover-exact-match": 0.0},
        {"accuracy": 1.0, "judge": 0.0, "cover-exact-match": 1.0},
        {"accuracy": 0.0, "judge": 0.0, "cover-exact-match": 0.0},
    ]
    asked = [message.split("model:")[1].split("\n")[2] for _, message, *_ in world.endpoints]
    assert asked == ["4.0", "It is Paris"]  # no request twice, and none without an answer
    assert {name for name, *_ in world.endpoints} == {exams.JUDGE}
    assert [record["counts"]["judge_requests"] for record in records] == [1, 1, 0]


def test_missing_verdicts_are_counted_and_mark_nothing_right():
    records = take(EXAM, card(judge=JUDGE), tools(lambda message: "Both Correct and Wrong"), ROWS, "judge")
    metrics = set_metrics("eval", "exam", records)
    assert metrics["eval/exam/judge"] == 0.0
    assert (metrics["eval/exam/judge_requests"], metrics["eval/exam/judge_unparsed"]) == (2.0, 2.0)


def test_pairs_are_compared_with_the_rows_first_answer():
    def judge(message: str) -> str:
        first, second = (part.split("\n\n")[1] for part in message.split("Answer ")[1:])
        if "4.0" in message:
            return "<verdict>A</verdict>"  # always the first
        return f"<verdict>{'A' if 'It is' in first else 'B' if 'It is' in second else 'tie'}</verdict>"

    records = take(EXAM, card(judge=JUDGE), tools(judge), ROWS, "pairwise")
    assert [record["measures"]["pairwise"] for record in records] == [0.5, 1.0, 0.0]  # a missing answer loses
    assert [record["votes"] for record in records] == [["A", "A"], ["A", "B"], []]
    assert [record["measures"]["answer_tokens"] for record in records] == [3.0, 11.0, 0.0]  # tokens are characters
    lame = take(
        EXAM,
        card(judge=JUDGE),
        tools(lambda m: "?" if "\n\n4\n\n" in m[: m.index("B:")] else judge(m)),
        ROWS,
        "pairwise",
    )
    assert "pairwise" not in lame[0]["measures"] and lame[0]["votes"] == ["A", None]
    metrics = set_metrics("eval", "exam", lame)
    assert metrics["eval/exam/pairwise"] == 0.5  # mean over the two that have it
    assert (metrics["eval/exam/pairwise_asked"], metrics["eval/exam/pairwise_unparsed"]) == (4.0, 1.0)


RUBRIC = [
    {"criterion": "Names alpha.", "weight": 3.0, "priority": ""},
    {"criterion": "Names gamma.", "weight": 1.0, "priority": "", "fact": ["alpha", "beta"]},
]


def test_any_game_can_be_graded_on_rubrics_by_the_base_model():
    grader = {"temperature": 0.0, "max_tokens": 50}
    cfg, world = card(grader=grader), tools()
    rows = [{"question": "Tell.", "rubric": RUBRIC}, {"question": "Largest city?", "rubric": RUBRIC}]
    told, silent = take(EXAM, cfg, world, rows, "rubric", "exact")
    assert told["measures"] == {"score": 0.75, "ungraded": 0.0, "exact": 1.0, "answer_tokens": 10.0}
    assert told["verdicts"] == [True, False] and told["counts"] == {"judge_requests": 2, "judge_unparsed": 0}
    assert silent["measures"] == {"score": 0.0, "ungraded": 0.0, "exact": 0.0, "answer_tokens": 0.0}
    assert world.policies[exams.GRADER] == "base" and world.options[exams.GRADER]["max_tokens"] == 50
    cfg = card(grader=grader, sets=[{"name": "held", "path": "none", "measures": ["rubric"]}])
    assert exams.uses_base(cfg, EXAM) and exams.judges(cfg, EXAM) == {}
    assert exams.kind_of(EXAM, cfg.evaluate.sets[0]) == "tasks"
    outside = card(grader=grader | {"endpoint": JUDGE}, sets=cfg.evaluate.model_dump(mode="json")["sets"])
    assert not exams.uses_base(outside, EXAM)
    assert {name: table.max_tokens for name, table in exams.judges(outside, EXAM).items()} == {exams.GRADER: 50}


def test_samples_of_a_row_are_adjacent_and_use_the_cards_settings():
    cfg, world = card(temperature=0.5, top_p=0.8, max_tokens=7), tools()
    records = take(EXAM, cfg, world, ROWS[:2], samples=2, top_k=3, max_tokens=99)
    assert [(record["question"], record["sample"]) for record in records] == [
        (row["question"], sample) for row in ROWS[:2] for sample in (0, 1)
    ]
    sampling = {
        key: getattr(world.agents["eval"].sampling, key) for key in ("temperature", "top_p", "top_k", "max_tokens")
    }
    assert sampling == {"temperature": 0.5, "top_p": 0.8, "top_k": 3, "max_tokens": 99}
    assert world.asked == [("eval", "0", 2), ("eval", "1", 2)]  # one request per prompt for all its samples


def sets(*measures: str) -> dict[str, Any]:
    return {"sets": [{"name": "held", "path": "none", "measures": list(measures)}]}


def test_the_measures_determine_which_judges_are_used():
    assert exams.judges(card(**sets()), EXAM) == {}  # accuracy is exact match here
    assert set(exams.judges(card(**sets("judge"), judge=JUDGE), EXAM)) == {exams.JUDGE}
    strict = replace(EXAM, accuracy=("exact-match", "judge"))
    assert set(exams.judges(card(**sets(), judge=JUDGE), strict)) == {exams.JUDGE}
    assert exams.judges(card(**sets("f1"), judge=JUDGE), strict) == {}
    with pytest.raises(ValueError, match=r"add \[evaluate.judge\]"):
        exams.judges(card(**sets("pairwise")), EXAM)
    with pytest.raises(ValueError, match=r"add \[evaluate.grader\]"):
        exams.judges(card(**sets("rubric")), EXAM)


def test_prompts_are_validated_before_any_request(tmp_path):
    rows = {"held": ROWS}
    exams.check_prompts(card(**sets("judge"), judge=JUDGE), EXAM, rows)
    exams.check_prompts(card(**sets("pairwise"), judge=JUDGE), EXAM, rows)
    grader = {"temperature": 0.0, "max_tokens": 50}
    exams.check_prompts(card(**sets("rubric"), grader=grader), EXAM, rows)
    for measure, name in (("judge", "judge"), ("pairwise", "pairwise"), ("rubric", "grader")):
        cfg = card(**sets(measure), judge=JUDGE, grader=grader, prompts=str(tmp_path))
        with pytest.raises(PromptError, match=rf"{name}\.txt: the prompt file does not exist"):
            exams.check_prompts(cfg, EXAM, rows)

    def refuse(row: Any, tokens: Any) -> Messages:
        raise PromptError("no.")

    with pytest.raises(PromptError):
        exams.check_prompts(card(**sets()), replace(EXAM, prompt=refuse), rows)


def test_a_set_has_rows_of_one_kind():
    with pytest.raises(CardError, match=r"'rubric', of rows with rubrics, and 'f1', of rows with right answers"):
        card(**sets("f1", "rubric"))
    with pytest.raises(CardError, match="names a measure twice"):
        card(**sets("f1", "f1"))
