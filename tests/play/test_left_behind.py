"""What a cell leaves behind: it is ended with the cell, orphans are waited for, and nothing runs between two cells."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scope_jax.config import SandboxSection
from scope_jax.environments.sandbox import Sandbox
from scope_jax.errors import UserError
from scope_jax.play.tool_calls import ToolError
from tests.play.test_hostile_programs import descendants
from tests.play.test_python_tool import waited

ROOT = Path(__file__).parents[2]
LEFT = {
    "a child": "import os, time\nif os.fork() == 0: time.sleep(1000)",
    "a daemon": "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork(): os._exit(0)\n time.sleep(1000)",
    "burners that fork again": """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        while True:
            try:
                if os.fork(): os._exit(0)
            except OSError: pass
""",
    "signals ignored": """
import os, signal, time
if os.fork() == 0:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}: signal.signal(number, signal.SIG_IGN)
    while True: time.sleep(.01)
""",
    "one who wakes the others": """
import os, signal
for _ in range(4):
    if os.fork() == 0:
        while True:
            for target in (-1, 2):
                try: os.kill(target, signal.SIGCONT)
                except OSError: pass
""",
    "a thread": "import threading\ndef burn():\n while True: pass\nthreading.Thread(target=burn, daemon=True).start()",
    "a thread that forks": """
import os, threading, time
def later():
    while True:
        try:
            if os.fork() == 0: time.sleep(1000)
        except OSError: time.sleep(.001)
threading.Thread(target=later, daemon=True).start()
""",
    "a program": "import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', 'while True: pass'])",
    "a pool": "import multiprocessing\npool = multiprocessing.Pool(2)\npool.map(abs, [-1])",
    "a server": "import os, socket, time\ns = socket.create_server(('', 0))\nif os.fork() == 0: time.sleep(1000)",
    "a stopped child": "import os, signal\nif os.fork() == 0: os.kill(os.getpid(), signal.SIGSTOP)",
    "a child that writes": "import os\nif os.fork() == 0:\n while True: os.write(1, b'.')",
}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox(SandboxSection(seconds=60.0, workers=2))
    try:
        sandbox.start()
    except UserError as error:
        pytest.skip(str(error))
    yield sandbox
    sandbox.close()


def states(pid: int) -> set[str]:
    """Of what this process has started: R runs, S sleeps, T is stopped."""
    files = [Path(f"/proc/{child}/stat") for child in descendants(pid)]
    return {file.read_text().rpartition(")")[2].split()[0] for file in files}


@pytest.mark.parametrize("name", LEFT)
def test_nothing_goes_on_after_a_cell(sandbox: Sandbox, name: str) -> None:
    with sandbox.session() as session:
        session.run("x = 5")
        session.run(LEFT[name])
        assert len(descendants(sandbox.pid)) == 3  # the zygote, the guard, and the worker, which stands still
        assert waited(lambda: "T" in states(sandbox.pid))
        assert session.run("x") == "5"
        assert len(descendants(sandbox.pid)) == 3


def test_without_isolation_what_can_be_found_is_ended(sandbox: Sandbox) -> None:
    free = Sandbox(SandboxSection(isolation="none", seconds=60.0))
    try:
        free.start()
        for name in ("a child", "a daemon", "signals ignored", "a thread", "a program", "a pool"):
            with free.session() as session:
                session.run(LEFT[name])
                assert len(descendants(free.pid)) == 2 and waited(lambda: "T" in states(free.pid))
                assert session.run("1") == "1"
    finally:
        free.close()


def test_orphans_are_waited_for(sandbox: Sandbox) -> None:
    forks = """
import os
for _ in range(40):
    if (child := os.fork()) == 0:
        if os.fork() == 0: os._exit(0)
        os._exit(0)
    os.waitpid(child, 0)
"""
    with sandbox.session() as session:
        for _ in range(3):
            assert session.run(forks) == ""
        assert (
            session.run("import subprocess\nsubprocess.run(['/python/bin/python3', '-V']).returncode * 0") is not None
        )
        assert session.run("from multiprocessing import Pool\nwith Pool(4) as p: r = p.map(abs, [-1])\nr") == "[1]"


def test_a_child_that_was_ended_is_known_to_be(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        session.run(LEFT["a program"])
        assert session.run("p.wait()") == "-9"


def test_a_guard_that_is_gone_ends_the_session(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        session.run("1")
        assert session._worker is not None
        session._worker._guard.close()
        with pytest.raises(ToolError, match="the process ended before"):
            session.run("2")
    assert sandbox.run("3") == "3"


SAME = """
import os, sys, tempfile, uuid
print(sys.argv, sys.orig_argv, uuid.getnode(), uuid.uuid1().node, os.getpid(), os.getppid())
print(tempfile.mkdtemp(), tempfile.mkstemp()[1], tempfile.NamedTemporaryFile().name, tempfile.mktemp())
print(open('/proc/self/cmdline').read(), open('/proc/self/environ').read(), os.listdir('/proc/self/fd'))
if os.fork() == 0: print(tempfile.mkdtemp(), flush=True)
else: os.wait()
"""


def test_names_and_arguments_are_those_of_any_run(sandbox: Sandbox) -> None:
    other = Sandbox(SandboxSection())
    try:
        other.start()
        texts = {sandbox.run(SAME), sandbox.run(SAME), other.run(SAME)}
    finally:
        other.close()
    assert len(texts) == 1 and texts.pop().startswith("[''] [")


WITHOUT = """
import sys
from scope_jax.config import SandboxSection
from scope_jax.errors import UserError
from scope_jax.environments.isolation import view
from scope_jax.environments.sandbox import Sandbox
try:
    Sandbox(SandboxSection()).start()
    print("isolated")
except UserError as error:
    print(error)
"""


@pytest.mark.parametrize("dropped", ["cap_sys_admin", "cap_sys_admin,cap_setuid,cap_setgid"])
def test_root_without_the_capability_is_told_of_it(sandbox: Sandbox, dropped: str) -> None:
    try:
        done = subprocess.run(
            ["capsh", f"--drop={dropped}", "--", "-c", '"$0" -c "$1"', sys.executable, WITHOUT],
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
    except FileNotFoundError:
        pytest.skip("capsh is not installed")
    if done.returncode:
        pytest.skip("capsh may not drop capabilities here")
    assert done.stdout == "isolated\n" or "give this container CAP_SYS_ADMIN" in done.stdout
