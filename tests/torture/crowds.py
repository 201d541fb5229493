"""Servers beside clients that ask for the worst they may: what others wait, and whether their answers stay the same."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from scope_jax.games import load_card
from scope_jax.run.indexing import open_or_build_index
from tests.serving import world
from tests.torture import bodies
from tests.torture.lives import CONTEXT
from tests.torture.table import Tried

HONEST = 2000  # requests beside the worst bodies
CLIENTS = 8  # of them, at a time
WAITS = 0.3  # seconds that health and streams may wait longer
SEARCH_WAITS = 1.0  # seconds that a search may wait
LONGEST = (
    120_000  # tokens that the server takes, so that texts of a mebibyte have to be encoded before they are refused
)
ENGINE = {
    "rollout.max_length": LONGEST,
    "rollout.attention": "loop",
    "rollout.cache_gib": 1.0,
    "serve.max_body": bodies.MEBIBYTE,
}
CLIENT = partial(httpx.Client, trust_env=False, timeout=120)


@contextmanager
def process(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A command that serves, and its address without a path; it is killed at the end if it still runs."""
    command = [sys.executable, "-m", "scope_jax", *words]
    started = subprocess.Popen(command, cwd=world.ROOT, stderr=subprocess.PIPE, text=True)
    assert started.stderr is not None
    try:
        line, told = "", []
        while "http://" not in line:
            line = started.stderr.readline()
            told.append(line)
            assert line, "".join(told)
        threading.Thread(target=started.stderr.read, daemon=True).start()
        yield started, "/".join(line.split()[-1].split("/")[:3])
    finally:
        started.kill()
        started.wait()


class Waits:
    """The longest times between two results of `once`, which is called again and again in a thread."""

    def __init__(self, once: Callable[[], Iterator[None]], pause: float) -> None:
        self.longest, self.count, self.error = 0.0, 0, None
        self._once, self._pause, self._over = once, pause, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Waits:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                began = time.monotonic()
                for _ in self._once():
                    self.longest, self.count = max(self.longest, time.monotonic() - began), self.count + 1
                    began = time.monotonic()
                self._over.wait(self._pause)
        except BaseException as error:  # noqa: BLE001 (raised by the thread that ends this one)
            self.error = error


def _health(client: httpx.Client, url: str) -> Iterator[None]:
    assert client.get(f"{url}/health").status_code == 200
    yield


def _stream(client: httpx.Client, url: str) -> Iterator[None]:
    """The chunks of a reply after the first."""
    body = {"model": "atlas", "prompt": [5] * 20, "max_tokens": 100, "temperature": 3.0, "stream": True}
    with client.stream("POST", f"{url}/v1/completions", json=body) as reply:
        assert reply.status_code == 200
        chunks = (line for line in reply.iter_lines() if line)
        next(chunks)
        yield from (None for _ in chunks)


def _attack(url: str, requests: Sequence[tuple[str, bytes]], over: Any, told: Any) -> None:
    """Sends each body again and again until the event `over`; puts the numbers of statuses."""

    def again(path: str, body: bytes) -> list[int]:
        statuses = []
        with CLIENT() as client:
            while not over.is_set():
                with contextlib.suppress(httpx.TransportError):
                    headers = {"Content-Type": "application/json"}
                    statuses.append(client.post(url + path, content=body, headers=headers).status_code)
        return statuses

    with ThreadPoolExecutor(len(requests)) as pool:
        parts = pool.map(lambda request: again(*request), requests)
        told.put([status for part in parts for status in part])


@contextmanager
def attacked(url: str, requests: Sequence[tuple[str, bytes]]) -> Iterator[list[int]]:
    """While bodies are sent by another process; the statuses of their replies, at the end."""
    over, told, statuses = CONTEXT.Event(), CONTEXT.Queue(), []
    attacker = CONTEXT.Process(target=_attack, args=(url, requests, over, told))
    attacker.start()
    try:
        yield statuses
        over.set()
        statuses += told.get(timeout=120)
    finally:
        over.set()
        attacker.join(120)
        attacker.kill()


def _replies(url: str, count: int) -> list[str]:
    asked = world.questions(count)
    limits = [random.Random(number).randint(1, 24) for number in range(count)]

    def ask(number: int) -> str:
        chat = {"model": "atlas", "messages": [{"role": "user", "content": asked[number]}]}
        reply = client.post(f"{url}/v1/chat/completions", json=chat | {"max_tokens": limits[number], "temperature": 0})
        return reply.json()["choices"][0]["message"]["content"] if reply.status_code == 200 else f"{reply.status_code}"

    with CLIENT() as client, ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(ask, range(count)))


