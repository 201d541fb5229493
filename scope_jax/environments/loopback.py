"""OpenAI-compatible endpoints on 127.0.0.1 for programs that are agents: their requests become turns of a policy.

One server, in a thread of its own, has an endpoint for each agent of each rollout; the secret is part of its address,
so that a program needs the address alone. Requests to an endpoint are answered one after the other, as they came.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import Annotated, Any, Literal

import uvicorn
from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from scope_jax.text import openai
from scope_jax.text.dialects import Call
from scope_jax.text.openai import FunctionTool, Message, StreamOptions, without_nulls
from scope_jax.web.connections import config
from scope_jax.web.guard import GONE, Guard, Refusal, parsed_json, read_body, unless_gone

LARGEST_BODY = 64 << 20  # bytes
VALUES = 1 << 20  # of a body
ROLES = ("system", "developer", "user", "assistant", "tool")


# Why a value of a field is refused.
REFUSED = {
    "tool_choice": 'a call cannot be demanded of a policy; give "auto" or "none"',
    "n": "a request is one turn; give 1",
    "logprobs": "they are not given to programs; leave it out",
    "top_logprobs": "they are not given to programs; leave it out",
    "response_format": 'no form can be demanded of a policy; give {"type": "text"}',
    "stream_options": 'options of a stream; give {"include_usage": true} or leave it out',
}


class _Format(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["text"]


class _Body(BaseModel):
    """The fields of a request that are read; what others mean is up to who completes it."""

    model_config = ConfigDict(strict=True)
    messages: Annotated[list[Message], FailFast()] = Field(min_length=1)
    model: str = ""
    tools: Annotated[list[FunctionTool], FailFast()] = []
    tool_choice: Literal["auto", "none"] = "auto"
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    n: Literal[1] = 1
    logprobs: Literal[False] = False
    top_logprobs: Literal[0] = 0
    response_format: _Format = _Format(type="text")


@dataclass(frozen=True)
class ChatRequest:
    """A request for a completion."""

    messages: Sequence[Mapping[str, Any]]
    """The conversation in OpenAI's form; every content is a text. An assistant's may have `tool_calls`."""
    tools: Sequence[Mapping[str, Any]]
    """Schemas of the program's functions, for the prompt; empty if it wants none to be called."""
    params: Mapping[str, Any]
    """The other fields, such as temperature, max_tokens and stop; how a policy is sampled is up to the receiver."""


@dataclass(frozen=True)
class ChatReply:
    """A completion."""

    content: str
    """The text, without calls."""
    calls: Sequence[Call] = ()
    """Calls of the program's functions."""
    cut: bool = False
    """Whether a limit of tokens ended it."""
    prompt_tokens: int = 0
    """Tokens of the prompt."""
    completion_tokens: int = 0
    """Sampled tokens."""

    @property
    def usage(self) -> dict[str, int]:
        return openai.usage(self.prompt_tokens, self.completion_tokens)


