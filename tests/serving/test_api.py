"""OpenAI's protocol, asked by OpenAI's client: replies equal greedy generation offline, bad requests harm nobody."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import httpx2
import openai
import pytest

from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.retrieval.search import Hit, SearchTool
from scope_jax.rollouts.types import Completion, Request, SamplingParams
from scope_jax.serving.assemble import Served
from scope_jax.serving.generating import chat_job
from scope_jax.serving.protocol import ApiError, ChatBody, CompletionBody, parsed
from tests.serving.world import BASE, JSON, offline, questions, serving, wait_until_idle


@pytest.fixture(scope="module")
def url(model: Served) -> Iterator[str]:
    with serving(model) as told:
        yield told["http"]


@pytest.fixture(scope="module")
def client(url: str) -> Any:
    return openai.OpenAI(base_url=url, api_key="none", max_retries=0, http_client=httpx2.Client(trust_env=False))


def greedy(model: Served, prompts: Sequence[Sequence[int]], tokens: int | Sequence[int]) -> list[Completion]:
    """tokens: most of all replies, or of each."""
    limits = [tokens] * len(prompts) if isinstance(tokens, int) else tokens
    requests = [
        Request(
            list(prompt),
            SamplingParams(0.0, 0, 1.0, limit, (), model.tokenizer.eos_ids, False),
            None,
            None,
            max_turns=1,
            respond=None,
        )
        for prompt, limit in zip(prompts, limits, strict=True)
    ]
    return offline(model).run(requests)


def user(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def said(model: Served, completion: Completion) -> str:
    return model.tokenizer.decode(id for id in completion.ids_T.tolist() if id not in model.tokenizer.eos_ids)


def test_concurrent_replies_equal_greedy_generation_offline(model: Served, client: Any):
    asked = questions(30)
    prompts = [model.tokenizer.encode_chat(user(text)) for text in asked]
    expected = greedy(model, prompts, 12)

    def ask(number: int) -> tuple[str, int, list[float]]:
        chat = {"model": "atlas", "messages": user(asked[number]), "max_tokens": 12, "temperature": 0}
        if number % 3 == 0:
            chunks = list(
                client.chat.completions.create(
                    **chat, stream=True, stream_options={"include_usage": True}, logprobs=True
                )
            )
            choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
            assert choices[-1].finish_reason in ("stop", "length")
            entries = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
            text = "".join(choice.delta.content or "" for choice in choices)
            return text, chunks[-1].usage.completion_tokens, [entry.logprob for entry in entries]
        if number % 3 == 1:
            reply = client.chat.completions.create(**chat, logprobs=True)
            probs = [entry.logprob for entry in reply.choices[0].logprobs.content]
            return reply.choices[0].message.content, reply.usage.completion_tokens, probs
        reply = client.completions.create(
            model="atlas", prompt=prompts[number], max_tokens=12, temperature=0, logprobs=0
        )
        return reply.choices[0].text, reply.usage.completion_tokens, reply.choices[0].logprobs.token_logprobs

    with ThreadPoolExecutor(10) as pool:
        replies = list(pool.map(ask, range(30)))
    for (text, count, probs), completion in zip(replies, expected, strict=True):
        assert text == said(model, completion) and count == len(completion.ids_T)
        kept = [
            p
            for id, p in zip(completion.ids_T, completion.logprobs_T.tolist(), strict=True)
            if id not in model.tokenizer.eos_ids
        ]
        assert probs == kept  # JSON keeps every bit of a float32


def test_first_tokens_are_timed_once_for_each_streamed_reply(model: Served, client: Any, url: str):
    def counts() -> tuple[float, float]:
        names = ("scope_jax_first_token_seconds_count", "scope_jax_request_seconds_count")
        return tuple(metric(url, name) for name in names)

    first, all_of_it = counts()
    chat: dict[str, Any] = {"model": "atlas", "messages": user(questions(1)[0]), "max_tokens": 6, "temperature": 0}
    for stream in (False, True):
        reply = client.chat.completions.create(**chat, stream=stream)
        if stream:
            assert len(list(reply)) > 2
    assert counts() == (first + 1, all_of_it + 2)


def test_seeds_samples_and_stop_strings(model: Served, client: Any):
    def sample(seed: int | None, **more: Any) -> list[str]:
        reply = client.chat.completions.create(
            model="atlas", messages=user(questions(1)[0]), n=4, seed=seed, max_tokens=16, temperature=1.5, **more
        )
        assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
        return [choice.message.content for choice in reply.choices]

    first = sample(7)
    assert first == sample(7) and len(set(first)) > 1
    assert first != sample(8) and sample(None) != sample(None)
    whole = greedy(model, [model.tokenizer.encode_chat(user(questions(1)[0]))], 12)[0]
    text = said(model, whole)
    stop = text[4:7]
    chat = {"model": "atlas", "messages": user(questions(1)[0]), "max_tokens": 12, "temperature": 0, "stop": stop}
    cut = client.chat.completions.create(**chat).choices[0]
    assert cut.message.content == text[: text.index(stop)] and cut.finish_reason == "stop"
    pieces = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**chat, stream=True)]
    assert "".join(pieces) == cut.message.content


def test_the_server_searches_if_it_is_asked_to(model: Served, client: Any):
    assert model.joiner is not None
    chat = {"model": "atlas", "messages": user(questions(1)[0]), "max_tokens": 90, "temperature": 0}
    found = client.chat.completions.create(**chat, web_search_options={}).choices[0].message.content
    results = model.joiner.dialect.results_of(found)
    assert results and results[0].startswith('Doc 1 (Title: "') and model.joiner.dialect.stops("search")[0] in found
    chunks = client.chat.completions.create(**chat, web_search_options={}, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == found
    assert not model.joiner.dialect.results_of(client.chat.completions.create(**chat).choices[0].message.content)


GOOD = {"model": "atlas", "messages": user("hello"), "max_tokens": 2}


@pytest.mark.parametrize(
    ("change", "param", "sentence"),
    [
        (b"{", None, "is not JSON"),
        (b"[" * 20_000, None, "nested too deep"),
        (b"\xff\xfe", None, "is not JSON"),
        ([], None, "must be a JSON object"),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": "hello"}, "messages", "list"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages", "'system', 'developer', 'user'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "text"),
        ({"messages": user("\ud800")}, None, "surrogate pair"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": 101}, "max_tokens", "100 tokens for a reply"),
        ({"max_tokens": "many"}, "max_tokens", "integer"),
        ({"messages": user("word " * 120)}, None, "this server takes"),
        ({"temperature": -1}, "temperature", "greater than or equal to 0"),
        ({"top_p": 0}, "top_p", "greater than 0"),
        ({"n": 9}, "n", "8 samples"),
        ({"stop": ["a"] * 17}, "stop", "16"),
        ({"stop": ""}, "stop", "at least 1"),
        ({"logprobs": True, "top_logprobs": 5}, "top_logprobs", "the sampled token only"),
        ({"logit_bias": {"3": 1.0}}, "logit_bias", "without biases"),
        ({"frequency_penalty": 0.5}, "frequency_penalty", "without penalties"),
        ({"response_format": {"type": "json_object"}}, "response_format", "free text"),
        ({"temprature": 1}, "temprature", "is not a field"),
        ({"seed": 2**70}, "seed", "less than or equal"),
    ],
)
def test_bad_requests_get_400_and_openais_error(url: str, change: Any, param: str | None, sentence: str):
    body = change if isinstance(change, bytes) else json.dumps(GOOD | change if isinstance(change, dict) else change)
    reply = httpx.post(f"{url}/chat/completions", content=body, headers=JSON, trust_env=False)
    error = reply.json()["error"]
    assert reply.status_code == 400 and error["type"] == "invalid_request_error"
    assert error["param"] == param and sentence in error["message"], error


def test_what_clients_write_where_they_have_nothing_is_left_out():
    empty = {"tools": [], "tool_choice": None, "functions": None, "metadata": None, "stop": None}
    reply = {"role": "assistant", "content": "y", "refusal": None, "tool_calls": None, "annotations": []}
    given = {"model": "m", "messages": [*user("x"), reply, *user("z")]}
    plain = {"model": "m", "messages": [*user("x"), {"role": "assistant", "content": "y"}, *user("z")]}
    assert parsed(ChatBody, json.dumps(given | empty).encode()) == parsed(ChatBody, json.dumps(plain).encode())
    part = {"type": "text", "text": "x", "cache_control": None}
    deep = {"messages": [{"role": "user", "content": [part]}], "stream_options": {"include_obfuscation": None}}
    body = parsed(ChatBody, json.dumps(given | deep).encode())
    assert body.messages[0].text() == "x" and body.stream_options is not None


@pytest.mark.parametrize("depth", [100, 300, 450, 900, 990, 5000])
def test_nesting_is_refused_at_any_depth(depth: int):
    body = b'{"model": "m", "messages": [], "metadata": ' + b"[" * depth + b"]" * depth + b"}"
    with pytest.raises(ApiError):
        parsed(ChatBody, body)


@pytest.mark.parametrize("prompt", [None, 5, [1, "x"], [1, None], {"text": "x"}])
def test_a_prompt_of_another_kind_is_named_as_such(prompt: Any):
    with pytest.raises(ApiError, match=r"^`prompt`: a prompt is text or token ids, one or a list of several\.$"):
        parsed(CompletionBody, json.dumps({"model": "m", "prompt": prompt}).encode())


def test_a_conversation_that_the_template_rejects_is_a_bad_request_with_searches_too(model: Served):
    assert model.joiner is not None
    template = (
        "{% if messages | length > 1 %}{{ raise_exception('one at a time') }}{% endif %}{{ messages[0].content }}"
    )
    strict = Tokenizer.load(BASE, template)
    model = replace(model, tokenizer=strict, joiner=replace(model.joiner, tokenizer=strict))
    for more in ({}, {"web_search_options": {}}):
        body = GOOD | {"messages": [*user("x"), {"role": "assistant", "content": "y"}, *user("z")]} | more
        with pytest.raises(ApiError, match="The chat template rejects the conversation \\(one at a time\\)") as caught:
            chat_job(model, parsed(ChatBody, json.dumps(body).encode()))
        assert caught.value.status == 400 and caught.value.body["error"]["param"] == "messages"


def test_more_samples_than_slots_and_queue_are_no_reason_to_try_again(model: Served):
    serve = model.cfg.serve.model_copy(update={"max_samples": 1000})
    model = replace(model, cfg=model.cfg.model_copy(update={"serve": serve}))
    assert chat_job(model, parsed(ChatBody, json.dumps(GOOD | {"n": 32}).encode())).size == 32
    with pytest.raises(ApiError, match=r"may have 32 samples, prompts times n, no more\.") as caught:
        chat_job(model, parsed(ChatBody, json.dumps(GOOD | {"n": 33}).encode()))
    assert caught.value.status == 400


def test_other_refusals(url: str, model: Served):
    def post(path: str, body: Any) -> httpx.Response:
        return httpx.post(url + path, json=body, trust_env=False)

    assert post("/chat/completions", GOOD | {"model": "gpt"}).json()["error"]["code"] == "model_not_found"
    assert post("/embeddings", {}).status_code == 404 and "error" in post("/embeddings", {}).json()
    assert httpx.get(f"{url}/chat/completions", trust_env=False).status_code == 405
    large = post("/chat/completions", GOOD | {"user": "x" * 20_000})
    assert large.status_code == 413 and "20000 bytes" in large.json()["error"]["message"]
    bad = post("/completions", {"model": "atlas", "prompt": [10**6]})
    assert bad.status_code == 400 and "Token ids" in bad.json()["error"]["message"]
    both = post("/chat/completions", GOOD | {"web_search_options": {}, "stop": "x"})
    assert both.status_code == 400 and both.json()["error"]["param"] == "stop"
    assert httpx.get(f"{url}/models", trust_env=False).json()["data"][0]["id"] == "atlas"
    assert httpx.get(f"{url}/models/atlas", trust_env=False).json()["max_model_len"] == 128
    assert post("/chat/completions", GOOD).status_code == 200


def test_cancelled_requests_free_their_slots_and_too_many_get_429(url: str, model: Served, client: Any):

    body = {"model": "atlas", "prompt": [5] * 20, "max_tokens": 100, "n": 8, "temperature": 3.0, "stream": True}

    def flood() -> None:
        streams = [client.completions.create(**body) for _ in range(40)]
        assert not streams

    with pytest.raises(openai.RateLimitError, match="try again later"):
        flood()
    wait_until_idle(model)
    before = metric(url, "scope_jax_requests_cancelled_total")
    stream = client.completions.create(**body)
    next(iter(stream))
    stream.close()
    gone = threading.Thread(target=leave, args=(url, body | {"stream": False}))
    gone.start()
    gone.join()
    wait_until_idle(model)
    assert metric(url, "scope_jax_requests_cancelled_total") > before
    assert metric(url, "scope_jax_samples_running") == 0
    assert httpx.get(url.removesuffix("/v1") + "/health", trust_env=False).json() == {"status": "ok"}


def leave(url: str, body: dict[str, Any]) -> None:
    """Asks and goes away before there is a reply."""
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/completions", json=body, timeout=0.05, trust_env=False)


def metric(url: str, name: str) -> float:
    text = httpx.get(url.removesuffix("/v1") + "/metrics", trust_env=False).text
    return float(next(line.split()[-1] for line in text.splitlines() if line.startswith(name + " ")))


def test_a_key_is_asked_for_and_an_end_lets_replies_finish(model: Served):
    with serving(model, key="secret") as told:
        url = told["http"]
        assert httpx.get(f"{url}/models", trust_env=False).status_code == 401
        headers = {"Authorization": "Bearer secret"}
        assert httpx.get(f"{url}/models", headers=headers, trust_env=False).status_code == 200
        with ThreadPoolExecutor(1) as pool:
            body = {"model": "atlas", "prompt": [5] * 20, "max_tokens": 60, "temperature": 3.0, "n": 8}
            under_way = pool.submit(
                httpx.post, f"{url}/completions", json=body, headers=headers, timeout=60, trust_env=False
            )
            while not (model.rollouts.running or under_way.done()):
                threading.Event().wait(0.005)
            told["end"]()
            assert under_way.result().status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/models", trust_env=False)


@pytest.mark.parametrize("stream", [False, True])
def test_replies_that_take_too_long_to_end_get_an_error(model: Served, stream: bool):
    """A search hangs; without a grace period the server ends, and says so."""
    asked, answered = threading.Event(), threading.Event()

    def retrieve(queries: Sequence[str], top_k: int) -> list[tuple[Hit, ...]]:
        asked.set()
        answered.wait(60)
        return [()] * len(queries)

    search = SearchTool(
        retrieve, top_k=1, max_tokens=9, truncate=lambda text, _: text, neutralise=lambda text: text, cache_size=1
    )
    body = {"model": "atlas", "messages": user(questions(1)[0]), "max_tokens": 90, "temperature": 0}
    body |= {"web_search_options": {}, "stream": stream}
    with serving(replace(model, search=search), grace=0.0) as told, ThreadPoolExecutor(1) as pool:
        url = f"{told['http']}/chat/completions"
        under_way = pool.submit(httpx.post, url, json=body, timeout=60, trust_env=False)
        assert asked.wait(30)
        told["end"]()
        reply = under_way.result()
    answered.set()
    wait_until_idle(model)
    error = json.loads(reply.text.splitlines()[-2].removeprefix("data: "))["error"] if stream else reply.json()["error"]
    assert reply.status_code == (200 if stream else 503) and error["type"] == "server_error"
    assert error["message"] == "The reply failed: The server is ending."
