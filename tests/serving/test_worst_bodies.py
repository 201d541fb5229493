"""Bodies that cost much: refused soon, without holding up others; and who may ask at all."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import grpc
import httpx
import pytest
from typer.testing import CliRunner

from scope_jax.cli import app
from scope_jax.rollouts.jetstream import proto as pb
from scope_jax.rollouts.jetstream import proto_grpc
from scope_jax.serving.assemble import Served
from scope_jax.serving.protocol import ApiError, ChatBody, CompletionBody, parsed
from tests.serving.world import JSON, ROOT, serving
from tests.torture import bodies

WORST = bodies.worst("atlas")


def with_limits(model: Served, **limits: Any) -> Served:
    """The model with other limits in [serve]."""
    serve = model.cfg.serve.model_copy(update=limits)
    return replace(model, cfg=model.cfg.model_copy(update={"serve": serve}))


@pytest.fixture(scope="module")
def told(model: Served) -> Iterator[dict[str, Any]]:
    with serving(with_limits(model, max_body=1 << 20), grpc=True) as told:
        yield told


def test_worst_bodies_have_at_most_a_mebibyte_and_say_json() -> None:
    assert len(WORST) == 10
    for path, body in WORST.values():
        assert len(body) <= bodies.MEBIBYTE and json.loads(body)["model"] == "atlas" and path.startswith("/v1/")


@pytest.mark.parametrize("name", WORST)
def test_a_bad_body_is_refused_with_one_short_sentence(name: str, told: dict[str, Any]) -> None:
    path, body = WORST[name]
    began = time.process_time()  # the server's, too
    url = told["http"].removesuffix("/v1") + path
    reply = httpx.post(url, content=body, headers=JSON, trust_env=False, timeout=120)
    assert reply.status_code == 400 and time.process_time() - began < 3
    assert len(reply.json()["error"]["message"]) < 300


@pytest.mark.parametrize(
    ("kind", "body", "sentence"),
    [
        (ChatBody, {"messages": [{}] * 9000}, "`messages.0.role`: Field required."),
        (ChatBody, {"messages": [{"role": "user", "content": "x"}] * 4097}, "at most 4096 items"),
        (ChatBody, {f"key{i}": i for i in range(2000)}, "an object of 2001 fields"),
        (ChatBody, {"messages": [{f"k{i}": 1 for i in range(2000)}]}, "an object of 2000 fields"),
        (ChatBody, {"messages": [{"role": "user", "content": [{"text": "x"}] * 9000}]}, "a message's content is text"),
        (
            ChatBody,
            {"messages": [{"role": "user", "content": "x"}], "x" * 100_000: 1},
            "x`: is not a field of this request.",
        ),
        (ChatBody, {"stop": ["a"] * 100_000, "messages": []}, "at most 16 items"),
        (CompletionBody, {"prompt": [1.5] * 100_000}, "a prompt is text or token ids"),
        (CompletionBody, {"prompt": ["x"] * 100_000 + [1]}, "a prompt is text or token ids"),
        (CompletionBody, {"prompt": [[1]] * 5000 + [["x"]]}, "a prompt is text or token ids"),
        (CompletionBody, {"prompt": [[1]] * 20_000}, "more than 16384 arrays and objects"),
    ],
)
def test_the_first_error_is_said(kind: Any, body: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ApiError) as caught:
        parsed(kind, json.dumps({"model": "m"} | body).encode())
    assert sentence in str(caught.value) and len(str(caught.value)) < 200


def test_texts_beyond_the_model_are_refused_before_they_are_encoded(
    told: dict[str, Any], model: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(*_: object, **__: object) -> None:
        raise AssertionError("it was encoded")

    for name in ("encode", "encode_marked", "encode_chat", "special_names"):
        monkeypatch.setattr(model.tokenizer, name, encode)
    stub_of = proto_grpc.OrchestratorStub
    for text in ("word " * 20_000, "<|im_end|>" * 150):
        for path, field in (("completions", text), ("chat/completions", [{"role": "user", "content": text}])):
            body = {"model": "atlas", "prompt" if path == "completions" else "messages": field}
            error = httpx.post(f"{told['http']}/{path}", json=body, trust_env=False).json()["error"]
            assert error["code"] == "context_length_exceeded" and "has at least" in error["message"]
        wish = pb.DecodeRequest(text_content=pb.DecodeRequest.TextContent(text=text), max_tokens=2)
        with grpc.insecure_channel(told["grpc"]) as channel, pytest.raises(grpc.RpcError) as refused:
            list(stub_of(channel).Decode(wish))
        details: Any = refused.value
        assert details.code() is grpc.StatusCode.INVALID_ARGUMENT and "has at least" in details.details()


def test_what_one_client_sends_holds_up_no_other(
    told: dict[str, Any], model: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large bodies are read one after the other, in a thread of their own; small ones and health are answered."""
    reading, done = threading.Event(), threading.Event()
    encode = model.tokenizer.encode_chat

    begun = []

    def slow(messages: Any, *more: Any, **options: Any) -> list[int]:
        if len(messages) > 1:
            begun.append(done.is_set())
            reading.set()
            done.wait(30)
        return encode(messages[:1], *more, **options)

    monkeypatch.setattr(model.tokenizer, "encode_chat", slow)
    url, chat = told["http"], {"model": "atlas", "max_tokens": 1, "messages": [{"role": "user", "content": ""}]}
    large = chat | {"messages": chat["messages"] * 1000}
    with ThreadPoolExecutor(60) as pool:
        replies = [
            pool.submit(httpx.post, f"{url}/chat/completions", json=large, trust_env=False, timeout=60)
            for _ in range(40)
        ]
        assert reading.wait(30)
        soon: dict[str, Any] = {"trust_env": False, "timeout": 25}  # before the large one is done
        assert httpx.post(f"{url}/chat/completions", json=chat, **soon).status_code == 200
        assert httpx.get(url.removesuffix("/v1") + "/health", **soon).status_code == 200
        assert begun == [False]  # the first large one is still being read
        while not any(reply.done() for reply in replies):
            time.sleep(0.01)
        done.set()
        statuses = [reply.result().status_code for reply in replies]
    assert set(statuses) == {200, 503} and statuses.count(200) >= 30


