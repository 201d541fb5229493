"""From corpora to clusters: what is kept and why not, kills, finished folders, bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scope_jax.data.rows import DataError
from scope_jax.retrieval.clusters import build
from scope_jax.retrieval.clusters.build import prepare
from scope_jax.retrieval.clusters.folder import ClustersFolderError
from scope_jax.retrieval.clusters.settings import Neural, Preparation
from tests.retrieval.clustering import (
    FILTERS,
    QUESTION,
    SUBJECTS,
    Tell,
    bytes_of,
    corpus,
    documents,
    quiet,
    rows_of,
    sentence,
    wanted,
    write,
)

ROOT = Path(__file__).parents[2]
LONG = "far more words than anybody would read " * 30


def make(asked: Preparation, folder: Path, chunk: int = 16, **changes: Any) -> dict[str, Any]:
    return prepare(asked, folder, **({"chunk": chunk, "tell": quiet} | changes))


@pytest.fixture
def plain(tmp_path: Path) -> Preparation:
    """60 documents of four subjects."""
    return wanted(corpus(write(tmp_path / "corpus.jsonl", documents(15))))


def test_clusters_hold_every_document_once_and_one_subject_each(plain: Preparation, tmp_path: Path) -> None:
    report = make(plain, tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    held = [document for row in rows for document in row["documents"]]
    assert sorted(document["id"] for document in held) == sorted(row["id"] for row in documents(15))
    assert all(document in documents(15) for document in held)
    assert all(3 <= len(row["documents"]) <= 12 for row in rows)
    assert [row["id"] for row in rows] == [f"c{number:06d}" for number in range(len(rows))]
    assert [row["family"] for row in rows] == [("qa", "choice")[number % 2] for number in range(len(rows))]
    pure = [len({document["title"].split()[0] for document in row["documents"]}) == 1 for row in rows]
    assert np.mean(pure) > 0.8
    sizes = [len(row["documents"]) for row in rows]
    assert report["documents_per_cluster"] == {"mean": 60 / len(rows), "smallest": min(sizes), "largest": max(sizes)}
    assert report["families"] == Counter(row["family"] for row in rows)
    assert report["kept"] == report["read"] == 60 and not any(report["dropped"].values())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        ".lock", "clusters.jsonl", "manifest.json", "report.json",
    ]  # fmt: skip


def with_every_fault(folder: Path) -> Preparation:
    """Documents for every filter to drop, among 20 good ones, in two sources of which one has scores."""
    good = documents(5)
    text = sentence("rivers", 900)
    bad = [
        {"id": "short", "text": "Too little."},
        {"id": "blank", "text": "   "},
        {"id": "long", "text": LONG},
        {"id": "asked", "text": f"{text} which OLD bridge crosses the valley, north of the lake"},
        {"id": "exam", "text": sentence("stars", 901) + " indeed"},
        {"id": "again", "text": good[3]["text"] + " again"},
    ]
    scored = [{"id": "poor", "contents": f"A title\n{sentence('music', 902)}", "score": 0.25}]
    scored += [{"contents": f"Kept\n{sentence('music', number)}", "score": 0.5} for number in (903, 904)]
    return wanted(
        corpus(write(folder / "a.jsonl", good[:10] + bad + good[10:])),
        corpus(write(folder / "b.jsonl", scored), quality="score"),
        documents=write(folder / "exam.jsonl", [{"text": sentence("stars", 901)}]),
        questions=write(folder / "questions.jsonl", [{"question": QUESTION}, {"question": "Who?"}]),
    )


def test_every_drop_is_counted_with_its_reason(tmp_path: Path) -> None:
    report = make(with_every_fault(tmp_path), tmp_path / "out")
    assert report["dropped"] == {
        "low_quality": 1, "too_short": 2, "too_long": 1, "not_prose": 0, "evaluation_question": 1,
        "evaluation_document": 1, "duplicate": 1, "cluster_too_long": 0,
        "cluster_not_chosen": 0,
    }  # fmt: skip
    assert (report["read"], report["kept"]) == (29, 22)
    first, second = report["sources"]
    assert (first["read"], first["kept"], second["read"], second["kept"], second["low_quality"]) == (26, 20, 3, 2, 1)
    examples = report["examples"]
    assert examples["low_quality"] == [f"{tmp_path}/b.jsonl, line 1: a score of 0.25"]
    assert [line.split(": ")[1] for line in examples["too_short"]] == ["11 characters", "0 characters"]
    assert examples["evaluation_question"][0].endswith("holds “which old bridge crosses the valley north of”")
    assert examples["duplicate"][0].endswith(f"like {documents(5)[3]['id']}")
    assert f"like {tmp_path}/exam.jsonl, line 1" in examples["evaluation_document"][0]
    held = {document["id"]: document for row in rows_of(tmp_path / "out") for document in row["documents"]}
    assert held["27"] == {"id": "27", "title": "Kept", "text": sentence("music", 903)}  # its number among all rows
    assert not held.keys() & {"short", "blank", "long", "asked", "exam", "again", "poor"}


def test_the_prose_filter_is_an_option(tmp_path: Path) -> None:
    rows = [*documents(3), {"id": "words", "text": " ".join(["flour", "butter", "onion"] * 20)}]
    asked = wanted(corpus(write(tmp_path / "c.jsonl", rows)), filters=replace(FILTERS, prose=True))
    with pytest.raises(DataError, match=r"0 documents are left \(13 not_prose\)"):  # 36 words are too few for Gopher
        make(asked, tmp_path / "out")


class Kill(Exception):
    pass


def all_calls(asked: Preparation, folder: Path) -> list[str]:
    names: list[str] = []
    make(asked, folder, tell=lambda name, done, total: names.append(name))
    return names


def killing(limit: int) -> Tell:
    """A progress callback that raises at its limit-th call."""
    calls = count(1)

    def kill(name: str, done: int, total: int) -> None:
        if next(calls) == limit:
            raise Kill

    return kill


def test_a_preparation_that_was_stopped_anywhere_ends_with_the_same_bytes(tmp_path: Path) -> None:
    asked = with_every_fault(tmp_path)
    names = all_calls(asked, tmp_path / "whole")
    assert set(names) == {
        "documents read", "documents counted", "documents embedded", "documents clustered", "clusters written",
    }  # fmt: skip
    whole = bytes_of(tmp_path / "whole")
    for limit in range(1, len(names) + 1):
        stopped = tmp_path / f"stopped-{limit}"
        with pytest.raises(Kill):
            make(asked, stopped, tell=killing(limit))
        assert not (stopped / "clusters.jsonl").exists() or names[limit - 1] == "clusters written"
        work = stopped / "work"
        for file in work.glob("*.*"):
            if file.name != "embedder.npz":  # written, but not recorded before the kill
                file.write_bytes(file.read_bytes() + b"torn")
        make(asked, stopped)
        assert bytes_of(stopped) == whole


def test_sigkill(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from scope_jax.retrieval.clusters import build
from scope_jax.retrieval.clusters.build import prepare
from tests.retrieval.test_clusters import with_every_fault
def kill(name, done, total):
    if done == 16:
        os.kill(os.getpid(), signal.SIGKILL)
folder = Path(sys.argv[1])
prepare(with_every_fault(folder), folder / "killed", chunk=8, tell=kill)
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", program, tmp_path], env=env, check=False).returncode == -9
    begun = json.loads((tmp_path / "killed" / "manifest.json").read_text())
    assert (begun["read"], begun["selected"], begun["result"]) == (16, False, None)
    asked = with_every_fault(tmp_path)
    make(asked, tmp_path / "killed", chunk=8)
    make(asked, tmp_path / "whole", chunk=8)
    killed, whole = bytes_of(tmp_path / "killed"), bytes_of(tmp_path / "whole")
    told = [json.loads(files.pop("manifest.json")) for files in (killed, whole)]
    for inputs in (manifest["inputs"].values() for manifest in told):
        for each in inputs:
            del each["modified"]  # this test wrote the files twice
    assert told[0] == told[1] and killed == whole


def test_a_second_call_does_nothing(plain: Preparation, tmp_path: Path) -> None:
    report = make(plain, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}

    def forbidden(*told: Any) -> None:
        pytest.fail(f"worked again: {told}")

    assert make(plain, tmp_path / "out", tell=forbidden) == report
    os.utime(tmp_path / "corpus.jsonl")  # a new modification time, the same bytes
    assert make(plain, tmp_path / "out", tell=forbidden) == report
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


def test_other_settings_or_inputs_are_refused_unless_rebuilt(plain: Preparation, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    make(plain, folder)
    before = bytes_of(folder)
    with pytest.raises(ClustersFolderError, match=r"another value of seed \(0, now 1\); choose another folder"):
        make(replace(plain, seed=1), folder)
    with pytest.raises(ClustersFolderError, match=r"another value of shingle \(3, now 4\)"):
        make(replace(plain, filters=replace(FILTERS, shingle=4)), folder)
    with pytest.raises(ClustersFolderError, match=r'another value of encoder \("lexical-128", now "lexical-64"\)'):
        make(replace(plain, encoder=64), folder)
    write(tmp_path / "corpus.jsonl", documents(14))
    with pytest.raises(ClustersFolderError, match=r"corpus.jsonl has changed since the clusters in .* were built"):
        make(plain, folder)
    assert bytes_of(folder) == before
    assert make(plain, folder, rebuild=True)["read"] == 56 and len(rows_of(folder)) != 60


def test_several_sources_families_and_a_bound_for_each(tmp_path: Path) -> None:
    table = pa.Table.from_pylist([{"content": sentence("music", n), "uid": n % 2} for n in range(40, 52)])
    pq.write_table(table, tmp_path / "b.parquet")
    asked = wanted(
        corpus(write(tmp_path / "a.jsonl", documents(10)), ("qa", "choice")),
        corpus(str(tmp_path / "b.parquet"), ("math",), text="content", id="uid"),
        per_family=1,
    )
    report = make(asked, tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    assert [row["family"] for row in rows] == ["qa", "choice", "math"]
    for row in rows:
        ids = [document["id"] for document in row["documents"]]
        assert len(set(ids)) == len(ids)  # those of the table repeat
        assert (row["family"] == "math") == all(each.split("-")[0] in "01" for each in ids)
    assert report["dropped"]["cluster_not_chosen"] == 52 - report["kept"] > 0
    everything = make(replace(asked, per_family=None), tmp_path / "all")
    assert everything["kept"] == 52
    chosen = [row["documents"] for row in rows]
    assert all(some in [row["documents"] for row in rows_of(tmp_path / "all")] for some in chosen)
    other = make(replace(asked, seed=3), tmp_path / "other")
    assert other["clusters"] == 3 and rows_of(tmp_path / "other") != rows


def test_a_model_is_loaded_only_when_it_is_needed(tmp_path: Path) -> None:
    loaded = []

    def load():
        loaded.append(True)
        return lambda texts: np.asarray([[text.count(word) for word in SUBJECTS] for text in texts], np.float32)

    asked = wanted(corpus(write(tmp_path / "c.jsonl", documents(6))), encoder=Neural("counts-1", load))
    make(asked, tmp_path / "out", chunk=5)
    assert all(len({d["title"].split()[0] for d in row["documents"]}) == 1 for row in rows_of(tmp_path / "out"))
    make(asked, tmp_path / "out")
    assert loaded == [True]
    broken = Neural("broken", lambda: lambda texts: np.full((len(texts), 2), np.nan))
    with pytest.raises(ValueError, match="non-finite vector for document rivers-0;"):
        make(replace(asked, encoder=broken), tmp_path / "broken")


def test_bad_input_gives_one_clear_error_and_leaves_no_files(plain: Preparation, tmp_path: Path) -> None:
    folder = tmp_path / "out"

    def refused(error: type[Exception], match: str, asked: Preparation) -> None:
        with pytest.raises(error, match=match) as caught:
            make(asked, folder, chunk=8)
        assert "\n" not in str(caught.value)
        assert not folder.exists() or [path.name for path in folder.iterdir()] == [".lock"]

    refused(FileNotFoundError, r"none.jsonl does not exist", wanted(corpus(str(tmp_path / "none.jsonl"))))
    refused(FileNotFoundError, r"none.jsonl does not exist", replace(
        plain, held_out_documents=wanted(documents=str(tmp_path / "none.jsonl")).held_out_documents))  # fmt: skip
    torn = write(tmp_path / "torn.jsonl", [*documents(5), '{"text": "cut o'])
    refused(DataError, r"torn.jsonl, line 21: not JSON", wanted(corpus(torn)))
    refused(DataError, r"a.jsonl, line 2: has no text", wanted(
        corpus(write(tmp_path / "a.jsonl", [documents(1)[0], {"body": "x"}]))))  # fmt: skip
    refused(DataError, r"s.jsonl, line 1: `score` holds a string, not a number", wanted(
        corpus(write(tmp_path / "s.jsonl", [{"text": LONG, "score": "high"}]), quality="score")))  # fmt: skip
    refused(DataError, r"columns.question does not apply to", wanted(
        corpus(write(tmp_path / "c.jsonl", documents(1)), question="q")))  # fmt: skip
    refused(DataError, r"corpus.jsonl: 0 documents are left \(60 too_long\), but a cluster needs 3; add",
            replace(plain, filters=replace(FILTERS, max_characters=101)))  # fmt: skip
    few = write(tmp_path / "few.jsonl", documents(1)[:2])
    refused(DataError, r"few.jsonl: 2 documents are left \(none dropped\)", wanted(corpus(few)))
    refused(DataError, r"empty", wanted(corpus(write(tmp_path / "empty.jsonl", []))))


def test_folders_that_are_not_ours_or_damaged(plain: Preparation, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "report.json").write_text("{}")
    for rebuild in (False, True):
        with pytest.raises(ClustersFolderError, match=r"has other files \(report.json\) and no clusters"):
            make(plain, foreign, rebuild=rebuild)
    assert [path.name for path in foreign.iterdir()] == ["report.json"]
    theirs = tmp_path / "project" / "work" / "thesis.txt"  # the only thing there has a name of ours
    theirs.parent.mkdir(parents=True)
    theirs.write_text("years of it")
    with pytest.raises(ClustersFolderError, match=r"has other files \(work\) and no clusters"):
        make(plain, tmp_path / "project")
    assert theirs.is_file()
    with pytest.raises(ClustersFolderError, match="is a file; give a folder"):
        make(plain, tmp_path / "corpus.jsonl")
    folder = tmp_path / "out"
    make(plain, folder)
    (folder / "clusters.jsonl").write_text("{}")
    with pytest.raises(ClustersFolderError, match=r"damaged: clusters.jsonl is missing or was changed; rebuild them"):
        make(plain, folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(ClustersFolderError, match=r"damaged: manifest.json cannot be read"):
        make(plain, folder)
    make(plain, folder, rebuild=True)
    assert len(rows_of(folder)) > 4


def test_two_processes_do_not_share_a_folder(plain: Preparation, tmp_path: Path) -> None:
    def meddle(name: str, done: int, total: int) -> None:
        with pytest.raises(ClustersFolderError, match="Another process is using"):
            make(plain, tmp_path / "out")

    make(plain, tmp_path / "out", chunk=60, tell=meddle)


@pytest.mark.parametrize("begun", [False, True])
def test_a_build_that_ends_while_another_begins_is_kept(
    plain: Preparation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """The second process reads the progress, then its inputs; by then the first one has finished."""
    folder, inputs = tmp_path / "out", build._inputs
    if begun:
        with pytest.raises(Kill):
            make(plain, folder, tell=killing(3))
    done: list[bytes] = []

    def slowly(*arguments: Any) -> Any:
        found = inputs(*arguments)
        if not done:
            done.append(b"")
            make(plain, folder)
            done[0] = (folder / "clusters.jsonl").read_bytes()
        return found

    monkeypatch.setattr(build, "_inputs", slowly)
    worked: list[str] = []
    make(plain, folder, tell=lambda name, *_: worked.append(name))
    assert (folder / "clusters.jsonl").read_bytes() == done[0]
    assert worked == []


def test_a_truncated_work_file_is_detected(plain: Preparation, tmp_path: Path) -> None:
    def kill(name: str, done: int, total: int) -> None:
        if name == "documents embedded":
            raise Kill

    with pytest.raises(Kill):
        make(plain, tmp_path / "out", tell=kill)
    vectors = tmp_path / "out" / "work" / "vectors.f32"
    vectors.write_bytes(vectors.read_bytes()[:100])
    with pytest.raises(ClustersFolderError, match=r"damaged: work/vectors.f32 has 100 bytes where there were 8192"):
        make(plain, tmp_path / "out")


@pytest.mark.parametrize(
    "change", [{"inputs": []}, {"inputs": {"a": 1}}, {"result": {}}, {"kept": "1"}, {"settings": 1}]
)
def test_a_manifest_of_other_types_is_one_sentence(
    plain: Preparation, tmp_path: Path, change: dict[str, object]
) -> None:
    make(plain, tmp_path / "out")
    file = tmp_path / "out" / "manifest.json"
    whole = file.read_text()
    file.write_text(json.dumps(json.loads(whole) | change))
    with pytest.raises(ClustersFolderError, match=r"are damaged: manifest\.json cannot be read"):
        make(plain, tmp_path / "out")
    file.write_text(whole)
    (tmp_path / "out" / "report.json").write_text("[" * 9000)
    with pytest.raises(ClustersFolderError, match=r"are damaged: report\.json cannot be read"):
        make(plain, tmp_path / "out")
