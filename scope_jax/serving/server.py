"""The process that serves: sockets, signals, and an orderly end."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial

import uvicorn
from starlette.applications import Starlette

from scope_jax.errors import UserError
from scope_jax.retrieval.lanes import Lanes
from scope_jax.rollouts.online import Done, Full
from scope_jax.rollouts.types import Request, SamplingParams
from scope_jax.serving.app import Api
from scope_jax.serving.assemble import Served
from scope_jax.serving.generating import plain_ids
from scope_jax.web.connections import config
from scope_jax.web.guard import Refusal

SWITCH = 0.001  # seconds that a thread which computes in Python keeps others waiting; Python's own are 0.005
LOOK = 0.2  # seconds between looks at whether to end
FAREWELL = 5.0  # seconds in which replies that took too long tell their clients so


class _Server(uvicorn.Server):
    """uvicorn, which ends at a signal without raising it again: an orderly end is no error."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():  # only it may listen to signals
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, one in before.items():
                signal.signal(number, one)


def run_http(
    app: Starlette, sock: socket.socket, grace: float, told: Callable[[str], None], end: Callable[[], object]
) -> None:
    """Serves an application until a signal; replies under way have `grace` seconds, then `end` is called, which ends
    them. told(address): once it listens."""

    async def run() -> None:
        server = _server(app, grace + FAREWELL)
        watching = asyncio.ensure_future(_end_in_order(server, grace, end, lambda: False))
        try:
            await _serve(server, sock, told)
        finally:
            watching.cancel()

    asyncio.run(run())


async def _end_in_order(
    server: uvicorn.Server, grace: float, end: Callable[[], object], over: Callable[[], bool]
) -> None:
    """Once a signal has come or `over` says so, lets the server end, and calls `end` after the grace."""
    while not (server.should_exit or over()):
        await asyncio.sleep(LOOK)
    server.should_exit = True
    await asyncio.sleep(grace)
    end()


async def _serve(server: uvicorn.Server, sock: socket.socket, told: Callable[[str], None]) -> None:
    sys.setswitchinterval(SWITCH)
    gc.collect()
    gc.freeze()  # what has been loaded stays: a collection that looks at all of it stops every thread

    async def tell() -> None:
        while not server.started:
            await asyncio.sleep(0.02)
        host, port = sock.getsockname()[:2]
        told(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    telling = asyncio.ensure_future(tell())
    try:
        await server.serve([sock])
    finally:
        telling.cancel()


def _server(app: Starlette, grace: float) -> _Server:
    return _Server(config(app, timeout_graceful_shutdown=max(1, round(grace)), lifespan="on"))


def warm_up(model: Served, alone: bool = False) -> None:
    """Compiles all programs and samples one token, so that the first requests wait for neither. alone: there is one
    request at a time, and nobody whom the first could delay."""
    model.rollouts.compile(extends=model.joiner is not None, alone=alone)
    if alone:
        return
    params = SamplingParams(0.0, 0, 1.0, 1, (), tuple(model.tokenizer.eos_ids), False)
    ended = threading.Event()
    request = Request([0], params, None, None, max_turns=1, respond=None, policy=model.adapter)
    model.rollouts.submit([request], [lambda news: ended.set() if isinstance(news, Done) else None])
    ended.wait()
    if model.rollouts.failure is not None:
        raise model.rollouts.failure


def run_model(
    model: Served,
    sock: socket.socket,
    *,
    key: str | None,
    grpc: tuple[str, int] | None,
    grace: float,
    tell: Callable[[str], None],
    hosts: Collection[str] = (),
    ended: threading.Event | None = None,
) -> None:
    """Serves a model until a signal, until `ended` is set, or until its engine fails, whose error is raised.

    key: what clients must give. hosts: further names of this server. grpc: (host, port) of JetStream's service as well.
    """
    asyncio.run(_run(model, sock, key, hosts, grpc, grace, tell, ended or threading.Event()))
    if model.rollouts.failure is not None:
        raise model.rollouts.failure


async def _run(
    model: Served,
    sock: socket.socket,
    key: str | None,
    hosts: Collection[str],
    grpc: tuple[str, int] | None,
    grace: float,
    tell: Callable[[str], None],
    ended: threading.Event,
) -> None:
    lanes = Lanes()
    api = Api(model, key, hosts, lanes)
    server = _server(api.app(), grace + FAREWELL)
    also = None
    if grpc is not None:
        try:
            from scope_jax.rollouts.jetstream import Orchestrator, grpc_server
        except ModuleNotFoundError as error:
            if error.name not in ("grpc", "jetstream"):
                raise
            raise UserError(
                "--grpc-port needs JetStream, which is not installed; run pip install 'scope-jax[jetstream]', or, "
                "without TensorFlow, pip install grpcio and pip install --no-deps google-jetstream==0.2.2."
            ) from None

        if model.adapter is not None:
            raise UserError(
                "JetStream's service does not know adapters; leave out --grpc-port, or serve whole weights "
                "(`scope-jax export --merge`)."
            )
        limits = model.cfg.serve

        async def apart(size: int, work: Callable[[], Request]) -> Request:
            try:
                return await lanes.run(size, work)
            except Refusal as refusal:
                raise Full(str(refusal)) from None

        service = Orchestrator(
            model.rollouts,
            max_tokens=limits.max_tokens,
            ends=model.cfg.model.stop,
            key=key,
            encode=partial(plain_ids, model),
            apart=apart,
        )
        also, port = grpc_server(service, *grpc, limits.max_body)
        await also.start()
        tell(f"JetStream's service on {grpc[0]}:{port}")

    watching = asyncio.ensure_future(
        _end_in_order(server, grace, api.end, lambda: ended.is_set() or model.rollouts.failure is not None)
    )
    try:
        await _serve(server, sock, lambda address: tell(f"serving {model.name} on {address}/v1"))
    finally:
        watching.cancel()
        lanes.close()
        if also is not None:
            await also.stop(grace)
