"""A search server of the Search-R1 protocol over any retriever (`client.py` says what it speaks)."""

from __future__ import annotations

from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from retrieval.search import Hit, Retriever

PATH = "/retrieve"
TOPK_LIMIT = 1000  # passages of one query


def make_app(retrieve: Retriever, *, top_k: int) -> Starlette:
    """The server's application; `top_k` counts where a request names none. A bad request gets 400 and one sentence."""

    async def answer(request: Request) -> JSONResponse:
        try:
            body = await request.json()
        except ValueError:
            return _refusal("The request body is not JSON.")
        if not isinstance(body, dict):
            return _refusal("The request body must be a JSON object.")
        queries, count, scores = body.get("queries"), body.get("topk"), body.get("return_scores", False)
        if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
            return _refusal("`queries` must be a list of strings.")
        count = top_k if count is None else count
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= TOPK_LIMIT:
            return _refusal(f"`topk` must be a whole number from 1 to {TOPK_LIMIT}.")
        if not isinstance(scores, bool):
            return _refusal("`return_scores` must be true or false.")
        found = await run_in_threadpool(retrieve, queries, count)
        return JSONResponse({"result": [[_entry(hit, scores) for hit in hits] for hits in found]})

    return Starlette(routes=[Route(PATH, answer, methods=["POST"])])


def serve(retrieve: Retriever, *, top_k: int, host: str, port: int) -> None:
    """Serves until interrupted."""
    uvicorn.run(make_app(retrieve, top_k=top_k), host=host, port=port, log_level="warning")


def _entry(hit: Hit, with_score: bool) -> dict[str, Any]:
    """Titles go out in double quotes, as in the wiki-18 dump that other clients expect."""
    document = {"id": hit.document.id, "contents": f'"{hit.document.title}"\n{hit.document.text}'}
    return {"document": document, "score": hit.score} if with_score else document


def _refusal(sentence: str) -> JSONResponse:
    return JSONResponse({"error": sentence}, status_code=400)
