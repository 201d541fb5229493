"""Renders chat templates in a process of their own, so that none can take more than a moment or fill the memory.

A template is code that comes with a model folder. Jinja's sandbox keeps it from files and objects, not from loops,
strings that double, or ranges of a billion. One worker (`models/tokenizers/template_worker.py`) serves the process's
templates one after the other; it is started when it is first needed, and again after it was ended at a limit.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from scope_jax.errors import UserError
from scope_jax.models.fields import cut

WORKER = Path(__file__).with_name("template_worker.py")
SECONDS, SECONDS_PER_MB = 1.0, 1.0  # CPU time of a template, and more for long conversations
WAIT = 60.0  # seconds on the clock, for a worker that is not scheduled
CHARS, CHARS_PER_CHAR = 2**20, 8  # the longest text: a constant, and more for long conversations


class TemplateLimit(UserError):
    """A chat template takes more time or memory, or writes more text, than any real one."""


def start() -> None:
    """Starts the worker, which takes a second, without waiting for it."""
    with _worker.lock:
        _worker.running()


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    add_generation_prompt: bool,
    variables: Mapping[str, Any],
) -> str:
    """The text that transformers renders, with its environment and treatment of messages.

    Raises TemplateLimit, or ValueError with what the template says where it rejects the conversation.
    """
    if not messages:
        raise ValueError("The chat template needs at least one message.")
    given = {
        # As apply_chat_template does: a value that is null is none.
        "conversations": [[{key: value for key, value in one.items() if value is not None} for one in messages]],
        "tools": tools,
        "chat_template": template,
        "add_generation_prompt": add_generation_prompt,
        **variables,
    }
    written = json.dumps(given, default=lambda value: f"<{type(value).__name__}>")  # as transformers shows other values
    seconds, chars = SECONDS + SECONDS_PER_MB * len(written) / 1e6, CHARS + CHARS_PER_CHAR * len(written)
    request = f'{{"seconds": {seconds}, "chars": {chars}, "given": {written}}}'
    answer = _worker.ask(request.encode(), seconds, chars)
    if "text" in answer:
        return answer["text"]
    if answer.get("limit"):
        raise TemplateLimit(f"The chat template was stopped: {answer['error']}; use another template.")
    raise UserError(f"The chat template rejects the conversation ({cut(answer['error'], 200)}).")


class _Worker:
    """The worker process of this process; a fork gets its own."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def running(self) -> subprocess.Popen[bytes]:
        """The worker, started if there is none. The lock must be held."""
        if self._process is None or self._process.poll() is not None:
            self.stop()
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(WORKER)],  # -P: its folder holds modules with names of others
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the process that asks; the worker ends with its input
            )
        return self._process

    def ask(self, request: bytes, seconds: float, chars: int) -> dict[str, Any]:
        """The worker's answer to a request. Raises TemplateLimit if the worker was ended at a limit."""
        with self.lock:
            process = self.running()
            try:
                assert process.stdin is not None
                process.stdin.write(len(request).to_bytes(4, "little") + request)
                process.stdin.flush()
                until = time.monotonic() + WAIT + seconds
                length = int.from_bytes(_read(process, 4, until), "little")
                if length > 12 * chars + 10_000:  # JSON writes a character with at most 12
                    raise TimeoutError
                return json.loads(_read(process, length, until))
            except (EOFError, BrokenPipeError, TimeoutError):
                code = self.stop()
        if code == -signal.SIGPROF:
            raise TemplateLimit(f"The chat template was stopped: it takes more than {seconds:.1f} s; use another one.")
        raise TemplateLimit("The chat template ended the process that renders it; use another template.")

    def stop(self) -> int | None:
        """Ends the worker; its exit code, None if there was none."""
        process, self._process = self._process, None
        if process is None:
            return None
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # what was not sent is not needed any more
            process.stdin.close()
        try:
            code = process.wait(1)  # if it was ended by a signal, the code says so
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        process.stdout.close()
        return code

    def forget(self) -> None:
        """Leaves the worker to the process that started it, after a fork in the new one."""
        process, self._process, self.lock = self._process, None, threading.Lock()
        if process is not None:
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                stream.close()
            process.returncode = 0  # it is no child of this process, which cannot wait for it


def _read(process: subprocess.Popen[bytes], size: int, until: float) -> bytes:
    """So many bytes of the worker's answers. Raises EOFError if it has ended, TimeoutError after `until`."""
    assert process.stdout is not None
    poll, parts, left = select.poll(), [], size
    poll.register(process.stdout, select.POLLIN)
    while left:
        if not poll.poll(1000 * max(until - time.monotonic(), 0)):
            raise TimeoutError
        part = os.read(process.stdout.fileno(), min(left, 2**20))
        if not part:
            raise EOFError
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


_worker = _Worker()
atexit.register(_worker.stop)
os.register_at_fork(after_in_child=_worker.forget)
