"""From a request to tokens: prompts, sampling parameters, and the news of all samples of a request in one stream."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scope_jax.config import SamplingSection
from scope_jax.config.model import RENDERING
from scope_jax.errors import UserError
from scope_jax.play import searching
from scope_jax.play.rollouts import Agent
from scope_jax.play.tool_calls import SEARCH_NAME
from scope_jax.play.tool_execution import run_batches
from scope_jax.play.tool_responder import tool_responder
from scope_jax.play.turns import Joiner
from scope_jax.rollouts.keys import key_data
from scope_jax.rollouts.online import Closed, Done, Full, Listener, News, Ticket, listener_in
from scope_jax.rollouts.types import Request, SamplingParams
from scope_jax.serving import functions as calling
from scope_jax.serving.assemble import Served
from scope_jax.serving.functions import Functions
from scope_jax.serving.protocol import SHOWN, ApiError, Body, ChatBody, CompletionBody
from scope_jax.text import parsing
from scope_jax.text.messages import Messages

SEARCHER = Agent("", SamplingSection(), calls="stop", malformed="end")


@dataclass(frozen=True)
class Job:
    """What is to be sampled: `samples` times each prompt. stops: strings before which a turn's text ends. searches,
    joiner: None unless the model may search. functions: those of the client, None if it has none. channels: the reply
    has channels (gpt-oss), of which the client gets what a user reads."""

    prompts: tuple[tuple[int, ...], ...]
    samples: int
    params: SamplingParams
    stops: tuple[str, ...]
    seed: int | None
    searches: Messages | None = None
    joiner: Joiner | None = None
    functions: Functions | None = None
    channels: bool = False

    @property
    def size(self) -> int:
        return len(self.prompts) * self.samples


def chat_job(model: Served, body: ChatBody) -> Job:
    """Raises ApiError for what cannot be sampled."""
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise ApiError("Give max_completion_tokens or max_tokens, not both.", param="max_tokens")
    max_tokens = body.max_completion_tokens or body.max_tokens
    _check_wish(model, body, max_tokens)
    called = [call.function.arguments for message in body.messages for call in message.tool_calls]
    answered = any(message.tool_call_id is not None for message in body.messages)
    described = json.dumps([tool.given for tool in body.tools], ensure_ascii=False) if body.tools else ""
    thoughts = [message.reasoning_content or message.reasoning or "" for message in body.messages]
    _check_length(model, [*(message.text() for message in body.messages), *thoughts, *called, described])
    messages = calling.conversation(body.messages)
    known = calling.functions_of(model, body)
    functions = None if body.tool_choice == "none" else known
    searches = None
    if body.web_search_options is not None:
        if body.tools or called or answered:
            raise ApiError("web_search_options cannot be used together with tools.", param="web_search_options")
        if model.joiner is None:
            raise ApiError("This server does not search; start it with --search.", param="web_search_options")
        if body.stop:
            raise ApiError("`stop` cannot be used together with web_search_options.", param="stop")
        searches = _conversation(messages, model)
    own = _variables(model, body)
    options: dict[str, Any] = model.cfg.model.chat_template_kwargs | own
    joiner = None
    try:
        if model.joiner is not None and searches is not None:
            joiner = replace(model.joiner, options=options) if own else model.joiner
            prompt = tuple(joiner.prompt(searches))
        elif functions is not None or called or answered:
            prompt = tuple(calling.prompt(model, messages, known, functions is not None, options))
        else:
            prompt = tuple(model.tokenizer.encode_chat(messages, **options))
    except ValueError as error:
        raise ApiError(str(error), param="messages") from None
    job = _job(model, body, [prompt], max_tokens, searches, joiner, functions)
    return replace(job, channels=searches is None and calling.marks(model, prompt) == parsing.ANALYSIS)


def _variables(model: Served, body: ChatBody) -> dict[str, bool | int | str]:
    """Variables of the template that the request sets; as in vLLM, a template may not know them. Raises ApiError for
    what is not a variable's name, or text with the name of a special token, which it would write into the prompt."""
    given, name = body.chat_template_kwargs or {}, "chat_template_kwargs"
    if wrong := [key for key in given if not key.isidentifier() or key in RENDERING or key.endswith("_token")]:
        raise ApiError(f"`{name}`: {wrong[0][:40]!r} is not a variable that a request may set.", param=name)
    texts = [value for value in given.values() if isinstance(value, str)]
    if names := [found for text in texts for found in model.tokenizer.special_names(text)]:
        raise ApiError(f"`{name}`: a variable's text may not hold {names[0]}, a special token.", param=name)
    return given


