"""The loopback endpoint, asked by the real client of OpenAI."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from scope_jax.environments.loopback import ChatRefused, ChatReply, ChatRequest, Endpoint, Loopback
from scope_jax.text.dialects import Call

openai = pytest.importorskip("openai")
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
]


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    server = Loopback()
    yield server
    server.close()


class Script:
    """Answers requests from a list, and keeps them."""

    def __init__(self, *replies: ChatReply | Exception) -> None:
        self.replies, self.requests = list(replies), list[ChatRequest]()

    def __call__(self, request: ChatRequest) -> Future[ChatReply]:
        self.requests.append(request)
        future: Future[ChatReply] = Future()
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            future.set_exception(reply)
        else:
            future.set_result(reply)
        return future


def client(endpoint: Endpoint) -> Any:
    return openai.OpenAI(base_url=endpoint.url, api_key="any", max_retries=0)


def test_a_program_with_tools(loopback):
    script = Script(
        ChatReply("I add.", calls=[Call("add", {"a": 1}), Call("add", {})], prompt_tokens=7, completion_tokens=3),
        ChatReply("It is 2."),
    )
    with loopback.open(script) as endpoint, client(endpoint) as agent:
        messages: list[Any] = [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "1 + "}, {"type": "text", "text": "1?"}]},
        ]
        first = agent.chat.completions.create(model="policy", messages=messages, tools=TOOLS, temperature=0.5)
        choice = first.choices[0]
        assert (choice.finish_reason, choice.message.content, first.usage.total_tokens) == ("tool_calls", "I add.", 10)
        calls = choice.message.tool_calls
        assert [(call.function.name, call.function.arguments) for call in calls] == [("add", '{"a": 1}'), ("add", "{}")]
        assert calls[0].id != calls[1].id
        messages += [choice.message, {"role": "tool", "tool_call_id": calls[0].id, "content": "2"}]
        second = agent.chat.completions.create(model="policy", messages=messages, tools=TOOLS, tool_choice="none")
        assert (second.choices[0].finish_reason, second.choices[0].message.content) == ("stop", "It is 2.")
        assert [model.id for model in agent.models.list()] == ["policy"]
    asked = script.requests[0]
    assert asked.messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
    assert asked.tools == TOOLS and asked.params == {"temperature": 0.5}
    assert script.requests[1].tools == []
    assert script.requests[1].messages[2]["tool_calls"][0]["function"]["name"] == "add"


def test_streams(loopback):
    script = Script(
        ChatReply("grüße", calls=[Call("add", {})], prompt_tokens=1, completion_tokens=2), ChatReply("", cut=True)
    )
    with loopback.open(script) as endpoint, client(endpoint) as agent:
        chunks = list(
            agent.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": "x"}],
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "grüße"
        assert chunks[0].choices[0].delta.tool_calls[0].function.name == "add"
        assert chunks[1].choices[0].finish_reason == "tool_calls" and chunks[2].usage.total_tokens == 3
        cut = list(agent.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=True))
        assert [chunk.choices[0].finish_reason for chunk in cut] == [None, "length"]


def test_requests_of_an_agent_are_answered_in_turn_and_those_of_others_meanwhile(loopback):
    waiting: list[tuple[str, Future[ChatReply]]] = []

    def complete(name: str) -> Any:
        def begin(request: ChatRequest) -> Future[ChatReply]:
            waiting.append((f"{name}{request.messages[0]['content']}", Future()))
            return waiting[-1][1]

        return begin

    endpoints = [loopback.open(complete(name)) for name in "ab"]

    def ask(endpoint: Endpoint, text: str) -> str:
        with client(endpoint) as agent:
            reply = agent.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
        return reply.choices[0].message.content

    def until(number: int) -> list[str]:
        for _ in range(200):
            if len(waiting) >= number:
                break
            time.sleep(0.02)
        return [name for name, _ in waiting]

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(ask, endpoints[0], "1")
        assert until(1) == ["a1"]
        second = pool.submit(ask, endpoints[0], "2")
        other = pool.submit(ask, endpoints[1], "1")
        assert until(2) == ["a1", "b1"]
        waiting[1][1].set_result(ChatReply("other"))
        assert other.result() == "other"
        time.sleep(0.2)
        assert len(waiting) == 2
        waiting[0][1].set_result(ChatReply("first"))
        assert first.result() == "first" and until(3) == ["a1", "b1", "a2"]
        waiting[2][1].set_result(ChatReply("second"))
        assert second.result() == "second"


def test_what_cannot_be_answered(loopback):
    script = Script(ChatRefused("The conversation is too long.", "context_length_exceeded"), KeyError("a bug"))
    with loopback.open(script) as endpoint, client(endpoint) as agent:

        def refused(**fields: Any) -> Any:
            with pytest.raises(openai.APIStatusError) as failed:
                agent.chat.completions.create(
                    **{"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
                )
            return failed.value

        too_long = refused()
        assert (too_long.status_code, too_long.code) == (400, "context_length_exceeded")
        assert "too long" in str(too_long) and endpoint.failure is None
        assert refused().status_code == 500 and isinstance(endpoint.failure, KeyError)
        for fields, word in [
            ({"n": 2}, "`n`"),
            ({"logprobs": True}, "`logprobs`"),
            ({"tools": TOOLS, "tool_choice": "required"}, "`tool_choice`"),
            ({"tools": [3]}, "`tools`"),
            ({"response_format": {"type": "json_object"}}, "`response_format`"),
            ({"messages": []}, "`messages`"),
            ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0"),
            (
                {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
                "content",
            ),
            ({"messages": [{"role": "user", "content": 3}]}, "content"),
        ]:
            error = refused(**fields)
            assert error.status_code == 400 and word in str(error), fields
        plain = httpx.post(
            f"{endpoint.url}/chat/completions", content=b"{", headers={"Content-Type": "application/json"}
        )
        assert plain.status_code == 400 and "not JSON" in plain.text
        page = httpx.post(f"{endpoint.url}/chat/completions", json={}, headers={"Host": "evil.example"})
        assert page.status_code == 400 or page.status_code == 403 or page.status_code == 421
    assert len(script.requests) == 2


def test_the_secret_opens_one_endpoint_until_it_is_closed(loopback):
    script = Script(ChatReply("x"))
    endpoint = loopback.open(script)
    other = endpoint.url.replace(endpoint.url.split("/")[3], "guess")
    assert "guess" in other and endpoint.url not in repr(loopback)
    body = {"messages": [{"role": "user", "content": "x"}]}
    assert httpx.post(f"{other}/chat/completions", json=body).status_code == 404
    assert httpx.post(f"{endpoint.url}/chat/completions", json=body).status_code == 200
    endpoint.close()
    gone = httpx.post(f"{endpoint.url}/chat/completions", json=body)
    assert gone.status_code == 404 and "has ended" in gone.json()["error"]["message"]


def test_a_request_under_way_ends_with_its_endpoint_and_with_its_client(loopback):
    begun = threading.Event()
    futures: list[Future[ChatReply]] = []

    def complete(_: ChatRequest) -> Future[ChatReply]:
        futures.append(Future())
        begun.set()
        return futures[-1]

    body = {"messages": [{"role": "user", "content": "x"}]}
    endpoint = loopback.open(complete)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(httpx.post, f"{endpoint.url}/chat/completions", json=body, timeout=20)
        assert begun.wait(10)
        endpoint.close()
        assert waiting.result().status_code == 404
    assert futures[0].cancelled()
    endpoint = loopback.open(complete)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{endpoint.url}/chat/completions", json=body, timeout=0.5)
    for _ in range(100):
        if futures[1].cancelled():
            break
        time.sleep(0.05)
    assert futures[1].cancelled()  # and the next request has its turn

    async def two() -> list[int]:
        async with httpx.AsyncClient(timeout=20) as http:
            tasks = [asyncio.create_task(http.post(f"{endpoint.url}/chat/completions", json=body)) for _ in range(2)]
            for number in (2, 3):
                while len(futures) <= number:
                    await asyncio.sleep(0.02)
                futures[number].set_result(ChatReply(json.dumps({"number": number})))
            return [(await task).status_code for task in tasks]

    assert asyncio.run(two()) == [200, 200]


def test_a_server_that_was_closed_starts_again(loopback):
    loopback.open(Script())
    loopback.close()
    with loopback.open(Script(ChatReply("again"))) as endpoint, client(endpoint) as agent:
        reply = agent.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])
        assert reply.choices[0].message.content == "again"
