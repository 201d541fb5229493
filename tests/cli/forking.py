"""Processes of Python in which modules are imported already: forks of a server that imported them once.

    python forking.py SOCKET MODULE...

SOCKET is the descriptor of a socket over which one process at a time is asked for; its number is told when it has
begun, and how it ended when it has ended.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TextIO

LONGEST = 1 << 16  # bytes of a program


class Forked:
    """A process that runs a program, as subprocess.Popen has it."""

    def __init__(self, line: socket.socket, program: str, arguments: Sequence[str]) -> None:
        out, told_out = os.pipe()
        err, told_err = os.pipe()
        line.settimeout(None)
        socket.send_fds(line, [json.dumps([program, *arguments]).encode()], [told_out, told_err])
        os.close(told_out)
        os.close(told_err)
        self._line = line
        self.stdout: TextIO = os.fdopen(out)
        self.stderr: TextIO = os.fdopen(err)
        self.returncode: int | None = None
        self.pid = int(line.recv(32))

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def poll(self) -> int | None:
        """The exit code, or None while the process is running."""
        return self.wait() if self.returncode is None and select.select([self._line], [], [], 0)[0] else self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises TimeoutError after so many seconds."""
        if self.returncode is None:
            self._line.settimeout(timeout)
            self.returncode = os.waitstatus_to_exitcode(int(self._line.recv(32)))
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """The rest of what it printed. Raises TimeoutError after so many seconds."""
        with ThreadPoolExecutor(2) as pool:
            printed = [pool.submit(file.read) for file in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            finally:
                self.kill()
            return printed[0].result(), printed[1].result()

    def kill(self) -> None:
        """Ends it, if it is running."""
        if self.poll() is None:
            self.send_signal(signal.SIGKILL)
            self.wait()

    def end(self) -> None:
        """Ends it, and closes what it printed to."""
        self.kill()
        self.stdout.close()
        self.stderr.close()


@contextmanager
def forking(*modules: str, **environment: str) -> Iterator[socket.socket]:
    """The socket of a server, for `Forked`, with these modules and further variables of the environment."""
    line, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, __file__, str(other.fileno()), *modules]
    pipe = subprocess.PIPE  # as sys.stdout and sys.stderr of what is forked are pipes
    with (
        line,
        subprocess.Popen(
            command, pass_fds=[other.fileno()], env=os.environ | environment, stdout=pipe, stderr=pipe
        ) as server,
    ):
        other.close()
        yield line
        line.close()
        server.wait(60)


def serve(line: socket.socket) -> str | None:
    """Waits for programs; in a process that was forked the program to run, in the server None at the end."""
    while True:
        asked, descriptors, _, _ = socket.recv_fds(line, LONGEST, 2)
        if not asked:
            return None
        pid = os.fork()
        if not pid:
            line.close()
            for place, descriptor in enumerate(descriptors, 1):
                os.dup2(descriptor, place)
                os.close(descriptor)
            program, *arguments = json.loads(asked)
            sys.argv = ["-c", *arguments]
            return program
        for descriptor in descriptors:
            os.close(descriptor)
        line.send(str(pid).encode())
        line.send(str(os.waitpid(pid, 0)[1]).encode())


if __name__ == "__main__":
    for module in sys.argv[2:]:
        importlib.import_module(module)
    if (code := serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
