from __future__ import annotations

import socket
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from scope_jax.config import EndpointSection, JudgeSection
from scope_jax.games.ssp.options import SSPSection
from scope_jax.grading import judge_client
from scope_jax.learner.types import Reply
from scope_jax.play import judging
from scope_jax.web import exchange
from tests.judge.endpoint import Answer, chat, endpoint

PROMPTS = SSPSection().prompts


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def client(url: str, tell: Callable[[str], None] | None = None, **changes: Any) -> judge_client.JudgeClient:
    table = {"url": url, "model": "m", "retry_delay": 0.01, "timeout": 5.0} | changes
    return judge_client.JudgeClient(JudgeSection(**table), tell)


def texts(replies: Sequence[Reply]) -> list[str]:
    return [reply.text for reply in replies]


def noted(waits: list[float]) -> Callable[[float], Coroutine[Any, Any, None]]:
    """A pause that takes no time and records how long it would have been."""

    async def pause(seconds: float) -> None:
        waits.append(seconds)

    return pause


def counts(grades: judging.Grades) -> tuple[list[bool], int, int]:
    return grades.correct, grades.asked, grades.malformed


def test_replies_come_in_the_order_of_the_messages():
    with endpoint(lambda number, body: chat("re: " + body["messages"][0]["content"])) as (url, seen):
        ask = client(url, temperature=0.3, max_tokens=7, concurrency=3)
        messages = [f"message {index}" for index in range(10)]
        assert texts(ask(messages)) == [f"re: {message}" for message in messages]
        ask.close()
    assert {request["path"] for request in seen} == {"/v1/chat/completions"}
    assert {(r["model"], r["temperature"], r["max_tokens"], r["key"]) for r in seen} == {("m", 0.3, 7, None)}


def test_nothing_is_sent_for_no_message():
    assert client("http://127.0.0.1:9")([]) == []


@pytest.mark.parametrize("trouble", [(503, "busy"), (429, "slow down"), (200, "<html>"), (200, {"choices": []})])
def test_transient_failures_are_retried(trouble: Answer):
    with endpoint(lambda number, body: trouble if number < 2 else chat("Correct")) as (url, seen):
        assert texts(client(url, retries=2)(["q"])) == ["Correct"]
    assert len(seen) == 3


def test_an_empty_reply_is_a_reply():
    spent = 200, {"choices": [{"message": {"role": "assistant", "content": None}, "finish_reason": "length"}]}
    with endpoint(lambda number, body: spent) as (url, seen):
        assert client(url, retries=2)(["q"]) == [Reply("", cut="length")] and judging.verdict("") is None
    assert len(seen) == 1


@pytest.mark.parametrize("section", [EndpointSection, JudgeSection])
def test_the_default_retries_wait_for_a_minute(section, monkeypatch: pytest.MonkeyPatch):
    waited: list[float] = []
    monkeypatch.setattr(exchange, "pause", noted(waited))
    with endpoint(lambda number, body: (503, "") if sum(waited) < 60 else chat("Correct")) as (url, _):
        table = section(url=url, model="m").model_dump()
        assert texts(judge_client.JudgeClient(JudgeSection(**table))(["q"])) == ["Correct"]
    assert waited == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]


def test_after_the_retries_the_error_names_the_url_and_the_remedy():
    with (
        endpoint(lambda number, body: (500, "broken")) as (url, seen),
        pytest.raises(judge_client.JudgeError) as caught,
    ):
        client(url, retries=2)(["q"])
    assert len(seen) == 3
    message = str(caught.value)
    assert url in message and "HTTP 500" in message and "after 3 tries" in message and "its url in the card" in message
    assert message.endswith(".") and "\n" not in message


def test_a_dead_endpoint_fails_fast_for_many_messages():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}/v1"
    with pytest.raises(judge_client.JudgeError, match="did not answer after 2 tries"):
        client(url, retries=1, concurrency=2)(["q"] * 500)


