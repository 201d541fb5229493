"""Token ids are those that the folder's own files define, whatever class or option they name, or it is refused.

The reference is the tokenizers library with tokenizer.json as it is.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as FastTokenizer
from transformers import GPT2Tokenizer, Qwen2Tokenizer

from scope_jax.models.encoders.texts import TextTokenizer
from scope_jax.models.tokenizers.tokenizer import Tokenizer

END, START = "<|endoftext|>", "<|im_start|>"
TEXTS = (
    *(
        "2023",
        " 1234567 x 2023",
        "in 2023, 12 of 345 fell",
        "The CAT's mat",
        "don't",
        "a  b   c\n\n\td",
        "naïve Ünïcode",
    ),
    *("日本語 🙂", "x = [1,2];\n\tif(a){b}", "HELLO World", " leading", "trailing ", "e\u0301", "3.14e-10", ""),
)
CORPUS = ["in 2023 and 2024, 1234567 and 20232023", "the cat's mat, don't! the CAT", "naïve 3.14 HELLO World"] * 20


# -------------------------------------------------------------------------------------------------------- pipelines
def _trained(split: Any, normalizer: Any = None, prefix: bool = False) -> FastTokenizer:
    """A byte-level BPE whose merges cross digits, so that the division before it decides the ids."""
    fast = FastTokenizer(models.BPE())
    fast.normalizer = normalizer
    parts = [*([] if split is None else [split]), pre_tokenizers.ByteLevel(prefix, use_regex=split is None)]
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.Sequence(parts), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    # Merges are learnt without the division, as by a vocabulary that has been taken from elsewhere.
    learner = FastTokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(False, use_regex=True)
    learner.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=340, initial_alphabet=alphabet, show_progress=False)
    )
    fast.model = learner.model
    fast.add_special_tokens([END, START, "<|im_end|>"])
    fast.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    fast.post_processor = processors.TemplateProcessing(
        "$A <|im_end|>", None, [("<|im_end|>", fast.token_to_id("<|im_end|>"))]
    )
    return fast


def _spaced() -> FastTokenizer:
    """A vocabulary in the manner of Llama 2, with a token for each byte; words of two characters."""
    pieces = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    chars = ["\u2581", *sorted(set("".join(CORPUS)) - {" "})]
    pieces |= {char: 259 + i for i, char in enumerate(chars)}
    merges = [("\u2581", "2"), ("2", "0"), ("t", "h"), ("\u2581", "th"), ("2", "3")]
    for pair in merges:
        pieces["".join(pair)] = len(pieces)
    fast = FastTokenizer(models.BPE(pieces, merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    fast.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    fast.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fast.add_special_tokens(["<unk>", "<s>", "</s>"])
    return fast


def _words() -> FastTokenizer:
    """A WordPiece vocabulary that keeps case and accents, for an encoder."""
    fast = FastTokenizer(models.WordPiece({}, unk_token="[UNK]"))
    fast.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    fast.train_from_iterator(
        CORPUS, trainers.WordPieceTrainer(vocab_size=90, special_tokens=names, show_progress=False)
    )
    fast.add_special_tokens(names)
    fast.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)])
    return fast


PIPELINES: dict[str, Callable[[], FastTokenizer]] = {
    "single digits": lambda: _trained(pre_tokenizers.Digits(individual_digits=True)),
    "threes from the left": lambda: _trained(pre_tokenizers.Split(Regex(r"\d{1,3}|[^\d]+"), "isolated")),
    "no division": lambda: _trained(pre_tokenizers.Split(Regex(r".+"), "isolated"), normalizers.NFC()),
    "a leading space": lambda: _trained(None, prefix=True),
    "bytes as a fallback": _spaced,
    "words, cased": _words,
}
INEXACT = ("words, cased",)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A folder with tokenizer.json alone by the name of its pipeline."""
    root = tmp_path_factory.mktemp("pipelines")
    for name, build in PIPELINES.items():
        (root / name).mkdir()
        build().save(str(root / name / "tokenizer.json"))
    return {name: root / name for name in PIPELINES}


