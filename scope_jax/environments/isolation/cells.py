"""Runs code like the cells of a notebook: prints, shows the value of its last expression, and keeps its variables."""

from __future__ import annotations

import ast
import io
import json
import linecache
import os
import random
import signal
import socket
import sys
import tempfile
import traceback
import types
import uuid

SEED = 0
NODE = 0x010000000001  # of `uuid.getnode`, for hosts without a network address: the multicast bit is set
LONGEST = 1 << 26  # bytes of a request


def serve(channel_fd: int, output_fd: int) -> None:
    """Answers requests {"token", "code"}, one a line of the socket, with their token, once the code has run and all it
    printed is in `output_fd`; returns when the socket ends."""
    channel = socket.socket(fileno=channel_fd)
    requests = channel.makefile("rb")
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    pid, number = os.getpid(), 0
    _seed()
    while line := requests.readline(LONGEST):
        request = json.loads(line)
        number += 1
        _open_output(output_fd)
        run(request["code"], f"<cell {number}>", main.__dict__)
        _flush()
        if os.getpid() != pid:  # the code has forked, and this is the child
            os._exit(0)
        channel.sendall(request["token"].encode() + b"\n")


def run(code: str, name: str, variables: dict[str, object]) -> None:
    """Runs one cell; an exception is printed, with the frames of the cells and of libraries."""
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    try:
        tree = ast.parse(code, name)
        last = [tree.body.pop()] if tree.body and isinstance(tree.body[-1], ast.Expr) else []
        exec(compile(tree, name, "exec"), variables)
        exec(compile(ast.Interactive(last), name, "single"), variables)  # shows its value
    except SystemExit as end:
        if end.code not in (None, 0):
            print(f"SystemExit: {end.code}")
    except BaseException as error:  # noqa: BLE001 - whatever the code of a model raises is its output
        _show(error)


def _show(error: BaseException) -> None:
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    traceback.print_exception(type(error), error.with_traceback(trace), trace)


def _seed() -> None:
    import numpy.random

    random.seed(SEED)
    tempfile.__dict__["_Random"] = lambda: random.Random(
        f"{SEED} {os.getpid()}"
    )  # names of files, in each process others
    uuid.__dict__.update(_node=NODE, _generate_time_safe=None)
    numpy.random.seed(SEED)  # noqa: NPY002 - the state that code without a generator uses
    # where generators without a seed get one, from the system otherwise
    sys.modules["numpy.random.bit_generator"].__dict__["randbits"] = random.Random(SEED).getrandbits


def _open_output(output_fd: int) -> None:
    """Standard output and errors, in one stream, whatever the code before has done to them."""
    if sys.stdout is None or sys.stdout is not sys.stderr or sys.stdout.closed or not _is_open(1):
        os.dup2(output_fd, 1)
        os.dup2(output_fd, 2)
        file = open(1, "wb", closefd=False)  # noqa: SIM115 - stays open as long as the process
        sys.stdout = sys.stderr = io.TextIOWrapper(file, "utf-8", "backslashreplace", "\n", line_buffering=True)
    for number in (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF):  # timers of an earlier cell
        signal.signal(number, signal.SIG_DFL)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (AttributeError, ValueError, OSError):  # replaced, closed
            continue
