"""What a worker must not be able to do, tried by a worker before a run starts."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence


def escapes(port: int, pid: int, file: str, folders: Sequence[tuple[str, int, int]]) -> list[str]:
    """What succeeds of it, in words that follow "a worker can"; empty if it is isolated.

    port: where the run listens on the loopback. pid: of the run. file: a path that exists for the run. folders: path,
    device and inode of folders of the run.
    """
    with open("/proc/self/status") as lines:
        status = {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
    processes = [name for name in os.listdir("/proc") if name.isdigit()]
    capabilities = [int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")]
    tries: list[tuple[str, Callable[[], object]]] = [
        ("connect to the run", lambda: socket.create_connection(("127.0.0.1", port), 2)),
        ("connect to other hosts", lambda: socket.create_connection(("192.0.2.1", 80), 2)),
        (f"read {file}", lambda: os.open(file, os.O_RDONLY)),
        ("see other processes", lambda: os.getpid() != 2 or sorted(processes) != ["1", "2"]),
        ("read its guard", lambda: os.open("/proc/1/mem", os.O_RDONLY)),
        ("end its guard", lambda: bool(os.kill(1, 9)) or os.getppid() != 1),
        ("signal the run", lambda: os.kill(pid, 0)),
        ("use capabilities", lambda: any(capabilities)),
        ("gain privileges", lambda: status["NoNewPrivs"] != "1"),
    ]
    tries += [(f"see {path}", lambda known=(path, device, inode): _is_shown(*known)) for path, device, inode in folders]
    written = ("/", "/python", "/packages", "/dev", "/usr/lib", "/sandbox")
    tries += [
        (f"write to {path}", lambda path=path: os.open(f"{path}/probe", os.O_CREAT | os.O_WRONLY)) for path in written
    ]
    return [what for what, attempt in tries if _succeeds(attempt)]


def _is_shown(path: str, device: int, inode: int) -> bool:
    status = os.stat(path)
    return (status.st_dev, status.st_ino) == (device, inode)


def _succeeds(attempt: Callable[[], object]) -> bool:
    try:
        return attempt() is not False
    except OSError:
        return False
