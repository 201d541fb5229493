"""An index names files in its own folder only, and so do a seal and a tokenizer."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from scope_jax.data.corpus import Corpus, Document
from scope_jax.data.rows import DataError
from scope_jax.models.files import seal
from scope_jax.models.tokenizers import vocabularies
from scope_jax.retrieval.scann import ASSETS, ScannConfig, ScannIndex

OUTSIDE = ["../data.arrow", "/etc/passwd", "a/../../data.arrow", "", 7, None, "link/data.arrow"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_corpus_names_files_in_its_folder(name: object, tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "corpus", tmp_path / "elsewhere"
    for place in (folder, elsewhere):
        Corpus.from_documents([Document("1", "t", "secret" if place == elsewhere else "text")]).save(place)
    arrow = next(elsewhere.glob("*.arrow"))
    arrow.rename(elsewhere / "data.arrow")
    os.link(elsewhere / "data.arrow", tmp_path / "data.arrow")
    (folder / "link").symlink_to(elsewhere)
    state = json.loads((folder / "state.json").read_text())
    state["_data_files"][0]["filename"] = name
    (folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match=r"state\.json names .* not a file in the same folder"):
        Corpus.load(folder)


@pytest.mark.parametrize("text", ["[]", "{}", '{"_data_files": 3}', '{"_data_files": [3]}', "[" * 9000])
def test_a_corpus_without_a_state_is_one_sentence(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    Corpus.from_documents([Document("1", "t", "text")]).save(folder)
    (folder / "state.json").write_text(text)
    with pytest.raises(DataError, match="cannot be read"):
        Corpus.load(folder)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scann") / "index"
    vectors_NE = np.random.default_rng(0).normal(size=(300, 16)).astype(np.float32)
    ScannIndex.build(vectors_NE, ScannConfig(10, 5, 2, 50, 100)).save(folder)
    return folder


@pytest.mark.parametrize("name", ["../dataset.npy", "/etc/passwd", "\\\\056\\\\056/x", "\\056\\056/dataset.npy"])
def test_a_scann_index_names_files_in_its_folder(name: str, built: Path, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    folder.mkdir()
    for path in built.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    assert ScannIndex.load(folder).size == 300
    text = (folder / ASSETS).read_text()
    assert text.count('"dataset.npy"') == 1
    (folder / ASSETS).write_text(text.replace('"dataset.npy"', f'"{name}"'))
    with pytest.raises(ValueError, match=r"scann_assets\.pbtxt names .* not a file in the same folder"):
        ScannIndex.load(folder)
    (folder / ASSETS).write_text("assets {")
    with pytest.raises(ValueError, match="missing or damaged"):
        ScannIndex.load(folder)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../secret", "", "a\\b"])
def test_a_seal_names_files_in_its_folder(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"")
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / seal.SEAL).write_text(json.dumps({name: [0, 0]}))
    assert seal.fault(folder) == f"seal.json names {name!r}, which is not in the folder"


@pytest.mark.parametrize("key", ["vocab", "merges", "vocab_file"])
@pytest.mark.parametrize("name", ["/{}", "../{}"])
def test_a_tokenizer_names_files_in_its_folder(key: str, name: str, tmp_path: Path) -> None:
    """transformers opens what the configuration of a class calls its vocabulary."""
    folder, outside = tmp_path / "words", tmp_path / "outside.json"
    folder.mkdir()
    outside.write_text('{"s": 0, "<|endoftext|>": 1}')
    (folder / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}')
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"}
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(config | {key: name.format(str(outside)[1:] if name[0] == "/" else outside.name)}))
    with pytest.raises(ValueError, match=f"{file} names .* not a file in the same folder"):
        vocabularies.read(folder)
    usual = {"vocab_file": "/where/it/was/trained/vocab.json", "merges_file": None}  # as published folders have it
    file.write_text(json.dumps(config | usual))
    assert vocabularies.read(folder)[0].get_vocab()["ab"] == 2
