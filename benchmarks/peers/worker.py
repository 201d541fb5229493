"""One participant as a process: reads orders as JSON lines from standard input, answers on standard output.

    python -m benchmarks.peers.worker MODULE FOLDER      (started by the orchestrator)

    {"do": "hello"}                                      {"versions": {…}, "logprob": …}
    {"do": "prepare", "case": …, "variant": …}           {"ready": true}, or {"cannot": "a sentence"}
    {"do": "run", "case": …, "variant": …}               {"seconds": …, "tokens": …}
    {"do": "forget"}                                     {"ready": true}
    {"do": "quit"}

Preparing includes two runs: compilation and allocation. What libraries print goes to standard error. An exception ends
the process after {"error": …}; its traceback is on standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any, Protocol

Work = Callable[[], int]  # runs the case once; sampled or trained tokens


class Cannot(Exception):
    """The participant has no way to do the case; the message is a sentence for the table's footnote."""


class Participant(Protocol):
    """A library that does the cases with the weights of a Hugging Face folder."""

    def versions(self) -> dict[str, str]:
        """Versions of its libraries by name."""
        ...

    def logprob(self) -> float:
        """Mean log-prob of the update's trained tokens under the weights, by which models are compared."""
        ...

    def prepare(self, case: str, variant: str) -> Work:
        """The case as a function. Raises Cannot."""
        ...


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def answer(participant: Participant, works: dict[tuple[str, str], Work], order: dict[str, Any]) -> dict[str, Any]:
    """The reply to one order other than "quit"."""
    key = (order.get("case", ""), order.get("variant", ""))
    match order["do"]:
        case "hello":
            return {"versions": participant.versions(), "logprob": participant.logprob()}
        case "prepare":
            try:
                works[key] = participant.prepare(*key)
            except Cannot as reason:
                return {"cannot": str(reason)}
            works[key]()
            works[key]()
            return {"ready": True}
        case "run":
            began = time.perf_counter()
            count = works[key]()
            return {"seconds": time.perf_counter() - began, "tokens": count}
        case "forget":
            works.clear()
            return {"ready": True}
    raise ValueError(f"unknown order {order}")


def serve(make: Callable[[], Participant], orders: Iterable[str], send: Callable[[dict[str, Any]], None]) -> int:
    """Answers orders until "quit" or the end of the input; the exit code."""
    works: dict[tuple[str, str], Work] = {}
    try:
        participant = make()
        for line in orders:
            order = json.loads(line)
            if order["do"] == "quit":
                break
            send(answer(participant, works, order))
    except Exception as error:  # noqa: BLE001  reported to the orchestrator, which ends the measurement
        traceback.print_exc()
        send({"error": f"{type(error).__name__}: {error}"})
        return 1
    return 0


def main(module: str, folder: str) -> None:
    """Serves one participant, whose module has a class of that name, until it is told to quit; ends the process."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def send(reply: dict[str, Any]) -> None:
        replies.write(json.dumps(reply) + "\n")
        replies.flush()

    code = serve(lambda: importlib.import_module(module).Participant(folder), sys.stdin, send)
    sys.stderr.flush()
    os._exit(code)  # trainers that wait for their next step run in threads of their own


if __name__ == "__main__":
    from benchmarks.peers import worker  # the module whose Cannot participants raise, not this copy of it

    worker.main(*sys.argv[1:])
