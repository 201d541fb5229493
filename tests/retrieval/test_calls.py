"""Searches of many clients: blocks in turn, calls dropped with their clients, few programs, and an end in time."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Sequence

import httpx
import jax
import numpy as np
import pytest

from scope_jax.data.corpus import Document
from scope_jax.retrieval.calls import LARGE, WAITING, Calls
from scope_jax.retrieval.exact import ExactIndex
from scope_jax.retrieval.index import BLOCKS, COUNTS
from scope_jax.retrieval.search import Hit
from scope_jax.web.guard import Refusal
from tests.retrieval.serving import serving


class Slow:
    """A retriever whose blocks take so many seconds and wait for `free`; what it was asked."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.free = threading.Event()
        self.free.set()
        self.asked: list[list[str]] = []
        self.threads: set[int] = set()

    def __call__(self, queries: Sequence[str], top_k: int) -> list[tuple[Hit, ...]]:
        self.asked.append(list(queries))
        self.threads.add(threading.get_ident())
        time.sleep(self.seconds)
        assert self.free.wait(120)
        return [tuple(Hit(Document(f"{q}-{i}", "T", q), 1.0 - i) for i in range(top_k)) for q in queries]


def ids(parts: list[bytes]) -> list[list[str]]:
    return [[hit["id"] for hit in hits] for hits in json.loads(b"[" + b",".join(parts) + b"]")]


def test_a_small_call_waits_for_a_block_and_not_for_large_calls() -> None:
    slow = Slow(0.01)

    async def run() -> None:
        calls = Calls(slow)
        large = [[f"{number} {i}" for i in range(2000 + number)] for number in range(6)]
        tasks = [asyncio.ensure_future(calls.ask(queries, 3, False)) for queries in large]
        await asyncio.sleep(0.1)
        waits = []
        for number in range(20):
            before = len(slow.asked)
            assert ids(await calls.ask([f"q{number}"], 2, False)) == [[f"q{number}-0", f"q{number}-1"]]
            waits.append(len(slow.asked) - before)
        assert not any(task.done() for task in tasks) and max(waits) <= 3  # blocks, its own included
        for queries, parts in zip(large, await asyncio.gather(*tasks), strict=True):
            assert ids(parts) == [[f"{query}-{i}" for i in range(3)] for query in queries]
        calls.close()
        calls.join()

    asyncio.run(run())
    assert len(slow.threads) == 1 and max(map(len, slow.asked)) == BLOCKS[-1]


def test_blocks_are_smaller_with_long_texts_and_many_passages() -> None:
    slow = Slow(0.0)

    async def run() -> None:
        calls = Calls(slow)
        await calls.ask(["x"] * 50, 1000, False)
        assert max(map(len, slow.asked)) == 1
        slow.asked.clear()
        await calls.ask(["x" * 4096] * 50, 1, True)
        assert max(map(len, slow.asked)) == 4
        assert await calls.ask([], 5, False) == []
        calls.close()

    asyncio.run(run())


def test_small_calls_of_few_passages_come_first_and_none_waits_for_ever() -> None:
    slow, done = Slow(0.02), list[str]()

    async def run() -> None:
        calls = Calls(slow)

        async def ask(name: str, top_k: int) -> None:
            await calls.ask([name], top_k, False)
            done.append(name)

        slow.free.clear()
        tasks = [asyncio.ensure_future(ask("first", 1))]
        while not slow.asked:
            await asyncio.sleep(0.001)
        tasks += [asyncio.ensure_future(ask(f"many {number}", 100)) for number in range(5)]
        await asyncio.sleep(0.005)
        tasks.append(asyncio.ensure_future(ask("few", 3)))
        await asyncio.sleep(0.005)
        slow.free.set()
        for number in range(30):  # faster than they are answered, so that some always wait
            tasks.append(asyncio.ensure_future(ask(f"few {number}", 3)))
            await asyncio.sleep(0.015)
        await asyncio.gather(*tasks)
        calls.close()

    asyncio.run(run())
    assert done[0] == "first" and done[1].startswith("few")
    assert done.index("many 0") < done.index("few 29")  # it has waited 0.1 s


