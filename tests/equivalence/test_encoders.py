"""E5 (BERT) and Qwen3-Embedding against transformers: vectors within 1e-5, token ids, and the index over them."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from scope_jax.data.corpus import Corpus, Document
from scope_jax.models.encoders.texts import END_OF_TEXT, TextEncoder, TextTokenizer
from scope_jax.retrieval.build import build_index, open_index
from scope_jax.retrieval.embed import PrefixedEncoder
from scope_jax.retrieval.scann import ScannConfig
from tests.retrieval import tiny_encoders

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

MAX_TOKENS = 48
PREFIXES = {"bert": ("query: ", "passage: "), "qwen3": ("Instruct: find it\nQuery:", "")}
WORDS = tiny_encoders.WORDS
TEXTS = [
    "the river",
    "The long river flows north of the old city, near the sea.",
    "a",
    "",
    "[SEP] mountain [CLS] <|endoftext|> high",
    "Überwater 漢字 rivers!",
    "the capital is new " * 30,
    "mountain",
]


def torch_bert(folder: Path) -> Any:
    fields = {name: value for name, value in tiny_encoders.BERT.items() if name not in ("architectures", "model_type")}
    model = transformers.BertModel(transformers.BertConfig(attn_implementation="eager", **fields)).eval()
    tiny_encoders.write_vocabulary(folder)
    return model


def write_bytes_tokenizer(folder: Path, appends: bool) -> None:
    """A byte-level tokenizer whose post-processor appends <|endoftext|>, or one that leaves it to the caller."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = FastTokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([END_OF_TEXT])
    if appends:
        fast.post_processor = processors.TemplateProcessing(
            single=f"$A {END_OF_TEXT}", special_tokens=[(END_OF_TEXT, fast.token_to_id(END_OF_TEXT))]
        )
    PreTrainedTokenizerFast(tokenizer_object=fast, eos_token=END_OF_TEXT, pad_token=END_OF_TEXT).save_pretrained(folder)


def torch_qwen3(folder: Path, appends: bool = True) -> Any:
    config = transformers.Qwen3Config(
        vocab_size=257,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        rope_theta=1_000_000.0,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    write_bytes_tokenizer(folder, appends)
    return transformers.Qwen3Model(config).eval()


def saved(make: Any, folder: Path) -> tuple[Any, Path]:
    """(torch model with noise added to all weights, its folder as transformers writes it)."""
    torch.manual_seed(0)
    model = make(folder)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn(weight.shape))
    model.save_pretrained(folder)
    return model, folder


