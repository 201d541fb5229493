"""A search server with the Search-R1 protocol for any retriever (the protocol is described in `client.py`).

Requests are limited in size, so that none can exhaust the server's memory or block other requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from scope_jax.retrieval.calls import Calls
from scope_jax.retrieval.lanes import Lanes
from scope_jax.retrieval.search import LONGEST_QUERY, Retriever
from scope_jax.web.connections import config
from scope_jax.web.guard import GONE, Guard, Refusal, parsed_json, read_body, unless_gone

PATH = "/retrieve"
TOPK_LIMIT = 1000  # passages per query
QUERIES_LIMIT = 8192  # queries per request; Search-R1 sends those of a whole batch of episodes together
PASSAGES_LIMIT = 65_536  # queries times topk
BODY_LIMIT = 4 << 20  # bytes
GRACE = 10  # seconds
VALUES = 4 * QUERIES_LIMIT  # JSON values of a body


def make_app(retrieve: Retriever, *, top_k: int, hosts: Collection[str] = ()) -> Starlette:
    """The server's application; `top_k` applies to requests that name none, `hosts` are further names of this server.
    An invalid request gets status 400 and one sentence, one of more than BODY_LIMIT bytes status 413, one that cannot
    wait any more 503. `state.calls` of the application are the searches under way; they end with it."""
    lanes, calls = Lanes(), Calls(retrieve)

    async def answer(request: Request) -> Response:
        try:
            body = await read_body(request, BODY_LIMIT)
            wish = await unless_gone(request, lanes.run(len(body), lambda: _wish(parsed_json(body, VALUES), top_k)))
            return _Reply(await unless_gone(request, calls.ask(*wish)))
        except Refusal as refusal:
            return _refused(refusal.status, str(refusal))
        except ClientDisconnect:
            return Response(status_code=GONE)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        lanes.close()
        calls.close()
        await asyncio.to_thread(calls.join)

    guard = Middleware(Guard, hosts=hosts, refuse=_refused)
    app = Starlette(routes=[Route(PATH, answer, methods=["POST"])], middleware=[guard], lifespan=lifespan)
    app.state.calls = calls
    return app


class _Reply(StreamingResponse):
    """Lists of hits, sent part by part: together they may have a hundred megabytes."""

    def __init__(self, parts: list[bytes]) -> None:
        pieces = [b'{"result":[', *(piece for part in parts for piece in (b",", part)), b"]}"]
        if parts:
            del pieces[1]  # the comma before the first

        async def sent() -> AsyncIterator[bytes]:
            for piece in pieces:
                yield piece

        headers = {"Content-Length": str(sum(map(len, pieces)))}
        super().__init__(sent(), media_type="application/json", headers=headers)


def _refused(status: int, sentence: str) -> Response:
    headers = {"Connection": "close"} if status in (408, 413) else None  # the rest of the body is not read either
    return JSONResponse({"error": sentence}, status_code=status, headers=headers)


def serve(retrieve: Retriever, *, top_k: int, host: str, port: int) -> None:
    """Serves until interrupted; requests under way have GRACE seconds then."""
    app = make_app(retrieve, top_k=top_k, hosts=[host])
    uvicorn.Server(config(app, host=host, port=port, timeout_graceful_shutdown=GRACE)).run()


def _wish(body: Any, top_k: int) -> tuple[list[str], int, bool]:
    """(queries, passages per query, whether to return scores) of a request within the limits."""
    if not isinstance(body, dict):
        raise Refusal("The request body must be a JSON object.")
    queries, count, scores = body.get("queries"), body.get("topk"), body.get("return_scores", False)
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise Refusal("`queries` must be a list of strings.")
    if len(queries) > QUERIES_LIMIT or any(len(query) > LONGEST_QUERY for query in queries):
        raise Refusal(f"`queries` may hold {QUERIES_LIMIT} strings of {LONGEST_QUERY} characters each, no more.")
    try:
        "".join(queries).encode()
    except UnicodeEncodeError:
        raise Refusal("`queries` has half of a surrogate pair, which is not a character.") from None
    count = top_k if count is None else count
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= TOPK_LIMIT:
        raise Refusal(f"`topk` must be a whole number from 1 to {TOPK_LIMIT}.")
    if len(queries) * count > PASSAGES_LIMIT:
        raise Refusal(f"{len(queries)} queries of {count} passages are more than {PASSAGES_LIMIT}; ask for fewer.")
    if not isinstance(scores, bool):
        raise Refusal("`return_scores` must be true or false.")
    return queries, count, scores
