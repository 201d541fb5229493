"""The HTTP server's application: OpenAI's /v1/models, /v1/chat/completions, /v1/completions; /health and /metrics."""

from __future__ import annotations

import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from scope_jax.retrieval.lanes import Lanes
from scope_jax.serving import generating
from scope_jax.serving.assemble import Served
from scope_jax.serving.counters import Counters
from scope_jax.serving.generating import Job, Stream
from scope_jax.serving.protocol import VALUES, ApiError, ChatBody, CompletionBody, Kind, Parsed, parsed
from scope_jax.serving.replies import ServedReply
from scope_jax.web.guard import GONE, Guard, Refusal, read_body, unless_gone

OTHER_VALUES = 65_536  # of a body, besides the tokens of its prompts
Answer = Callable[[Request], Awaitable[Response]]


class Api:
    """The routes of one model. key: what a request must give as its bearer token, None: anyone on this machine may ask.
    hosts: names of this server besides the loopback's; with a key, names are checked only if there are any. lanes:
    where bodies become prompts."""

    def __init__(self, model: Served, key: str | None, hosts: Collection[str], lanes: Lanes) -> None:
        self._model = model
        self._key = key
        self._hosts = hosts if hosts or key is None else None
        self._lanes = lanes
        serve, room = model.cfg.serve, model.rollouts.engine.config.max_length
        self._values = min(VALUES, OTHER_VALUES + serve.max_samples * room)
        self._began = int(time.time())
        self._under_way: set[Stream] = set()
        self.counters = Counters(model)

    def app(self, closing: Callable[[], Awaitable[None]] | None = None) -> Starlette:
        """The application; `closing` runs when the server stops."""

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            yield
            if closing is not None:
                await closing()

        return Starlette(
            routes=[
                self._route("/v1/models", self._models),
                self._route("/v1/models/{name:path}", self._one_model),
                self._route("/v1/chat/completions", self._chat, "POST"),
                self._route("/v1/completions", self._complete, "POST"),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
            ],
            middleware=[Middleware(Guard, hosts=self._hosts, refuse=_refusal)],
            exception_handlers={HTTPException: _not_found},
            lifespan=lifespan,
        )

    def end(self) -> None:
        """Ends every reply under way with an error of the server."""
        for stream in self._under_way:
            stream.end()

    def _route(self, path: str, answer: Answer, method: str = "GET") -> Route:
        """A route with its key checked, its errors in OpenAI's form, and its status counted."""

        async def counted(request: Request) -> Response:
            try:
                self._check_key(request)
                response = await answer(request)
            except ApiError as error:
                headers = {"Connection": "close"} if error.status in (408, 413) else None
                response = JSONResponse(error.body, status_code=error.status, headers=headers)
            except ClientDisconnect:
                self.counters.cancelled.inc()
                response = Response(status_code=GONE)
            self.counters.requests.labels(path, response.status_code).inc()
            return response

        return Route(path, counted, methods=[method])

    def _check_key(self, request: Request) -> None:
        if self._key is None:
            return
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self._key.encode()):
            raise ApiError("The API key is missing or wrong.", 401, kind="authentication_error", code="invalid_api_key")

    # ------------------------------------------------------------------------------------------------------- routes
    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def _one_model(self, request: Request) -> Response:
        if (name := request.path_params["name"]) != self._model.name:
            raise ApiError(f"There is no model {name!r} here.", 404, param="model", code="model_not_found")
        return JSONResponse(self._card())

    def _card(self) -> dict[str, Any]:
        length = self._model.rollouts.engine.config.max_length
        own = {"id": self._model.name, "object": "model", "created": self._began, "owned_by": "scope-jax"}
        return own | {"max_model_len": length}

    async def _health(self, request: Request) -> Response:
        failure = self._model.rollouts.failure
        if failure is not None:
            return JSONResponse({"status": "failed", "error": str(failure)}, status_code=503)
        return JSONResponse({"status": "ok"})

    async def _metrics(self, request: Request) -> Response:
        return Response(self.counters.text(), media_type="text/plain; version=0.0.4")

    async def _chat(self, request: Request) -> Response:
        body, job = await self._job(request, ChatBody, generating.chat_job)
        reply = ServedReply(self._model, job, "chat", bool(body.logprobs))
        return await self._reply(request, job, reply, body)

    async def _complete(self, request: Request) -> Response:
        body, job = await self._job(request, CompletionBody, generating.completion_job)
        reply = ServedReply(self._model, job, "text", body.logprobs is not None)
        return await self._reply(request, job, reply, body)

    async def _job(
        self, request: Request, kind: type[Parsed], job_of: Callable[[Served, Parsed], Job]
    ) -> tuple[Parsed, Job]:
        """A request as it was understood, and what is to be sampled for it. Raises ApiError for what is refused."""

        def work(body: bytes) -> tuple[Parsed, Job]:
            request = parsed(kind, body, self._values)
            return request, job_of(self._model, request)

        try:
            body = await read_body(request, self._model.cfg.serve.max_body)
            return await unless_gone(request, self._lanes.run(len(body), partial(work, body)))
        except Refusal as refusal:
            raise api_error(refusal.status, str(refusal)) from None

    # ------------------------------------------------------------------------------------------------------ replies
    async def _reply(self, request: Request, job: Job, reply: ServedReply, body: ChatBody | CompletionBody) -> Response:
        began = time.monotonic()
        stream = Stream(self._model, job, self._under_way)
        if body.stream:
            with_usage = body.stream_options is not None and body.stream_options.include_usage
            return _Events(stream, self._events(stream, reply, with_usage, began))
        async with stream:
            answer = await unless_gone(request, reply.whole(stream))
        self._count(reply, began)
        return JSONResponse(answer)

    async def _events(self, stream: Stream, reply: ServedReply, with_usage: bool, began: float) -> AsyncIterator[bytes]:
        done = False
        first = True
        try:
            async for event in reply.events(stream, with_usage):
                if first and reply.sampled_tokens:
                    self.counters.first.observe(time.monotonic() - began)
                    first = False
                yield event
            done = True
        finally:
            if done:
                self._count(reply, began)
            else:
                self.counters.cancelled.inc()

    def _count(self, reply: ServedReply, began: float) -> None:
        self.counters.prompt.inc(reply.prompt_tokens)
        self.counters.sampled.inc(reply.sampled_tokens)
        self.counters.seconds.observe(time.monotonic() - began)


class _Events(StreamingResponse):
    """Server-sent events; what still runs when the client goes away, at whatever moment, is cancelled."""

    def __init__(self, stream: Stream, events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stream:
            await super().__call__(scope, receive, send)


def api_error(status: int, sentence: str) -> ApiError:
    """A refusal in OpenAI's form."""
    kinds: dict[int, Kind] = {503: "server_error"}
    return ApiError(sentence, status, kind=kinds.get(status, "invalid_request_error"))


def _refusal(status: int, sentence: str) -> Response:
    return JSONResponse(api_error(status, sentence).body, status_code=status)


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    reply = ApiError(f"{request.method} {request.url.path}: {error.detail}.", error.status_code)
    return JSONResponse(reply.body, status_code=error.status_code, headers=error.headers)
