"""The HTTP tool against a server that behaves badly in every way the tool has a limit for."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from scope_jax.environments.http_tool import http_tool
from scope_jax.environments.mcp import Mcp
from scope_jax.errors import UserError
from scope_jax.play.tool_calls import Tool, ToolError
from scope_jax.web.exchange import BadAddress, Exchange

PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}}
SECRET = "Bearer abc123secret"


class Handler(BaseHTTPRequestHandler):
    """Answers by path; `seen` holds (method, path, headers, body)."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str, dict[str, str], bytes]]

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.seen.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        path = urlsplit(self.path).path.strip("/")
        if path.isdigit():
            return self.send(int(path), b"status text")
        if path.startswith("busy"):  # fails twice, then answers
            before = sum(one[1] == self.path for one in self.seen)
            return self.send(503 if before <= 2 else 200, b'"at last"')
        if path == "echo":
            shown = {"headers": {k.lower(): v for k, v in self.headers.items()}, "body": body.decode()}
            return self.send(200, json.dumps({"query": parse_qsl(urlsplit(self.path).query), "got": shown}).encode())
        if path == "redirect":
            return self.send(302, b"", Location="/echo")
        if path == "cookie":
            return self.send(200, b"{}", **{"Set-Cookie": "a=b"})
        if path == "drip":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            for _ in range(100):
                self.wfile.write(b"x")
                time.sleep(0.1)
        if path == "endless":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            while True:
                self.wfile.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        if path == "gzip":
            return self.send(200, b"\x1f\x8b", **{"Content-Encoding": "gzip"})
        if path == "cut":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"{")
            self.close_connection = True
            return None
        if path == "deep":
            return self.send(200, b"[" * 100_000)
        return self.send(200, {"page": b"<html>", "list": b'{"items": [{"text": "found"}, 7]}'}.get(path, b"plain"))

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = answer

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: Any) -> None:
        """The client has gone away, as it should."""


@pytest.fixture
def server() -> Iterator[tuple[str, list[Any]]]:
    handler = type("Fresh", (Handler,), {"seen": []})
    running = Quiet(("127.0.0.1", 0), handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{running.server_address[1]}", handler.seen
    running.shutdown()
    running.server_close()


@pytest.fixture
def tool() -> Iterator[Any]:
    """Makes tools, and closes them."""
    tools: list[Tool] = []

    def make(url: str, **more: Any) -> Tool:
        tools.append(http_tool("lookup", "Looks it up.", url, PARAMETERS, **more))
        return tools[-1]

    yield make
    for one in tools:
        assert one.service is not None
        one.service.close()


def failure(some: Tool, **arguments: Any) -> str:
    with pytest.raises(ToolError) as failed:
        some.run(**arguments)
    return str(failed.value)


def test_the_policy_fills_the_body_and_nothing_else(tool, server):
    url, seen = server
    some = tool(f"{url}/echo", headers={"Authorization": SECRET, "X-Kind": "fast"}, result="got.body")
    assert json.loads(some.run(text="a/b?c=d", n=2)) == {"text": "a/b?c=d", "n": 2}
    method, path, headers, _ = seen[0]
    assert (method, path, headers["authorization"], headers["x-kind"]) == ("POST", "/echo", SECRET, "fast")
    assert some.schema["function"]["parameters"] is PARAMETERS and some.service is not None


def test_arguments_of_get_stand_in_the_query_and_leave_path_and_fixed_parameters_alone(tool, server):
    url, seen = server
    some = tool(f"{url}/echo?key=fixed", method="get", result="query")
    got = json.loads(some.run(text="../x&key=mine#f", n=[1, True, None], name={"a": 1}))
    assert got == [
        ["key", "fixed"], ["text", "../x&key=mine#f"], ["n", "1"], ["n", "true"], ["n", "null"], ["name", '{"a": 1}'],
    ]  # fmt: skip
    assert urlsplit(seen[0][1]).path == "/echo" and seen[0][3] == b""
    assert failure(some, key="mine") == "lookup has no argument 'key'"
    with pytest.raises(UserError, match="'text' in its url and as a parameter"):
        tool(f"{url}/echo?text=fixed", method="GET")


@pytest.mark.parametrize(
    ("path", "result", "text"),
    [
        ("list", "items.0.text", "found"),
        ("list", "items.1", "7"),
        ("list", "items.0", '{"text": "found"}'),
        ("page", None, "<html>"),
    ],
)
def test_where_the_result_stands(tool, server, path, result, text):
    assert tool(f"{server[0]}/{path}", result=result).run(text="x") == text


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("list", "lookup: the reply has no items.2.text"),
        ("page", "lookup: the reply is no JSON"),
        ("deep", "lookup: the reply is no JSON"),
        ("404", "lookup: HTTP 404: status text"),
        ("500", "lookup: HTTP 500: status text"),
        ("redirect", "lookup: HTTP 302, a redirect, which is not followed"),
        ("gzip", "lookup: a compressed reply, which was not asked for"),
    ],
)
def test_a_call_that_fails_is_one_sentence(tool, server, path, sentence):
    url, seen = server
    assert failure(tool(f"{url}/{path}", result="items.2.text"), text="x") == sentence
    assert len(seen) == 1


