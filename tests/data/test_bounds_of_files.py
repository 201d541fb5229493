"""Lines, lists and objects of any size: bounded memory, and time in proportion to the bytes."""

from __future__ import annotations

import gzip
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scope_jax.data import rows
from scope_jax.data.corpus import load_corpus
from scope_jax.data.rows import DataError, attempts, read
from scope_jax.data.schemas import SCHEMAS
from scope_jax.retrieval.clusters.folder import input_of
from scope_jax.text.objects import has_control, last_object
from scope_jax.text.strict_json import STRICT_JSON, repeated

LIMITED = """
import resource, sys
from scope_jax.data.rows import attempts, read
from scope_jax.retrieval.clusters.folder import input_of
try:
    if sys.argv[1] == "input":
        print(input_of(sys.argv[2], None, None, None)["rows"])
    else:
        for _ in (read if sys.argv[1] == "read" else attempts)(sys.argv[2]):
            pass
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize("how", ["read", "attempts", pytest.param("input", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["x.jsonl", pytest.param("x.jsonl.gz", marks=pytest.mark.slow)])
def test_a_line_without_end_is_one_sentence(how: str, name: str, tmp_path: Path) -> None:
    """1.25 GiB in one line, more than the process may hold; of gzip, a few MB."""
    path = tmp_path / name
    with path.open("wb") as below:
        if name.endswith(".gz"):
            with gzip.GzipFile(fileobj=below, mode="wb", compresslevel=1) as file:
                file.write(b'{"answer": "a"}\n{"answer": "')
                for _ in range(5 << 5):
                    file.write(bytes(1 << 23))
        else:
            below.write(b'{"answer": "a"}\n{"answer": "')
            below.truncate(5 << 28)  # zeros, without blocks on the disk
    limit = 1 << 30
    found = subprocess.run(
        [sys.executable, "-c", LIMITED, how, str(path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
    )
    assert found.returncode == 0, found.stderr
    if how == "input":
        assert found.stdout.strip() == "2"
    else:
        assert f"{path}, line 2: is longer than 64 MiB" in found.stdout


@pytest.mark.parametrize("name", ["x.json", "x.json.gz"])
def test_a_list_may_be_one_line_up_to_a_limit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / name
    text = b"\xef\xbb\xbf \n\n" + json.dumps([{"answer": str(n)} for n in range(100)]).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    monkeypatch.setattr(rows, "LONGEST_LINE", 50)
    monkeypatch.setattr(rows, "LARGEST_LIST", len(text))
    assert [row for _, row, _ in attempts(str(path))] == [{"answer": str(n)} for n in range(100)]
    monkeypatch.setattr(rows, "LARGEST_LIST", len(text) - 1)
    with pytest.raises(DataError, match=f"{path} is one JSON list of more than"):
        list(attempts(str(path)))
    path.write_bytes(path.read_bytes()[:-20])
    if name.endswith(".gz"):
        with pytest.raises(DataError, match="not a complete gzip file"):
            list(attempts(str(path)))


@pytest.mark.parametrize("text", ["", "a", "a\n", "a\nb", "a\n\nb\n", "\n"])
@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_lines_are_counted_as_before(text: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    assert input_of(str(path), None, None, None)["rows"] == len(text.splitlines())


def seconds(work: object) -> float:
    began = time.process_time()
    work()  # type: ignore[operator]
    return time.process_time() - began


def test_keys_are_compared_in_linear_time(tmp_path: Path) -> None:
    """100,000 keys, of which the last is there twice: comparing all pairs takes minutes."""
    keys = ", ".join(f'"key {n}": 0' for n in range(100_000))
    twice = f'{{{keys}, "key 99999": 1}}'
    (tmp_path / "x.jsonl").write_text(twice + "\n")

    def refused() -> None:
        with pytest.raises(DataError, match="line 1: holds the key 'key 99999' twice"):
            list(read(str(tmp_path / "x.jsonl")))
        with pytest.raises(ValueError, match="twice"):
            STRICT_JSON.decode(twice)
        assert last_object(f"So: {twice}") is None  # a policy's reply

    assert seconds(refused) < 5
    assert repeated("abcbca") == "b" and repeated("abc") is None


TIMED = """
import time
from scope_jax.data.schemas import SCHEMAS
row = {"id": "c", "family": "f", "documents": [{"id": str(n), "title": "", "text": "x"} for n in range(50_000)]}
began = time.process_time()
SCHEMAS["clusters"](row, "here", {})
print(time.process_time() - began)
"""


def test_ids_are_compared_in_linear_time() -> None:
    """In a process of its own: the type checks of these tests take twenty times as long as the comparison."""
    done = subprocess.run([sys.executable, "-c", TIMED], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 5
    documents = [{"id": str(n), "title": "", "text": "x"} for n in range(100)]
    row = {"id": "c", "family": "f", "documents": documents}
    documents[-1]["id"] = "7"
    with pytest.raises(DataError, match="here: two of its documents have the id '7'"):
        SCHEMAS["clusters"](row, "here", {})


def test_an_edit_is_seen_whatever_its_size_and_time(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"text": "Rome"}\n')
    known, past = input_of(str(path), None, None, None), path.stat()
    assert load_corpus(path)[0].text == "Rome"
    path.write_text('{"text": "Oslo"}\n')
    os.utime(path, ns=(past.st_atime_ns, past.st_mtime_ns))
    assert input_of(str(path), None, None, known)["hash"] != known["hash"]
    assert load_corpus(path)[0].text == "Oslo"


def test_depth_does_not_end_a_search_for_control_characters() -> None:
    value: object = "\t"
    for _ in range(20_000):
        value = [value]
    assert has_control(value) and not has_control([{"a": ["b\nc"]}]) and has_control({"a": ["\x0c"]})
