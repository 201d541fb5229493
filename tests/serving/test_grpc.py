"""JetStream's own stub against our service."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import grpc
import pytest

from scope_jax.rollouts.jetstream import proto as pb
from scope_jax.rollouts.jetstream import proto_grpc
from scope_jax.serving.assemble import Served
from tests.serving.test_api import greedy, said
from tests.serving.world import questions, serving, wait_until_idle


@pytest.fixture(scope="module")
def stub(model: Served) -> Iterator[Any]:
    with serving(model, grpc=True) as told, grpc.insecure_channel(told["grpc"]) as channel:
        yield proto_grpc.OrchestratorStub(channel)


def wish(prompt: str | list[int], max_tokens: int = 12, **more: Any) -> Any:
    if isinstance(prompt, str):
        return pb.DecodeRequest(text_content=pb.DecodeRequest.TextContent(text=prompt), max_tokens=max_tokens, **more)
    return pb.DecodeRequest(
        token_content=pb.DecodeRequest.TokenContent(token_ids=prompt), max_tokens=max_tokens, **more
    )


def answer(replies: Any) -> tuple[str, list[int]]:
    samples = [sample for reply in replies for sample in reply.stream_content.samples]
    return "".join(sample.text for sample in samples), [id for sample in samples for id in sample.token_ids]


def test_the_stub_gets_what_is_generated_offline(model: Served, stub: Any):
    asked = questions(16)
    prompts = [model.tokenizer.encode(text) for text in asked]
    expected = greedy(model, prompts, 12)
    wishes = [wish(text if i % 2 else ids) for i, (text, ids) in enumerate(zip(asked, prompts, strict=True))]
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda one: answer(stub.Decode(one)), wishes))
    ends = model.tokenizer.eos_ids
    assert replies == [(said(model, c), [id for id in c.ids_T.tolist() if id not in ends]) for c in expected]
    assert stub.HealthCheck(pb.HealthCheckRequest()).is_live


def test_strings_of_the_card_end_a_reply(model: Served):
    (prompt,) = questions(1)
    (whole,) = greedy(model, [model.tokenizer.encode(prompt)], 12)
    text = said(model, whole)
    stop = text[5:8]
    cfg = model.cfg.model_copy(update={"model": model.cfg.model.model_copy(update={"stop": (stop,)})})
    with serving(replace(model, cfg=cfg), grpc=True) as told, grpc.insecure_channel(told["grpc"]) as channel:
        reply, ids = answer(proto_grpc.OrchestratorStub(channel).Decode(wish(prompt)))
    assert reply == text.partition(stop)[0] and len(ids) < len(whole.ids_T)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (pb.DecodeRequest(max_tokens=3), "no content"),
        (wish(""), "at least one token"),
        (wish([10**6]), "at least one token"),
        (wish([1], max_tokens=0), "max_tokens is 0"),
        (wish([1], max_tokens=101), "1 to 100"),
        (wish([1] * 100, max_tokens=50), "together this server takes 128"),
        (wish([1], session_cache="{}"), "session_cache"),
    ],
)
def test_bad_requests_get_invalid_argument(stub: Any, bad: Any, sentence: str):
    with pytest.raises(grpc.RpcError) as refused:
        answer(stub.Decode(bad))
    error: Any = refused.value
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT and sentence in error.details()


def test_cancelled_calls_free_their_slots(model: Served, stub: Any):
    calls = [stub.Decode(wish([5] * 20, 100)) for _ in range(20)]
    next(iter(calls[0]))
    for call in calls:
        call.cancel()
    wait_until_idle(model)
    assert answer(stub.Decode(wish([1, 2], 2)))[1]


def test_numbers_that_are_not_finite_are_an_error_of_the_server(model: Served, monkeypatch: pytest.MonkeyPatch):
    params = model.rollouts.params
    broken = {**params, "embed": {key: table.at[7].set(float("nan")) for key, table in params["embed"].items()}}
    with serving(model, grpc=True) as told, grpc.insecure_channel(told["grpc"]) as channel:
        monkeypatch.setattr(model.rollouts.loop, "params", broken)
        own = proto_grpc.OrchestratorStub(channel)
        with pytest.raises(grpc.RpcError) as failed:
            answer(own.Decode(wish([7, 5])))
        error: Any = failed.value
        assert error.code() is grpc.StatusCode.INTERNAL and "no finite logits" in error.details()
    wait_until_idle(model)
