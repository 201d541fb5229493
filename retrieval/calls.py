"""The searches of all clients of a server, a block of queries at a time, in one thread.

A call gives way to others after each block, so that a call of thousands of queries delays nobody for long; one whose
client has gone is not continued. Results are encoded here as well, as that holds Python's lock.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from scope_jax.retrieval.index import BLOCKS
from scope_jax.retrieval.search import Hit, Retriever
from scope_jax.web.guard import Refusal

BLOCK_PASSAGES = 1024  # of a block, at most, or one query's
BLOCK_CHARACTERS = 16_384
SMALL = BLOCKS[-1]  # queries of a call that needs no turn among the large ones
LARGE = 4  # calls of more queries that take turns; others wait until one has ended
WAITING = {True: 2048, False: 32}  # small calls, large ones


PATIENCE = 0.001  # seconds that a small call gives way to others, for each passage it asks for


@dataclass(eq=False)
class SearchCall:
    """One request's search. parts: the results so far, each the JSON of some queries' lists."""

    queries: Sequence[str]
    top_k: int
    scores: bool
    answer: asyncio.Future[list[bytes]]
    done: int = 0  # queries
    gone: bool = False  # nobody waits for the answer any more
    parts: list[bytes] = field(default_factory=list)
    due: float = field(init=False)  # small calls come in this order: those of few passages first, none for ever last

    def __post_init__(self) -> None:
        self.due = time.monotonic() + PATIENCE * len(self.queries) * self.top_k

    def __lt__(self, other: SearchCall) -> bool:
        return self.due < other.due

    def block(self) -> Sequence[str]:
        """The next queries: as many as a program takes, fewer of long texts or with many passages."""
        most = min(BLOCKS[-1], max(1, BLOCK_PASSAGES // self.top_k))
        block, characters = [], 0
        for query in self.queries[self.done : self.done + most]:
            characters += len(query)
            if block and characters > BLOCK_CHARACTERS:
                break
            block.append(query)
        return block


class Calls:
    """Answers calls until `close`. retrieve: called by one thread alone."""

    def __init__(self, retrieve: Retriever) -> None:
        self._retrieve = retrieve
        self._door = threading.Condition()  # for the next four
        self._waiting = {small: deque[SearchCall]() for small in WAITING}
        self._turns: deque[SearchCall] = deque()  # large calls that take turns
        self._large_next = False
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="search", daemon=True)
        self._thread.start()

    async def ask(self, queries: Sequence[str], top_k: int, scores: bool) -> list[bytes]:
        """The result lists of the queries as JSON, to be joined by commas. Raises Refusal if too many calls wait or the
        server ends, and what the retriever raises."""
        if not queries:
            return []
        call = SearchCall(queries, top_k, scores, asyncio.get_running_loop().create_future())
        small = len(queries) <= SMALL
        with self._door:
            if self._closed:
                raise Refusal("The server is ending.", 503)
            if len(self._waiting[small]) >= WAITING[small]:
                raise Refusal(f"{WAITING[small]} requests of this size are waiting; try again later.", 503)
            self._waiting[small].append(call)
            self._door.notify()
        try:
            return await call.answer
        finally:
            call.gone = True

    def close(self) -> None:
        """Ends: calls that are not over fail, the last once its block has been searched."""
        with self._door:
            self._closed = True
            self._door.notify()

    def join(self) -> None:
        """Waits for the block that is being searched."""
        self._thread.join()

    # ------------------------------------------------------------------------------------------------ in the thread
    def _work(self) -> None:
        while (call := self._next()) is not None:
            block = call.block()
            try:
                call.parts.append(encoded(self._retrieve(block, call.top_k), call.scores))
            except BaseException as error:  # noqa: BLE001 (the caller gets it)
                _tell(call, error)
                continue
            call.done += len(block)
            if call.done == len(call.queries):
                _tell(call, call.parts)
            else:
                with self._door:
                    self._turns.append(call)
        with self._door:
            left = [*self._turns, *self._waiting[True], *self._waiting[False]]
        for call in left:
            _tell(call, Refusal("The server is ending.", 503))

    def _next(self) -> SearchCall | None:
        """Whose block is searched now: a small call's and a large one's in turn; None at the end. Calls that nobody
        waits for are dropped."""
        with self._door:
            while not self._closed:
                for queue in (*self._waiting.values(), self._turns):
                    gone = [call for call in queue if call.gone]
                    for call in gone:
                        queue.remove(call)
                while self._waiting[False] and len(self._turns) < LARGE:
                    self._turns.append(self._waiting[False].popleft())
                small = self._waiting[True]
                if small and not (self._large_next and self._turns):
                    self._large_next = True
                    call = min(small)
                    small.remove(call)
                    return call
                if self._turns:
                    self._large_next = False
                    return self._turns.popleft()
                self._door.wait()
            return None


def _tell(call: SearchCall, outcome: list[bytes] | BaseException) -> None:
    def settle() -> None:
        if call.answer.done():
            return
        if isinstance(outcome, BaseException):
            call.answer.set_exception(outcome)
        else:
            call.answer.set_result(outcome)

    loop = call.answer.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(settle)


def encoded(found: Sequence[Sequence[Hit]], scores: bool) -> bytes:
    """The lists of hits as JSON in the protocol's format, without the brackets around them."""
    return ",".join(
        json.dumps([entry(hit, scores) for hit in hits], ensure_ascii=False, separators=(",", ":")) for hits in found
    ).encode()


def entry(hit: Hit, with_score: bool) -> dict[str, Any]:
    """A hit in the protocol's format, with the title in double quotes as in the wiki-18 dump, as clients expect, and on
    one line, as clients take the rest for the text."""
    title = " ".join(hit.document.title.split())
    document = {"id": hit.document.id, "contents": f'"{title}"\n{hit.document.text}'}
    return {"document": document, "score": hit.score} if with_score else document
