"""serve, search and chat as processes and as a user types them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import httpx2
import pytest
from typer.testing import CliRunner

from scope_jax.cli import app
from scope_jax.rollouts.jetstream import proto, proto_grpc
from scope_jax.serving.assemble import Served
from scope_jax.serving.talk import shown, talk
from tests.serving import world
from tests.serving.test_api import greedy, said, user

ROOT = world.ROOT
SETS = [word for one in world.SETTINGS for word in ("--set", one)]


@contextmanager
def process(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A command that serves, and its address; it is killed at the end if it still runs."""
    started = subprocess.Popen(
        [sys.executable, "-m", "scope_jax", *words],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"SCOPE_JAX_TEST_KEY": "secret"},
    )
    assert started.stderr is not None
    try:
        lines = []
        while "http://" not in (lines or [""])[-1]:
            lines.append(started.stderr.readline())
            assert lines[-1], "".join(lines)
        yield started, lines[-1].split()[-1]
    finally:
        started.kill()
        started.wait()
        started.stderr.close()


def test_wrong_uses_are_one_sentence(tmp_path: Path):
    def refused(*words: object) -> str:
        result = CliRunner().invoke(app, [str(word) for word in words])
        assert result.exit_code == 2, result.output
        return result.stderr

    assert "does not exist" in refused("serve", tmp_path / "none")
    assert "neither a run" in refused("serve", tmp_path, "--port", 0)
    assert "give a key with --api-key-env" in refused("serve", tmp_path, "--host", "0.0.0.0")
    assert "choose another --port or --host" in refused("serve", tmp_path, "--host", "a..b", "--api-key-env", "PATH")
    assert "NO_SUCH_KEY holds no key" in refused("serve", tmp_path, "--api-key-env", "NO_SUCH_KEY")
    assert "remove --policy" in refused("serve", world.BASE, "--port", 0, "--policy", "solver")
    assert "nothing to search" in refused("chat", world.BASE, "--search")
    assert "give one with --index" in refused("search", ROOT / "configs/ssp/atlas.toml")


def test_a_conversation_in_the_terminal(model: Served):
    text: list[str] = []
    lines = ["Search and answer.\nQuestion: What is the capital of Norway?", "", "/new", "word " * 200, "/quit", "no"]
    talk(model, lines, text.append, system=None, temperature=0.0, max_tokens=60, seed=0)
    whole = "".join(text)
    assert model.joiner is not None
    reply, refusal = whole.split("\n[", 1)
    assert model.joiner.dialect.stops("search")[0] in reply and "this server takes 127" in refusal
    assert shown("a\x1b[2Jb\x9bc\r\n") == "a?[2Jb?c?\n"


@pytest.mark.slow
def test_sigterm_lets_replies_finish_and_exits_with_0():
    words = ("serve", str(world.BASE), "--port", "0", "--name", "atlas", "--api-key-env", "SCOPE_JAX_TEST_KEY")
    with process(*words, *SETS) as (server, url), ThreadPoolExecutor(1) as pool:
        headers = {"Authorization": "Bearer secret"}
        body = {"model": "atlas", "prompt": [5] * 20, "max_tokens": 100, "temperature": 3.0, "n": 8}
        reply = pool.submit(httpx.post, f"{url}/completions", json=body, headers=headers, timeout=120, trust_env=False)
        time.sleep(0.3)
        server.send_signal(signal.SIGTERM)
        assert reply.result().status_code == 200
        assert server.wait(60) == 0
        assert server.stderr is not None and server.stderr.read().splitlines() == ["the server has ended"]


