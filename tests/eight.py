"""One process with eight fake devices for all tests of a worker that need them, so that every other test keeps its
single device, and JAX, programs and references are there once.

As a script (`python -m tests.eight`): reads lines of JSON, [module, words], and answers each with what `main(*words)`
of the module gives, or with the traceback.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
import traceback
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.flags import fake_devices

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 1800  # seconds, which only a process that hangs needs


@cache
def _process() -> tuple[subprocess.Popen[bytes], Any]:
    """(the process, the file of its errors)."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": fake_devices(8), "JAX_PLATFORMS": "cpu"}
    errors = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.eight"],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
    )
    atexit.register(_end, process)
    return process, errors


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()


@cache
def on_eight_devices(module: str, *words: str) -> Any:
    """What `main(*words)` of the module gives on eight devices; asked once."""
    process, errors = _process()
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps([module, words]).encode() + b"\n")
    process.stdin.flush()
    ready, _, _ = select.select([process.stdout], [], [], LIMIT)
    line = process.stdout.readline() if ready else b""
    if not line:
        process.kill()
        errors.seek(0)
        raise AssertionError(f"{module} {words}: no answer\n{errors.read()[-3000:].decode(errors='replace')}")
    answer = json.loads(line)
    assert "facts" in answer, answer["error"]
    return answer["facts"]


def answers() -> None:
    """Answers until the end of its input. What the modules print goes to the errors."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        module, words = json.loads(line)
        try:
            answer = {"facts": import_module(module).main(*words)}
        except Exception:  # noqa: BLE001 - the test that asked fails with it
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    answers()
