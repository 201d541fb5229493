"""A search server with the Search-R1 protocol for any retriever (the protocol is described in `client.py`).

Requests are limited in size, so that none can exhaust the server's memory or block other requests.
"""

from __future__ import annotations

import json
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from scope_jax.retrieval.search import LONGEST_QUERY, Hit, Retriever

PATH = "/retrieve"
TOPK_LIMIT = 1000  # passages per query
QUERIES_LIMIT = 8192  # queries per request; Search-R1 sends those of a whole batch of episodes together
PASSAGES_LIMIT = 65_536  # queries times topk
BODY_LIMIT = 4 << 20  # bytes
GONE = 499  # nginx's status for a client that disconnected; never sent


class Refusal(Exception):
    """A rejected request: HTTP status and one sentence."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


def make_app(retrieve: Retriever, *, top_k: int) -> Starlette:
    """The server's application; `top_k` applies to requests that name none. An invalid request gets status 400 and one
    sentence, one of more than BODY_LIMIT bytes status 413."""

    async def answer(request: Request) -> Response:
        try:
            queries, count, scores = _wish(_parsed(await read_body(request, BODY_LIMIT)), top_k)
        except Refusal as refusal:
            # the rest of a rejected body is not read either
            headers = {"Connection": "close"} if refusal.status == 413 else None
            return JSONResponse({"error": str(refusal)}, status_code=refusal.status, headers=headers)
        except ClientDisconnect:
            return Response(status_code=GONE)
        found = await run_in_threadpool(retrieve, queries, count)
        return JSONResponse({"result": [[_entry(hit, scores) for hit in hits] for hits in found]})

    return Starlette(routes=[Route(PATH, answer, methods=["POST"])])


def serve(retrieve: Retriever, *, top_k: int, host: str, port: int) -> None:
    """Serves until interrupted."""
    uvicorn.run(make_app(retrieve, top_k=top_k), host=host, port=port, log_level="warning")


async def read_body(request: Request, limit: int) -> bytes:
    """The request's body; at most `limit` bytes of it are held in memory. Raises Refusal if it has more."""
    too_large = Refusal(f"The request body is larger than {limit} bytes; send less at a time.", 413)
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared) > limit:
        raise too_large
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > limit:
            raise too_large
    return bytes(body)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        raise Refusal("The request body is not JSON.") from None
    except RecursionError:
        raise Refusal("The request body is nested too deep.") from None


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


def _entry(hit: Hit, with_score: bool) -> dict[str, Any]:
    """A hit in the protocol's format, with the title in double quotes as in the wiki-18 dump, as clients expect, and on
    one line, as clients take the rest for the text."""
    title = " ".join(hit.document.title.split())
    document = {"id": hit.document.id, "contents": f'"{title}"\n{hit.document.text}'}
    return {"document": document, "score": hit.score} if with_score else document