def test_a_call_whose_caller_is_cancelled_is_not_continued_and_too_many_are_refused() -> None:
    slow = Slow(0.02)

    async def run() -> None:
        calls = Calls(slow)
        tasks = [asyncio.ensure_future(calls.ask([f"{n}"] * 6400, 1, False)) for n in range(WAITING[False] + LARGE + 3)]
        await asyncio.sleep(0.1)
        refused = [task for task in tasks if task.done()]
        for task in refused:
            with pytest.raises(Refusal, match="try again later"):
                task.result()
        assert len(refused) >= 3
        for task in tasks:
            task.cancel()
        await asyncio.sleep(0.1)
        count = len(slow.asked)
        await calls.ask(["still there"], 1, False)
        assert len(slow.asked) <= count + 2
        calls.close()

    asyncio.run(run())


def test_an_error_of_the_retriever_reaches_its_caller_alone() -> None:
    def retrieve(queries: Sequence[str], top_k: int) -> list[tuple[Hit, ...]]:
        if "bad" in queries:
            raise KeyError("bad")
        return [()] * len(queries)

    async def run() -> None:
        calls = Calls(retrieve)
        bad, good = await asyncio.gather(
            calls.ask(["bad"], 1, False), calls.ask(["good"], 1, False), return_exceptions=True
        )
        assert isinstance(bad, KeyError) and good == [b"[]"]
        calls.close()

    asyncio.run(run())


def test_the_end_does_not_wait_for_calls_under_way() -> None:
    slow = Slow(0.05)

    async def run() -> None:
        calls = Calls(slow)
        task = asyncio.ensure_future(calls.ask(["x"] * 8192, 1, False))
        await asyncio.sleep(0.1)
        before = len(slow.asked)
        calls.close()
        with pytest.raises(Refusal, match="The server is ending") as caught:
            await task
        assert caught.value.status == 503
        await asyncio.to_thread(calls.join)
        assert len(slow.asked) <= before + 1  # of 128
        with pytest.raises(Refusal, match="The server is ending"):
            await calls.ask(["y"], 1, False)

    asyncio.run(run())


def test_a_client_that_goes_away_takes_its_queries_along() -> None:
    slow = Slow(0.02)
    body = json.dumps({"queries": ["gone"] * 8192, "topk": 1}).encode()
    head = "POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with serving(slow) as port:
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                time.sleep(0.15)
        reply = httpx.post(f"http://127.0.0.1:{port}/retrieve", json={"queries": ["q"]}, trust_env=False)
        assert reply.status_code == 200
        count = len(slow.asked)
        time.sleep(0.3)
        assert len(slow.asked) == count < 100  # of 640 blocks


@pytest.mark.parametrize(("seed", "size"), [(0, 1300), pytest.param(1, 1311, marks=pytest.mark.slow)])
def test_every_k_is_answered_by_few_programs_and_as_numpy_does(
    seed: int, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    rows_NE = np.random.default_rng(seed).integers(-3, 4, (size, 16)).astype(np.float32)  # exact sums, many ties
    queries_QE = np.random.default_rng(seed + 9).integers(-3, 4, (70, 16)).astype(np.float32)
    scores_QN = queries_QE @ rows_NE.T
    order_QN = np.lexsort((np.broadcast_to(np.arange(size), scores_QN.shape), -scores_QN), axis=1)
    index = ExactIndex(rows_NE, mesh=None, axes=())
    before = jax.config.jax_log_compiles  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_log_compiles", True)
    try:
        with caplog.at_level(logging.WARNING, "jax"):
            for k in [*range(1, 40), 63, 64, 65, 127, 128, 129, 500, 999, 1000, 1024, 1025, 1300, 2000]:
                queries = 70 if k in (1, 9, 64, 1000, 1300) else 3
                found_scores, found_rows = index.search(queries_QE[:queries], k)
                assert np.array_equal(found_rows, order_QN[:queries, :k])
                assert np.array_equal(found_scores, np.take_along_axis(scores_QN, order_QN, 1)[:queries, :k])
    finally:
        jax.config.update("jax_log_compiles", before)
    compiled = [one for one in caplog.records if "Compiling" in one.message and "top" in one.message]
    assert 0 < len(compiled) <= len(BLOCKS) * (len(COUNTS) + 1)