class ChatRefused(Exception):
    """Raised by what completes requests: HTTP 400 with this sentence, such as for a conversation that is too long."""

    def __init__(self, sentence: str, code: str | None = None, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status
        self.body = {"error": {"message": sentence, "type": "invalid_request_error", "param": None, "code": code}}


Complete = Callable[[ChatRequest], "Future[ChatReply]"]


@dataclass(eq=False)
class Endpoint:
    """The address of one agent in one rollout; leaving the context closes it."""

    url: str
    """The base URL for clients, with the secret; the API key may be anything."""
    complete: Complete = field(repr=False)
    """Begins a completion; called on the server's thread, so it must not wait. Its future may end with ChatRefused."""
    forget: Callable[[Endpoint], None] = field(repr=False)
    """Called as it is closed."""
    failure: BaseException | None = None
    """What a completion ended with that is no ChatRefused; the program was told HTTP 500."""

    def __post_init__(self) -> None:
        self.turn = asyncio.Lock()
        self.pending: Future[ChatReply] | None = None

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Later requests are refused, and the one under way is cancelled."""
        self.forget(self)
        if self.pending is not None:
            self.pending.cancel()


class Loopback:
    """The server. It starts with the first endpoint."""

    def __init__(self) -> None:
        self._endpoints: dict[str, Endpoint] = {}
        self._starting = threading.Lock()
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._port = 0

    def open(self, complete: Complete) -> Endpoint:
        """A new endpoint, whose requests `complete` answers."""
        self._start()
        secret = secrets.token_urlsafe(24)
        url = f"http://127.0.0.1:{self._port}/{secret}/v1"
        endpoint = Endpoint(url, complete, lambda _: self._endpoints.pop(secret, None) and None)
        self._endpoints[secret] = endpoint
        return endpoint

    def close(self) -> None:
        """Closes all endpoints and ends the server."""
        for endpoint in list(self._endpoints.values()):
            endpoint.close()
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join()
            self._server = None

    def _start(self) -> None:
        with self._starting:
            if self._server is not None:
                return
            sock = socket.create_server(("127.0.0.1", 0), backlog=512)
            self._port = sock.getsockname()[1]
            app = Starlette(
                routes=[
                    Route("/{secret}/v1/chat/completions", self._chat, methods=["POST"]),
                    Route("/{secret}/v1/models", self._models),
                ],
                middleware=[Middleware(Guard, hosts=(), refuse=_refusal)],
                exception_handlers={ChatRefused: _refused},
            )
            server = uvicorn.Server(config(app, timeout_graceful_shutdown=1))
            self._thread = threading.Thread(target=server.run, args=([sock],), name="loopback", daemon=True)
            self._thread.start()
            self._server = server

    def _endpoint(self, request: Request) -> Endpoint:
        endpoint = self._endpoints.get(request.path_params["secret"])
        if endpoint is None:
            raise ChatRefused("There is no such endpoint; it was of a rollout that has ended.", "not_found", 404)
        return endpoint

    async def _models(self, request: Request) -> Response:
        self._endpoint(request)
        model = {"id": "policy", "object": "model", "created": 0, "owned_by": "scope-jax"}
        return JSONResponse({"object": "list", "data": [model]})

    async def _chat(self, request: Request) -> Response:
        endpoint = self._endpoint(request)
        try:
            body = parsed_json(await read_body(request, LARGEST_BODY), VALUES)
        except Refusal as refusal:
            raise ChatRefused(str(refusal), status=refusal.status) from None
        asked, read = _understood(body)
        try:
            reply = await unless_gone(request, _in_turn(endpoint, asked))
        except ClientDisconnect:
            return Response(status_code=GONE)
        head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": read.model}
        if read.stream:
            return StreamingResponse(
                _events(head, reply, read.stream_options.include_usage), media_type="text/event-stream"
            )
        return JSONResponse({**head, "object": "chat.completion", "choices": [_choice(reply)], "usage": reply.usage})


async def _in_turn(endpoint: Endpoint, asked: ChatRequest) -> ChatReply:
    """The reply, once those before it have theirs. Raises ChatRefused."""
    async with endpoint.turn:
        try:
            endpoint.pending = endpoint.complete(asked)
            return await asyncio.wrap_future(endpoint.pending)
        except ChatRefused:
            raise
        except (CancelledError, asyncio.CancelledError):
            if endpoint.pending is None or not endpoint.pending.cancelled() or _being_cancelled():
                raise
            raise ChatRefused("The rollout has ended.", "not_found", 404) from None
        except Exception as error:  # noqa: BLE001 - whatever it is, the rollout's owner gets it, and the program an answer
            endpoint.failure = error
            raise ChatRefused("The completion failed.", "server_error", 500) from None
        finally:
            endpoint.pending = None


def _being_cancelled() -> bool:
    """Whether the client of this request has gone away."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _understood(body: Any) -> tuple[ChatRequest, _Body]:
    """The request, and all of its body that is read. Raises ChatRefused."""
    if not isinstance(body, dict):
        raise ChatRefused("The request body must be a JSON object.")
    try:
        kept = without_nulls(body)
        read = _Body.model_validate(kept, extra="ignore")
    except Refusal as refusal:
        raise ChatRefused(str(refusal)) from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        raise ChatRefused(_reason(first["loc"], first["msg"].removeprefix("Value error, "))) from None
    offered = [] if read.tool_choice == "none" else [tool.given for tool in read.tools]
    params = {name: value for name, value in kept.items() if name not in _Body.model_fields}
    return ChatRequest([*map(_message, read.messages)], offered, params), read


def _reason(place: tuple[int | str, ...], problem: str) -> str:
    """The sentence for a fault at this place of a body."""
    field, name = str(place[0]), ".".join(map(str, place))
    problem = problem.partition(" or instance of")[0]
    if field == "tools":
        return f"`tools`: a list of functions with their schemas ({name}: {problem})."
    if field != "messages":
        return f"`{field}`: {REFUSED.get(field, problem)}."
    if len(place) == 1:
        return "The request needs `messages`, a list with at least one message."
    if "content" in place:
        name, problem = f"messages.{place[1]}.content", "a text, or a list of parts of type text"
    elif "role" in place:
        problem = f"a message needs one of the roles {', '.join(ROLES)}"
    return f"`{name}`: {problem}."


def _message(message: Message) -> Mapping[str, Any]:
    """A message whose content is one text."""
    kept = {"name", "tool_calls", "tool_call_id", "reasoning_content", "reasoning"}
    role = "system" if message.role == "developer" else message.role
    return {"role": role, "content": message.text(), **message.model_dump(include=kept, exclude_unset=True)}


def _spoken(reply: ChatReply) -> dict[str, Any]:
    """The assistant's message."""
    calls = openai.tool_calls(reply.calls)
    message: dict[str, Any] = {"role": "assistant", "content": reply.content or (None if calls else "")}
    return message | ({"tool_calls": calls} if calls else {})


def _finish(reply: ChatReply) -> str:
    return "length" if reply.cut else "tool_calls" if reply.calls else "stop"


def _choice(reply: ChatReply) -> dict[str, Any]:
    return {"index": 0, "message": _spoken(reply), "logprobs": None, "finish_reason": _finish(reply)}


def _events(head: Mapping[str, Any], reply: ChatReply, usage: bool) -> Iterator[bytes]:
    """The reply as server-sent events: the message, its end, and its usage if it was asked for."""
    message = _spoken(reply)
    message |= {"tool_calls": [{"index": place, **call} for place, call in enumerate(message.get("tool_calls", []))]}
    deltas = [({name: value for name, value in message.items() if value}, None), ({}, _finish(reply))]
    for delta, finish in deltas:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        yield openai.event({**head, "object": "chat.completion.chunk", "choices": [choice]})
    if usage:
        yield openai.event({**head, "object": "chat.completion.chunk", "choices": [], "usage": reply.usage})
    yield b"data: [DONE]\n\n"


def _refusal(status: int, sentence: str) -> Response:
    return JSONResponse(ChatRefused(sentence).body, status_code=status)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, ChatRefused)
    return JSONResponse(error.body, status_code=error.status)
