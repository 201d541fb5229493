"""Replies that were cut are never read as complete: those of judges, external models and evaluated endpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from scope_jax.config import AskSection, JudgeSection
from scope_jax.config.base import prompts_of
from scope_jax.config.suites import Form, SuiteCard
from scope_jax.evaluation import suites
from scope_jax.evaluation.endpoint import completion_of, evaluate_endpoint
from scope_jax.evaluation.suites import plain_card
from scope_jax.games import load_card, score, spice
from scope_jax.games.score import meta_harness
from scope_jax.games.score.roles import ask_for_harness
from scope_jax.games.spell import roles as spell_roles
from scope_jax.games.spice import roles as spice_roles
from scope_jax.games.ssp import roles
from scope_jax.games.ssp.options import SSPSection
from scope_jax.grading.judge_client import JudgeClient, JudgeError
from scope_jax.learner.types import Episode, Judgement, Reply
from scope_jax.play import asking, judging, pairwise, rating, rubrics
from scope_jax.play.game import step_of
from scope_jax.play.roles import judge_role
from scope_jax.play.tools import Rollout
from scope_jax.rollouts.types import Completion, Row, Turn
from scope_jax.run.records import judgement_records
from scope_jax.run.world import StepTools
from scope_jax.serving import talk
from scope_jax.serving.assemble import Served
from scope_jax.text.messages import Messages
from scope_jax.text.objects import last_object
from tests.judge.endpoint import Answer, endpoint

ROOT = Path(__file__).parents[2]
PROMPTS = SSPSection().prompts
CUT = ("length", "content_filter", "abort", "max_tokens", "MAX_TOKENS", "error", "something_new")
ENDED = ("stop", "STOP", "eos", "eos_token", "end_turn", "stop_sequence", "tool_calls", "", None)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def chat(text: str | None, finish: Any) -> Answer:
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": finish}]}


def client(url: str) -> JudgeClient:
    return JudgeClient(JudgeSection(url=url, model="m", retry_delay=0.01, timeout=5.0, concurrency=1))


@pytest.mark.parametrize("finish", CUT)
def test_a_reply_with_another_finish_reason_was_cut(finish: str):
    with endpoint(lambda number, body: chat("Correct", finish)) as (url, _):
        assert client(url)(["q"]) == [Reply("Correct", cut=finish)]


@pytest.mark.parametrize("finish", ENDED)
def test_a_reply_that_ended_was_not(finish: str | None):
    with endpoint(lambda number, body: chat("Correct", finish)) as (url, _):
        assert client(url)(["q"]) == [Reply("Correct")]


def test_a_finish_reason_of_another_kind_is_no_chat_completion():
    with endpoint(lambda number, body: chat("Correct", 5)) as (url, _):
        ask = JudgeClient(JudgeSection(url=url, model="m", retries=0, timeout=5.0))
        with pytest.raises(JudgeError, match="not a chat"):
            ask(["q"])


# ------------------------------------------------------------------------------------------------------------- judges
CLOSED: list[tuple[Callable[[str], Any], str, Any]] = [
    (rubrics.score_of, "<score>1</score> so", True),
    (rating.mark_of, "<score>7</score> so", 7),
    (pairwise.vote_of, "<verdict>A</verdict> so", "A"),
]
URL = ("the judge", "judge")


@pytest.mark.parametrize(("read", "text", "verdict"), CLOSED)
def test_the_first_closed_tag_stands_whatever_was_cut_after_it(read: Callable[[str], Any], text: str, verdict: Any):
    """The base's: it is known whether its prompt opened a thought. An endpoint's only after a closed thought."""

    def read_of(text: str, external: tuple[str, str] | None = None) -> Any:
        given = Reply(text, cut="length")
        send = lambda questions, again: [given] * len(questions)  # noqa: E731
        return asking.ask(send, ["q"], read, external=external, closed=True).read[0]

    assert read_of(text) == read_of(f"<think>hm</think>{text}") == verdict
    stray = f"<think>hm</think>{text} </think><score>0</score><verdict>B</verdict>"  # as Atlas's base goes on
    assert read_of(stray) == read_of(stray, URL) == verdict
    assert read_of(f"<think>{text}") is None and read_of(text[:-8]) is None
    assert read_of(text, URL) is None and read_of(f"<think>{text}", URL) is None
    assert read_of(f"hm</think>{text}", URL) == read_of(f"<think>hm</think>{text}", URL) == verdict


@pytest.mark.parametrize(("read", "text", "verdict"), [(judging.verdict, "Correct", True), *CLOSED])
def test_a_cut_reply_has_no_verdict_and_is_asked_again(read: Callable[[str], Any], text: str, verdict: Any):
    def replies(*given: Reply) -> asking.Replies[Any]:
        left = iter(given)
        return asking.ask(lambda questions, again: [next(left) for _ in questions], ["q"], read, nudge="shorter")

    assert replies(Reply(text)).read == [verdict]
    second = replies(Reply(text, cut="length"), Reply(text))
    assert (second.read, second.retried, second.malformed) == ([verdict], 1, 0)
    never = replies(Reply(text, cut="length"), Reply(text, cut="content_filter"))
    assert (never.read, never.retried, never.malformed) == ([None], 1, 1)


def test_a_judge_whose_replies_are_all_cut_is_said_to_be():
    def send(questions: Sequence[str], again: bool) -> list[Reply]:
        return [Reply("Correct", cut="length")] * len(questions)

    with pytest.raises(JudgeError, match=r"the last was 'Correct', cut \(length\); .* or raise judge\.max_tokens"):
        asking.ask(send, [f"q{i}" for i in range(9)], judging.verdict, external=("the judge", "judge"))


def test_an_answer_judged_by_a_cut_reply_is_not_right():
    cases = [judging.Case("Who?", "Ada", ("Ada Lovelace",)), judging.Case("Who?", "Bob", ("Ada Lovelace",))]
    finish = {"Ada": "stop", "Bob": "length"}

    def answers(number: int, body: dict[str, Any]) -> Answer:
        asked = body["messages"][0]["content"]
        return chat("Correct", next(finish[name] for name in finish if f"{name}\n" in asked.replace(".", "\n") + "\n"))

    with endpoint(answers) as (url, seen):
        grades = judging.grade("judge", PROMPTS, client(url), cases)
    assert grades.correct == [True, False] and len(seen) == 3 and (grades.retried, grades.malformed) == (1, 1)
    assert [reply.cut for reply in grades.judgements[1][0].replies] == ["length", "length"]


def test_a_record_says_that_a_reply_was_cut():
    judged = Judgement("grader", "", (Reply("Corr", cut="length"), Reply("Correct")), True)
    (line,) = judgement_records(1, [Episode("solver", "a", "g", (), 0.0, judgements=(judged,))])
    assert line["replies"] == ({"text": "Corr", "refused": "", "cut": "length"}, {"text": "Correct", "refused": ""})


# -------------------------------------------------------------------------------------------------------------- exams
def completion(text: str, finish: str, opened: bool = False) -> Completion:
    none = np.zeros(0, np.float32)
    ids = np.zeros(0, np.int32)
    turn = Turn("sampled", ids, none, text, finish, opened=opened, thought=("<think>", "</think>"))
    return Completion((Row(ids, ids, np.zeros(0, bool), none),), (turn,), finish)


def answer_of(form: Form, one: Completion) -> str | None:
    """As an exam of this form reads it."""
    card = SuiteCard(name="x", path="none.jsonl", form=form, measures=("accuracy",))
    return suites.suite_exam(plain_card("none"), card, None, "actor").read(one)


@pytest.mark.parametrize(
    ("form", "text", "whole", "cut"),
    [
        ("math", r"so \boxed{42} and", "42", "42"),  # what is closed is no fragment
        ("math", r"\boxed{4} or rather \boxed{5", None, None),
        ("short", "<answer>Ada</answer> because", "Ada", "Ada"),
        ("short", "<answer>Ada", None, None),
        ("choice", "Answer: B", "B", None),
        ("choice", "Answer: B\nsince", "B", "B"),
        ("choice", "I think the answer is (B", "I think the answer is (B", None),
        ("choice", r"\boxed{C} since", "C", "C"),
        ("document", "Answer: 12", "12", None),  # perhaps 1,200
        ("document", "Answer: 12\nsince", "12", "12"),
        ("document", r"\boxed{12} since", "12", "12"),
        ("open", "A report that", "A report that", None),
        ("math", r"<think>perhaps \boxed{4}", None, None),  # an open thought
        ("short", "<think>perhaps <answer>Ada</answer>", None, None),
    ],
)
def test_an_answer_that_may_be_a_fragment_is_none(form: Form, text: str, whole: str | None, cut: str | None):
    assert answer_of(form, completion(text, "eos")) == whole
    assert answer_of(form, completion(text, "length")) == cut
    assert answer_of(form, completion(text, "overflow")) == cut


def test_spells_conclusion_is_a_whole_line():
    assert spell_roles.exam_conclusion(completion("The answer is 12", "eos")) == "12"
    assert spell_roles.exam_conclusion(completion("The answer is 12", "length")) is None
    assert spell_roles.exam_conclusion(completion("The answer is 12\nsince", "length")) == "12"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{42} and", None),  # nobody says that the prompt did not open a thought
        (r"<think>so \boxed{41}", None),
        (r"so \boxed{41} hm</think>It is \boxed{42}. And", "42"),
        (r"<think>so \boxed{41} hm</think>It is \boxed{42}. And", "42"),
        (r"<think>so</think>It is \boxed{4", None),
    ],
)
def test_of_an_endpoints_cut_reply_only_what_follows_the_thought_counts(text: str, answer: str | None):
    for cut in ("length", "content_filter"):
        one = completion_of(Reply(text, cut=cut))
        assert (one.finish_reason, one.turns[0].finish, one.turns[0].text) == ("length", "length", text)
        assert answer_of("math", one) == answer
    assert completion_of(Reply(text)).finish_reason == "eos"


def test_an_endpoints_cut_replies_are_wrong_and_counted(tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"question": f"{n} + 0?", "answers": [str(n)]}) + "\n" for n in range(4)))
    suite = SuiteCard(name="sums", path=str(rows), form="math", measures=("accuracy",))
    texts = [
        (r"\boxed{0}", "stop"),
        (r"\boxed{1}", "length"),
        (r"\boxed{2", "length"),
        (r"x</think>\boxed{3}. So", "length"),
    ]

    def answers(number: int, body: dict[str, Any]) -> Answer:
        asked = body["messages"][-1]["content"]
        return chat(*next(texts[n] for n in range(4) if f"{n} + 0?" in asked))

    kept: list[Any] = []
    with endpoint(answers) as (url, _):
        table = JudgeSection(url=url, model="m", timeout=5.0, concurrency=1)
        found = evaluate_endpoint(table, [suite], [], lambda name, records, measured: kept.extend(records), print)
    assert [record["prediction"] for record in kept] == ["0", None, None, "3"]
    assert found["metrics"]["eval/sums/accuracy"] == 0.5 and found["metrics"]["eval/sums/cut_off"] == 3.0


# -------------------------------------------------------------------------------------------------------------- games
def tools_that_reply(*replies: Reply) -> Any:
    """Tools whose external models give these replies."""
    tools = Mock(spec=StepTools)
    tools.judge = lambda messages, **asked: list(replies)
    return tools


def test_the_base_models_cut_replies_have_no_verdict():
    sampled = [completion("<score>1</score> so", "eos"), completion("so <score>1", "length")]
    tools = Mock(spec=StepTools)
    tools.play = lambda role, rollouts, agent: [[sampled["again" in one.name or one.name == "1"]] for one in rollouts]
    judge = judge_role("grader", "evaluate.grader", AskSection(temperature=0.0, max_tokens=8))
    replies = asking.ask_role(tools, judge, ["first", "second"], rubrics.score_of, "only the score")
    assert replies.read == [True, None] and [len(given) for given in replies.given] == [1, 2]
    assert [reply.cut for given in replies.given for reply in given] == ["", "length", "length"]


@pytest.mark.parametrize(
    ("reply", "outside", "answer"),
    [
        (Reply("Answer: Paris"), False, "Paris"),
        (Reply("Answer: Par", cut="length"), False, None),
        (Reply("Answer: Paris\nsince", cut="length"), False, "Paris"),
        (Reply("Answer: Paris\nsince", cut="length"), True, None),  # it may all be thought
        (Reply("hm</think>Answer: Paris\nsince", cut="length"), True, "Paris"),
        (Reply("<think>Answer: Paris\nsince", cut="length"), False, None),
    ],
)
def test_ssps_verifier_does_not_read_a_fragment(reply: Reply, outside: bool, answer: str | None):
    assert roles._answer(reply, outside) == answer


def test_spices_external_challenger_writes_no_task_in_a_cut_reply():
    cfg = load_card(
        ROOT / "configs" / "spice" / "atlas.toml",
        ["spice.train=reasoner", "spice.challenger.endpoint={url='http://127.0.0.1:1/v1', model='m'}"],
    )
    task = '{"draft": {"question": "How many?", "answer": "7"}}'
    tools = tools_that_reply(Reply(task), Reply(task[:-1], cut="length"), Reply("", refused="HTTP 400"))
    rollouts = [Rollout(f"{name} task 0", Messages(name)) for name in "abc"]
    step = step_of(spice.GAME, cfg, tools, {}, 0)
    (replies,) = step.map((), lambda step, rollouts: spice_roles._replies(step, "task", rollouts, 1), [rollouts])
    ((whole,), (cut,), (refused,)) = replies
    assert (whole.text, cut.text, refused.refused) == (task, "", True)
    assert last_object(task[:-1]) == {"question": "How many?", "answer": "7"}  # what a cut reply seems to hold


def test_scores_harness_is_not_refreshed_from_a_cut_reply():
    cfg = load_card(ROOT / "configs" / "score" / "atlas.toml", [f"score.prompts={prompts_of('score')}"])
    before = meta_harness.default(cfg)
    cut, whole = Reply("{}", cut="length"), Reply("{}")
    steps = [step_of(score.GAME, cfg, tools_that_reply(reply), score.GAME.start(cfg), 0) for reply in (cut, whole)]
    with pytest.raises(meta_harness.HarnessError, match=r"^the reply was cut: length$"):
        ask_for_harness(steps[0], before, [])
    assert ask_for_harness(steps[1], before, []) == whole


def test_a_conversation_in_the_terminal_says_that_a_reply_was_cut(monkeypatch: pytest.MonkeyPatch):
    replies = iter([("one two", "length"), ("one two.", "stop")])
    monkeypatch.setattr(talk, "reply", lambda model, body, show: next(replies))
    told: list[str] = []
    model = Mock(spec=Served, joiner=None)
    model.name = "m"
    talk.talk(model, ["a", "b"], told.append, system=None, temperature=0.0, max_tokens=2, seed=0)
    assert "".join(told) == "\n[the reply was cut at its limit of tokens]\n\n"
