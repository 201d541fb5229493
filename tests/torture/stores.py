"""An object store that answers 503, hangs, breaks off uploads and downloads. The folder is empty."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

from tests.torture import lives
from tests.torture.faults import GAME
from tests.torture.table import Tried
from tests.train import runs
from tests.train.buckets import Buckets, Handler

PASSING = ("says 503", "closes", "cuts its reply", "takes half and closes", "takes all and says 503", "hangs")
SHARE = 0.25  # of the requests that meet a fault
HANGS = 2.0  # seconds
BUCKET = "bucket"


class Faulty(Handler):
    """Does something else than it is asked for, drawn by the number of a request."""

    server: FaultyBuckets

    def _handle(self) -> None:
        server = self.server
        with server.lock:
            draw = Random(f"{server.seed} {server.number}")
            server.number += 1
            fault = draw.choice(server.faults) if server.faults and draw.random() < server.share else ""
            if fault.startswith("takes") and self.command not in ("POST", "PUT"):
                fault = ""
            if fault:
                server.done[fault] += 1
        match fault:
            case "says 503":
                self._body()
                self._answer(503, b"SlowDown")
            case "closes":
                self.close_connection = True
            case "takes half and closes":
                self.rfile.read(int(self.headers.get("Content-Length", 0)) // 2)
                self.close_connection = True
            case "takes all and says 503":
                self.answered = False
                super()._handle()
                self.answered = True
                self._answer(503, b"SlowDown")
            case "cuts its reply":
                self.cut = True
                super()._handle()
                self.cut = False
                self.close_connection = True
            case _:
                if fault == "hangs":
                    time.sleep(HANGS)
                super()._handle()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle
    answered, cut = True, False

    def _answer(self, code: int, body: bytes = b"", **headers: str) -> None:
        if not self.answered:
            return
        if not self.cut:
            return super()._answer(code, body, **headers)
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body) + 1))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2])


class FaultyBuckets(Buckets):
    """faults: by turns of chance in this share of all requests; done: how often which."""

    def __init__(self, seed: int) -> None:
        self.seed, self.number, self.share = seed, 0, SHARE
        self.faults: tuple[str, ...] = ()
        self.done: Counter[str] = Counter()
        super().__init__(Faulty)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that breaks off, as it should, is no error."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)  # pyright: ignore[reportArgumentType]


def _words(scheme: str, name: str, folder: Path, spool: str) -> list[str]:
    data = f"data.answers={scheme}://{BUCKET}/data/answers.jsonl"
    words = lives.words(GAME, Path("run"), data, f"train.spool={folder / spool}")
    return [f"{scheme}://{BUCKET}/{name}" if word == "run" else word for word in words]


def _copied(server: Buckets, name: str, place: Path) -> Path:
    """What the bucket holds of a run, as files."""
    for key in server.names(BUCKET):
        if key.startswith(name + "/"):
            path = place / key.removeprefix(name + "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(server.objects[BUCKET, key][0])
    return place


def store(scheme: str, seed: int, folder: Path) -> Tried:
    """A run, and one that is killed and goes on on another machine, while a quarter of all requests fails; then one
    that meets nothing but 503s."""
    with FaultyBuckets(seed) as server:
        change = partial(_change, server.environment, str(folder))
        answers = (runs.ROOT / "assets" / "atlas" / "answers.jsonl").read_bytes()
        server.objects[BUCKET, "data/answers.jsonl"] = (answers, 1)

        def life(name: str, spool: str) -> lives.Life:
            return lives.Life(_words(scheme, name, folder, spool), folder / f"{name}-{spool}.log", change)

        life("whole", "first").end()
        whole = _copied(server, "whole", folder / "whole")
        server.faults = PASSING
        life("run", "second").end()
        runs.same(whole, _copied(server, "run", folder / "run"))

        killed = life("killed", "third")
        while not any(name.startswith("killed/checkpoints/2/") for name in server.names(BUCKET)):
            assert not killed.ends_within(0.01), killed.output
        killed.kill()
        shutil.rmtree(folder / "third")
        life("killed", "fourth").end()
        runs.same(whole, _copied(server, "killed", folder / "killed"))
        done = Counter(server.done)

        down = life("down", "fifth")
        while not any(name.startswith("down/checkpoints/1/") for name in server.names(BUCKET)):
            assert not down.ends_within(0.01), down.output
        server.faults, server.share = ("says 503",), 1.0
        *_, last = down.end(2)
        assert last.startswith("scope-jax: ") and f"{scheme}://{BUCKET}" in last and last.endswith("."), last
        server.faults = ()
        life("down", "fifth").end()
        runs.same(whole, _copied(server, "down", folder / "down"))
        server.shutdown()
    assert done.total() > 30 and done.keys() == {*PASSING}, done
    which = ", ".join(f"{name}: {done[name]}" for name in PASSING)
    return Tried(
        done.total(),
        f"{which}; also over a kill and another machine the same bits; nothing but 503s: one message, then the "
        "same bits",
    )


def _change(environment: dict[str, str], home: str) -> None:
    os.environ.update(environment, HOME=home)


def stores(seed: int) -> dict[str, Callable[[Path], Tried]]:
    """Every row by its name in the table."""
    return {
        f"an object store ({scheme}) with 503s, hangs, partial uploads and downloads": partial(store, scheme, seed)
        for scheme in ("gs", "s3")
    }