def _conversation(messages: Sequence[Mapping[str, Any]], model: Served) -> Messages:
    assert model.joiner is not None
    if messages[-1]["role"] != "user":
        raise ApiError("With web_search_options the last message must be the user's.", param="messages")
    head = messages[0]["content"] if messages[0]["role"] == "system" else None
    before = tuple(messages[head is not None : -1])
    return Messages(messages[-1]["content"], head, searching.declared(model.joiner.dialect), before)


def completion_job(model: Served, body: CompletionBody) -> Job:
    """Raises ApiError for what cannot be sampled."""
    _check_wish(model, body, body.max_tokens)
    given: list[Any] = [body.prompt] if isinstance(body.prompt, str) else list(body.prompt)
    if given and isinstance(given[0], int):
        given = [given]
    _check_samples(model, body, len(given))
    for one in given:
        _check_length(model, [one])
    prompts = [_encoded(model, one, body.parse_special) if isinstance(one, str) else tuple(one) for one in given]
    size = model.rollouts.engine.model.vocab_size
    if any(not 0 <= id < size for prompt in prompts for id in prompt):
        raise ApiError(f"Token ids must be from 0 to {size - 1}.", param="prompt")
    return _job(model, body, prompts, body.max_tokens, None)


def _check_wish(model: Served, body: Body, max_tokens: int | None) -> None:
    """Raises ApiError for another model, and for more tokens than a reply may have."""
    if body.model != model.name:
        raise ApiError(
            f"There is no model {body.model[:SHOWN]!r} here; {model.name!r} is.",
            404,
            param="model",
            code="model_not_found",
        )
    if max_tokens is not None and max_tokens > (most := model.cfg.serve.max_tokens):
        raise ApiError(f"This server samples {most} tokens for a reply, no more.", param="max_tokens")


def _check_length(model: Served, parts: Sequence[str | Sequence[int]]) -> None:
    """Raises ApiError for a prompt, of texts or ids, that cannot fit, before it is rendered and encoded."""
    room = model.rollouts.engine.config.max_length
    least = sum(model.tokenizer.least_tokens(part) if isinstance(part, str) else len(part) for part in parts)
    if least >= room:
        raise ApiError(
            f"The prompt has at least {least} tokens; this server takes {room - 1}, so that one can be sampled.",
            code="context_length_exceeded",
        )


def _check_samples(model: Served, body: Body, prompts: int) -> None:
    """Raises ApiError for more samples than a request may have, and more than there are slots and places in the queue,
    which would never be taken."""
    limits, slots = model.cfg.serve, model.rollouts.engine.config.slots
    if prompts * (body.n or 1) > (most := min(limits.max_samples, slots + limits.queue)):
        raise ApiError(f"A request may have {most} samples, prompts times n, no more.", param="n")


def _encoded(model: Served, text: str, special: bool | None) -> tuple[int, ...]:
    """Ids of a prompt. special: whether names of special tokens in it are those tokens; None: raises ApiError if it has
    any, since a prompt that a chat template wrote would become another one without a word."""
    if special:
        return tuple(model.tokenizer.encode_marked(text))
    if special is None and (names := model.tokenizer.special_names(text)):
        raise ApiError(
            f"The prompt holds {names[0]}, the name of a special token: give parse_special = true to read such names "
            "as tokens, false to read them as characters, or send the conversation to /v1/chat/completions.",
            param="prompt",
        )
    return tuple(model.tokenizer.encode(text, start=True))


def plain_ids(model: Served, text: str) -> list[int]:
    """Ids of a text that continues another, for a protocol that has no field for special tokens. Raises ValueError
    for a text with the name of one, which would be encoded as characters, or far longer than the model takes."""
    room = model.rollouts.engine.config.max_length
    if (least := model.tokenizer.least_tokens(text)) >= room:
        raise UserError(f"The text has at least {least} tokens; this server takes {room - 1}.")
    if names := model.tokenizer.special_names(text):
        raise UserError(f"The text holds {names[0]}, the name of a special token; give token_content instead.")
    return model.tokenizer.encode(text)


