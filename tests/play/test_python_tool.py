"""The Python tool: results of calls and sessions, limits, isolation and what is left without it, and who ends whom."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from scope_jax.config import SandboxSection
from scope_jax.environments import sandbox as module
from scope_jax.environments.python_tool import python_tool
from scope_jax.environments.python_worker import readable
from scope_jax.environments.sandbox import Sandbox
from scope_jax.errors import UserError
from scope_jax.play.tool_calls import Service, Tool, ToolError
from tests.play.test_hostile_programs import descendants

ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox(SandboxSection(seconds=20.0, workers=4))
    try:
        sandbox.start()
    except UserError as error:
        pytest.skip(str(error))
    yield sandbox
    sandbox.close()


def waited(done: Callable[[], bool], seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while not done() and time.monotonic() < until:
        time.sleep(0.02)
    return done()


def tool_of(sandbox: Sandbox, session: bool) -> Tool:
    return python_tool(SandboxSection(), session=session, service=sandbox)


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("6 * 7", "42"),
        ("print('a')\n'b'", "a\n'b'"),
        ("x = 1", ""),
        ("None", ""),
        ("", ""),
        ("# nothing", ""),
        ("x = 2; x  # its value", "2"),
        ("import sys\nprint('out')\nprint('err', file=sys.stderr)\nprint('out')", "out\nerr\nout"),
        ("print('no newline', end='')", "no newline"),
        ("import sympy\nsympy.factor(sympy.sympify('x**2 - 1'))", "(x - 1)*(x + 1)"),
        ("import numpy as np\nnp.arange(6).reshape(2, 3).sum(0)", "array([3, 5, 7])"),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nP(3)", "P(x=3)"),
        ("import pickle\nclass A: pass\ntype(pickle.loads(pickle.dumps(A())))", "<class '__main__.A'>"),
        ("__name__", "'__main__'"),
        ("def f(n): return n and f(n - 1)\nf(5)", "0"),
        ("[object(), lambda: 0]", "[<object object at 0x…>, <function <lambda> at 0x…>]"),
        ("import os\nos.getcwd(), os.listdir(), dict(os.environ), os.getuid()", "('/tmp', [], {}, 1000)"),
        ("import time\ntime.tzname, time.localtime(0).tm_hour", "(('UTC', 'UTC'), 0)"),
        ("open('f', 'w').write('kept'); open('f').read()", "'kept'"),
        ("from multiprocessing import Pool\nwith Pool(2) as p: r = p.map(abs, [-1, 2])\nr", "[1, 2]"),
        ("from concurrent.futures import ThreadPoolExecutor as T\nlist(T(2).map(abs, [-1]))", "[1]"),
        ("import subprocess, sys\nsubprocess.check_output([sys.executable, '-c', 'print(hash(\"a\"))']) and 1", "1"),
    ],
)
def test_a_result_is_what_is_printed_and_the_last_value(sandbox: Sandbox, code: str, result: str) -> None:
    assert tool_of(sandbox, session=False).run(code=code) == result


def test_a_traceback_shows_the_lines_of_the_code_and_no_path_of_the_host(sandbox: Sandbox) -> None:
    text = sandbox.run("import json\ndef f():\n    return json.loads('{')\nf()")
    assert text.startswith('Traceback (most recent call last):\n  File "<cell 1>", line 4, in <module>\n    f()\n')
    assert "    return json.loads('{')\n" in text and text.endswith("(char 1)")
    assert "isolation" not in text and str(ROOT) not in text and sys.base_prefix not in text


def test_variables_of_a_session_live_until_it_is_closed(sandbox: Sandbox) -> None:
    tool = tool_of(sandbox, session=True)
    assert tool.open is not None and isinstance(tool.service, Service)
    with tool.open(RNG) as first, tool.open(RNG) as second:
        assert tool.run(first, code="import math\nx = 5") == ""
        assert tool.run(first, code="math.factorial(x)") == "120"
        assert "NameError" in tool.run(second, code="x")
        assert 'File "<cell 3>", line 1' in tool.run(first, code="1 / 0")
        assert tool.run(first, code="open('/tmp/f', 'w').write('a'); x") == "5"
        assert tool.run(second, code="import os\nos.listdir('/tmp')") == "[]"
    assert len(descendants(sandbox.pid)) == 1


def test_a_call_alone_keeps_nothing(sandbox: Sandbox) -> None:
    tool = tool_of(sandbox, session=False)
    assert tool.open is None
    tool.run(code="x = 1\nopen('/tmp/f', 'w').write('a')")
    assert "NameError" in tool.run(code="x") and tool.run(code="import os\nos.listdir('/tmp')") == "[]"


def test_a_session_whose_process_ends_is_over(sandbox: Sandbox) -> None:
    with sandbox.session() as session:
        session.run("x = 1")
        with pytest.raises(ToolError, match="the process ended before the code did; printed until then:\nlast words"):
            session.run("import os\nprint('last words')\nos._exit(3)")
        with pytest.raises(ToolError, match="the session is over: the process ended before"):
            session.run("x")
    assert sandbox.run("1") == "1"


def test_a_session_that_answers_for_its_loop_is_ended(sandbox: Sandbox) -> None:
    """Code can find the token of its call; whoever sends it too early has no second answer that is believed."""
    early = (
        "import os, sys, time\nframe = sys._getframe()\nwhile 'request' not in frame.f_locals: frame = frame.f_back\n"
        "os.write(3, frame.f_locals['request']['token'].encode() + b'\\n')\ntime.sleep(1)"
    )
    with sandbox.session() as session:
        assert session.run(early) == ""
        with pytest.raises(ToolError, match="the worker failed"):
            session.run("x = 1")
        with pytest.raises(ToolError, match="the session is over"):
            session.run("x")


def test_the_schema_is_that_of_one_string() -> None:
    tool = python_tool(SandboxSection(seconds=7.0), name="code")
    function = tool.schema["function"]
    assert tool.name == function["name"] == "code" and "7 seconds" in function["description"]
    assert function["parameters"]["required"] == ["code"]
    assert function["parameters"]["properties"]["code"]["type"] == "string"


SAME = """
import random, uuid, numpy as np
print(random.random(), np.random.rand(), np.random.default_rng().integers(1000, size=3), hash("text"))
print({"a", "b", "c", "d"}, {type(x) for x in (1, "", 2.0, [], {})})
class A: pass
print({A() for _ in range(5)}, object())
random.sample(range(1000), 5)
"""


def test_equal_code_prints_equal_text(sandbox: Sandbox) -> None:
    with ThreadPoolExecutor(4) as pool:
        texts = set(pool.map(lambda _: sandbox.run(SAME), range(12)))
    other = Sandbox(SandboxSection())
    try:
        other.start()
        texts.add(other.run(SAME))
    finally:
        other.close()
    assert len(texts) == 1
    with sandbox.session() as session:
        assert session.run(SAME) in texts and session.run("random.random()") != session.run("random.random()")


def test_many_calls_at_once_are_answered_with_their_own_results(sandbox: Sandbox) -> None:
    def play(number: int) -> list[str]:
        with sandbox.session() as session:
            return [session.run(f"x = {number}"), sandbox.run(f"{number} * 2"), session.run("x + 1")]

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(play, range(32)))
    assert results == [["", str(number * 2), str(number + 1)] for number in range(32)]


def test_at_most_workers_run_at_once_and_waiting_does_not_count(sandbox: Sandbox) -> None:
    narrow = Sandbox(SandboxSection(workers=1, seconds=3.0))
    try:
        narrow.start()
        began = time.monotonic()
        with ThreadPoolExecutor(6) as pool:
            results = list(pool.map(narrow.run, ["import time\ntime.sleep(.6)\n1"] * 6))
        assert results == ["1"] * 6 and time.monotonic() - began > 3.6
    finally:
        narrow.close()


def test_close_ends_everything_and_start_begins_anew(sandbox: Sandbox) -> None:
    other = Sandbox(SandboxSection())
    other.start()
    with other.session() as session:
        session.run("import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(1000)")
        started = {other.pid, *descendants(other.pid)}
        assert len(started) == 4
        other.close()
        assert not any(Path(f"/proc/{pid}").exists() for pid in started)
        with pytest.raises(ToolError):
            session.run("1")
    other.start()
    assert other.run("1") == "1"
    other.close()


def test_a_killed_zygote_is_replaced(sandbox: Sandbox) -> None:
    other = Sandbox(SandboxSection())
    try:
        other.start()
        with other.session() as session:
            session.run("x = 1")
            for pid in descendants(other.pid):
                with suppress(ProcessLookupError):  # of a child that has ended with its parent
                    os.kill(pid, signal.SIGKILL)
            with pytest.raises(ToolError):
                session.run("x")
        assert other.run("2") == "2"
    finally:
        other.close()


KILLED_RUN = """
import sys, threading, time
from scope_jax.config import SandboxSection
from scope_jax.environments.sandbox import Sandbox
sandbox = Sandbox(SandboxSection(isolation=sys.argv[1], seconds=600.0))
sandbox.start()
code = "import os, signal\\nos.fork()\\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\\nwhile True: pass"
threading.Thread(target=sandbox.run, args=(code,), daemon=True).start()
print(sandbox.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("isolation", ["auto", "none"])
def test_a_killed_run_leaves_nothing(sandbox: Sandbox, isolation: str) -> None:
    run = subprocess.Popen([sys.executable, "-c", KILLED_RUN, isolation], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert run.stdout is not None
    first = int(run.stdout.readline())
    expected = {"auto": 4, "none": 3}[isolation]  # the zygote, the guard, the worker, its child
    assert waited(lambda: len(descendants(first)) == expected)
    started = {first, *descendants(first)}
    run.kill()
    run.communicate()
    assert waited(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))


FORBIDDEN = """
from scope_jax.config import SandboxSection
from scope_jax.errors import UserError
from scope_jax.environments.isolation import filters, kernel
from scope_jax.environments.sandbox import Sandbox
kernel.prctl(kernel.NO_NEW_PRIVS, 1)
filters.install()  # as a container's filter does, it refuses namespaces and mounts
try:
    Sandbox(SandboxSection()).start()
except UserError as error:
    print(error)
told = []
allowed = Sandbox(SandboxSection(isolation="none"), tell=told.append)
allowed.start()
print(allowed.run("6 * 7"), allowed.way, *told)
allowed.close()
"""


def test_a_host_without_namespaces_is_told_with_the_remedies() -> None:
    done = subprocess.run([sys.executable, "-c", FORBIDDEN], capture_output=True, text=True, cwd=ROOT, check=True)
    refusal, answer = done.stdout.splitlines()
    assert "namespaces: " in refusal and "Operation not permitted" in refusal
    assert "sandbox.endpoint" in refusal and 'sandbox.isolation = "none"' in refusal and "\n" not in refusal
    assert answer.startswith("42 none ") and "as your user" in answer


def test_an_escape_is_told(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/usr/lib"))  # what a worker does see
    with pytest.raises(UserError, match="a worker can see /usr/lib"):
        Sandbox(SandboxSection()).start()


def test_bubblewrap_isolates_alike(sandbox: Sandbox) -> None:
    if module.shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    zygote = module._Zygote("bubblewrap", SandboxSection())
    try:
        assert sandbox._problems(zygote) == ""
        worker = zygote.worker()
        assert worker.run("import os\nx = 1\nsorted(os.listdir('/')), os.listdir('/tmp'), os.getuid()") == sandbox.run(
            "import os\nsorted(os.listdir('/')), os.listdir('/tmp'), os.getuid()"
        )
        assert worker.run(SAME) and worker.run("x") == "1"
        with pytest.raises(ToolError, match="no result within 1 s"):
            worker.run("import os\nos.fork()\nwhile True: pass", 1.0)
        worker.close()
        zygote.sweep()
        assert descendants(zygote.pid) == set()
    finally:
        zygote.close()


def test_without_isolation_calls_are_limited_and_their_trees_end() -> None:
    free = Sandbox(SandboxSection(isolation="none", seconds=6.0, workers=2))
    try:
        free.start()
        assert free.way == "none" and free.run("import os\nos.getcwd(), os.listdir()") == "('/tmp', [])"
        assert sys.base_prefix not in free.run("import json\njson.loads('{')")
        daemon = "import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork(): os._exit(0)\n time.sleep(1000)\n"
        with pytest.raises(ToolError, match="no result within 6 s"):
            free.run(f"{daemon}time.sleep(1000)")
        free.run(daemon)
        with pytest.raises(ToolError, match="more than 65536 bytes"):
            free.run("while True: print('x' * 1000)")
        assert "MemoryError" in free.run("bytes(10**11)")
        assert len(descendants(free.pid)) == 0
    finally:
        free.close()


def test_text_of_code_is_made_readable() -> None:
    assert readable(b"a\r\nb\x00\x1b[31m\n\n") == "a\nb\ufffd\ufffd[31m"
    assert readable(b"<f at 0x7f12ab34cd56> is at 0x12 \xff") == "<f at 0x…> is at 0x12 \ufffd"
    assert readable(b"/home/me/lib/x.py", {"/home/me": "/python"}) == "/python/lib/x.py"


@pytest.mark.slow
def test_threads_that_end_do_not_end_the_workers(sandbox: Sandbox) -> None:
    """A process that dies with its parent dies with the thread that has started it."""
    other = Sandbox(SandboxSection())
    starting = threading.Thread(target=other.start)
    starting.start()
    starting.join()
    try:
        assert other.run("1") == "1"
    finally:
        other.close()