# ------------------------------------------------------------------------------------------------------------- cases
Files = dict[str, Any]
CLASSES = (
    *(
        "GPT2Tokenizer",
        "GPT2TokenizerFast",
        "Qwen2Tokenizer",
        "Qwen2TokenizerFast",
        "LlamaTokenizer",
        "LlamaTokenizerFast",
    ),
    *(
        "BertTokenizer",
        "BertTokenizerFast",
        "RobertaTokenizer",
        "GPTNeoXTokenizer",
        "GemmaTokenizer",
        "CodeLlamaTokenizer",
    ),
    *("T5Tokenizer", "XLMRobertaTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend", "OlmoTokenizerFast", None),
)
MODELS = ("llama", "qwen2", "qwen3", "qwen3_moe", "olmo3", "gpt2", "bert", "mistral", "gemma", "t5", "nobody's")
OPTIONS: tuple[Files, ...] = (
    {"add_prefix_space": True},
    {"add_prefix_space": False},
    {"split_special_tokens": True},
    {"legacy": False},
    {"legacy": True, "from_slow": True},
    {"add_bos_token": True, "add_eos_token": True},
    {"do_lower_case": True},
    {"do_lower_case": True, "strip_accents": True, "tokenize_chinese_chars": False},
    {"clean_up_tokenization_spaces": True},
    {"fix_mistral_regex": True},
    {"model_max_length": 4, "truncation_side": "left", "padding_side": "left"},
    {"normalizer": "NFKC", "trim_offsets": False, "use_fast": False, "backend": "sentencepiece"},
    {"vocab_file": "vocab.json", "tokenizer_file": "other.json", "errors": "strict"},
    {"auto_map": {"AutoTokenizer": ["code.Slow", "code.Fast"]}},
)


def _token(content: str, **flags: bool) -> Files:
    return {"content": content, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False} | flags


def _class_cases() -> list[Files]:
    return [{"tokenizer_config.json": {"tokenizer_class": name}} for name in CLASSES]


def _model_cases() -> list[Files]:
    return [{"config.json": {"model_type": name, "architectures": ["X"]}} for name in MODELS] + [
        {"config.json": {"model_type": "llama", "tokenizer_class": "BertTokenizer"}},
        {"config.json": {"model_type": "qwen2"}, "tokenizer_config.json": {"tokenizer_class": "LlamaTokenizerFast"}},
    ]


def _option_cases() -> list[Files]:
    named = [{"tokenizer_config.json": option | {"tokenizer_class": "GPT2Tokenizer"}} for option in OPTIONS]
    return [{"tokenizer_config.json": option} for option in OPTIONS] + named


def _neighbour_cases() -> list[Files]:
    """Other vocabularies in the same folder."""
    vocab = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=True))}
    pair = {"vocab.json": vocab, "merges.txt": "#version: 0.2\n"}
    return [
        pair,
        pair | {"tokenizer_config.json": {"tokenizer_class": "Qwen2Tokenizer"}, "config.json": {"model_type": "qwen2"}},
        {"vocab.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n2023\n"},
        {"tokenizer.model": "IQ== 0\nIg== 1\n"},
        {"tekken.json": {"vocab": []}, "tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer"}},
    ]


def _flag_cases(size: int, known: str, id: int) -> list[Files]:
    """A token of the file, described in another way; roles without a token; a special one at the next id."""
    config = "tokenizer_config.json"
    return [
        {config: {"added_tokens_decoder": {str(id): _token(known, special=False, lstrip=True, rstrip=True)}}},
        {config: {"added_tokens_decoder": {str(id): _token(known, special=True, normalized=True)}}},
        {config: {"added_tokens_decoder": {str(size): _token("<|new|>", special=True)}, "eos_token": "<|new|>"}},
        {"added_tokens.json": {"<|new|>": size}, config: {"additional_special_tokens": ["<|new|>"]}},
        {"special_tokens_map.json": {"pad_token": "[absent]", "mask_token": _token("[missing]")}},
    ]


def _contradictions(size: int, known: str, _: int) -> list[Files]:
    config, word = "tokenizer_config.json", {str(size): _token("2023", special=False)}
    return [
        {config: {"added_tokens_decoder": word}},
        {
            config: {
                "added_tokens_decoder": {str(size): _token("cat", special=False, normalized=True, single_word=True)}
            }
        },
        {"added_tokens.json": {"2023": size}},
        {config: {"added_tokens_decoder": {str(size + 7): _token("<|new|>", special=True)}}},
        {config: {"added_tokens_decoder": {"5": _token("<|new|>", special=True)}}},
        {config: {"added_tokens_decoder": {"7": _token(known, special=True)}}},
        {"added_tokens.json": {known: 7}},
        {config: {"added_tokens_decoder": {"no id": _token(known)}}},
        {config: {"eos_token": "<|absent|>"}},
        {"special_tokens_map.json": {"bos_token": _token("<|absent|>")}},
        {config: {"additional_special_tokens": ["<|absent|>"]}},
        {config: {"extra_special_tokens": {"image_token": "<|absent|>"}}},
    ]


