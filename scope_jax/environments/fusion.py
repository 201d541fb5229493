"""Runs Python code on a SandboxFusion server (github.com/bytedance/SandboxFusion, sandbox/server/sandbox_api.py)."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from scope_jax.config import SandboxSection
from scope_jax.environments.python_worker import readable
from scope_jax.errors import UserError
from scope_jax.play.tool_calls import ToolError
from scope_jax.web.exchange import BadAddress, Exchange, HttpResponse, Trouble, Unanswered, shown

MARGIN = 60.0  # seconds that a server may take beside the code, for a queue and the start of a process
CORES = 16  # calls at the same time, by default
_FILE = re.compile(r'File "/[^"]*/tmp[^"/]*\.py"')  # where the server stores a program
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # in the tracebacks of Jupyter


class Fusion:
    """A SandboxFusion server; a `Service`, safe to use by many threads.

    `/run_code` runs a program, whose result is what it prints. A session is sent to `/run_jupyter` with all its cells
    so far; values of last expressions are shown as well."""

    def __init__(self, section: SandboxSection) -> None:
        self._section = section
        self._url = str(section.endpoint).rstrip("/")
        self._free = threading.BoundedSemaphore(section.workers or CORES)
        self._lock = threading.Lock()
        self._exchanges: dict[str, Exchange] = {}

    def start(self) -> None:
        """Has the server run a program; raises UserError with the remedy if that fails."""
        try:
            told = self.run("print(6 * 7)")
        except ToolError as error:
            told = str(error)
        if told != "42":
            self.close()
            raise UserError(
                f"the sandbox at {shown(self._url)} does not run Python ({told[:200]!r}); start a SandboxFusion server "
                "there, or correct sandbox.endpoint in the card."
            )

    def close(self) -> None:
        """Closes the connections."""
        with self._lock:
            for exchange in self._exchanges.values():
                exchange.close()
            self._exchanges.clear()

    def run(self, code: str) -> str:
        """What the program prints, standard output first; raises ToolError as `Worker.run` does."""
        card = self._section
        body = {"code": code, "language": "python", "run_timeout": card.seconds, "memory_limit_MB": card.memory_mib}
        answer = self._post("run_code", body)
        result = _table(answer.get("run_result"))
        printed = _text(result, "stdout") + _text(result, "stderr")
        if result.get("status") == "TimeLimitExceeded":
            self._late(printed)
        return self._shown(printed)

    @contextlib.contextmanager
    def session(self) -> Iterator[FusionSession]:
        """A session: each call sends all cells so far."""
        yield FusionSession(self)

    def cells(self, cells: list[str]) -> str:
        """What the last cell prints, and its value; raises ToolError if there is no result in time."""
        seconds = self._section.seconds
        body = {
            "cells": cells,
            "cell_timeout": seconds,
            "total_timeout": seconds * len(cells),
            "memory_limit_MB": self._section.memory_mib,
            "kernel": "python3",
        }
        answer = self._post("run_jupyter", body)
        results = answer.get("cells")
        if answer.get("status") != "Success" or not isinstance(results, list) or len(results) < len(cells):
            self._late("")
        cell = _table(results[len(cells) - 1])
        values = "".join(_text(_table(display), "text/plain") + "\n" for display in cell.get("display") or ())
        errors = "\n".join("\n".join(_table(error).get("traceback") or ()) for error in cell.get("error") or ())
        return self._shown(_COLOUR.sub("", _text(cell, "stdout") + _text(cell, "stderr") + values + errors))

    def _post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        with self._lock:
            exchange = self._exchanges.get(path)
            if exchange is None:
                exchange = self._exchanges[path] = Exchange(
                    f"{self._url}/{path}",
                    name="the sandbox",
                    timeout=float(body.get("total_timeout") or body["run_timeout"]) + MARGIN,
                    retries=self._section.retries,
                    first_delay=self._section.retry_delay,
                )
        try:
            with self._free:
                return exchange.post([body], _read)[0]
        except (BadAddress, Unanswered) as error:
            raise ToolError(f"the sandbox {error}") from None

    def _late(self, printed: str) -> NoReturn:
        text = self._shown(printed)
        late = f"no result within {self._section.seconds:g} s"
        raise ToolError(f"{late}; printed until then:\n{text}" if text else late)

    def _shown(self, text: str) -> str:
        return readable(_FILE.sub('File "<cell 1>"', text).encode("utf-8", "replace")[: self._section.max_output])


class FusionSession:
    """The cells of a session."""

    def __init__(self, server: Fusion) -> None:
        self._server = server
        self._cells: list[str] = []
        self._over = ""

    def run(self, code: str) -> str:
        """Runs the next cell, after those before it; raises ToolError if the session is over."""
        if self._over:
            raise ToolError(f"the session is over: {self._over}")
        self._cells.append(code)
        try:
            return self._server.cells(self._cells)
        except ToolError as error:
            self._over = str(error).partition(";")[0]
            raise


def _read(response: HttpResponse) -> Mapping[str, Any]:
    """The reply; raises Trouble if the sandbox has failed, and not the code."""
    if response.status != 200:
        raise ToolError(f"the sandbox refused the call with HTTP {response.status}")
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or answer.get("status") not in ("Success", "Failed", "SandboxError"):
        raise Trouble(f"a reply that is not SandboxFusion's: {response.beginning(120)}")
    if answer["status"] == "SandboxError":
        raise Trouble(f"SandboxError: {str(answer.get('message'))[:120]}")
    return answer


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(table: Mapping[str, Any], name: str) -> str:
    value = table.get(name)
    return value if isinstance(value, str) else ""