def _job(
    model: Served,
    body: Body,
    prompts: Sequence[tuple[int, ...]],
    max_tokens: int | None,
    searches: Messages | None,
    joiner: Joiner | None = None,
    functions: Functions | None = None,
) -> Job:
    limits, samples = model.cfg.serve, body.n or 1
    room = model.rollouts.engine.config.max_length
    if not prompts or not all(prompts):
        raise ApiError("A prompt has no token.", param="prompt")
    _check_samples(model, body, len(prompts))
    if (longest := max(map(len, prompts))) >= room:
        raise ApiError(
            f"The prompt has {longest} tokens; this server takes {room - 1}, so that one can be sampled.",
            code="context_length_exceeded",
        )
    if max_tokens is not None and longest + max_tokens > room:
        raise ApiError(
            f"The prompt has {longest} tokens and the reply may have {max_tokens}; together this server takes {room}.",
            param="max_tokens",
            code="context_length_exceeded",
        )
    ends, thought = model.cfg.model.stop, None
    stop = tuple(body.stop or ())
    if joiner is not None:
        stop, thought = joiner.dialect.stops(SEARCH_NAME), joiner.thought
    elif functions is not None and functions.single and not stop:
        stop, thought = functions.stops, calling.marks(model, prompts[0])
    params = SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=max(body.top_k or 0, 0),
        top_p=1.0 if body.top_p is None else body.top_p,
        max_tokens=min(max_tokens or limits.max_tokens, limits.max_tokens),
        stop=stop,
        stop_ids=model.tokenizer.eos_ids,
        tempered_logprobs=False,
        thought=thought,
        tags_in_thinking=model.cfg.model.tags_in_thinking,
        ends=ends,
    )
    stops = (*(() if searches is not None else body.stop or ()), *ends)
    return Job(tuple(prompts), samples, params, stops, body.seed, searches, joiner, functions)


def requests_of(model: Served, job: Job) -> list[Request]:
    """The samples of a job; without a seed, other ones at every call."""
    seed = secrets.randbits(63) if job.seed is None else job.seed
    respond = None
    if job.searches is not None:
        assert job.joiner is not None
        assert model.search is not None
        tools = (searching.search_tool(model.search, job.joiner.dialect),)
        respond = job.joiner.responder(tool_responder("", SEARCHER, tools, run_batches, job.joiner), job.searches)
    group = secrets.token_hex(8)
    return [
        Request(
            prompt_ids=prompt,
            params=job.params,
            key=key_data("serve", seed, place, sample),
            group=f"{group} {place}",
            max_turns=1 if respond is None else model.cfg.serve.max_turns,
            respond=respond,
            max_prompt_tokens=None,
            max_response_tokens=job.params.max_tokens,
            policy=model.adapter,
        )
        for place, prompt in enumerate(job.prompts)
        for sample in range(job.samples)
    ]


class Stream:
    """The samples of a job as they are generated. Used as an async context manager: at its end, whatever still runs is
    cancelled. under_way: holds the streams that are used. Raises ApiError if the engine takes no more."""

    def __init__(self, model: Served, job: Job, under_way: set[Stream]) -> None:
        loop = asyncio.get_running_loop()
        self._under_way = under_way
        self._news: asyncio.Queue[tuple[int, News]] = asyncio.Queue()
        self._left = set(range(job.size))

        def listener(number: int) -> Listener:
            return listener_in(loop, lambda news: self._news.put_nowait((number, news)))

        try:
            self._tickets: list[Ticket] = model.rollouts.submit(
                requests_of(model, job), [listener(number) for number in range(job.size)]
            )
        except Full as error:
            raise ApiError(str(error), 429, kind="rate_limit_error", code="queue_full") from None
        except Closed as error:
            raise ApiError(str(error), 503, kind="server_error") from None
        except ValueError as error:
            raise ApiError(str(error)) from None

    async def __aenter__(self) -> Stream:
        self._under_way.add(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._under_way.discard(self)
        for number in self._left:
            self._tickets[number].cancel()

    def end(self) -> None:
        """Lets the samples that still run fail, because the server ends."""
        for number in self._left:
            self._news.put_nowait((number, Done(None, Closed("The server is ending."))))

    async def news(self) -> AsyncIterator[tuple[int, News]]:
        """(number of the sample, news) until all samples are done. Raises ApiError if one fails."""
        while self._left:
            number, news = await self._news.get()
            if isinstance(news, Done):
                self._left.discard(number)
                if news.error is not None:
                    raise ApiError(f"The reply failed: {news.error}", 503, kind="server_error") from news.error
            yield number, news
