"""The contents of requests to a judge, and the effect of a rejected one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from scope_jax.config import CardError, Config, JudgeSection
from scope_jax.games import load_card, scope
from scope_jax.games.ssp.options import SSPSection
from scope_jax.grading import judge_client
from scope_jax.learner.types import Reply
from scope_jax.play import asking, judging
from scope_jax.run.config_file import to_toml
from tests.games.harness import card as ssp_card
from tests.games.scope_world import card as scope_card
from tests.judge.endpoint import Answer, chat, endpoint


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def client(url: str, tell: Callable[[str], None] | None = None, **changes: Any) -> judge_client.JudgeClient:
    table = {"url": url, "model": "m", "retry_delay": 0.01, "timeout": 5.0} | changes
    return judge_client.JudgeClient(JudgeSection(**table), tell)


def judged_by(**fields: Any) -> Config:
    return ssp_card(judge_table={"url": "http://127.0.0.1:9/v1", "model": "m", **fields}, grader="judge")


# ------------------------------------------------------------------------------------------------------- extra fields
def test_a_request_has_the_cards_extra_fields():
    extra = {"reasoning_effort": "low", "seed": 3, "chat_template_kwargs": {"enable_thinking": False}, "stop": ["\n"]}
    with endpoint(lambda number, body: chat("Correct")) as (url, seen):
        client(url, extra_body=extra, max_tokens_field="max_completion_tokens", max_tokens=9)(["q"])
    assert {key: seen[0][key] for key in extra} == extra
    assert seen[0]["max_completion_tokens"] == 9 and "max_tokens" not in seen[0]


def test_each_job_of_scope_has_extra_fields_of_its_own():
    table = {"url": "http://judge/v1", "model": "m", "extra_body": {"reasoning_effort": "high"}}
    cfg = scope_card(grader={"endpoint": table, "max_tokens": 77})
    found = scope.GAME.judges(cfg)["grader"]
    assert found.extra_body == {"reasoning_effort": "high"} and found.max_tokens_field == "max_tokens"
    with endpoint(lambda number, body: chat("<score>1</score>")) as (url, seen):
        judge_client.JudgeClient(found.model_copy(update={"url": url, "max_tokens_field": "max_completion_tokens"}))(
            ["q"]
        )
    assert (seen[0]["reasoning_effort"], seen[0]["max_completion_tokens"]) == ("high", 77)


@pytest.mark.parametrize("field", ["model", "messages", "temperature", "max_tokens", "max_completion_tokens", "stream"])
def test_a_field_that_has_a_key_of_its_own_is_refused(field: str):
    with pytest.raises(CardError, match=rf"`judge.extra_body`: remove {field}: these fields of a request"):
        judged_by(extra_body={"a": 1, field: 1})


@pytest.mark.parametrize("value", [float("nan"), {"deep": [float("inf")]}, object()])
def test_a_value_that_json_cannot_represent_is_refused(value: Any):
    with pytest.raises(CardError, match=r"judge\.extra_body"):
        judged_by(extra_body={"a": value})


# ----------------------------------------------------------------------------------------------------------- refusals
@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_rejected_request_is_a_reply_without_a_verdict(status: int):
    def answers(number: int, body: dict[str, Any]) -> Answer:
        long = "LONG" in body["messages"][0]["content"]
        return (status, "longer than the context; say Correct") if long else chat("Correct")

    told: list[str] = []
    with endpoint(answers) as (url, seen):
        ask = client(url, told.append, retries=2)
        replies = ask(["a", "LONG", "b", "too LONG"])
        refused = f"HTTP {status}: 'longer than the context; say Correct'"
        assert replies == [Reply("Correct"), Reply("", refused), Reply("Correct"), Reply("", refused)]
        assert len(seen) == 4  # nothing twice
        ask(["LONG"])
    assert len(told) == 1 and refused in told[0] and "counts as a reply without a verdict" in told[0]
    cases = [judging.Case("q", prediction, ("gold",)) for prediction in ("a", "LONG", "LONG")]
    with endpoint(answers) as (url, seen):
        grades = judging.grade("judge", ssp_card().options(SSPSection).prompts, client(url), cases)
        assert (grades.correct, grades.asked, grades.malformed, grades.refused) == ([True, False, False], 2, 1, 1)
        assert len(seen) == 2


@pytest.mark.parametrize("status", [301, 401, 403, 404, 405])
def test_any_other_error_status_ends_the_run_with_a_clear_error(status: int):
    with endpoint(lambda number, body: (status, "no")) as (url, seen), pytest.raises(judge_client.JudgeError) as caught:
        client(url, retries=2, concurrency=1)(["a", "b"])
    assert len(seen) == 1
    assert f"rejected a request with HTTP {status}: 'no'; check its model" in str(caught.value)


def test_an_endpoint_that_refuses_everything_ends_the_run():
    with endpoint(lambda number, body: (400, "unknown field")) as (url, _):
        ask = client(url)
        assert [bool(reply.refused) for reply in ask(["q"] * 7)] == [True] * 7
        with pytest.raises(
            judge_client.JudgeError, match=r"rejected all 8 requests, the last with HTTP 400.*extra_body"
        ):
            ask(["q"])
    with endpoint(lambda number, body: chat("Wrong") if number == 0 else (400, "no")) as (url, _):
        assert len(client(url, concurrency=1)(["q"] * 20)) == 20  # it has accepted one request


def test_no_message_contains_the_password_of_a_url():
    secret = "http://127.0.0.1:9/v1?key=secret"  # a card with user:password@ is refused before
    for call in (lambda: client(secret, retries=0)(["q"]), lambda: client(secret).probe()):
        with pytest.raises(judge_client.JudgeError) as caught:
            call()
        assert "secret" not in str(caught.value) and "http://127.0.0.1:9/v1" in str(caught.value)


def test_a_silent_server_is_reported_while_the_run_waits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("scope_jax.web.exchange.TELL_EVERY", 0.1)
    told: list[str] = []
    with endpoint(lambda number, body: (503, "busy") if number < 8 else chat("Correct")) as (url, _):
        assert client(url, told.append, retry_delay=0.2, concurrency=4)(["q"] * 4) == [Reply("Correct")] * 4
    assert told and all("(HTTP 503); the run waits up to " in sentence for sentence in told)


def test_extra_fields_survive_the_written_config(tmp_path: Path):
    cfg = judged_by(extra_body={"a": {"b": [1, 2.5, "x", True]}, "c": 1})
    (tmp_path / "card.toml").write_text(to_toml(cfg))
    assert load_card(tmp_path / "card.toml") == cfg


# ----------------------------------------------------------------------------------------------------- keys and counts
def test_answers_are_found_by_the_keys_of_their_requests():
    """Also those of equal requests, and those that were retried or rejected."""

    def send(requests: Sequence[str], again: bool) -> list[Reply]:
        texts = {"a": "1", "b": "2" if again else "two", "c": "three", "d": ""}
        return [Reply(texts[request[0]], refused="too long" if request[0] == "d" else "") for request in requests]

    def read(reply: str) -> int | None:
        return int(reply) if reply.isdigit() else None

    replies = asking.ask(send, ["a", "b", "a", "c", "d"], read, nudge="as a number")
    keys = [("first", 0), ("first", 1), ("second", 0), ("second", 1), ("third", 0)]
    answers = replies.by(keys)
    assert {key: answer.read for key, answer in answers.items()} == dict(zip(keys, (1, 2, 1, None, None), strict=True))
    assert [reply.text for reply in answers["first", 1].given] == ["two", "2"]
    assert [len(answers[key].given) for key in keys] == [1, 2, 1, 2, 1]
    with pytest.raises(ValueError, match="longer"):
        replies.by(keys[:4])
    assert (replies.asked, replies.retried, replies.malformed, replies.refused) == (4, 2, 2, 1)
    assert asking.Replies([], []).by([]) == {}
