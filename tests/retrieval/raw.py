"""Servers that send raw bytes, to simulate faulty HTTP."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Answer = Callable[[socket.socket], None]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@contextmanager
def serving(talk: Answer) -> Iterator[tuple[int, list[bytes]]]:
    """(a free port on the loopback, requests so far); `talk` answers each connection in a separate thread."""
    listening = socket.create_server(("127.0.0.1", 0))
    seen: list[bytes] = []

    def answer(connection: socket.socket) -> None:
        with connection:
            seen.append(connection.recv(1 << 20))
            try:
                talk(connection)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass
            except OSError:
                return  # the client disconnected, as it should

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[1], seen
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()


def dripping(head: bytes, every: float, stop: threading.Event) -> Answer:
    """Sends `head`, and then one byte after another for as long as anyone listens."""

    def talk(connection: socket.socket) -> None:
        connection.sendall(head)
        while not stop.wait(every):
            connection.sendall(b"x")

    return talk


def sending(reply: bytes) -> Answer:
    return lambda connection: connection.sendall(reply)
