"""What MCP servers may answer against the protocol: each is one sentence for the user, or for the policy."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scope_jax.environments.mcp import Mcp
from scope_jax.errors import UserError
from scope_jax.play.tool_calls import ToolError

pytest.importorskip("mcp")
SCRIPT = Path(__file__).with_name("mcp_script.py")
WELL = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
TOOL = {"name": "f", "inputSchema": {"type": "object"}}
STRICT = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}, "required": ["a"]}
NOTICE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}
Connect = Callable[[dict[str, Any]], Mcp]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    servers: list[Mcp] = []

    def to(answers: dict[str, Any]) -> Mcp:
        path = tmp_path / "answers.json"
        path.write_text(json.dumps({"tools/list": {"tools": [TOOL]}, **answers}), encoding="utf-8")
        servers.append(Mcp(command=(sys.executable, str(SCRIPT), str(path)), seconds=30.0))
        return servers[-1]

    yield to
    for server in servers:
        server.close()


def reply(**fields: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": "ID", **fields}


def listed(*tools: Any, **more: Any) -> dict[str, Any]:
    return {"tools/list": {"tools": list(tools), **more}}


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        *[
            ({"initialize": {**WELL, "protocolVersion": version}}, "Unsupported protocol version")
            for version in ("9999-99-99", "", "1.0", "x" * 10_000)
        ],
        *[({"initialize": {**WELL, "protocolVersion": version}}, "protocolVersion") for version in (5, None, [])],
        ({"initialize": {}}, "validation errors for InitializeResult"),
        ({"initialize": {**WELL, "capabilities": 5}}, "capabilities"),
        ({"initialize": {**WELL, "serverInfo": None}}, "serverInfo"),
        ({"initialize": [reply(error={"code": 1, "message": "not\ntoday"})]}, "(not today)"),
        (listed(5), "tools.0"),
        ({"tools/list": {}}, "tools Field required"),
        ({"tools/list": [reply(error={"code": -32601, "message": "no such method"})]}, "(no such method)"),
        (listed(TOOL, nextCursor="again"), "on more than 100 pages"),
        (listed(TOOL, nextCursor=5), "nextCursor"),
        (listed(TOOL, TOOL), "lists the tool 'f' twice"),
        (listed(), "has no tools"),
        (listed({**TOOL, "name": "a b"}), "needs a name"),
        (listed({**TOOL, "inputSchema": {"type": "string"}}), "inputSchema.type"),
        (listed({**TOOL, "inputSchema": {"type": "object", "properties": {"a": {"type": 5}}}}), "not a JSON schema"),
        (listed({**TOOL, "inputSchema": {"type": "object", "patternProperties": {"(": {}}}}), "have the pattern '('"),
    ],
)
def test_a_server_that_cannot_be_used_is_one_sentence(connect: Connect, answers: Any, sentence: str) -> None:
    with pytest.raises(UserError) as told:
        connect(answers).tools()
    assert sentence in str(told.value) and "\n" not in str(told.value) and len(str(told.value)) < 700


@pytest.mark.parametrize(
    "answers",
    [
        {},
        {"initialize": {**WELL, "protocolVersion": "2024-11-05"}},
        {"initialize": {**WELL, "capabilities": {}}},
        {"initialize": [NOTICE] * 500 + [reply(result=WELL)]},
        {"initialize": [{"jsonrpc": "2.0", "method": "nonsense"}, reply(result=WELL)]},
        {"initialize": [{"jsonrpc": "2.0", "id": 999, "result": {}}, reply(result=WELL)]},
        {"initialize": ["no JSON", "[]", "null", reply(result=WELL)]},
        {"initialize": [{"jsonrpc": "2.0", "id": 7, "method": "sampling/createMessage"}, reply(result=WELL)]},
        {"tools/list:2": {"tools": [{**TOOL, "name": "g"}]}, **listed(TOOL, nextCursor="2")},
        {"tools/call": [NOTICE] * 500 + [reply(result={"content": [{"type": "text", "text": "ok"}]})]},
    ],
)
def test_what_is_no_fault_is_passed_over(connect: Connect, answers: Any) -> None:
    said = {"tools/call": {"content": [{"type": "text", "text": "ok"}]}}
    tools = connect({**said, **answers}).tools()
    assert [tool.name for tool in tools][:1] == ["f"] and tools[0].run() == "ok"


@pytest.mark.parametrize(
    ("schema", "content", "sentence"),
    [
        (STRICT, {"a": "aa"}, ""),
        (STRICT, {"a": "a" * 40 + "!"}, "does not match"),
        (STRICT, None, "no structured content"),
        (STRICT, {"a": 1}, "not of type 'string'"),
        ({"type": "object", "properties": {"a": {"pattern": "("}}}, {"a": "b"}, ""),  # left to the server
        ({"type": "object", "$ref": "#"}, {"a": "b"}, ""),
        ({"type": "object", "$ref": "http://127.0.0.1:9/a"}, {"a": "b"}, ""),
    ],
)
def test_results_are_compared_with_their_schema_in_counted_steps(
    connect: Connect, schema: Any, content: Any, sentence: str
) -> None:
    result = {"content": [], **({} if content is None else {"structuredContent": content})}
    (tool,) = connect({**listed({**TOOL, "outputSchema": schema}), "tools/call": result}).tools()
    if not sentence:
        assert json.loads(tool.run()) == content
        return
    with pytest.raises(ToolError, match="f gave a result that is not valid: .*" + sentence):
        tool.run()
