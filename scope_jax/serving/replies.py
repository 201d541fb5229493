"""Replies in OpenAI's protocol, whole or as server-sent events, of chat and of plain completions."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from scope_jax.rollouts.online import Done, News, Sampled
from scope_jax.rollouts.texts import TextStream
from scope_jax.rollouts.types import Completion
from scope_jax.serving.assemble import Served
from scope_jax.serving.functions import reader
from scope_jax.serving.generating import Job, Stream
from scope_jax.serving.protocol import ApiError
from scope_jax.text import openai

FINISH = {"stop": "stop", "eos": "stop", "cut": "stop", "length": "length", "overflow": "length", "turns": "length"}


@dataclass
class Choice:
    """One sample: its text so far, and its tokens with their log-probs."""

    model: Served
    job: Job
    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str | None = None
    sampled: int = 0  # tokens, with end tokens
    calls: list[dict[str, Any]] = field(default_factory=list)  # of functions of the client, once it is finished

    def __post_init__(self) -> None:
        self._stream = self._turn()
        self._reader = reader(self.model, self.job.functions, self.job.prompts[0], self.job.channels)

    def _turn(self) -> TextStream:
        return TextStream(self.model.tokenizer, self.job.params.stop_ids, self.job.stops)

    def take(self, news: News) -> tuple[str, list[int], list[float]]:
        """(text, ids, log-probs) that the news add."""
        ids: list[int] = []
        logprobs: list[float] = []
        if isinstance(news, Sampled):
            self.sampled += len(news.ids)
            pairs = [pair for pair in zip(news.ids, news.logprobs, strict=True) if pair[0] not in self._ends]
            ids, logprobs = [id for id, _ in pairs], [logprob for _, logprob in pairs]
            text = self._stream.feed(ids)
            if self._reader is not None:
                text = self._reader.feed(text)
        elif isinstance(news, Done):
            assert isinstance(news.completion, Completion)
            text, self.finish = self._stream.finish(), FINISH[news.completion.finish_reason]
            if self._reader is not None:
                text = self._reader.feed(text)
                rest, calls = self._reader.finish()
                text, self.calls = text + rest, openai.tool_calls(calls)
                self.finish = "tool_calls" if calls and self.finish == "stop" else self.finish
        else:  # results of a search
            text, self._stream = self._stream.finish() + news.text, self._turn()
        self.text += text
        self.ids += ids
        self.logprobs += logprobs
        return text, ids, logprobs

    def message(self) -> dict[str, Any]:
        """The whole message of a chat."""
        if not self.calls:
            return _message(self.text)
        return {**_message(self.text or None), "tool_calls": self.calls}

    @property
    def _ends(self) -> tuple[int, ...]:
        return self.job.params.stop_ids


class ServedReply:
    """One request's reply. kind: "chat" or "text". logprobs: whether they were asked for."""

    def __init__(self, model: Served, job: Job, kind: str, logprobs: bool) -> None:
        self.choices = [Choice(model, job) for _ in range(job.size)]
        self._model, self._job, self._chat, self._logprobs = model, job, kind == "chat", logprobs
        self._head = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": "chat.completion" if self._chat else "text_completion",
            "created": int(time.time()),
            "model": model.name,
        }

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self._job.prompts))

    @property
    def sampled_tokens(self) -> int:
        return sum(choice.sampled for choice in self.choices)

    def usage(self) -> dict[str, int]:
        """Tokens of the prompts, sampled tokens, and their sum; results of searches are not counted."""
        return openai.usage(self.prompt_tokens, self.sampled_tokens)

    async def whole(self, stream: Stream) -> dict[str, Any]:
        """The reply once all samples are done."""
        async for number, news in stream.news():
            await self._take(self.choices[number], news)
        choices = [
            {
                "index": number,
                **({"message": choice.message()} if self._chat else {"text": choice.text}),
                "logprobs": self._probs(choice.ids, choice.logprobs),
                "finish_reason": choice.finish,
            }
            for number, choice in enumerate(self.choices)
        ]
        return {**self._head, "choices": choices, "usage": self.usage()}

    async def events(self, stream: Stream, with_usage: bool) -> AsyncIterator[bytes]:
        """The reply as server-sent events. An error after the first of them becomes an event as well."""
        head = {**self._head, "object": "chat.completion.chunk"} if self._chat else self._head
        try:
            if self._chat:
                begin = {"delta": _message("" if self._job.functions is None else None)}
                for number in range(len(self.choices)):
                    yield openai.event(head | {"choices": [_chunk(number, begin, None, None)]})
            async for number, news in stream.news():
                choice = self.choices[number]
                text, ids, logprobs = await self._take(choice, news)
                if choice.calls and text:
                    yield openai.event(head | {"choices": [_chunk(number, {"delta": {"content": text}}, None, None)]})
                    text = ""
                for index, call in enumerate(choice.calls):
                    delta = {"tool_calls": [{"index": index, **call}]}
                    yield openai.event(head | {"choices": [_chunk(number, {"delta": delta}, None, None)]})
                if text or choice.finish or (ids and self._logprobs):
                    piece: dict[str, Any] = {"text": text}
                    if self._chat:
                        piece = {"delta": {"content": text} if text else {}}
                    yield openai.event(
                        head | {"choices": [_chunk(number, piece, self._probs(ids, logprobs), choice.finish)]}
                    )
            if with_usage:
                yield openai.event(head | {"choices": [], "usage": self.usage()})
            yield b"data: [DONE]\n\n"
        except ApiError as error:
            yield openai.event(error.body)

    async def _take(self, choice: Choice, news: News) -> tuple[str, list[int], list[float]]:
        """`take`; the end of a reply with functions in a thread, as its calls are compared with schemas of others."""
        if isinstance(news, Done) and self._job.functions is not None:
            return await asyncio.to_thread(choice.take, news)
        return choice.take(news)

    def _probs(self, ids: Sequence[int], logprobs: Sequence[float]) -> dict[str, Any] | None:
        if not self._logprobs:
            return None
        spelled = [self._model.tokenizer.token_bytes(id) for id in ids]
        tokens = [some.decode("utf-8", "replace") for some in spelled]
        if not self._chat:
            return {"tokens": tokens, "token_logprobs": list(logprobs), "top_logprobs": None, "text_offset": []}
        entries = [
            {"token": token, "logprob": logprob, "bytes": list(some), "top_logprobs": []}
            for token, logprob, some in zip(tokens, logprobs, spelled, strict=True)
        ]
        return {"content": entries, "refusal": None}


def _message(text: str | None) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def _chunk(number: int, piece: dict[str, Any], logprobs: Any, finish: str | None) -> dict[str, Any]:
    return {"index": number, **piece, "logprobs": logprobs, "finish_reason": finish}