def test_time_and_size_have_bounds(tool, server):
    url, _ = server
    began = time.monotonic()
    assert failure(tool(f"{url}/drip", seconds=0.5), text="x") == "lookup: no complete reply within 0.5 s"
    assert time.monotonic() - began < 60
    assert failure(tool(f"{url}/endless", max_bytes=500_000), text="x") == "lookup: a reply of more than 500000 bytes"


def test_only_what_may_be_repeated_is_repeated(tool, server):
    url, seen = server
    assert tool(f"{url}/busy", method="GET", result=None).run(text="x") == '"at last"'
    assert len(seen) == 3
    assert failure(tool(f"{url}/busy/post"), text="x").startswith("lookup: HTTP 503")
    assert len(seen) == 4  # a POST may have had its effect
    assert tool(f"{url}/busy/pure", pure=True).run(text="x") == '"at last"'
    assert failure(tool(f"{url}/500", method="GET"), text="x").startswith("lookup: HTTP 500")
    assert len(seen) == 8  # and no 500
    assert "lookup: " in failure(tool(f"{url}/cut", method="GET", retries=1), text="x")
    assert len(seen) == 10


def test_waiting_between_repetitions_counts_as_time_of_the_call(tool, server):
    began = time.monotonic()
    assert "within 0.8 s" in failure(tool(f"{server[0]}/503", method="GET", seconds=0.8, retries=50), text="x")
    assert time.monotonic() - began < 60


def test_no_cookie_and_no_proxy(tool, server, monkeypatch):
    url, seen = server
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    some = tool(f"{url}/cookie")
    assert [some.run(text="x") for _ in range(2)] == ["{}", "{}"]
    assert "cookie" not in seen[1][2]


def test_secrets_of_headers_are_never_shown(tool, server):
    url, _ = server
    headers = {"Authorization": SECRET, "Accept": "application/json"}
    shown = tool(f"{url}/echo", headers=headers).run(text="x")
    assert "abc123secret" not in shown and "[…]" in shown and "application/json" in shown
    assert "abc123secret" not in repr(tool(f"{url}/echo", headers=headers))


def test_several_threads_call_at_once_and_close_is_not_the_end(tool, server):
    some = tool(f"{server[0]}/echo", result="got.body")
    assert some.service is not None
    some.service.start()
    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(lambda n: json.loads(some.run(text="x", n=n))["n"], range(100)))
    assert texts == list(range(100))
    some.service.close()
    some.service.close()
    assert json.loads(some.run(n=5)) == {"n": 5}


def test_what_cannot_be_used_is_told_at_the_start(tool, server):
    service = tool("http://user:pass@127.0.0.1:9/x?key=1").service
    with pytest.raises(UserError, match=r"the tool lookup cannot reach http://127\.0\.0\.1:9/x \("):
        service.start()
    with pytest.raises(UserError, match="needs http:// or https:// and a host"):
        tool("ftp://somewhere/x")
    with pytest.raises(UserError, match="method 'BREW'"):
        tool("http://somewhere/x", method="brew")
    with pytest.raises(UserError, match="header 'X' of the tool lookup has characters"):
        tool("http://somewhere/x", headers={"X": "a\nb"})
    with pytest.raises(UserError, match="is invalid"):
        tool("http://[::1/x")


@pytest.mark.parametrize(
    "host", ["h:99999", "h:65536", "h:-1", "h:0", "a..b", ".", "a" * 64 + ".org", "[1::2::3]", "h:x", ""]
)
def test_an_address_without_a_connection_is_one_sentence_for_every_client(tool, host):
    url = f"http://{host}/x"
    with pytest.raises(UserError, match=r"the url of the tool lookup, .* is invalid .*; correct it"):
        tool(url)
    with pytest.raises(UserError, match=r"the MCP server at .* cannot be used .*; correct its url"):
        Mcp(url=url)
    asking = Exchange(url, name="s", timeout=1, retries=3, first_delay=9)
    with pytest.raises(BadAddress):
        asking.post([{}], lambda response: response)
    asking.close()


def test_arguments_that_no_address_has_room_for_are_an_error_of_the_call(tool, server):
    some = tool(server[0] + "/echo", method="GET")
    for arguments in ({"text": "a" * 200_000}, {"text": "é" * 30_000}, {"text": "a", "n": ["b" * 1000] * 100}):
        with pytest.raises(ToolError, match="lookup: the arguments are too long for an address"):
            some.run(**arguments)
    assert server[1] == []  # nothing was asked
