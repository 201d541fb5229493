"""A seccomp filter: system calls that a worker has no use for, and that have helped others out of namespaces.

Namespaces and the lack of capabilities hold without it. It closes what they leave: new namespaces, in which a process
has capabilities again, kernel keyrings and AF_VSOCK, which no namespace divides, and large parts of the kernel.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from . import kernel

# asm/unistd.h: the numbers of x86_64 and of aarch64
REFUSED = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_by_handle_at": (304, 265),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "pidfd_getfd": (438, 438),
    "mount_setattr": (442, 442),
    "memfd_create": (319, 279),  # memory beside the limits, as are the next
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "personality": (135, 92),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
}
CLONE, CLONE3, SOCKET, IOCTL = (56, 220), (435, 435), (41, 198), (16, 29)
FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6: of a network namespace of its own, which leads nowhere
NEW = kernel.NEWNS | kernel.NEWCGROUP | kernel.NEWUTS | kernel.NEWIPC | kernel.NEWUSER | kernel.NEWPID | kernel.NEWNET
TIOCSTI, TIOCLINUX = 0x5412, 0x541C  # put characters into a terminal's input
ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # linux/audit.h
X32 = 0x40000000

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # linux/bpf_common.h
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data


def program(machine: str) -> bytes:
    """The filter for a machine of ARCHITECTURES, as an array of struct sock_filter."""
    audit, column = ARCHITECTURES[machine]
    code: list[tuple[int, int, int, int]] = []

    def add(operation: int, value: int, yes: int = 0, no: int = 0) -> None:
        code.append((operation, yes, no, value))

    def refuse(number: int) -> None:
        add(RETURN, ERRNO | number)

    add(LOAD, ARCHITECTURE)
    add(EQUAL, audit, 1)
    add(RETURN, KILL)  # 32-bit calls, whose numbers differ
    add(LOAD, NUMBER)
    add(AT_LEAST, X32, 0, 1)
    add(RETURN, KILL)
    for numbers in REFUSED.values():
        add(EQUAL, numbers[column], 0, 1)
        refuse(errno.EPERM)
    add(EQUAL, CLONE3[column], 0, 1)
    refuse(errno.ENOSYS)  # its flags are behind a pointer; the C library then calls clone
    add(EQUAL, CLONE[column], 0, 4)
    add(LOAD, ARGUMENTS)
    add(ANY_BIT, NEW, 0, 1)
    refuse(errno.EPERM)
    add(RETURN, ALLOW)
    add(EQUAL, SOCKET[column], 0, 2 + len(FAMILIES) + 1)
    add(LOAD, ARGUMENTS)
    for place, family in enumerate(FAMILIES):
        add(EQUAL, family, len(FAMILIES) - place)
    refuse(errno.EAFNOSUPPORT)
    add(RETURN, ALLOW)
    add(EQUAL, IOCTL[column], 0, 4)
    add(LOAD, ARGUMENTS + 8)
    add(EQUAL, TIOCSTI, 1)
    add(EQUAL, TIOCLINUX, 0, 1)
    refuse(errno.EPERM)
    add(RETURN, ALLOW)
    return b"".join(struct.pack("HBBI", *line) for line in code)


def install() -> bool:
    """Applies the filter to this process and its children, for good; False if it is not written for this machine."""
    machine = os.uname().machine
    if machine not in ARCHITECTURES:
        return False
    lines = program(machine)
    buffer = ctypes.create_string_buffer(lines, len(lines))

    class FilterProgram(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    kernel.prctl(
        kernel.SECCOMP,
        kernel.SECCOMP_FILTER,
        ctypes.byref(FilterProgram(len(lines) // 8, ctypes.addressof(buffer))),
    )
    return True
