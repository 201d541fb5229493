"""What sentence-transformers' files of an encoder's folder say: honoured, refused, or told beside the card's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from scope_jax.cli import app
from scope_jax.config import EncoderSection
from scope_jax.models.encoders import encoder
from scope_jax.models.encoders.texts import TextEncoder
from scope_jax.models.files.weights import WeightsError
from scope_jax.run import clustering, indexing
from tests.retrieval.tiny_encoders import MODULES, write_bert, write_dense, write_modules

MEAN = {"pooling_mode_mean_tokens": True}
PROMPTS = "config_sentence_transformers.json"
SETTINGS = "sentence_bert_config.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = write_bert(tmp_path / "m")
    write_modules(made, MEAN)
    return made


Change = Callable[[Path], Any]


def put(name: str, **fields: Any) -> Change:
    return lambda folder: (folder / name).write_text(json.dumps(fields))


def listed(*kinds: str) -> Change:
    modules = [{"type": f"x.{kind}", "path": f"{i}_{kind}" if i else ""} for i, kind in enumerate(kinds)]
    return lambda folder: (folder / "modules.json").write_text(json.dumps(modules))


def pooled(**fields: Any) -> Change:
    return lambda folder: write_modules(folder, fields)


def dense(outputs: int = 8, activation: str = "torch.nn.modules.activation.Tanh", **changes: Any) -> Change:
    return lambda folder: write_dense(folder, outputs, activation, **changes)


# (what is written into a folder, words of the sentence)
REFUSED: list[tuple[Change, str]] = [
    (
        pooled(pooling_mode_cls_token=True, pooling_mode_mean_tokens=True),
        "pooling_mode_cls_token and pooling_mo",
    ),
    (pooled(pooling_mode=["mean", "max"]), "mean and max in 1_Pooling is not supported"),
    (pooled(pooling_mode="attention"), "the pooling attention in 1_Pooling is not supported"),
    (pooled(pooling_mode_median=True), "the pooling pooling_mode_median in 1_Pooling"),
    (pooled(include_prompt=False), "include_prompt"),
    (pooled(word_embedding_dimension=64), "pools vectors of 64 numbers, but the model's width is 32"),
    (pooled(embedding_dimension=16), "pools vectors of 16 numbers"),
    (listed("Transformer", "Pooling", "LSTM"), "has a module LSTM; only Transformer, Pooling, Dense and Normalize"),
    (listed("Transformer", "Normalize"), "lists Transformer, Normalize; supported are one Transformer, one Pooling"),
    (listed("Transformer", "Pooling", "Normalize", "Dense"), "in this order"),
    (listed(), "modules.json lists nothing"),
    (
        lambda folder: (folder / "modules.json").write_text(
            json.dumps([MODULES[0] | {"path": "0_Transformer"}, *MODULES[1:]])
        ),
        "the transformer in the folder 0_Transformer",
    ),
    (dense(activation="torch.nn.modules.activation.Softplus"), "activation torch.nn.modules.activation.Softplus"),
    (dense(activation="mine.Tanh"), "the activation mine.Tanh; supported are torch's Identity, Tanh, ReLU"),
    (dense(in_features=16), "takes 16 numbers, but gets 32"),
    (dense(use_residual=True), "use_residual"),
    (dense(module_input_name="token_embeddings"), "2_Dense works on something else than the pooled vector"),
    (dense(out_features="8"), "2_Dense/config.json: field 'out_features' is"),
    (dense(out_features=9), "linear.bias"),
    (dense(bias=False, activation="torch.nn.Identity", out_features=9), "linear.weight"),
    (
        lambda folder: (
            dense()(folder),
            (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "x.bin"),
        ),
        "2_Dense has its weights in x.bin, and only safetensors are read",
    ),
    (put(SETTINGS, max_seq_length="256"), "max_seq_length, model_max_length) is '256'"),
    (put(SETTINGS, do_lower_case="yes"), "do_lower_case"),
    (put(SETTINGS, config_args={"is_decoder": True}), "config_args"),
    (put(SETTINGS, transformer_task="fill-mask"), "transformer_task"),
    (put(PROMPTS, prompts=["query: "]), "prompts"),
    (put(PROMPTS, prompts={"query": 3}), "the prompt 'query' is not a text"),
    (put(PROMPTS, prompts={"a": "b"}, default_prompt_name="query"), "default_prompt_name is 'query', but there is no"),
    (put(PROMPTS, similarity_fn_name="manhattan"), "similarity_fn_name 'manhattan'"),
    (
        lambda folder: (
            write_modules(folder, MEAN, normalize=False),
            put(PROMPTS, similarity_fn_name="euclidean")(folder),
        ),
        "compared by distance",
    ),
]


@pytest.mark.parametrize(("change", "words"), REFUSED, ids=[words[:40] for _, words in REFUSED])
def test_what_cannot_be_honoured_is_one_sentence(folder: Path, change: Change, words: str) -> None:
    encoder.load(folder, None, np.float32)
    change(folder)
    with pytest.raises((WeightsError, FileNotFoundError)) as raised:
        encoder.load(folder, None, np.float32)
    said = str(raised.value)
    assert words in said and str(folder) in said and "\n" not in said, said


def how(folder: Path, **card: Any) -> indexing.EncoderSettings:
    return indexing.reading(EncoderSection(checkpoint=str(folder), **card), encoder.load_config(folder))


@pytest.mark.parametrize(
    ("contents", "query", "passage"),
    [
        ({"prompts": {"query": "q: ", "document": "d: "}}, "q: ", "d: "),
        ({"prompts": {"query": "q: ", "passage": "p: "}, "default_prompt_name": None}, "q: ", "p: "),
        ({"prompts": {"query": "q: ", "corpus": "c: ", "passage": "p: "}}, "q: ", "p: "),
        ({"prompts": {"query": "q: ", "document": ""}, "default_prompt_name": "query"}, "q: ", ""),
        ({"prompts": {"query": "q: "}}, "q: ", ""),
        ({"prompts": {"query": None, "document": "d: "}}, "", "d: "),
        ({"prompts": {"any": "a: "}, "default_prompt_name": "any"}, "a: ", "a: "),
        ({"prompts": {"sts": "s: ", "document": "d: "}}, "", "d: "),
        ({"prompts": {}}, "", ""),
        ({"__version__": {"sentence_transformers": "2.2.2"}}, "", ""),
    ],
)
def test_prefixes_are_the_folders_unless_the_card_has_its_own(
    folder: Path, contents: dict[str, Any], query: str, passage: str
) -> None:
    assert (how(folder).query, how(folder).passage) == ("query: ", "passage: ")  # E5's, for want of any
    put(PROMPTS, **contents)(folder)
    assert (how(folder).query, how(folder).passage) == (query, passage)
    own = how(folder, query_prefix="", passage_prefix="mine: ")
    assert (own.query, own.passage) == ("", "mine: ")


def test_what_card_and_folder_leave_open_or_say_differently_is_told(folder: Path) -> None:
    (note,) = how(folder).notes
    assert f"{folder} names no prompts, so E5's are used, 'query: ' for a query and 'passage: ' for a passage" in note
    assert "set query_prefix and passage_prefix for another model" in note
    (note,) = how(folder, passage_prefix="p").notes
    assert "'query: ' for a query; set query_prefix for" in note
    assert how(folder, query_prefix="q", passage_prefix="p").notes == ()
    put(PROMPTS, prompts={"query": "query: ", "document": "passage: "})(folder)
    assert how(folder).notes == how(folder, query_prefix="query: ").notes == ()
    (note,) = how(folder, query_prefix="").notes
    assert note == f"the card's query_prefix '' is used, not 'query: ' of {folder}."
    put(PROMPTS, prompts={"s2p_query": "find: "})(folder)
    assert "its prompts (s2p_query) are none of a query, so queries get no prefix" in how(folder).notes[0]
    put(PROMPTS)(folder)
    assert "it names no prompts, so queries get no prefix; set query_prefix" in how(folder).notes[0]
    put(SETTINGS, max_seq_length=24, do_lower_case=False)(folder)
    assert how(folder, query_prefix="", max_tokens=24).notes == ()
    found = how(folder, query_prefix="")
    assert found.max_tokens == 24 and how(folder, max_tokens=8).max_tokens == 8
    assert found.notes == (f"texts are cut to 24 tokens as {folder} says, not to the card's 256.",)
    (folder / SETTINGS).unlink()
    put("tokenizer_config.json", model_max_length=40)(folder)  # where newer folders have it
    assert how(folder).max_tokens == 40
    put("sentence_roberta_config.json", max_seq_length=20)(folder)
    assert how(folder).max_tokens == 20
    put("tokenizer_config.json", model_max_length=1e30)(folder)
    put("sentence_roberta_config.json", max_seq_length=None)(folder)
    assert how(folder).max_tokens == 256
    (folder / "modules.json").unlink()
    assert "no modules.json, so pooling (mean) and vectors of length one are E5's." in how(folder).notes[0]


def identities(folder: Path) -> tuple[str, str]:
    """Of an index and of clusters."""
    section = EncoderSection(checkpoint=str(folder), max_tokens=32)
    embedder = indexing.neural(section, None)
    assert embedder is not None
    return embedder.identity, clustering._neural(section, None).identity


def test_an_index_knows_what_made_its_vectors(folder: Path) -> None:
    first = identities(folder)
    put(SETTINGS, max_seq_length=64, do_lower_case=False)(folder)
    put(PROMPTS, prompts={"query": "query: ", "document": "passage: "}, similarity_fn_name="cosine")(folder)
    assert identities(folder) == first  # the same vectors
    seen = [first]
    put(SETTINGS, max_seq_length=24)(folder)
    seen.append(identities(folder))
    put(SETTINGS, max_seq_length=24, do_lower_case=True)(folder)
    seen.append(identities(folder))
    put(PROMPTS, prompts={"query": "query: ", "document": "d: "})(folder)
    seen.append(identities(folder))
    write_dense(folder, 16, "torch.nn.Tanh")
    seen.append(identities(folder))
    tensors = folder / "2_Dense" / "model.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-4] + np.float32(7).tobytes())
    seen.append(identities(folder))
    assert all(len({pair[i] for pair in seen}) == len(seen) for i in (0, 1))


def test_lower_case_and_length_are_the_folders(folder: Path) -> None:
    """do_lower_case puts prefix and text into lower case, also where the tokenizer itself keeps capitals."""
    put("tokenizer_config.json", do_lower_case=False, tokenizer_class="BertTokenizer")(folder)
    kept = TextEncoder.load(folder, max_tokens=32, rows=4)
    assert np.abs(np.subtract(*kept(["Query: The River", "query: the river"]))).max() > 1e-3
    put(SETTINGS, do_lower_case=True)(folder)
    lower = TextEncoder.load(folder, max_tokens=32, rows=4)
    np.testing.assert_array_equal(*lower(["Query: The River", "query: the river"]))
    np.testing.assert_array_equal(lower(["the river"]), kept(["the river"]))
    put(SETTINGS, max_seq_length=16)(folder)
    embedder = indexing.neural(EncoderSection(checkpoint=str(folder), passage_prefix=""), None)
    assert embedder is not None
    np.testing.assert_array_equal(*embedder.passages(["the river " * 7, "the river " * 50]))


def test_inner_products_of_vectors_as_they_are(folder: Path) -> None:
    """A folder without Normalize whose score is the inner product; anything else is compared at length one."""
    write_modules(folder, MEAN, normalize=False)
    card = EncoderSection(checkpoint=str(folder), max_tokens=32)

    def lengths() -> Any:
        embedder = indexing.neural(card, None)
        assert embedder is not None
        return np.linalg.norm(embedder.queries(["the river", "a city"]), axis=1), embedder.identity

    plain, identity = lengths()
    np.testing.assert_allclose(plain, 1, atol=1e-6)
    put(PROMPTS, prompts={"query": "query: ", "document": "passage: "}, similarity_fn_name="dot")(folder)
    raw, other = lengths()
    assert other != identity and np.abs(raw - 1).min() > 0.1
    vectors = clustering._neural(card, None).load()(["the river"])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)  # of clusters


def test_index_and_check_say_what_was_found(folder: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"id": str(i), "text": f"the river {i}"}) + "\n" for i in range(4)))
    card = tmp_path / "card.toml"
    card.write_text(
        f'system = "ssp"\n[model]\ncheckpoint = "none"\n[data]\nanswers = "none"\n[train]\nsteps = 1\n'
        f'[ssp]\ngrader = "exact-match"\n[retrieval]\ncorpus = "{corpus}"\nindex = "{tmp_path / "index"}"\n'
        f'[retrieval.encoder]\ncheckpoint = "{folder}"\nmax_tokens = 32\n'
    )
    done = CliRunner().invoke(app, ["index", str(card)])
    assert done.exit_code == 0 and "names no prompts, so E5's are used" in " ".join(done.stderr.split())
    found = CliRunner().invoke(app, ["check", str(card)])
    shown = " ".join(found.stdout.split())
    assert "doubt encoder: bert, pooling mean, 32 numbers, cosine; queries begin with 'query: '" in shown
    put(PROMPTS, prompts={"query": "q: ", "document": "d: "})(folder)
    write_dense(folder, 16, "torch.nn.Tanh")
    shown = " ".join(CliRunner().invoke(app, ["check", str(card)]).stdout.split())
    assert "ok encoder: bert, pooling mean, 1 dense, 16 numbers, cosine; queries begin with 'q: '" in shown
    assert "passages with 'd: '; up to 32 tokens" in shown