def _write(source: Path, folder: Path, files: Files) -> Path:
    shutil.copytree(source, folder, dirs_exist_ok=True)
    for name, contents in files.items():
        (folder / name).write_text(contents if isinstance(contents, str) else json.dumps(contents))
    return folder


def _reference(folder: Path) -> tuple[list[list[int]], list[list[int]]]:
    """The file's own ids of TEXTS, without and with its special tokens."""
    fast = FastTokenizer.from_file(str(folder / "tokenizer.json"))
    bare, marked = ([fast.encode(text, add_special_tokens=marks).ids for text in TEXTS] for marks in (False, True))
    return bare, marked


def _verdict(folder: Path, name: str) -> str:
    plain, marked = _reference(folder)
    try:
        tokenizer = Tokenizer.load(folder, exact=name not in INEXACT)
    except ValueError as error:
        return "refused" if re.match(f"{re.escape(str(folder))}.*\\.$", str(error)) else str(error)
    assert [tokenizer.encode(text, start=True) for text in TEXTS] == plain, name
    assert TextTokenizer.load(folder, 512, None)(TEXTS) == marked, name
    if name not in INEXACT:
        assert [tokenizer.decode(tokenizer.encode(text)) for text in TEXTS] == [*map(tokenizer.normalise, TEXTS)]
    return "the file's"


# The tokenizer.json of every pipeline beside each of these files: kind -> (cases, verdict).
KINDS: dict[str, tuple[Callable[[], list[Files]], str]] = {
    "class in tokenizer_config.json": (_class_cases, "the file's"),
    "model type or class in config.json": (_model_cases, "the file's"),
    "option of a class": (_option_cases, "the file's"),
    "other vocabularies in the folder": (_neighbour_cases, "the file's"),
}
TOKENS: dict[str, tuple[Callable[[int, str, int], list[Files]], str]] = {
    "added tokens and roles that agree": (_flag_cases, "the file's"),
    "tokens that contradict the file": (_contradictions, "refused"),
}


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_files_pipeline_counts(folders, tmp_path, kind, name):
    cases, verdict = KINDS[kind]
    found = [_verdict(_write(folders[name], tmp_path / str(at), files), name) for at, files in enumerate(cases())]
    assert Counter(found) == {verdict: len(cases())}


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("kind", TOKENS)
def test_added_tokens_have_the_files_ids(folders, tmp_path, kind, name):
    fast = FastTokenizer.from_file(str(folders[name] / "tokenizer.json"))
    listed = {token.content: id for id, token in fast.get_added_tokens_decoder().items()}
    known = next(token for token in (END, "</s>", "[SEP]") if token in listed)
    cases, verdict = TOKENS[kind]
    for at, files in enumerate(cases(fast.get_vocab_size(), known, listed[known])):
        assert _verdict(_write(folders[name], tmp_path / str(at), files), name) == verdict, files


# ----------------------------------------------------------------------------------------- vocab.json and merges.txt
PAIRS: tuple[tuple[Files, Any], ...] = (
    ({"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"}}, GPT2Tokenizer),
    ({"tokenizer_config.json": {"tokenizer_class": "Qwen2TokenizerFast"}}, Qwen2Tokenizer),
    ({"config.json": {"model_type": "qwen3"}}, Qwen2Tokenizer),
    (
        {"config.json": {"model_type": "qwen2"}, "tokenizer_config.json": {"tokenizer_class": "Qwen2Tokenizer"}},
        Qwen2Tokenizer,
    ),
    ({"config.json": {"model_type": "qwen2"}, "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"}}, None),
    ({"config.json": {"model_type": "qwen3"}, "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"}}, None),
    ({}, None),
    ({"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"}}, None),
    ({"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer"}}, None),
)