def worst_bodies(folder: Path, count: int = HONEST) -> Tried:
    """Honest requests to `serve`, alone and beside ten clients that send the worst bodies."""
    shutil.copytree(world.BASE, folder / "base")
    config = folder / "base" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": LONGEST}))
    settings = [one for one in world.SETTINGS if one.split("=")[0] not in ENGINE and not one.startswith("retrieval")]
    sets = [word for one in (*settings, *(f"{k}={v}" for k, v in ENGINE.items())) for word in ("--set", one)]
    words = ("serve", str(folder / "base"), "--port", "0", "--name", "atlas", *sets)
    with process(*words) as (server, url), CLIENT() as client:

        def measured() -> tuple[list[str], float, float]:
            with (
                Waits(partial(_health, client, url), 0.02) as health,
                CLIENT() as other,
                Waits(partial(_stream, other, url), 0.0) as stream,
            ):
                replies = _replies(url, count)
            assert health.count > 20 and stream.count > 20
            return replies, health.longest, stream.longest

        _replies(url, 50)
        alone = measured()
        with attacked(url, list(bodies.worst("atlas").values())) as statuses:
            beside = measured()
        wrong = sum(one != other for one, other in zip(alone[0], beside[0], strict=True))
        assert wrong == 0, f"{wrong} replies differ"
        assert statuses and not [one for one in statuses if one >= 500 and one != 503], statuses
        more = [1000 * (after - before) for before, after in zip(alone[1:], beside[1:], strict=True)]
        assert max(more) <= 1000 * WAITS, (alone[1:], beside[1:])
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    return Tried(
        len(statuses),
        f"beside {count} honest requests, none wrong or lost; longest wait of /health "
        f"{1000 * beside[1]:.0f} ms ({1000 * alone[1]:.0f} without), of a running stream {1000 * beside[2]:.0f} ms "
        f"({1000 * alone[2]:.0f})",
    )


# ------------------------------------------------------------------------------------------------------------- search
def _check(reference: np.ndarray, places: dict[str, int], hits: list[dict[str, Any]], k: int) -> None:
    """The hits of a query are the best k by the scores of all passages, up to rounding."""
    found = [places[hit["document"]["id"]] for hit in hits]
    scores = np.asarray([hit["score"] for hit in hits])
    assert len(set(found)) == len(found) == min(k, len(reference)) and (np.diff(scores) <= 0).all()
    assert np.allclose(scores, reference[found], atol=1e-5)
    assert scores[-1] >= np.sort(reference)[-len(found)] - 1e-5


def many_searches(folder: Path, kind: str, large: int = 4) -> Tried:
    """Single queries beside clients that ask for every k and for 8,192 queries at once; then SIGTERM."""
    card = load_card(world.ROOT / "configs" / "ssp" / "atlas.toml", [f"retrieval.kind={kind}"]).retrieval
    assert card is not None
    own = open_or_build_index(card.model_copy(update={"index": str(folder / "own")}), folder, None)
    documents = [own.corpus[row] for row in range(len(own.corpus))]
    places = {document.id: row for row, document in enumerate(documents)}
    passages_NE = own.embedder.passages([document.contents for document in documents])
    queries = [text.split("Question: ")[1] for text in world.questions(64)]
    scores_QN = own.embedder.queries(queries) @ passages_NE.T
    index = ("--index", str(folder / "index"), "--set", f"retrieval.kind={kind}")
    words = ("search", "configs/ssp/atlas.toml", *index, "--port", "0", "--grace", "2")
    with process(*words) as (server, url), CLIENT() as client:

        def ask(number: int, k: int) -> None:
            place = number % len(queries)
            body = {"queries": [queries[place]], "topk": k, "return_scores": True}
            reply = client.post(f"{url}/retrieve", json=body)
            assert reply.status_code == 200, reply.text
            _check(scores_QN[place], places, reply.json()["result"][0], k)

        def once() -> Iterator[None]:
            ask(random.randrange(64), 3)
            yield

        def body(number: int) -> tuple[str, bytes]:
            asked = ", ".join(f'"{query} {number}"' for query in queries * 128)
            return "/retrieve", f'{{"queries": [{asked}], "topk": 8}}'.encode()

        with Waits(once, 0.02) as alone:
            time.sleep(3)
        with attacked(url, [body(number) for number in range(large)]) as statuses:
            with Waits(once, 0.02) as beside, ThreadPoolExecutor(4) as pool:
                list(pool.map(ask, range(1000), range(1, 1001)))
            server.send_signal(signal.SIGTERM)
            began = time.monotonic()
            assert server.wait(60) == 0
            ended = time.monotonic() - began
        assert beside.longest <= SEARCH_WAITS, beside.longest
        assert not [one for one in statuses if one not in (200, 503)], statuses
        assert ended < 2 + 5, ended
    return Tried(
        beside.count + 1000,
        f"{beside.count} single queries and 1,000 values of k beside {large} clients of 8,192 queries: none wrong, "
        f"longest wait {1000 * beside.longest:.0f} ms ({1000 * alone.longest:.0f} without); ended {ended:.1f} s after "
        "SIGTERM with a grace of 2 s",
    )


def crowds() -> dict[str, Callable[[Path], Tried]]:
    """Every crowd by its name in the table."""
    return {
        "serve: the worst bodies of a mebibyte": worst_bodies,
        "search: 1,000 values of k and 8,192-query bodies": partial(many_searches, kind="exact"),
        "search over ScaNN: 1,000 values of k and 8,192-query bodies": partial(many_searches, kind="scann"),
    }
