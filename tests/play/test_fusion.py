"""SandboxFusion's protocol, against a server that answers as its `sandbox_api.py` does, and runs the code it gets."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from scope_jax.config import CardError, SandboxSection, parse_section
from scope_jax.environments.fusion import Fusion
from scope_jax.environments.python_tool import python_tool
from scope_jax.errors import UserError
from scope_jax.play.tool_calls import Service, ToolError

RNG = np.random.default_rng(0)


def run_code(body: dict[str, Any]) -> dict[str, Any]:
    """What /run_code answers: a program in a process."""
    assert body["language"] == "python" and body["memory_limit_MB"] == 1024
    command, seconds = [sys.executable, "-c", body["code"]], body["run_timeout"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as late:
        printed = (late.stdout or b"").decode()
        result = {"status": "TimeLimitExceeded", "execution_time": seconds, "stdout": printed, "stderr": ""}
        return {"status": "Failed", "message": "", "run_result": result | {"return_code": None}}
    result = {"status": "Finished", "return_code": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
    return {"status": "Failed" if done.returncode else "Success", "message": "", "run_result": result}


def run_jupyter(body: dict[str, Any]) -> dict[str, Any]:
    """What /run_jupyter answers: all cells, one after the other, whatever they raise."""
    variables: dict[str, Any] = {}
    cells = []
    for code in body["cells"]:
        if code == "while True: pass":
            return {"status": "Failed", "message": "", "driver": {"status": "Finished"}, "cells": [], "files": {}}
        cell: dict[str, Any] = {"stdout": "", "stderr": "", "display": [], "error": []}
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            try:
                tree = ast.parse(code)
                last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
                exec(compile(tree, "cell", "exec"), variables)
                if isinstance(last, ast.Expr):
                    value = eval(compile(ast.Expression(last.value), "cell", "eval"), variables)
                    cell["display"] += [] if value is None else [{"text/plain": repr(value)}]
            except Exception as error:  # noqa: BLE001 - whatever a cell raises is its output
                lines = ["\x1b[0;31m---\x1b[0m", *traceback.format_exception_only(error)]
                cell["error"].append({"ename": type(error).__name__, "evalue": str(error), "traceback": lines})
        cells.append(cell | {"stdout": printed.getvalue()})
    return {"status": "Success", "message": "", "driver": {"status": "Finished"}, "cells": cells, "files": {}}


class Server:
    """The bodies that came, and what is answered before the protocol's own answers."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.first: list[Response] = []

    def route(self, work: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            body = await request.json()
            self.bodies.append(body)
            return self.first.pop(0) if self.first else JSONResponse(await run_in_threadpool(work, body))

        return answer


@contextmanager
def serving() -> Iterator[tuple[Server, str]]:
    server, listening = Server(), socket.create_server(("127.0.0.1", 0))
    routes = [Route("/run_code", server.route(run_code), methods=["POST"])]
    routes += [Route("/run_jupyter", server.route(run_jupyter), methods=["POST"])]
    running = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="error"))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
    thread.start()
    while not running.started:
        time.sleep(0.01)
    try:
        yield server, f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        running.should_exit = True
        thread.join()


@pytest.fixture
def server() -> Iterator[tuple[Server, str]]:
    with serving() as both:
        yield both


def section(url: str, **keys: Any) -> SandboxSection:
    return SandboxSection(endpoint=url, retry_delay=0.01, **keys)


def test_a_call_is_a_program_whose_output_is_the_result(server: tuple[Server, str]) -> None:
    stub, url = server
    tool = python_tool(section(url, seconds=30.0), session=False)
    assert isinstance(tool.service, Service) and "last expression" not in tool.schema["function"]["description"]
    tool.service.start()
    assert tool.run(code="import sys\nprint('out')\nprint('err', file=sys.stderr)") == "out\nerr"
    assert tool.run(code="1 / 0").endswith("ZeroDivisionError: division by zero")
    assert stub.bodies[-1] == {"code": "1 / 0", "language": "python", "run_timeout": 30.0, "memory_limit_MB": 1024}
    tool.service.close()