@pytest.mark.parametrize(("files", "kind"), PAIRS)
def test_a_class_decides_where_no_file_does(folders, tmp_path, files, kind):
    model = json.loads((folders["single digits"] / "tokenizer.json").read_text())["model"]
    vocab = model["vocab"] | {END: len(model["vocab"])}
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    for name, contents in ({"vocab.json": vocab, "merges.txt": "\n".join(["#version: 0.2", *merges])} | files).items():
        (tmp_path / name).write_text(contents if isinstance(contents, str) else json.dumps(contents))
    if kind is None:
        with pytest.raises(ValueError, match=re.escape(str(tmp_path))):
            Tokenizer.load(tmp_path)
        return
    reference = kind(vocab=str(tmp_path / "vocab.json"), merges=str(tmp_path / "merges.txt"))
    tokenizer = Tokenizer.load(tmp_path)
    assert [tokenizer.encode(text) for text in TEXTS] == [reference(text).input_ids for text in TEXTS]


# ------------------------------------------------------------------------------------------------------ roles, saved
def test_roles_tokens_and_templates_stay(folders, tmp_path):
    """Everything that the config says beside ids is followed."""
    files: Files = {
        "tokenizer_config.json": {
            "tokenizer_class": "GPT2Tokenizer",
            "eos_token": _token("<|im_end|>"),
            "pad_token": END,
            "image_token": START,
            "chat_template": "{{ bos_token }}{{ image_token }}{{ messages[0].content }}{{ eos_token }}",
        }
    }
    folder = _write(folders["single digits"], tmp_path / "a", files)
    fast = FastTokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer = Tokenizer.load(folder)
    end, other, start = (fast.token_to_id(name) for name in ("<|im_end|>", END, START))
    assert (tokenizer.eos_id, tokenizer.pad_id, tokenizer.bos_id) == (end, other, other)  # bos: the class's usual one
    assert tokenizer.encode_chat([{"role": "user", "content": "2023"}]) == [
        other,
        start,
        *fast.encode("2023").ids[:-1],
        end,
    ]
    assert tokenizer.encode("<think>") == [fast.token_to_id("<think>")]
    assert not tokenizer.special_ids & {*tokenizer.encode(f"{END} {START}")}
    tokenizer.save(tmp_path / "b")
    again = Tokenizer.load(tmp_path / "b")
    assert [again.encode(text) for text in TEXTS] == [tokenizer.encode(text) for text in TEXTS]
    assert (
        json.loads((tmp_path / "b" / "tokenizer_config.json").read_text())["tokenizer_class"]
        == "PreTrainedTokenizerFast"
    )


def test_templates_lie_in_files_or_in_the_config(folders, tmp_path):
    said = {"tokenizer_config.json": {"eos_token": END, "chat_template": "config", "tokenizer_class": None}}
    folder = _write(folders["single digits"], tmp_path, said)
    assert Tokenizer.load(folder)._hf.chat_template == "config"
    (folder / "chat_template.jinja").write_bytes(b"\xef\xbb\xbffile")  # some editors begin a file with a mark
    assert Tokenizer.load(folder)._hf.chat_template == "file"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert Tokenizer.load(folder)._hf.chat_template == {"default": "file", "tool_use": "tools"}


# ---------------------------------------------------------------------------------------------------- published files
@pytest.mark.parametrize(
    "cls",
    [
        "Qwen2Tokenizer",
        pytest.param(None, marks=pytest.mark.slow),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("GPT2Tokenizer", "LlamaTokenizerFast")),
        pytest.param("GPTNeoXTokenizer", marks=pytest.mark.slow),
    ],
)
def test_olmo_divides_digits_from_the_left(shared_data, tmp_path, cls):
    shutil.copy(shared_data / "tokenizers" / "olmo2_dolma2" / "tokenizer.json", tmp_path)
    if cls is not None:
        config = {"tokenizer_class": cls, "fix_mistral_regex": True, "add_prefix_space": True}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    stem = shared_data / "tokenizers" / "llama_cpp_golden" / "ggml-vocab-llama-bpe.gguf.inp"
    with stem.open(encoding="utf-8", newline="") as file:
        texts = file.read().split("\n__ggml_vocab_test__\n")[:46]
    fast = FastTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert [tokenizer.decode([id]) for id in tokenizer.encode("2023")] == ["202", "3"]
    assert [tokenizer.encode(text) for text in texts] == [
        fast.encode(text, add_special_tokens=False).ids for text in texts
    ]


def test_llama_2_with_the_class_of_another_model(folders):
    ids = Tokenizer.load(folders["single digits"])
    assert [ids.decode([id]) for id in ids.encode("2023")] == ["2", "0", "2", "3"]
