"""The report of a run that is still going on, served on the loopback interface."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from scope_jax.errors import UserError
from scope_jax.report.page import write_report
from scope_jax.run.files import METRICS, read_records
from scope_jax.web.connections import config
from scope_jax.web.guard import Guard

LOOPBACK = "127.0.0.1"
PAUSE = 2.0  # seconds between two looks at the run's files
SHARE = 4.0  # a report is not made again before so many times the seconds that the last one took


def site(folder: Path, hosts: Collection[str] = ()) -> Starlette:
    """The files of a report. Requests of other web pages, or that name another host, are refused."""
    guard = Middleware(Guard, hosts=hosts, refuse=lambda status, sentence: PlainTextResponse(sentence, status))
    return Starlette(routes=[Mount("/", StaticFiles(directory=folder, html=True))], middleware=[guard])


def watch(run: Path, port: int, tell: Callable[[str], None], hosts: Collection[str] = ()) -> None:
    """Serves the run's report and makes it anew whenever the run has another step, until it is interrupted.

    port: 0 for a free one. hosts: names of this machine besides the loopback's. Raises FileNotFoundError for a
    folder that is not a run, UserError for a port in use.
    """
    if not (run / "config.toml").is_file():
        raise FileNotFoundError(
            f"{run} is not a run folder (no config.toml); give the folder passed to train as --run."
        )
    with socket.socket() as listening, suppress(KeyboardInterrupt):
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((LOOPBACK, port))
        except OSError as error:
            raise UserError(f"port {port} cannot be used ({error.strerror}); give another one with --port.") from None
        _wait_for_a_step(run, tell)
        seen, spent = _state(run), time.monotonic()
        write_report(run, live=True)
        spent = time.monotonic() - spent
        server = uvicorn.Server(config(site(run / "report", hosts)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            if not thread.is_alive():
                raise UserError(f"the report of {run} cannot be served on port {port}; see the message above.")
            time.sleep(0.02)
        tell(f"http://{LOOPBACK}:{listening.getsockname()[1]}/ shows {run} while it goes on; Ctrl-C ends this.")
        try:
            while True:
                time.sleep(max(PAUSE, SHARE * spent))
                if (now := _state(run)) != seen:
                    _wait_for_a_step(run, tell)  # a run that has begun anew has none
                    seen, spent = now, time.monotonic()
                    write_report(run, live=True)
                    spent = time.monotonic() - spent
        finally:
            server.should_exit = True


def _state(run: Path) -> tuple[int, int]:
    """Differs when metrics.jsonl has another step, or was cut by a run that resumed."""
    found = (run / METRICS).stat()
    return found.st_size, found.st_mtime_ns


def _wait_for_a_step(run: Path, tell: Callable[[str], None]) -> None:
    path, told = run / METRICS, False
    while next(read_records(path), None) is None:
        if not told:
            tell(f"{run} has no finished step yet; waiting for the first.")
            told = True
        time.sleep(PAUSE)
