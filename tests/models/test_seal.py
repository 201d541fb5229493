"""Seals: same content however many files are read at the same time, and the first fault in order."""

from __future__ import annotations

import json
import threading
import zlib
from pathlib import Path

import pytest

from scope_jax.models.files import seal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(40):
        path = tmp_path / f"part{number % 4}" / f"{number:02}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes([number]) * (number * 1000))
    seal.seal(tmp_path)
    return tmp_path


def test_the_seal_lists_sizes_and_checksums_in_order(folder: Path) -> None:
    entries = json.loads((folder / seal.SEAL).read_text())
    files = sorted(path for path in folder.rglob("*.bin"))
    assert list(entries) == [path.relative_to(folder).as_posix() for path in files] and len(entries) == 40
    assert all(entry == [path.stat().st_size, zlib.crc32(path.read_bytes())]
               for entry, path in zip(entries.values(), files, strict=True))  # fmt: skip
    assert seal.fault(folder) is None


def test_the_first_fault_in_order_is_reported(folder: Path) -> None:
    (folder / "part3" / "39.bin").unlink()
    (folder / "part1" / "01.bin").write_bytes(bytes(1000))  # the same size
    assert seal.fault(folder) == "part1/01.bin has changed since it was written"
    assert seal.fault(folder, sizes_only=True) == "part3/39.bin is missing"
    (folder / "part0" / "00.bin").write_bytes(b"1")
    assert seal.fault(folder) == "part0/00.bin has 1 bytes instead of 0"


def test_files_are_read_at_the_same_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seal, "THREADS", 2)
    both, plain = threading.Barrier(2, timeout=30), seal._crc

    def crc(path: Path) -> int:
        both.wait()  # returns only when another thread is here, too
        return plain(path)

    monkeypatch.setattr(seal, "_crc", crc)
    assert seal.fault(folder) is None
