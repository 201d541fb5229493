"""Corpora from files: fields, line numbers in errors, empty files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import datasets
import datasets.config
import pytest

from scope_jax.data.corpus import Corpus, Document, load_corpus, split_contents
from scope_jax.data.rows import DataError

ADA = Document("a", "Ada Lovelace", "She wrote notes.\nMany of them.")
BABBAGE = Document("b", "Charles Babbage", "Ünïcode 数学 <|im_end|> </information>")


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def test_jsonl_keeps_every_character(tmp_path: Path):
    path = lines(tmp_path / "c.jsonl", {**vars(ADA), "sources": ["x"]}, "", {**vars(BABBAGE), "sources": "y"})
    corpus = load_corpus(path)
    assert len(corpus) == 2
    assert [corpus[0], corpus[1]] == [ADA, BABBAGE]
    assert corpus.documents(0, 2) == [ADA, BABBAGE]
    assert corpus[0].contents == "Ada Lovelace\nShe wrote notes.\nMany of them."


def test_contents_field_and_missing_ids_and_titles(tmp_path: Path):
    path = lines(
        tmp_path / "c.jsonl", {"contents": '"Ada"\nnotes'}, {"id": 7, "contents": 'The "Engine"\nbrass'}, {"text": "x"}
    )
    assert load_corpus(path).documents(0, 3) == [
        Document("0", "Ada", "notes"),
        Document("7", 'The "Engine"', "brass"),
        Document("2", "", "x"),
    ]


def test_split_contents_needs_both_quotes():
    assert split_contents('"Ada"\nx\ny') == ("Ada", "x\ny")
    assert split_contents('"\nx') == ('"', "x")


@pytest.mark.parametrize(
    ("contents", "title", "text"),
    [
        ("Ada was a mathematician.", "", "Ada was a mathematician."),
        ('"To be or not to be"', "", '"To be or not to be"'),
        ("Ada wrote notes.\n", "", "Ada wrote notes."),
        ("Ada wrote notes.\n \n\t\n", "", "Ada wrote notes."),
        ("Ada wrote notes.\r\n", "", "Ada wrote notes."),
        ("\nAda wrote notes.", "", "Ada wrote notes."),
        ("\nAda\nwrote notes.", "", "Ada\nwrote notes."),
        (" \nAda wrote notes.", "", "Ada wrote notes."),
        ('"Ada"\r\nwrote notes.', "Ada", "wrote notes."),
        ('""\nwrote notes.', "", "wrote notes."),
        ('"Ada"\n', "", '"Ada"'),
    ],
)
def test_contents_of_one_line_are_text(contents: str, title: str, text: str, tmp_path: Path):
    assert split_contents(contents) == (title, text)
    assert load_corpus(lines(tmp_path / "c.jsonl", {"contents": contents}))[0] == Document("0", title, text)


def test_gzip_and_parquet_give_the_same_corpus(tmp_path: Path):
    plain = lines(tmp_path / "c.jsonl", vars(ADA), vars(BABBAGE))
    packed = tmp_path / "c.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    datasets.Dataset.from_list([vars(ADA), vars(BABBAGE)]).to_parquet(str(tmp_path / "c.parquet"))
    corpora = [load_corpus(path) for path in (plain, packed, tmp_path / "c.parquet")]
    assert {corpus.fingerprint for corpus in corpora} == {Corpus.from_documents([ADA, BABBAGE]).fingerprint}


def test_a_cut_gzip_file_is_named(tmp_path: Path):
    packed = tmp_path / "c.jsonl.gz"
    rows = lines(tmp_path / "c.jsonl", *[{"title": str(i), "text": str(i * i)} for i in range(2000)])
    packed.write_bytes(gzip.compress(rows.read_bytes())[:-200])
    with pytest.raises(DataError, match=r"c\.jsonl\.gz is not a complete gzip file"):
        load_corpus(packed)


def test_fingerprint_depends_on_order_and_field_boundaries():
    fingerprints = {
        Corpus.from_documents(documents).fingerprint
        for documents in (
            [ADA, BABBAGE],
            [BABBAGE, ADA],
            [Document("a", "Ada", " Lovelace")],
            [Document("a", "", "Ada")],
        )
    }
    assert len(fingerprints) == 4


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('{"id": "2", "title":', "line 2: not JSON"),
        ('{"title": "a", "text": "b"} {}', "line 2: not JSON"),
        ("[1, 2]", "line 2: a list, not an object"),
        ('{"title": "a"}', "line 2: has no text"),
        ('{"text": "a", "title": 3}', "line 2: `title` holds a number, not text"),
        ('{"title": "a", "text": 3}', "line 2: `text` holds a number, not text"),
        ('{"contents": null}', "line 2: has no text"),
        ('{"title": "a", "text": "\\ud800"}', "line 2: `text` holds half of a surrogate pair"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, bad: str, message: str):
    path = lines(tmp_path / "c.jsonl", vars(ADA), bad, vars(BABBAGE))
    with pytest.raises(DataError, match=message) as caught:
        load_corpus(path)
    assert "\n" not in str(caught.value)


def test_invalid_utf8_is_reported_with_its_place(tmp_path: Path):
    path = tmp_path / "c.jsonl"
    path.write_bytes(b'{"title": "a", "text": "\xff"}\n')
    with pytest.raises(DataError, match="line 1: is not UTF-8"):
        load_corpus(path)


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_corpus_is_an_error(tmp_path: Path, content: str):
    path = tmp_path / "c.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match="is empty"):
        load_corpus(path)
    with pytest.raises(DataError, match="is empty"):
        Corpus.from_documents([])


def test_an_edited_file_is_read_again(tmp_path: Path):
    path = lines(tmp_path / "c.jsonl", vars(ADA))
    first = load_corpus(path).fingerprint
    assert load_corpus(lines(path, vars(ADA), vars(BABBAGE))).fingerprint != first


def test_files_that_are_not_a_corpus(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load_corpus(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="is not a file"):
        load_corpus(tmp_path)
    broken = tmp_path / "broken.parquet"
    broken.write_text("hello")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        load_corpus(broken)
    for name, rows, message in (
        ("columns", [{"title": "a"}], "row 1: has no text"),
        ("types", [{"title": "a", "text": 1}], "row 1: `text` holds a number, not text"),
        ("cells", [{"title": "a", "text": "b"}, {"title": "a", "text": None}], "row 2: has no text"),
    ):
        path = tmp_path / f"{name}.parquet"
        datasets.Dataset.from_list(rows).to_parquet(str(path))
        with pytest.raises(DataError, match=message):
            load_corpus(path)


def test_a_hub_name_that_is_not_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="nobody/nothing is not a local file, and the split 'train' cannot be loaded"):
        load_corpus("nobody/nothing")


def test_rows_outside_the_corpus():
    corpus = Corpus.from_documents([ADA])
    with pytest.raises(IndexError):
        corpus[1]
    with pytest.raises(IndexError):
        corpus[-1]
