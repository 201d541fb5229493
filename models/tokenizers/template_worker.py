"""The process that renders chat templates, under limits of CPU time and memory; `models.tokenizers.rendering` starts it
by path.

A request and an answer are 4 bytes with a length (little endian) and JSON: {"seconds": CPU time, "chars": longest
text, "given": arguments of transformers' render_jinja_template} and {"text": …} or {"error": …}. No module of ours is
imported.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from typing import BinaryIO

MEMORY = 256 * 2**20  # bytes of address space beside what Python and transformers have taken


def limit_memory() -> None:
    """A template that asks for more gets a MemoryError, where the system tells how much there is already (Linux)."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    wanted = taken + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def answer(request: dict, render) -> dict:
    """The rendered text, or why there is none."""
    signal.setitimer(signal.ITIMER_PROF, request["seconds"])  # its signal ends the process
    try:
        text = render(**request["given"])[0][0]
        if len(text) > request["chars"]:
            return {"error": f"it writes more than {request['chars']} characters", "limit": True}
        return {"text": text}
    except MemoryError:
        return {"error": f"it takes more than {MEMORY >> 20} MiB of memory", "limit": True}
    except Exception as error:  # noqa: BLE001 - a template is anybody's code
        return {"error": str(error)[:1000] or type(error).__name__}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answers requests until their stream ends."""
    from transformers.utils.chat_template_utils import render_jinja_template

    limit_memory()
    while len(head := requests.read(4)) == 4:
        request = json.loads(requests.read(int.from_bytes(head, "little")))
        body = json.dumps(answer(request, render_jinja_template)).encode()
        answers.write(len(body).to_bytes(4, "little") + body)
        answers.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    serve(sys.stdin.buffer, sys.stdout.buffer)
