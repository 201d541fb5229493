"""Starts a program in namespaces of its own, with a root in which there is the interpreter, and little else.

The paths in this root are the same on every host: `/python` is the interpreter with its standard library, `/packages`
(and `/packages1`, …) the folders of installed packages, `/sandbox` this package; `/tmp` is empty. All but `/tmp` is
read-only.
"""

from __future__ import annotations

import os
import sys

from . import kernel

NOBODY = 65534
USER = 1000  # a worker's user and group, in its user namespace
PYTHON = "/python"
SYSTEM = ("lib", "lib64", "usr/lib", "usr/lib64")
DEVICES = ("null", "zero", "full", "random", "urandom")


def interpreter() -> str:
    """Path of the interpreter in the view."""
    return f"{PYTHON}/bin/python{sys.version_info[0]}.{sys.version_info[1]}"


def package_folders(folders: list[str]) -> list[str]:
    """Where the view has these folders."""
    return [f"/packages{number or ''}" for number in range(len(folders))]


def binds(packages: list[str]) -> list[tuple[str, str]]:
    """(path on the host, path in the view) of everything that is shown read-only."""
    base, here = sys.base_prefix, os.path.dirname(os.path.abspath(__file__))
    pairs = [(os.path.realpath(sys.executable), interpreter())]
    pairs += [(f"{base}/{name}", f"{PYTHON}/{name}") for name in sorted({"lib", sys.platlibdir})]
    pairs += list(zip(map(os.path.realpath, packages), package_folders(packages), strict=True))
    pairs += [(here, "/sandbox/isolation")]
    pairs += [
        (f"/{name}", f"/{name}") for name in SYSTEM if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")
    ]
    pairs += [("/etc/ld.so.cache", "/etc/ld.so.cache")] if os.path.exists("/etc/ld.so.cache") else []
    return pairs


def links() -> list[tuple[str, str]]:
    """(target, path in the view) of symbolic links: folders of libraries that are links on the host, too."""
    return [(os.readlink(f"/{name}"), f"/{name}") for name in SYSTEM if os.path.islink(f"/{name}")]


def environment() -> dict[str, str]:
    """Of the interpreter as it starts; code of a model runs with an empty one."""
    fixed = {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1", "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    return fixed | threads | {"LD_LIBRARY_PATH": f"{PYTHON}/lib"}


def bubblewrap(program: str, packages: list[str], tmp_mib: int) -> list[str]:
    """The arguments that have bubblewrap, the program at this path, show the same view in namespaces of its own."""
    words = [program, "--unshare-all", "--die-with-parent", "--as-pid-1", "--cap-drop", "ALL", "--clearenv"]
    words += ["--hostname", "sandbox", "--uid", str(USER), "--gid", str(USER), "--proc", "/proc"]
    words += [word for name in DEVICES for word in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")]
    words += ["--size", str(tmp_mib << 20), "--tmpfs", "/tmp", "--chdir", "/tmp"]
    for source, target in binds(packages):
        words += ["--ro-bind", source, target]
    for target, path in [*links(), ("/tmp", "/dev/shm")]:
        words += ["--symlink", target, path]
    for name, value in environment().items():
        words += ["--setenv", name, value]
    return [*words, "--remount-ro", "/"]


def enter(packages: list[str]) -> bool:
    """Gives this process, and its next child, namespaces in which it may mount; True if it stays root for that. Raises
    OSError with what this host would have to allow. packages: see `binds`."""
    flags = kernel.NEWNS | kernel.NEWPID | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS
    if os.geteuid() != 0:
        _enter_as_user(flags, "allow user namespaces")
        return False
    try:
        kernel.unshare(flags)
        return True
    except PermissionError:  # root without CAP_SYS_ADMIN, as in a container
        _become_nobody()
    _enter_as_user(flags, "allow user namespaces, or give this container CAP_SYS_ADMIN")
    for path, _ in binds(packages):
        if not os.access(path, os.R_OK):
            raise OSError(
                f"root has no CAP_SYS_ADMIN here, and the user that code then runs as cannot read {path}: give this "
                "container CAP_SYS_ADMIN, or install Python where every user can read it"
            )
    return False


def _enter_as_user(flags: int, remedy: str) -> None:
    user, group = os.geteuid(), os.getegid()
    try:
        kernel.unshare(flags | kernel.NEWUSER)
        map_ids(0, user, group)
    except OSError as error:
        raise OSError(f"{error.strerror}: {remedy}") from None


def _become_nobody() -> None:
    """Gives up root, whose user namespace would be root outside, too."""
    try:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    except PermissionError:
        raise OSError(
            "root has no CAP_SYS_ADMIN here and cannot become another user: give this container CAP_SYS_ADMIN"
        ) from None
    kernel.prctl(kernel.DUMPABLE, 1)  # or /proc/self belongs to root


def map_ids(inside: int, user: int, group: int) -> None:
    """Writes the maps of a user namespace that this process has just entered."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{inside} {user} 1"), ("gid_map", f"{inside} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def build(packages: list[str]) -> None:
    """Replaces the root of this mount namespace by the view."""
    shown, linked = binds(packages), links()
    kernel.mount(None, "/", None, kernel.RECURSIVE | kernel.PRIVATE)
    kernel.mount("tmpfs", "/tmp", "tmpfs", kernel.NOSUID | kernel.NODEV, "size=1m,mode=755")
    os.chdir("/tmp")
    os.mkdir("old")
    kernel.pivot_root(".", "old")
    os.chdir("/")
    for source, target in shown:
        _bind(source, target, kernel.RDONLY | kernel.NOSUID | kernel.NODEV)
    for target, path in linked:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(target, path)
    for name in DEVICES:
        _bind(f"/dev/{name}", f"/dev/{name}", kernel.NOSUID | kernel.NOEXEC)
    os.symlink("/tmp", "/dev/shm")
    _bind("/proc", "/proc", 0)  # each worker mounts its own over it
    os.mkdir("/tmp")
    kernel.unmount("/old")
    os.rmdir("/old")
    kernel.restrict("/", kernel.RDONLY, recursive=False)


def _bind(source: str, target: str, flags: int) -> None:
    """Shows /old/`source` at `target`."""
    source = f"/old{source}"
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.isdir(source):
        os.mkdir(target)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    kernel.mount(source, target, None, kernel.BIND | kernel.RECURSIVE)
    if flags:
        kernel.restrict(target, flags)
