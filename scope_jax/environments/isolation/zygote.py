"""A process with the libraries already loaded, which forks a worker for each request.

Requests come as packets of a socket: `start` with three descriptors, the worker's socket, the end of the pipe for its
output and the socket of its guard (`guard`), answered with a descriptor of the guard's process (pidfd), which ends with
all that the worker has started; `sweep`, answered once all that is left of ended workers is gone. When the socket ends,
this process ends, and as it is the first of its process namespace, all others do.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from typing import Any, NoReturn

from . import cells, filters, guard, kernel, view

CHANNEL, OUTPUT, GUARD = 3, 4, 5  # descriptors beside 0, 1 and 2: two of a worker, one of its guard
MIB = 1 << 20


def launch() -> None:
    """First program: enters namespaces and view if the settings ask for it, and starts `main`."""
    settings = _settings()
    program, folder, environment = sys.executable, sys.argv[1], view.environment()
    try:
        if settings["way"] == "namespaces":
            settings["root"] = view.enter(settings["packages"])
            if child := os.fork():
                os.close(settings["control"])
                sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            kernel.die_with_parent()
            view.build(settings["packages"])
            program, folder = view.interpreter(), "/sandbox"
            settings["packages"] = view.package_folders(settings["packages"])
        else:
            environment["LD_LIBRARY_PATH"] = f"{sys.base_prefix}/lib"
        with contextlib.suppress(OSError):  # refused in some containers; only values of id() depend on it
            kernel.call("personality", kernel.ADDR_NO_RANDOMIZE)
        os.execve(program, _command(program, folder, "main", settings), environment)
    except OSError as error:
        socket.socket(fileno=settings["control"]).send(_reason(error))
        sys.exit(1)


def main() -> None:
    """The zygote itself."""
    settings = _settings()
    control = socket.socket(fileno=settings["control"])
    if settings["way"] != "bubblewrap":
        try:
            _load(settings["packages"])
        except ImportError as error:
            control.send(_reason(error))
            sys.exit(1)
    Zygote(control, settings).work()


def single() -> None:
    """A guard and its worker that bubblewrap has started."""
    settings = _settings()
    _load(settings["packages"])
    _guarded(settings)


def _command(program: str, folder: str, function: str, settings: dict[str, Any]) -> list[str]:
    """The arguments that start a function of this module; this process's standard input then holds its settings, as
    code can read a command line."""
    read, write = os.pipe()
    os.write(write, json.dumps(settings).encode())
    os.close(write)
    os.dup2(read, 0)
    os.close(read)
    run = f"import sys; sys.path.insert(0, sys.argv[1]); from isolation.zygote import {function} as start; start()"
    return [program, "-P", "-s", "-S", "-B", "-c", run, folder]


def _settings() -> dict[str, Any]:
    """What stands in the standard input, which is empty from then on."""
    with open(0, "rb", closefd=False) as file:
        settings = json.load(file)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return settings


def _load(packages: list[str]) -> None:
    sys.path[:] = [path for path in sys.path if path != sys.argv[1]] + packages
    import numpy.fft
    import numpy.linalg
    import numpy.polynomial
    import numpy.random  # noqa: F401 - workers find all of them loaded, which numpy imports at their first use
    import sympy  # noqa: F401

    sys.argv[:] = [""]  # as in an interactive session
    vars(os.environ)["_data"].clear()  # for code; the C library and programs that are started keep the fixed one


class Zygote:
    """The loop that forks workers; see the module."""

    def __init__(self, control: socket.socket, settings: dict[str, Any]) -> None:
        self._control = control
        self._settings = settings
        self._namespaces = settings["way"] == "namespaces"
        self._workers: dict[int, str | None] = {}  # process: its folder, without isolation
        self._own = os.open("/proc/self/ns/pid", os.O_RDONLY) if self._namespaces else -1

    def work(self) -> None:
        """Serves until the socket ends."""
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        if not self._namespaces:
            kernel.prctl(kernel.SUBREAPER, 1)
        gc.collect()
        gc.freeze()  # pages that no collection writes to stay shared with the workers
        self._control.send(b"ready")
        while True:
            ready, _, _ = select.select([self._control, woken], [], [])
            if woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, 4096)
            self._reap()
            if self._control in ready:
                request, fds, _, _ = socket.recv_fds(self._control, 64, 3)
                if not request:
                    return self._end()
                if request == b"sweep":
                    while self._end_orphans():
                        select.select([woken], [], [], 0.1)
                        self._reap()
                    self._control.send(b"swept")
                else:
                    self._start(*fds)

    def _start(self, channel: int, output: int, requests: int) -> None:
        folder = tempfile.mkdtemp(dir=self._settings["folder"]) if self._settings["way"] == "none" else None
        if self._namespaces:
            kernel.unshare(kernel.NEWPID)
        pid = os.fork()
        if pid == 0:
            _work((channel, output, requests), folder or "/tmp", self._settings)
        if self._namespaces:
            kernel.call("setns", self._own, kernel.NEWPID)  # of later children, until it is unshared again
        self._workers[pid] = folder
        process = os.pidfd_open(pid)
        socket.send_fds(self._control, [b"started"], [process])
        for fd in (channel, output, requests, process):
            os.close(fd)

    def _reap(self) -> None:
        """Waits for ended processes; without a process namespace, ends all that a worker has left."""
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid in self._workers:
                    folder = self._workers.pop(ended.si_pid)
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(ended.si_pid, signal.SIGKILL)
                    if folder is not None:
                        shutil.rmtree(folder, ignore_errors=True)
                os.waitpid(ended.si_pid, 0)
                if not self._namespaces:
                    self._end_orphans()

    def _end_orphans(self) -> set[int]:
        """Kills children that are no workers, and returns them: what a worker started has become one when it ended."""
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            orphans = set(map(int, file.read().split())) - self._workers.keys()
        for child in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        return orphans

    def _end(self) -> None:
        for pid in self._workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
                self._reap()


def _work(fds: tuple[int, int, int], folder: str, settings: dict[str, Any]) -> NoReturn:
    """A guard and its worker, from the fork to their end. fds: those of `Zygote._start`."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        channel, output, requests = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in fds)
        null = os.open("/dev/null", os.O_RDONLY)
        places = (null, 0), (output, 1), (output, 2), (channel, CHANNEL), (output, OUTPUT), (requests, GUARD)
        for fd, place in places:
            os.dup2(fd, place)
        os.closerange(GUARD + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        if settings["way"] == "bubblewrap":
            command = _command(view.interpreter(), "/sandbox", "single", settings)
            os.execv(settings["bubblewrap"][0], [*settings["bubblewrap"], *command])
        if settings["way"] == "namespaces":
            _confine(settings["root"], settings["tmp_mib"])
        else:
            kernel.die_with_parent()
        os.chdir(folder)
        _guarded(settings)
    except OSError as error:
        os.write(CHANNEL, _reason(error) + b"\n")
    except Exception:  # noqa: BLE001 - a fault of the loop, as code that changes modules can cause
        traceback.print_exc()
    finally:
        os._exit(1)


def _guarded(settings: dict[str, Any]) -> None:
    """Forks the worker; this process is its guard, until the sandbox ends it."""
    isolated = settings["way"] != "none"
    if not isolated:
        kernel.prctl(kernel.SUBREAPER, 1)
    guard.adopt()
    worker = os.fork()
    if worker == 0:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.close(GUARD)
        _serve(settings)
        return
    for fd in (1, 2):
        os.dup2(0, fd)
    os.close(CHANNEL)
    os.close(OUTPUT)
    if isolated:
        kernel.drop_capabilities()
        kernel.prctl(kernel.DUMPABLE, 0)  # no process of the same user can read it
    guard.watch(GUARD, worker, isolated)


def _serve(settings: dict[str, Any]) -> None:
    for fd in (CHANNEL, OUTPUT):
        os.set_inheritable(fd, False)
    if settings["way"] == "namespaces":
        user, group = os.geteuid(), os.getegid()
        kernel.unshare(kernel.NEWUSER)
        view.map_ids(view.USER, user, group)
    _limit(settings)
    if settings["way"] == "none":
        kernel.die_with_parent()
        kernel.prctl(kernel.NO_NEW_PRIVS, 1)
    else:
        kernel.drop_capabilities()
        filters.install()
    cells.serve(CHANNEL, OUTPUT)


def _confine(root: bool, tmp_mib: int) -> None:
    """Namespaces, file systems and a user of this worker alone. root: this process is root, not only in a namespace."""
    kernel.unshare(kernel.NEWNS | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS)
    safe = kernel.NOSUID | kernel.NODEV | kernel.NOEXEC
    kernel.mount("tmpfs", "/tmp", "tmpfs", safe, f"size={tmp_mib}m,nr_inodes=10000,mode=1777")
    kernel.mount("proc", "/proc", "proc", safe, "subset=pid")
    socket.sethostname("sandbox")
    if root:
        user = group = view.NOBODY
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
        kernel.prctl(kernel.DUMPABLE, 1)


def _limit(settings: dict[str, Any]) -> None:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # short of memory, the kernel ends workers first
    limits = {
        resource.RLIMIT_AS: settings["memory_mib"] * MIB,
        resource.RLIMIT_CPU: settings["cpu_seconds"],
        resource.RLIMIT_FSIZE: settings["tmp_mib"] * MIB,
        resource.RLIMIT_NOFILE: 128,
        resource.RLIMIT_CORE: 1,  # byte: a program that takes cores is not even started, as it would be with 0
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    if settings["way"] != "none":  # otherwise it would count the user's processes
        limits[resource.RLIMIT_NPROC] = settings["processes"]
    for limit, value in limits.items():
        _, most = resource.getrlimit(limit)
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(limit, (value, value))


def _reason(error: Exception) -> bytes:
    kind = "" if type(error) is OSError else f"{type(error).__name__}: "
    return f"{kind}{error}".encode()[:4000]
