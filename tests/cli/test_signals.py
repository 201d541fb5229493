"""A command ended by a signal prints one line and exits with the usual code."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scope_jax.run import stopping
from tests.cli.forking import Forked, forking

ROOT = Path(__file__).parents[2]
LIMIT = 120.0  # seconds that only what hangs takes

# A command that waits in one of several ways, inside the program.
PROGRAM = """
import signal, sys, time
# Ignored as in a shell's background; otherwise as in its foreground, wherever the tests themselves run.
signal.signal(signal.SIGINT, signal.SIG_IGN if "ignoring" in sys.argv[1] else signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
from scope_jax import cli, errors
from scope_jax.run import stopping

def sleep() -> None:
    while True:  # in short pieces: a signal that comes just before one of them begins does not interrupt it
        time.sleep(0.1)

@cli.app.command(sys.argv[2])
def wait(how: str) -> None:
    if how in ("searching", "failing", "done"):
        from concurrent.futures import ThreadPoolExecutor
        from scope_jax.retrieval.client import RemoteRetriever
        retrieve = RemoteRetriever("http://127.0.0.1:9/retrieve", timeout=600, retries=99, first_delay=30)
        ThreadPoolExecutor(1).submit(retrieve, ["q"], 1)
    elif how == "computing":
        import jax
        jax.devices()
    try:
        print("ready", flush=True)
        if how == "failing":
            raise errors.UserError("no")
        if how == "done":
            return
        if how == "working":
            for _ in range(10**9):
                sum(range(1000))
        if how in ("printing", "hanging"):
            from scope_jax.run.processes import give_up
            try:
                with stopping.orderly(1, give_up) as request:
                    print("asked to stop", flush=True)
                    while not request.number:
                        print("a line", file=sys.stderr)
                        time.sleep(0.01)
                    print("more", file=sys.stderr, flush=True)
            finally:
                if how == "hanging":
                    time.sleep(600)
            raise stopping.Stopped(request.number, 7)
        if how in ("drawing", "drawn"):
            from rich.console import Console
            from scope_jax.report.progress import Progress
            from scope_jax.run.processes import give_up
            with Progress(Console(stderr=True)) as progress:
                progress.part("pieces", 1, 2)
                if how == "drawn":
                    while True:
                        progress.say("a line")
                with stopping.orderly(30, give_up) as request:
                    while not request.number:
                        progress.say("a line")
                        time.sleep(0.01)
                raise stopping.Stopped(request.number, 7)
        if how in ("late", "orderly", "busy"):
            from scope_jax.run.processes import give_up
            with stopping.orderly(0.5 if how == "late" else 600, give_up) as request:
                print("asked to stop", flush=True)
                while how != "orderly" or not request.number:
                    sum(range(1000))
            raise stopping.Stopped(request.number, 7)
        sleep()
    finally:
        if how == "finishing":
            print("finishing", flush=True)
            sleep()

sys.argv = ["scope-jax", sys.argv[2], sys.argv[1]]
cli.run()
"""


Start = Callable[..., Forked]


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """Starts the program, with a command replaced, and returns when it is waiting."""
    modules = ("scope_jax.cli", "scope_jax.run.stopping", "scope_jax.run.processes", "scope_jax.retrieval.client")
    processes: list[Forked] = []
    with forking(*modules, JAX_PLATFORMS="", PYTHONPATH=str(ROOT)) as line:

        def start(how: str, command: str = "wait") -> Forked:
            for process in processes:
                process.end()
            processes.append(Forked(line, PROGRAM, (how, command)))
            assert processes[-1].stdout.readline() == "ready\n", processes[-1].communicate(LIMIT)
            return processes[-1]

        yield start
        for process in processes:
            process.end()


@pytest.mark.parametrize(
    ("command", "how", "number", "code", "said"),
    [
        ("train", "working", signal.SIGTERM, 143, "SIGTERM; the same command resumes from the last checkpoint"),
        pytest.param(
            *("index", "computing", signal.SIGTERM, 143, "SIGTERM; the same command goes on with what was built"),
            marks=pytest.mark.slow,
        ),
        pytest.param("plan", "sleeping", signal.SIGINT, 130, "Ctrl-C", marks=pytest.mark.slow),
        ("eval", "searching", signal.SIGINT, 130, "Ctrl-C"),
    ],
)
def test_a_signal_prints_one_line(
    start: Start, command: str, how: str, number: signal.Signals, code: int, said: str
) -> None:
    process = start(how, command)
    process.send_signal(number)
    _, printed = process.communicate(LIMIT)
    lines = [line for line in printed.splitlines() if "libtpu" not in line]
    assert lines == [f"scope-jax: stopped by {said}."]
    assert process.returncode == code


@pytest.mark.parametrize(("how", "code"), [("failing", 2), pytest.param("done", 0, marks=pytest.mark.slow)])
def test_a_command_that_ends_does_not_wait_for_a_server(start: Start, how: str, code: int) -> None:
    process = start(how)
    process.communicate(LIMIT)  # a search of another thread would go on for an hour
    assert process.returncode == code


def test_the_second_signal_ends_at_once(start: Start) -> None:
    process = start("finishing")
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "finishing\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(LIMIT)
    assert said == "\nscope-jax: ended at once.\n" and process.returncode == 130


def test_a_signal_that_the_parent_ignores_stays_ignored(start: Start) -> None:
    process = start("ignoring")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(LIMIT)
    assert "stopped by SIGTERM" in said and process.returncode == 143


@pytest.fixture
def listening() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in stopping.SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # in a shell's background it is ignored
    stopping.listen()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


ASKED = "training stops after the running step, within {} seconds; a second signal ends it at once."


@pytest.mark.parametrize(
    ("how", "asked", "ending"),
    [
        (
            "orderly",
            ASKED.format(600),
            "stopped by SIGTERM after step 7; the same command resumes from the last checkpoint.",
        ),
        (
            "late",
            ASKED.format(0.5),
            "stopped by SIGTERM, before the end of the step; the same command resumes from the last checkpoint.",
        ),
    ],
)
def test_training_stops_after_the_step_or_when_the_grace_period_is_over(
    start: Start, how: str, asked: str, ending: str
) -> None:
    process = start(how, "train")
    assert process.stdout.readline() == "asked to stop\n"
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(LIMIT)
    assert said.splitlines() == [f"scope-jax: SIGTERM: {asked}", f"scope-jax: {ending}"]
    assert process.returncode == 143


def code_without_reader(process: Forked) -> int:
    """The exit code, once nobody reads what the process says; it is killed if it does not end."""
    process.stderr.close()
    process.stdout.close()
    try:
        return process.wait(LIMIT)
    finally:
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_a_signal_is_kept_although_nobody_reads_what_is_said(start: Start, number: signal.Signals) -> None:
    """As with `2>&1 | tee log`, where Ctrl-C ends tee first, and in a terminal that is closed."""
    process = start("orderly", "train")
    assert process.stdout.readline() == "asked to stop\n"
    process.send_signal(number)
    assert code_without_reader(process) == 128 + number


def test_a_reader_that_goes_ends_training_after_the_step(start: Start) -> None:
    """As with `2>&1 | head`."""
    process = start("printing", "train")
    assert process.stderr.readline() == "a line\n"
    assert code_without_reader(process) == 128 + signal.SIGPIPE


@pytest.mark.parametrize(("how", "signalled"), [("drawing", True), ("drawing", False), ("drawn", False)])
def test_a_terminal_that_is_closed_is_a_hangup_also_below_a_progress_bar(how: str, signalled: bool) -> None:
    """Whether the signal comes first or a line that cannot be written; in training and in other commands."""
    master, terminal = os.openpty()
    command = [sys.executable, "-c", PROGRAM, how, "train"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=terminal, start_new_session=True)
    os.close(terminal)
    seen = b""
    while b"a line" not in seen:
        seen += os.read(master, 4096)
    if signalled:
        process.send_signal(signal.SIGHUP)
    os.close(master)
    try:
        assert process.wait(LIMIT) == 128 + signal.SIGHUP
    finally:
        process.kill()


def test_a_reader_that_went_earlier_ends_training_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread may have met it, while the model was being loaded."""
    monkeypatch.setattr(stopping, "_ending", False)
    read, write = os.pipe()
    with open(write, "wb", buffering=0) as raw:
        out = stopping.Output(raw, encoding="utf-8", write_through=True)
        out.write("a line")
        os.close(read)
        for _ in range(2):
            with pytest.raises(BrokenPipeError):
                out.write("another")
        with stopping.orderly(30, lambda stopped: None) as request:
            assert out.write("a third") == len("a third")
            assert request.number == signal.SIGPIPE


def test_the_grace_period_bounds_what_comes_after_the_step(start: Start) -> None:
    process = start("hanging", "train")
    assert process.stdout.readline() == "asked to stop\n"
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(LIMIT)
    assert said.endswith("scope-jax: ended at once, as ending took longer than 1 seconds.\n")
    assert process.returncode == 143


def test_the_reader_of_a_list_may_go() -> None:
    """Silently, with the exit code that shells give."""
    command = [sys.executable, "-m", "scope_jax", "keys", "--markdown"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    with process.stderr as said:
        assert said.read() == ""
    assert process.wait(LIMIT) in (0, 128 + signal.SIGPIPE)


def test_an_ending_that_hangs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: queue.SimpleQueue[tuple[int, float]] = queue.SimpleQueue()
    monkeypatch.setattr(stopping, "end_late", lambda code, seconds: ended.put((code, seconds)))
    stopping.bound(2, 0.05)
    assert ended.get(timeout=LIMIT) == (2, 0.05)


def test_a_second_signal_ends_training_at_once(start: Start) -> None:
    process = start("busy", "train")
    assert process.stdout.readline() == "asked to stop\n"
    process.send_signal(signal.SIGTERM)
    assert process.stderr.readline() == f"scope-jax: SIGTERM: {ASKED.format(600)}\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(LIMIT)
    assert said == "\nscope-jax: ended at once.\n" and process.returncode == 130


@pytest.mark.usefixtures("listening")
def test_in_an_orderly_block_a_signal_is_a_request_and_the_grace_period_ends_with_the_block() -> None:
    late: list[stopping.Stopped] = []
    with stopping.orderly(600, late.append) as request:
        assert request.number == 0
        signal.raise_signal(signal.SIGTERM)
        assert request.number == signal.SIGTERM
    assert late == []
    assert not [thread for thread in threading.enumerate() if thread.name == "grace period"]


@pytest.mark.usefixtures("listening")
def test_outside_of_a_protected_block_a_signal_is_an_exception() -> None:
    with stopping.orderly(30, lambda stopped: None):
        pass
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_while_modules_are_imported_ends_without_a_traceback():
    code = """
import os, signal, sys
from importlib.abc import MetaPathFinder

class Pressing(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "scope_jax.cli":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Pressing())
from scope_jax.__main__ import run
run()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
