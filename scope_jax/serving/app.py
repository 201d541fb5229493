"""The HTTP server's application: OpenAI's /v1/models, /v1/chat/completions, /v1/completions; /health and /metrics."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from scope_jax.retrieval.server import GONE, Refusal, read_body
from scope_jax.serving import generating
from scope_jax.serving.assemble import Served
from scope_jax.serving.counters import Counters
from scope_jax.serving.generating import Job, Stream
from scope_jax.serving.protocol import ApiError, ChatBody, CompletionBody, parsed
from scope_jax.serving.replies import Reply

Answer = Callable[[Request], Awaitable[Response]]


class Api:
    """The routes of one model. key: what a request must give as its bearer token, None: anyone may ask."""

    def __init__(self, model: Served, key: str | None) -> None:
        self._model = model
        self._key = key
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
                headers = {"Connection": "close"} if error.status == 413 else None
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
        body = parsed(ChatBody, await self._body(request))
        job = await run_in_threadpool(generating.chat_job, self._model, body)
        reply = Reply(self._model, job, "chat", bool(body.logprobs))
        return await self._reply(request, job, reply, body)

    async def _complete(self, request: Request) -> Response:
        body = parsed(CompletionBody, await self._body(request))
        job = await run_in_threadpool(generating.completion_job, self._model, body)
        reply = Reply(self._model, job, "text", body.logprobs is not None)
        return await self._reply(request, job, reply, body)

    async def _body(self, request: Request) -> bytes:
        try:
            return await read_body(request, self._model.cfg.serve.max_body)
        except Refusal as refusal:
            raise ApiError(str(refusal), refusal.status) from None

    # ------------------------------------------------------------------------------------------------------ replies
    async def _reply(self, request: Request, job: Job, reply: Reply, body: ChatBody | CompletionBody) -> Response:
        began = time.monotonic()
        stream = Stream(self._model, job, self._under_way)
        if body.stream:
            with_usage = body.stream_options is not None and body.stream_options.include_usage
            return _Events(stream, self._events(stream, reply, with_usage, began))
        async with stream:
            whole = asyncio.ensure_future(reply.whole(stream))
            gone = asyncio.ensure_future(_gone(request))
            try:
                await asyncio.wait((whole, gone), return_when=asyncio.FIRST_COMPLETED)
                if not whole.done():
                    raise ClientDisconnect
                answer = whole.result()
            finally:
                whole.cancel()
                gone.cancel()
        self._count(reply, began)
        return JSONResponse(answer)

    async def _events(self, stream: Stream, reply: Reply, with_usage: bool, began: float) -> AsyncIterator[bytes]:
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

    def _count(self, reply: Reply, began: float) -> None:
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


async def _gone(request: Request) -> None:
    """Returns when the client has disconnected. The request's body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    reply = ApiError(f"{request.method} {request.url.path}: {error.detail}.", error.status_code)
    return JSONResponse(reply.body, status_code=error.status_code, headers=error.headers)
