"""An MCP server over stdio that answers as it is told: `mcp_script.py FILE`, of a JSON object by method.

An answer is the result of the request, or a list of lines: objects with the request's id put in for "ID", and texts as
they are. Of several pages, the cursor is the method's name after a colon: "tools/list:2".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

INFO = {"name": "scripted", "version": "1"}
WELL = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": INFO}


def main(answers: dict[str, Any]) -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        if "id" not in asked or "method" not in asked:
            continue
        cursor = (asked.get("params") or {}).get("cursor")
        name = asked["method"] if cursor is None else f"{asked['method']}:{cursor}"
        given = answers.get(name, answers.get(asked["method"], WELL if name == "initialize" else {}))
        for said in given if isinstance(given, list) else [{"jsonrpc": "2.0", "id": "ID", "result": given}]:
            told = said if isinstance(said, str) else json.dumps(said).replace('"ID"', json.dumps(asked["id"]))
            print(told, flush=True)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
