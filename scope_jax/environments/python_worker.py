"""One process in which code of a policy runs, from outside: sends code, collects what it prints, kills it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import select
import signal
import socket
import time
from collections.abc import Mapping

from scope_jax.config import SandboxSection
from scope_jax.environments.isolation import guard
from scope_jax.errors import UserError
from scope_jax.play.tool_calls import ToolError

END_SECONDS = 60.0  # for the kernel to end a killed worker
_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{8,16}\b")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def readable(printed: bytes, paths: Mapping[str, str] | None = None) -> str:
    """What code printed, for a policy: addresses of objects are blanked, control characters replaced. paths: patterns
    of paths on this host, and what is written for them."""
    text = printed.decode("utf-8", "replace").replace("\r\n", "\n")
    for pattern, other in (paths or {}).items():
        text = re.sub(pattern, other, text)
    return _CONTROL.sub("\ufffd", _ADDRESS.sub("at 0x…", text)).rstrip("\n")


class Worker:
    """A process with the variables of a session; safe to use by one thread at a time."""

    def __init__(
        self, process: int, channel: socket.socket, guard: socket.socket, output: int, section: SandboxSection
    ) -> None:
        self._process = process
        self._channel = channel
        self._guard = guard
        self._output = output
        self._section = section
        self._over = ""  # why no further call is possible
        self.paths: Mapping[str, str] = {}
        os.set_blocking(output, False)

    def run(self, code: str, seconds: float | None = None) -> str:
        """What the code prints, and the value of its last expression; then nothing that it has started goes on.
        seconds: other limit than the section's. Raises ToolError if the worker is over, or has to be killed; what it
        printed is in the message."""
        if self._over:
            raise ToolError(f"the session is over: {self._over}")
        printed = bytearray()
        problem = self._ask(code, seconds or self._section.seconds, printed) or self._halt()
        if problem:
            self._over = problem
            self.kill()
        self._read(printed)
        text = readable(bytes(printed[: self._section.max_output]), self.paths)
        if problem:
            raise ToolError(f"{problem}; printed until then:\n{text}" if text else problem)
        return text

    def kill(self) -> None:
        """Ends the process and all that it has started; returns once they are gone."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, signal.SIGKILL)
        gone = select.poll()
        gone.register(self._process, select.POLLIN)
        if not gone.poll(END_SECONDS * 1e3):
            raise UserError(f"the kernel has not ended a killed process within {END_SECONDS:g} s; check this host.")

    def close(self) -> None:
        """Kills it, and closes its descriptors."""
        if self._process >= 0:
            self.kill()
            self._channel.close()
            self._guard.close()
            os.close(self._output)
            os.close(self._process)
            self._process, self._over = -1, self._over or "it has been closed"

    def _ask(self, code: str, seconds: float, printed: bytearray) -> str:
        """Has the code run, and says why the worker must be killed, "" if it need not."""
        token = secrets.token_hex(8)
        deadline = time.monotonic() + seconds
        late, ended = f"no result within {seconds:g} s", "the process ended before the code did"
        try:
            self._guard.sendall(guard.GO)
            self._channel.settimeout(seconds)
            self._channel.sendall(json.dumps({"token": token, "code": code}).encode() + b"\n")
        except TimeoutError:
            return late
        except OSError:
            return ended
        waiting = select.poll()
        waiting.register(self._output, select.POLLIN)
        waiting.register(self._channel, select.POLLIN)
        answer = b""
        while (left := deadline - time.monotonic()) > 0:
            for fd, _ in waiting.poll(left * 1e3):
                if fd == self._output:
                    if self._read(printed):
                        waiting.unregister(fd)  # closed by all who wrote
                    if len(printed) > self._section.max_output:
                        return f"more than {self._section.max_output} bytes of output"
                    continue
                part = self._received()
                answer += part
                if not part:
                    return f"the worker failed ({readable(answer)})" if answer else ended
                if answer == f"{token}\n".encode():
                    return ""
                if len(answer) > len(token):
                    return f"the worker failed ({readable(answer[:200])})"
        return late

    def _halt(self) -> str:
        """Has all that the code has started ended, and the worker stand still; why it must be killed, "" if it need
        not."""
        try:
            self._guard.settimeout(END_SECONDS)
            self._guard.sendall(guard.HALT)
            answer = self._guard.recv(1)
        except OSError:  # late, or reset
            answer = b""
        return "" if answer == guard.HALT else "what the code has started could not be ended"

    def _received(self) -> bytes:
        try:
            return self._channel.recv(4096)
        except OSError:  # reset
            return b""

    def _read(self, printed: bytearray) -> bool:
        """Adds what is in the pipe, up to the limit; True at its end."""
        while len(printed) <= self._section.max_output:
            try:
                part = os.read(self._output, 1 << 16)
            except BlockingIOError:
                return False
            if not part:
                return True
            printed += part
        return False
