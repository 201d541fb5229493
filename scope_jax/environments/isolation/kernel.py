"""System calls that Python does not offer; each raises OSError as the functions of `os` do."""

from __future__ import annotations

import ctypes
import os

NEWNS, NEWCGROUP, NEWUTS, NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000  # linux/sched.h
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
RDONLY, NOSUID, NODEV, NOEXEC = 1, 2, 4, 8  # of mounts, linux/mount.h
BIND, RECURSIVE, PRIVATE = 4096, 16384, 1 << 18
DETACH = 2  # of umount
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
SYS_MOUNT_SETATTR = 442  # on all architectures; Linux 5.12
PDEATHSIG, DUMPABLE, BOUNDING_DROP, NO_NEW_PRIVS, SUBREAPER = 1, 4, 24, 38, 36  # linux/prctl.h
SECCOMP, SECCOMP_FILTER = 22, 2
AMBIENT, AMBIENT_CLEAR = 47, 4
CAPABILITIES_V3 = 0x20080522
ADDR_NO_RANDOMIZE = 0x0040000

_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> int:
    """The result of the C library's function `name`."""
    result = getattr(_libc, name)(*arguments)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def prctl(option: int, first: object = 0, second: object = 0) -> int:
    """prctl(2)."""
    return call("prctl", option, *(ctypes.c_ulong(x) if isinstance(x, int) else x for x in (first, second, 0, 0)))


def unshare(flags: int) -> None:
    """New namespaces for this process; NEWPID: for its next child."""
    call("unshare", flags)


def mount(source: str | None, target: str, kind: str | None = None, flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    text = [None if part is None else part.encode() for part in (source, target, kind)]
    try:
        call("mount", *text, ctypes.c_ulong(flags), data.encode() or None)
    except OSError as error:
        raise OSError(error.errno, f"mount {source} at {target}: {os.strerror(error.errno or 0)}") from None


def unmount(target: str) -> None:
    """Takes a mount away at once, even if it is in use."""
    call("umount2", target.encode(), DETACH)


def pivot_root(new: str, old: str) -> None:
    """Makes the mount `new` the root, and leaves the former one at `old` in it."""
    machine = os.uname().machine
    if machine not in SYS_PIVOT_ROOT:
        raise OSError(f"isolation is not written for {machine}")
    call("syscall", SYS_PIVOT_ROOT[machine], new.encode(), old.encode())


def restrict(target: str, flags: int, recursive: bool = True) -> None:
    """Adds RDONLY, NOSUID, NODEV or NOEXEC to a mount, and to those in it."""
    attributes = (ctypes.c_uint64 * 4)(flags, 0, 0, 0)
    at_fdcwd, at_recursive = -100, 0x8000
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    flag = ctypes.c_uint(at_recursive if recursive else 0)
    call("syscall", SYS_MOUNT_SETATTR, at_fdcwd, target.encode(), flag, ctypes.byref(attributes), size)


def drop_capabilities() -> None:
    """Gives up all capabilities for good, those that a program could gain by exec too."""
    for capability in range(64):
        try:
            prctl(BOUNDING_DROP, capability)
        except OSError:  # past the last one that this kernel knows
            break
    prctl(AMBIENT, AMBIENT_CLEAR)
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_V3, 0)
    call("capset", ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)()))
    prctl(NO_NEW_PRIVS, 1)


def die_with_parent() -> None:
    """SIGKILL as soon as the thread that started this process ends."""
    prctl(PDEATHSIG, 9)