def test_a_late_program_is_an_error_with_what_it_printed(server: tuple[Server, str]) -> None:
    fusion = Fusion(section(server[1], seconds=4.0))
    with pytest.raises(ToolError, match="no result within 4 s; printed until then:\nfirst"):
        fusion.run("print('first', flush=True)\nwhile True: pass")
    fusion.close()


def test_a_session_sends_all_its_cells(server: tuple[Server, str]) -> None:
    stub, url = server
    tool = python_tool(section(url))
    assert tool.open is not None
    with tool.open(RNG) as first, tool.open(RNG) as second:
        assert tool.run(first, code="x = 5\nprint('set')") == "set"
        assert tool.run(first, code="x + 1") == "6"
        assert tool.run(second, code="x").endswith("NameError: name 'x' is not defined")
        assert tool.run(first, code="1 / 0").endswith("ZeroDivisionError: division by zero")
        assert tool.run(first, code="x") == "5" and len(stub.bodies[-1]["cells"]) == 4
        with pytest.raises(ToolError, match="no result within 10 s"):
            tool.run(first, code="while True: pass")
        with pytest.raises(ToolError, match="the session is over: no result within 10 s"):
            tool.run(first, code="x")
    assert tool.service is not None
    tool.service.close()


def sandbox_error() -> Response:
    return JSONResponse({"status": "SandboxError", "message": "no container", "run_result": None})


@pytest.mark.parametrize(
    "answer",
    [
        sandbox_error,
        lambda: Response(status_code=503),
        lambda: Response("not JSON"),
        lambda: JSONResponse([1]),
        lambda: JSONResponse({"status": "Unknown"}),
    ],
)
def test_a_failure_of_the_server_is_tried_again(server: tuple[Server, str], answer: Callable[[], Response]) -> None:
    stub, url = server
    stub.first = [answer(), answer()]
    fusion = Fusion(section(url))
    assert fusion.run("print(1)") == "1" and len(stub.bodies) == 3
    stub.first = [answer() for _ in range(9)]
    with pytest.raises(ToolError, match="the sandbox did not answer after 5 tries"):
        fusion.run("print(1)")
    fusion.close()


@pytest.mark.parametrize("result", [None, [], "text", {"status": 5, "stdout": 3, "stderr": None}])
def test_a_strange_result_is_no_output(server: tuple[Server, str], result: object) -> None:
    stub, url = server
    stub.first = [JSONResponse({"status": "Success", "run_result": result})]
    fusion = Fusion(section(url))
    assert fusion.run("print(1)") == ""
    fusion.close()


def test_many_calls_at_once(server: tuple[Server, str]) -> None:
    fusion = Fusion(section(server[1], workers=3))
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(fusion.run, [f"print({number})" for number in range(12)]))
    assert results == [str(number) for number in range(12)]
    fusion.close()


def test_output_is_cut_at_the_limit_and_made_readable(server: tuple[Server, str]) -> None:
    fusion = Fusion(section(server[1], max_output=1024))
    assert fusion.run("print('x' * 5000)") == "x" * 1024
    assert fusion.run("print(object(), chr(27))") == "<object object at 0x…> \ufffd"
    fusion.close()


def test_an_endpoint_that_is_none_is_told_before_the_run(server: tuple[Server, str]) -> None:
    stub, url = server
    for broken in ("http://127.0.0.1:1", f"{url}/elsewhere"):
        with pytest.raises(UserError, match=r"correct sandbox\.endpoint"):
            Fusion(section(broken, retries=0)).start()
    stub.first = [JSONResponse({"status": "Success", "run_result": {"stdout": "41\n"}})]
    with pytest.raises(UserError, match="does not run Python"):
        Fusion(section(url)).start()
    with pytest.raises(CardError, match="endpoint"):
        parse_section(SandboxSection, {"endpoint": url, "isolation": "none"}, "sandbox")
    assert json.dumps(stub.bodies)