@pytest.mark.slow
def test_a_thousand_requests_over_both_protocols(model: Served):
    """Concurrent batches of 32 with cancelled and malformed requests in between: none wrong, none lost."""
    import openai

    asked = world.questions(1000)
    with world.serving(model, grpc=True) as told:
        url = told["http"]
        client: Any = openai.OpenAI(base_url=url, api_key="none", http_client=httpx2.Client(trust_env=False))
        chats = [model.tokenizer.encode_chat(user(text)) for text in asked]
        plain = [model.tokenizer.encode(text) for text in asked]
        limits = [random.Random(number).randint(1, 40) for number in range(1000)]
        expected = {
            kind: [said(model, one) for one in greedy(model, prompts, limits)]
            for kind, prompts in (("chat", chats), ("grpc", plain))
        }

        def ask(number: int) -> str:
            if number % 50 == 7:  # goes away
                with pytest.raises(httpx.ReadTimeout):
                    httpx.post(
                        f"{url}/completions",
                        json={"model": "atlas", "prompt": [5] * 20, "max_tokens": 100, "temperature": 3.0},
                        timeout=0.02,
                        trust_env=False,
                    )
            if number % 50 == 9:
                bad = httpx.post(f"{url}/chat/completions", content=b'{"model":', headers=world.JSON, trust_env=False)
                assert bad.status_code == 400
            chat = {"model": "atlas", "messages": user(asked[number]), "max_tokens": limits[number], "temperature": 0}
            if number % 2:
                return client.chat.completions.create(**chat).choices[0].message.content
            return "".join(
                c.choices[0].delta.content or "" for c in client.chat.completions.create(**chat, stream=True)
            )

        with ThreadPoolExecutor(24) as pool:
            assert list(pool.map(ask, range(1000))) == expected["chat"]
        with grpc.insecure_channel(told["grpc"]) as channel, ThreadPoolExecutor(24) as pool:
            stub = proto_grpc.OrchestratorStub(channel)
            pb = proto.DecodeRequest

            def call(number: int) -> str:
                if number % 50 == 7:
                    gone = stub.Decode(pb(token_content=pb.TokenContent(token_ids=[5] * 20), max_tokens=100))
                    gone.cancel()
                wish = pb(text_content=pb.TextContent(text=asked[number]), max_tokens=limits[number])
                return "".join(s.text for reply in stub.Decode(wish) for s in reply.stream_content.samples)

            assert list(pool.map(call, range(1000))) == expected["grpc"]
        world.wait_until_idle(model)
        assert model.rollouts.failure is None
        assert httpx.get(url.removesuffix("/v1") + "/health", trust_env=False).status_code == 200


@pytest.mark.slow
def test_ten_thousand_queries_to_the_search_server(model: Served, tmp_path: Path):
    """The server's hits equal those of the index in this process; oversized and malformed bodies are refused."""
    words = ("search", "configs/ssp/atlas.toml", "--index", str(tmp_path / "index"), "--port", "0")
    queries = [f"{text.split('Question: ')[1]} {number}" for number, text in enumerate(world.questions(10_000))]
    from scope_jax.games import load_card
    from scope_jax.run.indexing import open_or_build_index

    card = load_card(ROOT / "configs/ssp/atlas.toml").retrieval
    assert card is not None
    own = open_or_build_index(card.model_copy(update={"index": str(tmp_path / "own")}), tmp_path, None)
    expected = [[f'"{hit.document.title}"\n{hit.document.text}' for hit in hits] for hits in own(queries, 3)]
    with process(*words) as (server, url), httpx.Client(trust_env=False, timeout=120) as client:

        def ask(first: int) -> list[list[str]]:
            reply = client.post(url, json={"queries": queries[first : first + 20], "topk": 3})
            return [[document["contents"] for document in hits] for hits in reply.json()["result"]]

        with ThreadPoolExecutor(16) as pool:
            found = [hits for part in pool.map(ask, range(0, 10_000, 20)) for hits in part]
        assert found == expected
        assert client.post(url, content=b"{" * 100, headers=world.JSON).status_code == 400
        assert client.post(url, content=b" " * (5 << 20), headers=world.JSON).status_code == 413
        assert client.post(url, json={"queries": ["x" * 5000]}).status_code == 400
        assert client.post(url, json={"queries": ["x"], "topk": 10**9}).status_code == 400
        assert client.post(url, json={"queries": ["still there"]}).status_code == 200
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