def test_pages_of_browsers_are_refused(told: dict[str, Any], model: Served) -> None:
    url, chat = told["http"], {"model": "atlas", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}

    def status(url: str, **headers: str) -> tuple[int, int]:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        read = httpx.get(f"{url}/models", headers=given, trust_env=False)
        body = json.dumps(chat).encode()
        wrote = httpx.post(f"{url}/chat/completions", content=body, headers=JSON | given, trust_env=False)
        return read.status_code, wrote.status_code

    assert status(url) == (200, 200)
    assert status(url, Host="evil.example") == (400, 400)
    assert status(url, Origin="http://evil.example") == status(url, Origin="null") == (403, 403)
    assert status(url, Content_Type="text/plain") == (200, 415)
    reply = httpx.get(url.removesuffix("/v1") + "/metrics", headers={"Host": "evil.example"}, trust_env=False)
    assert reply.status_code == 400 and reply.json()["error"]["type"] == "invalid_request_error"
    with serving(model, key="secret") as other:
        key = {"Authorization": "Bearer secret"}
        assert status(other["http"], Host="any.example", **key) == (200, 200)
        assert status(other["http"], Content_Type="text/plain", **key) == (200, 415)
    with serving(model, hosts=["lab.example"]) as other:
        assert status(other["http"], Host="lab.example:9") == (200, 200)
        assert status(other["http"], Host="other.example:9") == (400, 400)


def test_a_client_that_sends_half_a_body_holds_no_place(told: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from scope_jax.web import guard as web

    monkeypatch.setattr(web, "BODY_SECONDS", 0.3)
    port = int(told["http"].removesuffix("/v1").rpartition(":")[2])
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(head + b"Content-Length: 99\r\n\r\n{")
        said = b"".join(iter(lambda: client.recv(1000), b""))
    assert b" 408 " in said and b'"invalid_request_error"' in said


@pytest.mark.parametrize(
    "words", [("serve", "{base}"), ("search", "ssp/atlas", "--index", "{tmp}"), ("report", "{tmp}")]
)
def test_a_wrong_name_is_one_sentence(words: tuple[str, ...], tmp_path: Any) -> None:
    given = [word.format(base=ROOT / "assets/atlas/ssp/base", tmp=tmp_path) for word in words]
    given += ["--watch"] if words[0] == "report" else ["--port", "0"]
    result = CliRunner().invoke(app, [*given, "--trusted-host", "http://x"])
    assert result.exit_code == 2 and "'http://x' is not the name of a host" in result.stderr
    assert "Traceback" not in result.output


def test_a_name_without_a_server_is_refused(tmp_path: Any) -> None:
    result = CliRunner().invoke(app, ["report", str(tmp_path), "--trusted-host", "x"])
    assert result.exit_code == 2 and "add --watch" in result.stderr
