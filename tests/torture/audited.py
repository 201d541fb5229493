"""A plugin of pytest: the files that a session makes or writes outside its own folders, by Python's audit events.

AUDITED=FILE python -m pytest -p tests.torture.audited --basetemp FOLDER …: one path on each line of the file. What
native code writes has no such events.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "AUDITED"
PLACES = {"os.mkdir": 0, "os.rename": 1, "os.link": 1, "os.symlink": 1}  # event: which argument is what is made
CACHES = ("JAX_COMPILATION_CACHE_DIR", "HF_HOME", "MPLCONFIGDIR", "TMPDIR")  # variables: where libraries write
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Audit:
    """folders: inside which everything may be written. outside: what was written elsewhere."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders = [folder.resolve() for folder in folders]
        self.outside: set[str] = set()
        sys.addaudithook(self._heard)

    def _heard(self, event: str, given: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(given[2], int) and given[2] & WRITES:
            self._wrote(given[0])
        elif event in PLACES and all(descriptor == -1 for descriptor in given[2:] if isinstance(descriptor, int)):
            self._wrote(given[PLACES[event]])

    def _wrote(self, path: Any) -> None:
        if not isinstance(path, (str, bytes)):  # a descriptor, whose file was opened before
            return
        place = os.path.realpath(os.fsdecode(path))
        if not any(Path(place).is_relative_to(folder) for folder in self.folders):
            self.outside.add(place)


def pytest_configure(config: pytest.Config) -> None:
    base = config.option.basetemp
    caches = [*(Path(os.environ[name]) for name in CACHES), Path("/dev"), Path("/proc")]
    config.stash[_AUDIT] = Audit([Path(base), *caches])


def pytest_unconfigure(config: pytest.Config) -> None:
    report = os.path.realpath(config.option.xmlpath)  # of pytest itself
    outside = config.stash[_AUDIT].outside - {report, os.path.dirname(report)}
    lines = "".join(f"{path!r}\n" for path in sorted(outside))
    Path(os.environ[VARIABLE]).write_text(lines, encoding="utf-8")


_AUDIT = pytest.StashKey[Audit]()