@pytest.fixture(scope="module")
def e5(tmp_path_factory):
    return saved(torch_bert, tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory):
    return saved(torch_qwen3, tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(params=["bert", "qwen3"])
def pair(request, e5, qwen3):
    """(kind, torch model, its folder)."""
    return request.param, *(e5 if request.param == "bert" else qwen3)


def torch_ids(folder: Path, text: str) -> list[int]:
    """The ids of transformers' tokenizers, with special tokens inside the text treated as plain text."""
    hf = transformers.AutoTokenizer.from_pretrained(folder, split_special_tokens=True)
    return hf(text, truncation=True, max_length=MAX_TOKENS).input_ids


def torch_vectors(kind: str, model: Any, rows: list[list[int]], side: str = "right") -> np.ndarray:
    """Pooled and normalised as in the two models' model cards, all rows padded to the longest."""
    longest = max(map(len, rows))
    pads = [[0] * (longest - len(ids)) for ids in rows]
    mask = [[1] * len(ids) for ids in rows]
    join = (lambda real, pad: real + pad) if side == "right" else (lambda real, pad: pad + real)
    input_ids = torch.tensor([join(ids, pad) for ids, pad in zip(rows, pads, strict=True)])
    attention_mask = torch.tensor([join(ones, pad) for ones, pad in zip(mask, pads, strict=True)])
    with torch.no_grad():
        hidden = model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
    if kind == "bert":
        kept = hidden.masked_fill(~attention_mask[..., None].bool(), 0.0)
        vectors = kept.sum(dim=1) / attention_mask.sum(dim=1)[..., None]
    elif side == "left":
        vectors = hidden[:, -1]
    else:
        vectors = hidden[torch.arange(len(rows)), attention_mask.sum(dim=1) - 1]
    return torch.nn.functional.normalize(vectors, dim=1).numpy()


@cache
def encoder_of(folder: Path) -> TextEncoder:
    return TextEncoder.load(folder, max_tokens=MAX_TOKENS, rows=4)


@pytest.fixture
def encoder(pair) -> TextEncoder:
    """That of the folder, with programs that all tests share."""
    return encoder_of(pair[2])


def test_token_ids(pair, encoder):
    kind, _, folder = pair
    ours = encoder.tokenizer(TEXTS)
    assert ours == [torch_ids(folder, text) for text in TEXTS]
    assert max(map(len, ours)) == MAX_TOKENS  # one of them is cut
    marks = {2, 3} if kind == "bert" else {256}
    assert all(sum(id in marks for id in ids) == len(marks) for ids in ours)


def test_vectors(pair, encoder):
    """All lengths in one call, padded to buckets here and to the longest there (Qwen3: on either side)."""
    kind, model, _ = pair
    rows = encoder.tokenizer(TEXTS)
    want = torch_vectors(kind, model, rows)
    got = encoder(TEXTS)
    assert got.dtype == np.float32 and got.shape == want.shape
    assert np.abs(got - want).max() <= 1e-5
    if kind == "qwen3":
        assert np.abs(got - torch_vectors(kind, model, rows, "left")).max() <= 1e-5
    assert np.abs(want[:, None] - want).max(-1)[~np.eye(len(TEXTS), dtype=bool)].min() > 1e-2  # texts really differ
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-6)


def torch_pooled(hidden: Any, mask: Any, mode: str) -> Any:
    """sentence-transformers' Pooling, by its formulas."""
    real = mask[..., None].float()
    if mode == "cls":
        return hidden[:, 0]
    if mode == "lasttoken":
        return hidden[torch.arange(len(hidden)), mask.sum(1) - 1]
    if mode == "max":
        return hidden.masked_fill(real == 0, -torch.inf).max(1).values
    if mode == "weightedmean":
        real = real * torch.arange(1, hidden.shape[1] + 1)[:, None]
    total = (hidden * real).sum(1)
    return total / (real.sum(1).sqrt() if mode == "mean_sqrt_len_tokens" else real.sum(1))


