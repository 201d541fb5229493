"""The parent of a worker, and the first process of its process namespace: it adopts what the code starts, and ends it.

It has what no code of a model can change: it runs none, has no capabilities, cannot be read by the worker, and, as the
first process of its namespace, cannot be killed from inside. When it ends, all processes of the namespace end.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress

GO, HALT = b"g", b"h"  # requests; the second is answered by itself
PASSES, PAUSE = 2000, 0.01  # seconds between two looks at what has not ended yet


def watch(channel: int, worker: int, isolated: bool) -> None:
    """Serves requests of a socket until it ends, or until something that the code has started cannot be ended.

    HALT: all that the worker has started is ended, and it stands still itself; GO: it goes on. isolated: this is the
    first process of a process namespace. The kernel waits for ended children (`adopt`).
    """
    requests = socket.socket(fileno=channel)
    process = os.pidfd_open(worker)
    halt = _halt_namespace if isolated else _halt_tree
    while request := requests.recv(1):
        with suppress(ProcessLookupError):  # the worker has ended, which is known by the end of its own socket
            if request == GO:
                signal.pidfd_send_signal(process, signal.SIGCONT)
                continue
            signal.pidfd_send_signal(process, signal.SIGSTOP)
        if not halt(worker):
            return
        requests.sendall(HALT)


def adopt() -> None:
    """Has the kernel wait for the children of this process, orphans among them; a signal from a worker does nothing."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which the first process of a namespace does not get


def _halt_namespace(worker: int) -> bool:
    """Stops all at once, so that none can fork, and kills all but the worker; whether they have ended."""

    def others() -> set[int]:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGSTOP)
        return {int(name) for name in os.listdir("/proc") if name.isdigit()} - {1, worker}

    return _killed(others)


def _halt_tree(worker: int) -> bool:
    """Without a process namespace: kills what can be found below this process, but for the worker."""
    return _killed(lambda: _descendants(os.getpid()) - {worker})


def _killed(others: Callable[[], set[int]]) -> bool:
    """Kills these processes until all have ended; False if they have not after PASSES attempts."""
    for _ in range(PASSES):
        left = {pid for pid in others() if _lives(pid)}
        if not left:
            return True
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(PAUSE)
    return False


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def _descendants(pid: int) -> set[int]:
    """The processes below one."""
    below, new = set[int](), [pid]
    while new:
        children: set[int] = set()
        for parent in new:
            with suppress(FileNotFoundError, ProcessLookupError):
                for thread in os.listdir(f"/proc/{parent}/task"):
                    with open(f"/proc/{parent}/task/{thread}/children") as file:
                        children |= set(map(int, file.read().split()))
        new = [*(children - below)]
        below |= children
    return below
