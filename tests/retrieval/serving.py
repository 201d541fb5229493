"""A search server in a thread, for tests that talk to it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import uvicorn

from scope_jax.retrieval.search import Retriever
from scope_jax.retrieval.server import make_app
from scope_jax.web.connections import config


@contextmanager
def serving(retrieve: Retriever, hosts: Collection[str] = ()) -> Iterator[int]:
    """The free port on the loopback where `retrieve` is served, three passages a query. hosts: names of the server."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    server = uvicorn.Server(config(make_app(retrieve, top_k=3, hosts=hosts)))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
