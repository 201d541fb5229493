"""An MCP server over stdio without the SDK, which takes half a second to import: for tests that start many."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

INFO = {"name": "light", "version": "1"}
WELL = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": INFO}
NAMES = ["add", "counted", "dies", "pid", "stops", *(["extra"] if os.environ.get("EXTRA_TOOL") else [])]


def called(name: str, calls: list[str]) -> str:
    """The result of a tool; those of `mcp_server.py` have these names."""
    if name == "dies":
        os._exit(3)
    if name == "stops":
        os.kill(os.getpid(), signal.SIGSTOP)
    calls.append(name)
    return str(calls.count("counted") if name == "counted" else os.getpid())


def answer(asked: dict[str, Any], calls: list[str]) -> dict[str, Any]:
    """The result of a request. calls: names of the tools called so far, to which this adds one."""
    if asked["method"] == "initialize":
        return WELL
    if asked["method"] == "tools/list":
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in NAMES]}
    if asked["method"] == "tools/call":
        return {"content": [{"type": "text", "text": called(asked["params"]["name"], calls)}]}
    return {}


def main() -> None:
    calls: list[str] = []
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" in asked and "method" in asked:
            print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer(asked, calls)}), flush=True)


if __name__ == "__main__":
    main()
