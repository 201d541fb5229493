"""Runs Python code that a model has written, in processes of their own, apart from everything on this host.

A zygote (`isolation.zygote`) forks a worker, for one call or for a session, in about 20 ms and with 3 MB; further calls
of a session take less than a millisecond. A worker has a socket, on which it gets code and says that it has run, and a
pipe for all that the code prints. Nothing that comes through them is believed: a worker that answers anything but the
token of its call is killed, and what it printed is text for the policy.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scope_jax.config import SandboxSection
from scope_jax.environments.isolation import view
from scope_jax.environments.python_worker import END_SECONDS, Worker
from scope_jax.errors import UserError
from scope_jax.play.tool_calls import ToolError

PACKAGES = ("mpmath", "numpy", "sympy")  # sympy needs the first
START_SECONDS = 300.0  # for the zygote's imports, which take a second, or minutes on a loaded node
FORK_SECONDS = 60.0  # for a fork, which takes milliseconds
MOST_WORKERS = 16  # by default
MOST_DESCRIPTORS = 65_536  # of this process, if its limits allow as many
_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from isolation.zygote import launch; launch()"
_PLAY = Path(__file__).parent


class NotStarted(Exception):
    """No worker can be started; the message is the reason."""


class Sandbox:
    """The workers of a run; a `Service`, safe to use by many threads.

    hidden: folders that a worker must not see, beside the home, the current and the temporary folder. tell: called with
    a sentence if code will run without isolation.
    """

    def __init__(
        self, section: SandboxSection, hidden: Sequence[Path] = (), tell: Callable[[str], None] | None = None
    ) -> None:
        self._section = section
        self._hidden = [*hidden, Path.home(), Path.cwd(), Path(tempfile.gettempdir())]
        self._tell = tell
        self._lock = threading.Lock()
        self._zygote: _Zygote | None = None
        self.way = ""
        """How workers are isolated: "namespaces", "bubblewrap" or "none"; "" before the start."""
        cores = len(os.sched_getaffinity(0))
        self._free = threading.BoundedSemaphore(section.workers or min(cores, MOST_WORKERS))

    @property
    def pid(self) -> int:
        """The process that has started all others; 0 if there is none."""
        return 0 if self._zygote is None else self._zygote.pid

    def start(self) -> None:
        """Starts the zygote, and has a worker try to get out; raises UserError with the remedy if it succeeds."""
        with self._lock:
            if self._zygote is not None:
                return
            now, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # a session takes three descriptors
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(now, min(most, MOST_DESCRIPTORS)), most))
            if self._section.isolation == "none":
                self._start_unisolated()
                return
            reasons = []
            for way in ("namespaces", "bubblewrap"):
                if way == "bubblewrap" and (shutil.which("bwrap") is None or os.geteuid() == 0):
                    continue  # root can do itself what bubblewrap can
                try:
                    zygote = _Zygote(way, self._section)
                except NotStarted as reason:
                    reasons.append(f"{way}: {reason}")
                    continue
                if not (problems := self._problems(zygote)):
                    self._zygote, self.way = zygote, way
                    return
                zygote.close()
                reasons.append(f"{way}: {problems}")
        raise UserError(
            f"this host does not let code of the model be isolated ({'; '.join(reasons)}); allow what is missing, give "
            'the address of a SandboxFusion server as sandbox.endpoint, or set sandbox.isolation = "none" in the card, '
            "with which that code runs as your user."
        )

    def close(self) -> None:
        """Ends the zygote and all workers."""
        with self._lock:
            if self._zygote is not None:
                self._zygote.close()
                self._zygote, self.way = None, ""

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """A session, whose calls share their variables; its worker is killed at the end."""
        session = Session(self)
        try:
            yield session
        finally:
            session.close()

    def run(self, code: str) -> str:
        """Runs code in a worker of its own, as `Worker.run` does."""
        with self.session() as session:
            return session.run(code)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Waits until one of the `workers` calls at a time may run."""
        with self._free:
            yield

    def worker(self) -> Worker:
        """A new worker. Raises ToolError if the host cannot start one now."""
        self.start()
        for _ in range(2):
            with self._lock:
                zygote = self._zygote
            if zygote is None:
                raise ToolError("the sandbox has been closed")
            try:
                return zygote.worker()
            except NotStarted as reason:
                problem = str(reason)
            self._replace(zygote)
        raise ToolError(f"no process can be started ({problem})")

    def sweep(self) -> None:
        """Without a process namespace: ends what ended workers have left."""
        zygote = self._zygote
        if zygote is not None and self.way != "namespaces":
            zygote.sweep()

    def _replace(self, ended: _Zygote) -> None:
        """Another zygote for one that something has killed; workers have ended with it."""
        with self._lock:
            if self._zygote is ended:
                ended.close()
                try:
                    self._zygote = _Zygote(self.way, self._section)
                except NotStarted as reason:
                    self._zygote = None
                    raise ToolError(f"no process can be started ({reason})") from None

    def _start_unisolated(self) -> None:
        try:
            zygote = _Zygote("none", self._section)
        except NotStarted as reason:
            raise UserError(
                f"Python for code of the model does not start ({reason}); check this installation."
            ) from None
        if (told := _told(zygote, "6 * 7")) != "42":
            zygote.close()
            raise UserError(f"code of the model does not run ({told[:200]!r}); check this installation and [sandbox].")
        self._zygote, self.way = zygote, "none"
        if self._tell is not None:
            self._tell('sandbox.isolation is "none": code written by the model runs as your user, with your files.')

    def _problems(self, zygote: _Zygote) -> str:
        """What a worker can do that it must not; "" if nothing."""
        with socket.create_server(("127.0.0.1", 0)) as listening, tempfile.NamedTemporaryFile() as secret:
            folders = [(str(path), path.stat().st_dev, path.stat().st_ino) for path in self._hidden if path.is_dir()]
            known = {"port": listening.getsockname()[1], "file": secret.name, "folders": folders, "pid": os.getpid()}
            code = f"from isolation.probe import escapes\nprint('can', *escapes(**{known!r}), sep=', ')"
            told = " ".join(_told(zygote, code).split())
        if told.startswith("can, "):
            return f"a worker can {told.removeprefix('can, ')}"
        return "" if told == "can" else told