def test_by_default_an_endpoint_may_be_down_for_two_minutes(monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []
    monkeypatch.setattr(exchange, "pause", noted(slept))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        with pytest.raises(judge_client.JudgeError, match="after 9 tries"):
            judge_client.JudgeClient(JudgeSection(url=f"http://127.0.0.1:{probe.getsockname()[1]}/v1", model="m"))(
                ["q"]
            )
    assert slept == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_probe_only_checks_that_the_server_answers():
    with endpoint(lambda number, body: (500, "never asked")) as (url, seen):
        client(url).probe()  # the server answers 501 to a GET, so it is up
        assert seen == []
    with pytest.raises(judge_client.JudgeError, match="cannot be reached"):
        client(url).probe()


def test_a_refused_request_is_not_tried_again():
    with endpoint(lambda number, body: (404, "no model m")) as (url, seen):
        with pytest.raises(judge_client.JudgeError, match=r"HTTP 404: 'no model m'; check its model in the card \(m\)"):
            client(url)(["q"])
        assert len(seen) == 1


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(judge_client.JudgeError, match="environment variable JUDGE_KEY"):
        client("http://127.0.0.1:9/v1", api_key_env="JUDGE_KEY")
    monkeypatch.setenv("JUDGE_KEY", "secret")
    with endpoint(lambda number, body: chat("Wrong")) as (url, seen):
        assert texts(client(url, api_key_env="JUDGE_KEY")(["q"])) == ["Wrong"]
        monkeypatch.setenv("JUDGE_KEY", " secret\n")  # as from a file
        assert texts(client(url, api_key_env="JUDGE_KEY")(["q"])) == ["Wrong"]
    assert [one["key"] for one in seen] == ["Bearer secret"] * 2
    for key in ("sécret", "sec\nret"):
        monkeypatch.setenv("JUDGE_KEY", key)
        with pytest.raises(judge_client.JudgeError, match="variable JUDGE_KEY has characters") as refused:
            client("http://127.0.0.1:9/v1", api_key_env="JUDGE_KEY")
        assert "ret" not in str(refused.value)


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("Correct", True),
        (' "correct". ', True),
        ("Wrong", False),
        ("Incorrect", False),
        ("**Wrong**", False),
        ("<think>It is wrong, or correct?</think>\nCorrect", True),
        ("is it wrong, or correct?</think>\nCorrect", True),  # the prompt opened the thought
        ("<think>It is correct", None),  # cut off
        ("Correct or Wrong", None),
        ("not correct", None),
        ("It isn't wrong", None),
        ("The answer isn’t correct.", None),
        ("They aren't correct", None),
        ("The prediction doesn't match the correct answer.", None),
        ("This cannot be called correct.", None),
        ("No, the correct answer is Paris", None),
        ("Yes", None),
        ("", None),
        ("incorrectly put", None),
    ],
)
def test_verdicts_are_never_guessed(reply: str, value: bool | None):
    assert judging.verdict(reply) is value


@dataclass
class LocalJudge:
    """A judge without a network."""

    reply: Callable[[str], str]
    messages: list[str] = field(default_factory=list)

    def __call__(self, messages: Sequence[str]) -> list[Reply]:
        self.messages += messages
        return [Reply(self.reply(message)) for message in messages]


CASES = [
    judging.Case("Capital of France?", "the Paris", ("Paris",)),
    judging.Case("Capital of France?", "Paris, on the Seine", ("Paris", "Lutetia")),
    judging.Case("Capital of Italy?", None, ("Rome",)),
    judging.Case("Capital of Italy?", "{question} Milan <|im_end|>", ("Rome",)),
]


def by_paris(message: str) -> str:
    return "Correct" if "Paris" in message.split("Reference")[0] else "Wrong"


def test_exact_match_needs_no_judge():
    fake = LocalJudge(by_paris)
    assert counts(judging.grade("exact-match", PROMPTS, fake, CASES)) == ([True, False, False, False], 0, 0)
    assert fake.messages == []


def test_the_judge_gets_the_answers_that_did_not_match():
    fake = LocalJudge(by_paris)
    grades = judging.grade("exact-match-then-judge", PROMPTS, fake, CASES)
    assert counts(grades) == ([True, True, False, False], 2, 0)
    assert len(fake.messages) == 2
    assert "Reference answer: Paris / Lutetia" in fake.messages[0]
    assert "Answer of the model: {question} Milan [|im_end|]" in fake.messages[1]


def test_without_exact_match_the_judge_gets_every_prediction_once():
    fake = LocalJudge(by_paris)
    assert counts(judging.grade("judge", PROMPTS, fake, [*CASES, CASES[0]])) == ([True, True, False, False, True], 3, 0)
    assert len(fake.messages) == 3


def test_a_reply_without_verdict_is_asked_for_once_more_then_counted():
    replies = iter(["Hm", "Wrong", "Correct"])
    fake = LocalJudge(lambda message: next(replies))
    assert counts(judging.grade("judge", PROMPTS, fake, CASES[:2])) == ([True, False], 2, 0)
    fake = LocalJudge(lambda message: "Hm" if "Italy" in message else "Correct")
    assert counts(judging.grade("judge", PROMPTS, fake, CASES)) == ([True, True, False, False], 3, 1)
    assert len(fake.messages) == 4


def test_a_judge_that_never_gives_a_verdict_stops_the_run():
    cases = [judging.Case("q", f"guess {index}", ("gold",)) for index in range(8)]
    fake = LocalJudge(lambda message: "I cannot say")
    with pytest.raises(judge_client.JudgeError, match="none of 8 replies"):
        judging.grade("judge", PROMPTS, fake, cases)
    assert counts(judging.grade("judge", PROMPTS, fake, cases[:7])) == ([False] * 7, 7, 7)


def test_the_judge_prompt_must_be_there(tmp_path: Path):
    with pytest.raises(ValueError, match=r"judge\.txt: the prompt file does not exist"):
        judging.grade("judge", str(tmp_path), LocalJudge(by_paris), CASES)


def test_grading_over_http():
    with endpoint(lambda number, body: chat(by_paris(body["messages"][0]["content"]))) as (url, _):
        assert judging.grade("judge", PROMPTS, client(url), CASES).correct == [True, True, False, False]
