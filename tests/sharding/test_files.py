"""Names that others give lead to files in their folder or are refused, and every writer has files of its own."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from scope_jax import files
from scope_jax.errors import UserError
from scope_jax.files import FileNameError, all_inside, alone, inside, partial_of, replaced

BAD = [
    "../x",
    "a/../../x",
    "/etc/x",
    "",
    ".",
    "..",
    "a//b",
    "a/./b",
    "a/",
    "a\0b",
    "a\nb",
    "a\x7fb",
    "\ud800",
    "a\u2028",
]
BAD += ["..\\x", "C:\\x", "c:x", "n" * 256, "é" * 128, "/".join(["d" * 100] * 11), 3, None, b"a", ["a"]]


@pytest.mark.parametrize("name", BAD, ids=lambda name: ascii(name)[:20])
def test_a_name_that_is_no_file_in_the_folder_is_one_sentence(name: object, tmp_path: Path) -> None:
    with pytest.raises(FileNameError, match=r"^the index names .* not a file in the same folder") as caught:
        inside(tmp_path, name, "the index")
    assert len(str(caught.value)) < 400 and str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["a", "a/b.txt", "…/東京　の.json", "a b/c:d", ".hidden", "x..y", "...", "n" * 255])
def test_any_other_name_is_joined(name: str, tmp_path: Path) -> None:
    assert inside(tmp_path, name, "the index") == tmp_path / name


def test_no_link_leads_out_of_the_folder(tmp_path: Path) -> None:
    """The last part may be a link, which writing replaces; what is above it must stay inside."""
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    (folder / "real").mkdir(parents=True)
    outside.mkdir()
    (folder / "away").symlink_to(outside)
    (folder / "within").symlink_to(folder / "real")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "blob").symlink_to(outside / "blob")
    for name in ("away/x", "away/deep/x", "loop/x"):
        with pytest.raises(FileNameError, match="behind a link"):
            inside(folder, name, "the index")
    assert inside(folder, "within/x", "the index") == folder / "within" / "x"
    with replaced(inside(folder, "blob", "the index")) as partial:
        partial.write_text("x")
    assert not (outside / "blob").exists() and (folder / "blob").read_text() == "x"


def test_names_that_cannot_be_together_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for names in (["a", "a/b"], ["a/b/c/d", "a/b"], ["x", "x-y", "x/z"]):
        with pytest.raises(FileNameError, match=r"the bucket has both .* a file and a folder at once"):
            all_inside(tmp_path, names, "the bucket")
    alike = ["Data/A.txt", "data/a.txt"]
    assert set(all_inside(tmp_path, alike, "the bucket")) == set(alike)  # this file system tells them apart
    monkeypatch.setattr(files, "_folds_case", lambda folder: True)
    for names in (alike, ["é", "e\u0301"]):
        with pytest.raises(FileNameError, match=r"the bucket has both .* one file in"):
            all_inside(tmp_path, names, "the bucket")
    assert len(all_inside(tmp_path, [f"d/{n}" for n in range(9)], "the bucket")) == 9


def test_partial_files_differ_and_old_ones_go(tmp_path: Path) -> None:
    target = tmp_path / "rows.jsonl"
    assert len({partial_of(target) for _ in range(100)}) == 100
    assert len(os.fsencode(partial_of(tmp_path / ("é" * 127)).name)) <= 255
    old, new, foreign = partial_of(target), partial_of(target), tmp_path / "mine.partial"
    for path in (old, new, foreign):
        path.touch()
    for path in (old, foreign):
        os.utime(path, (0.0, time.time() - 2 * 86_400))
    with replaced(target) as partial:
        partial.write_text("whole")
        assert partial.parent == tmp_path and partial not in (old, new) and not target.exists()
    assert sorted(tmp_path.iterdir()) == sorted([target, new, foreign])


def test_what_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "rows.jsonl"
    target.write_text("before")
    with pytest.raises(FileNotFoundError), replaced(target) as partial:
        partial.with_name("nothing").read_text()
    assert target.read_text() == "before" and list(tmp_path.iterdir()) == [target]


def test_an_output_has_one_writer(tmp_path: Path) -> None:
    target = tmp_path / "out" / "rows.jsonl"
    refused = pytest.raises(UserError, match=r"another process is writing .*rows\.jsonl; wait for it")
    with alone(target), refused, alone(target):
        raise AssertionError
    assert list(target.parent.iterdir()) == []  # the lock has gone
    with alone(target), alone(target.with_name("other.jsonl")):
        pass
