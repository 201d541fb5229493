"""Runs of one or more processes for test_processes.py, started together so that modules are imported only once.

python several.py SPEC.json, with a list of runs [{"processes", "devices" (of each), "arguments" (of scope-jax), "log"
(a path; process N writes to <log>.N), "variables" (of the environment), "delays" (of search and judge), "graders" (the
one verdict of each process's grader of mathematical answers; what the game is told is written to <log>.N.verdicts),
"kill" (after so many recorded lines process 0 is killed), "record" (lines that the run finds recorded), "small"
(bytes up to which the coordination service exchanges a payload)}]; they run one
after the other. Prints the exit codes as JSON, one list per run.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scope_jax import cli, train
from scope_jax.grading.judge_client import JudgeClient
from scope_jax.grading.math_answers import MathAnswers
from scope_jax.multihost import payloads, signing
from scope_jax.report import page
from scope_jax.retrieval.search import LocalRetriever
from scope_jax.run.files import CALLS
from scope_jax.run.processes import together, writes
from scope_jax.run.recording import Recording
from scope_jax.run.world import StepTools
from tests.flags import fake_devices

IMPORTED = (train, page)  # by the command, too


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def delayed(work: Callable[..., Any], seed: int) -> Callable[..., Any]:
    """`work` after a random time."""
    times = random.Random(seed)

    def late(*args: Any, **options: Any) -> Any:
        time.sleep(times.uniform(0, 0.5))
        return work(*args, **options)

    return late


def noted(compare: Callable[..., Any], path: Path) -> Callable[..., Any]:
    """`compare`, whose verdicts are written to a file, one line for each call."""

    def noting(*args: Any) -> Any:
        verdicts = compare(*args)
        with path.open("a") as file:
            file.write(json.dumps(verdicts) + "\n")
        return verdicts

    return noting


def killed(write: Callable[..., Any], lines: int) -> Callable[..., Any]:
    """`write`, after whose line of this number the process is killed."""
    left = [lines]

    def writing(self: Recording, new: Sequence[Any]) -> None:
        for line in new:
            write(self, [line])
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    return writing


def filled(begin: Callable[..., Any], lines: Sequence[Any]) -> Callable[..., Any]:
    """`Recording.open` of a run that finds these lines."""

    def opening(self: Recording, run: Path, done: int, *extents: Any) -> None:
        if writes():
            (run / CALLS).mkdir()
            (run / CALLS / "0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        together(lambda: None)
        begin(self, run, done, *extents)

    return opening


def child(run: dict[str, Any], process: int, port: int, key: str) -> None:
    """One process of a run; never returns."""
    log = os.open(f"{run['log']}.{process}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ["XLA_FLAGS"] = fake_devices(run["devices"])
    os.environ |= run.get("variables", {})
    if run["processes"] > 1:
        os.environ["JAX_COORDINATOR_ADDRESS"] = f"localhost:{port}"
        os.environ["JAX_NUM_PROCESSES"], os.environ["JAX_PROCESS_ID"] = str(run["processes"]), str(process)
        os.environ.setdefault(signing.KEY, key)
    if run.get("delays"):
        LocalRetriever.__call__ = delayed(LocalRetriever.__call__, process)
        JudgeClient.__call__ = delayed(JudgeClient.__call__, process)
    if graders := run.get("graders"):
        MathAnswers.verdicts = lambda self, comparisons, seconds=0.0: [graders[process]] * len(comparisons)
        path = Path(f"{run['log']}.{process}.verdicts")
        path.unlink(missing_ok=True)
        StepTools.compare_math = noted(StepTools.compare_math, path)
    if run.get("kill") and process == 0:
        Recording.write = killed(Recording.write, run["kill"])
    payloads.SMALL = run.get("small", payloads.SMALL)
    if "record" in run:
        Recording.open = filled(Recording.open, run["record"])
    Path(f"{run['log']}.{process}.pid").write_text(str(os.getpid()))
    sys.argv = ["scope-jax", *run["arguments"]]
    code = 1
    try:
        cli.run()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    codes = []
    for run in json.loads(Path(sys.argv[1]).read_text()):
        port, key, children = free_port(), secrets.token_hex(), []
        for process in range(run["processes"]):
            if not (pid := os.fork()):
                child(run, process, port, key)
            children.append(pid)
        codes.append([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children])
    print(json.dumps(codes))


if __name__ == "__main__":
    main()
