"""Files of a report, which others may be reading or writing at the same time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scope_jax.errors import writing


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A temporary name beside the path, which takes its place at the end. Each process has its own: at the end of a run
    training writes the same report as `scope-jax report --watch`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with writing(path):
            yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