def _told(zygote: _Zygote, code: str) -> str:
    """What a worker of its own prints, or why there is no such text."""
    try:
        worker = zygote.worker()
        try:
            return worker.run(code, START_SECONDS)
        finally:
            worker.close()
    except (NotStarted, ToolError) as reason:
        return str(reason)


class Session:
    """Calls that share a worker, which is started by the first."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._worker: Worker | None = None
        self._lock = threading.Lock()

    def run(self, code: str) -> str:
        """Runs the next cell, as `Worker.run` does."""
        with self._lock, self._sandbox.turn():
            if self._worker is None:
                self._worker = self._sandbox.worker()
            try:
                return self._worker.run(code)
            except ToolError:
                self._sandbox.sweep()
                raise

    def close(self) -> None:
        """Ends its processes."""
        with self._lock:
            if self._worker is not None:
                self._worker.close()
                self._sandbox.sweep()


class _Zygote:
    """The process that forks workers, from outside; raises NotStarted if it does not start."""

    def __init__(self, way: str, section: SandboxSection) -> None:
        self._section = section
        self._lock = threading.Lock()
        self._folder = tempfile.TemporaryDirectory(prefix="scope-jax-", ignore_cleanup_errors=True)
        packages = sorted({str(_folder_of(name)) for name in PACKAGES})
        settings: dict[str, Any] = {
            "way": way,
            "packages": packages,
            "folder": self._folder.name,
            "bubblewrap": [],
            "tmp_mib": section.tmp_mib,
            "memory_mib": section.memory_mib,
            "cpu_seconds": section.cpu_seconds,
            "processes": section.processes,
        }
        self._paths: dict[str, str] = {}
        if way == "bubblewrap":
            settings["bubblewrap"] = view.bubblewrap(str(shutil.which("bwrap")), packages, section.tmp_mib)
            settings["packages"] = view.package_folders(packages)
        elif way == "none":
            self._paths = dict(zip(map(re.escape, packages), view.package_folders(packages), strict=True))
            self._paths |= {re.escape(f"{sys.base_prefix}/"): f"{view.PYTHON}/"}
            self._paths |= {re.escape(self._folder.name) + r"/\w+": "/tmp"}
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings["control"] = theirs.fileno()
        with theirs:
            self._launcher = subprocess.Popen(
                [sys.executable, "-P", "-s", "-S", "-B", "-c", _PROGRAM, str(_PLAY)],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                env={},
                cwd="/",
                start_new_session=True,
            )
        assert self._launcher.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._launcher.stdin as file:  # it has ended, which is told below
            file.write(json.dumps(settings).encode())
        if (told := self._told(START_SECONDS)) != "ready":
            self.close()
            raise NotStarted(told or "it ended without a word")

    @property
    def pid(self) -> int:
        """The first process."""
        return self._launcher.pid

    def worker(self) -> Worker:
        """A worker that waits for code; raises NotStarted if there is none."""
        ours, channel = socket.socketpair()
        guard, requests = socket.socketpair()
        output, write = os.pipe()
        fds: list[int] = []
        try:
            with channel, requests, self._lock:
                self._control.settimeout(FORK_SECONDS)
                socket.send_fds(self._control, [b"start"], [channel.fileno(), write, requests.fileno()])
                _, fds, _, _ = socket.recv_fds(self._control, 4096, 1)
        except OSError as error:
            raise NotStarted(str(error)) from None
        finally:
            os.close(write)
            if not fds:
                ours.close()
                guard.close()
                os.close(output)
        if not fds:
            raise NotStarted("the process that forks workers has ended")
        os.set_inheritable(fds[0], False)
        worker = Worker(fds[0], ours, guard, output, self._section)
        worker.paths = self._paths
        return worker

    def sweep(self) -> None:
        """Returns once what ended workers have left is gone."""
        with self._lock, contextlib.suppress(OSError):  # ended itself, with all
            self._control.settimeout(FORK_SECONDS)
            self._control.send(b"sweep")
            self._control.recv(64)

    def close(self) -> None:
        """Ends it and all its workers, and returns when they are gone."""
        with self._lock:
            self._control.close()
        try:
            self._launcher.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._launcher.kill()
            self._launcher.wait()
        self._folder.cleanup()

    def _told(self, seconds: float) -> str:
        try:
            self._control.settimeout(seconds)
            return self._control.recv(4096).decode(errors="replace")
        except OSError as error:
            return str(error)


def _folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise UserError(f"Python code of the model needs {package}, which is not installed; pip install {package}.")
    return Path(spec.origin).parents[1]
