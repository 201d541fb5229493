"""A judge and a search server that misbehave: some faults pass with a second attempt, others end a run with a sentence.

Their honest answers are functions of the request alone, so that a run ends with the same bits however often it asks.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any

from tests.train import runs

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000000\r\n\r\n"
HONEST = 4  # requests that are answered first, so that a run is under way
PASSING = ("hangs", "drips", "sends 40 MB", "cuts its reply", "closes", "says 503", "says 429", "compresses")
LASTING = ("redirects", "says 401")
LASTING_SEARCH = (*LASTING, "is no JSON", "one result too few", "one result too many", "hits without text", "nests")
RUBRIC = "".join(f'<rubric priority="important">Tells {what}.</rubric>' for what in ("who", "where", "when"))


def passages() -> list[dict[str, str]]:
    lines = (runs.ROOT / "assets" / "atlas" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def judged(body: dict[str, Any]) -> dict[str, Any]:
    """What SCOPE's judges reply; half of the answers meet a criterion."""
    text = body["messages"][0]["content"]
    odd = zlib.crc32(text.encode()) % 2
    replies = {"rubric_writer": f"<rubrics>{RUBRIC}</rubrics>", "gates": "<score>1</score>"}
    content = replies.get(body["model"], f"<score>{odd}</score>")
    return {"choices": [{"message": {"role": "assistant", "content": content}}]}


class Searched:
    """The passages that share most words with a query."""

    def __init__(self) -> None:
        self._passages = passages()
        self._words = [set(f"{one['title']} {one['text']}".lower().split()) for one in self._passages]

    def __call__(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"result": [self._hits(query, body["topk"]) for query in body["queries"]]}

    def _hits(self, query: str, count: int) -> list[dict[str, Any]]:
        asked = set(query.lower().split())
        best = sorted(range(len(self._words)), key=lambda place: (-len(asked & self._words[place]), place))[:count]
        found = [(self._passages[place], float(len(asked & self._words[place]))) for place in best]
        return [{"document": {"id": p["id"], "contents": f'"{p["title"]}"\n{p["text"]}'}, "score": s} for p, s in found]


class Server:
    """Answers honestly, except for a share of the requests after the first ones, drawn by (seed, number of a request).

    faults: what it does then; done: how often it did what.
    """

    def __init__(self, honest: Any, faults: Sequence[str], share: float, seed: int) -> None:
        self._honest, self._faults, self._share, self._seed = honest, faults, share, seed
        self.done: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._number = 0
        self.over = threading.Event()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        with self._lock:
            draw = Random(f"{self._seed} {self._number}")
            self._number += 1
            wrong = self._number > HONEST and draw.random() < self._share
            fault = draw.choice(self._faults) if self._faults and wrong else "answers"
            self.done[fault] += 1
        try:
            self._act(handler, fault, body)
        except OSError:
            return  # the client has gone, as it should

    def _act(self, handler: BaseHTTPRequestHandler, fault: str, body: dict[str, Any]) -> None:
        out, honest = handler.wfile, self._honest(body)
        match fault:
            case "hangs":
                self.over.wait(30)
            case "drips":
                out.write(HEAD)
                while not self.over.wait(0.05):
                    out.write(b" ")
                    out.flush()
            case "sends 40 MB":
                out.write(HEAD)
                for _ in range(40):
                    out.write(b" " * (1 << 20))
            case "cuts its reply":
                out.write(HEAD + json.dumps(honest).encode()[:-9])
            case "closes":
                pass
            case "says 503" | "says 429" | "says 401":
                _send(handler, int(fault.split()[1]), b"no")
            case "compresses":
                _send(handler, 200, b"\x1f\x8b", {"Content-Encoding": "gzip"})
            case "redirects":
                _send(handler, 307, b"", {"Location": "http://127.0.0.1:9/"})
            case "is no JSON":
                _send(handler, 200, b"<html>")
            case "nests":
                _send(handler, 200, b"[" * 100_000)
            case "one result too few":
                _send(handler, 200, json.dumps({"result": honest["result"][1:]}).encode())
            case "one result too many":
                _send(handler, 200, json.dumps({"result": [*honest["result"], []]}).encode())
            case "hits without text":
                _send(handler, 200, json.dumps({"result": [[{"score": 1}] for _ in honest["result"]]}).encode())
            case _:
                _send(handler, 200, json.dumps(honest).encode())


def _send(handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


@contextmanager
def serving(honest: Any, faults: Sequence[str] = (), share: float = 1.0, seed: int = 0, port: int = 0) -> Iterator[Any]:
    """(port, server) on the loopback. port: 0 takes a free one."""
    made = Server(honest, faults, share, seed)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            made.answer(self)

        def log_message(self, format: str, *args: Any) -> None:
            """Suppresses the log."""

    class Listening(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

    server = Listening(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1], made
    finally:
        made.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
        time.sleep(0.1)