MODES = ("cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
QUICK = [
    ("cls", None, False),
    ("weightedmean", None, False),
    ("lasttoken", None, False),
    ("max", ("Tanh", True), False),
    ("mean", ("GELU", False), True),
]
LAYERS = [("Tanh", True), ("GELU", False), ("Identity", True), ("ReLU", True), ("Sigmoid", False)]  # activation, bias
MODULES = [
    *((mode, None, False) for mode in MODES),
    *(("mean", layer, True) for layer in LAYERS),
    ("max", LAYERS[0], False),
]


@pytest.mark.parametrize(
    ("mode", "layers", "normalize"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in MODULES if case not in QUICK)],
)
def test_modules(e5, tmp_path, mode, layers, normalize):
    """Poolings, dense layers and normalisation, as sentence-transformers 5 computes them."""
    model, source = e5
    folder = tmp_path / "m"
    shutil.copytree(source, folder)
    tiny_encoders.write_modules(folder, {"pooling_mode": mode}, normalize)
    rows = [torch_ids(folder, text) for text in TEXTS]
    pad = max(map(len, rows))
    ids = torch.tensor([row + [0] * (pad - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (pad - len(row)) for row in rows])
    with torch.no_grad():
        want = torch_pooled(model(input_ids=ids, attention_mask=mask).last_hidden_state, mask, mode)
    if layers is not None:
        name, bias = layers
        kind = f"torch.nn.modules.{'linear' if name == 'Identity' else 'activation'}.{name}"
        tensors = tiny_encoders.write_dense(folder, 20, kind, bias, normalize)
        linear = {part.removeprefix("linear."): torch.from_numpy(values) for part, values in tensors.items()}
        want = getattr(torch.nn, name)()(torch.nn.functional.linear(want, **linear))
    if normalize:
        want = torch.nn.functional.normalize(want, dim=1)
    got = TextEncoder.load(folder, max_tokens=MAX_TOKENS, rows=len(TEXTS))(TEXTS)
    assert got.shape == want.shape == (len(TEXTS), 32 if layers is None else 20)
    assert np.abs(got - want.numpy()).max() <= 1e-5 * max(1, want.abs().max())


def test_prefixes(pair, encoder):
    kind, model, folder = pair
    query, passage = PREFIXES[kind]
    embedder = PrefixedEncoder(encoder, "tiny", query, passage)
    for prefix, got in ((query, embedder.queries(TEXTS)), (passage, embedder.passages(TEXTS))):
        want = torch_vectors(kind, model, [torch_ids(folder, prefix + text) for text in TEXTS])
        assert np.abs(got - want).max() <= 1e-5


def test_other_texts_in_the_batch_change_nothing(pair, encoder):
    """The same bits alone, among others and in another order, as the program is the same; another row count rounds
    differently."""
    whole = encoder(TEXTS)
    for place, text in enumerate(TEXTS):
        np.testing.assert_array_equal(encoder([text])[0], whole[place])
    np.testing.assert_array_equal(encoder(TEXTS[::-1])[::-1], whole)
    assert np.abs(encoder(TEXTS, rows=2) - whole).max() <= 1e-6


def test_names_with_and_without_the_models_prefix(pair, encoder, tmp_path):
    """The prefix of BertModel in a model with a head is "bert.", that of Qwen3Model in a causal one "model."; heads are
    ignored."""
    kind, model, folder = pair
    if kind == "bert":
        outer = transformers.BertForMaskedLM(model.config)
        outer.bert.load_state_dict({k: v for k, v in model.state_dict().items() if "pooler" not in k})
    else:
        outer = transformers.Qwen3ForCausalLM(model.config)
        outer.model.load_state_dict(model.state_dict())
    outer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    if kind == "bert":
        config["architectures"] = ["BertModel"]
        (tmp_path / "config.json").write_text(json.dumps(config))
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            (tmp_path / name).write_bytes((folder / name).read_bytes())
    np.testing.assert_array_equal(TextEncoder.load(tmp_path, max_tokens=MAX_TOKENS, rows=4)(TEXTS), encoder(TEXTS))


@pytest.mark.parametrize("name", ["XLMRoberta", "Roberta"])
@pytest.mark.parametrize("pad", [1, 0])
@pytest.mark.parametrize("headed", [False, True])
def test_robertas(tmp_path, name, pad, headed):
    """Multilingual E5: positions from the padding token's id plus one, up to the end of the table."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "\u2581", *"abcdefghijklmnopqrstuvwxyz.,"]
    fast = FastTokenizer(models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], unk_id=3))
    fast.pre_tokenizer = pre_tokenizers.Metaspace()
    fast.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="</s>", pad_token="<pad>").save_pretrained(tmp_path)
    fields = {key: value for key, value in tiny_encoders.BERT.items() if key not in ("architectures", "model_type")}
    fields |= {"pad_token_id": pad, "max_position_embeddings": MAX_TOKENS + pad + 1, "type_vocab_size": 1}
    config = getattr(transformers, f"{name}Config")(attn_implementation="eager", **fields)
    made = getattr(transformers, f"{name}{'ForMaskedLM' if headed else 'Model'}")(config).eval()
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(0.2 * torch.randn(weight.shape))
    made.save_pretrained(tmp_path)
    if headed:
        saved_config = json.loads((tmp_path / "config.json").read_text()) | {"architectures": [f"{name}Model"]}
        (tmp_path / "config.json").write_text(json.dumps(saved_config))
    encoder = TextEncoder.load(tmp_path, max_tokens=MAX_TOKENS, rows=2)
    rows = encoder.tokenizer(["the river flows", "abc. " * 30])
    assert max(map(len, rows)) == MAX_TOKENS and rows[0][0] == 0 and rows[0][-1] == 2
    model = getattr(made, "roberta", made)
    with torch.no_grad():
        want = [
            model(position_ids=torch.arange(pad + 1, pad + 1 + len(row))[None], input_ids=torch.tensor([row]))
            for row in rows
        ]
        theirs = [model(input_ids=torch.tensor([row])) for row in rows] if pad == 1 else want  # 0 is <s> in these texts
    for found in (want, theirs):
        means = torch.cat([out.last_hidden_state.mean(1) for out in found])
        got = encoder(["the river flows", "abc. " * 30])
        assert np.abs(got - torch.nn.functional.normalize(means, dim=1).numpy()).max() <= 1e-5
    with pytest.raises(ValueError, match=f"has {MAX_TOKENS} positions"):
        TextEncoder.load(tmp_path, max_tokens=MAX_TOKENS + 1, rows=2)


def test_end_of_text_is_added_where_the_tokenizer_does_not(tmp_path):
    for name, appends in (("with", True), ("without", False)):
        write_bytes_tokenizer(tmp_path / name, appends)
    ours = [TextTokenizer.load(tmp_path / name, MAX_TOKENS, END_OF_TEXT)(TEXTS) for name in ("with", "without")]
    assert ours[0] == ours[1] and all(ids[-1] == 256 for ids in ours[0])


def test_e5_tokenisation_is_berts(shared_data: Path):
    """The real vocabulary on golden texts and on passages."""
    folder = shared_data / "tokenizers" / "bert_uncased"
    ours = TextTokenizer(transformers.BertTokenizer(vocab=str(folder / "vocab.txt")), 256, None)
    theirs = transformers.BertTokenizer(vocab=str(folder / "vocab.txt"), split_special_tokens=True)
    with open(shared_data / "corpus" / "passages.jsonl", encoding="utf-8") as lines:
        passages = [json.loads(line) for _, line in zip(range(300), lines, strict=False)]
    texts = [*TEXTS, *(f"passage: {p['title']}\n{p['text']}" for p in passages)]
    assert ours(texts) == [theirs(text, truncation=True, max_length=256).input_ids for text in texts]
    golden = shared_data / "tokenizers" / "llama_cpp_golden"
    inputs = next(golden.glob("*bert-bge*.inp")).read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    outputs = next(golden.glob("*bert-bge*.out")).read_text(encoding="utf-8").splitlines()
    assert len(outputs) >= 46
    for text, line in zip(inputs[:46], outputs[:46], strict=True):
        assert ours([text])[0] == [101, *map(int, line.split()), 102]


def sentences(count: int) -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, size=rng.integers(4, 16))) for _ in range(count)]


@pytest.mark.parametrize("kind", ["exact", "brute", "tree"])
def test_index_over_an_encoder(e5, tmp_path, kind):
    """Top 5 of every index = the 5 largest inner products of the torch vectors. The tree searches all of its leaves,
    and rescores all of their candidates."""
    model, folder = e5
    encoder = TextEncoder.load(folder, max_tokens=MAX_TOKENS, rows=4)
    embedder = PrefixedEncoder(encoder, "tiny", "query: ", "passage: ")
    documents = [Document(f"d{i}", text[:10], text) for i, text in enumerate(dict.fromkeys(sentences(300)))]
    scann = ScannConfig(
        num_leaves=8,
        leaves_to_search=8,
        dimensions_per_block=2,
        reorder=300,
        brute_force_below=10_000 if kind == "brute" else 10,
    )
    place = "exact" if kind == "exact" else "scann"
    build_index(Corpus.from_documents(documents), embedder, tmp_path / "i", kind=place, scann=scann, chunk=64)
    index, _, _ = open_index(tmp_path / "i", kind=place, embedder=embedder)
    queries = sentences(400)[-40:]
    ids = {
        prefix: [torch_ids(folder, prefix + text) for text in texts]
        for prefix, texts in (("passage: ", [d.contents for d in documents]), ("query: ", queries))
    }
    exact = torch_vectors("bert", model, ids["query: "]) @ torch_vectors("bert", model, ids["passage: "]).T
    scores, rows = index.search(embedder.queries(queries), 5)
    np.testing.assert_allclose(scores, -np.sort(-exact, axis=1)[:, :5], atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(exact, rows, axis=1), scores, atol=1e-5)
