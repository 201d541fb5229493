"""Hostile tokenizer files and chat templates."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.models.hostile_cases import Change, case, edit, pipe, text


# ----------------------------------------------------------------------------------------------------- tokenizer.json
def tokenizer(edit_it: Callable[[dict[str, Any]], Any]) -> Change:
    """Changes the contents of tokenizer.json."""

    def change(folder: Path) -> None:
        path = folder / "tokenizer.json"
        contents = json.loads(path.read_text())
        edit_it(contents)
        path.write_text(json.dumps(contents))

    return change


def vocabulary(**ids: Any) -> Change:
    return tokenizer(lambda contents: contents["model"]["vocab"].update(ids))


def added(*tokens: dict[str, Any], special: bool = True) -> Change:
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
    return tokenizer(lambda contents: contents["added_tokens"].extend({**usual, **token} for token in tokens))


def normalizer(*steps: dict[str, Any]) -> Change:
    return tokenizer(lambda contents: contents.update(normalizer={"type": "Sequence", "normalizers": list(steps)}))


def split(pattern: str) -> Change:
    step = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return tokenizer(lambda contents: contents.update(pre_tokenizer=step))


def replaces(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


FREE = 10_000  # an id that the base does not have
TOKENIZERS: dict[str, Change] = {
    "an id of 2^31": vocabulary(zzz=2**31),
    "an id of 2^31 - 1": vocabulary(zzz=2**31 - 1),
    "an id of 2^32": vocabulary(zzz=2**32),
    "an id of 2^27": vocabulary(zzz=2**27),
    "an id below zero": vocabulary(zzz=-1),
    "half an id": vocabulary(zzz=0.5),
    "a true id": vocabulary(zzz=True),
    "two words with one id": vocabulary(zzz=5),
    "an added id of 2^31": added({"id": 2**31, "content": "<far>"}),
    "an added id of 2^27": added({"id": 2**27, "content": "<far>"}),
    "an added id below zero": added({"id": -1, "content": "<neg>"}),
    "an added id that the library changes": added({"id": FREE, "content": "<gap>"}),
    "an added token with a word's id": added({"id": 3, "content": "<three>"}),
    "a word under another id": added({"id": 3, "content": "<|im_end|>"}),
    "a special name of a megabyte": added({"id": FREE, "content": "<" + "x" * 1_000_000 + ">"}),
    "an empty special name": added({"id": FREE, "content": ""}),
    "50,000 special names": added(*({"id": FREE + i, "content": f"<|special number {i}|>"} for i in range(50_000))),
    "a normaliser that doubles": normalizer(*[replaces(" ", "  ")] * 64),
    "a normaliser that grows": normalizer(replaces(" ", " " * 10_000), replaces(" ", " " * 10_000)),
    "a normaliser that inserts a megabyte": normalizer(
        {"type": "Prepend", "prepend": "x" * 1_000_000}, replaces("x", "y" * 10_000)
    ),
    "a pattern that backtracks": split(r"(\s|.|\p{L}|\S)*(.|\s|\S)*(.|\s|\S)*(.|\s|\S)*\x{10FFFD}"),
    "a pattern that is none": split("(" * 1000),
    "a pattern that repeats": split("(?:(?:(?:(?:.{1000}){1000}){1000}){1000}){1000}"),
    "a pattern that repeats by hundreds": split("(?:(?:(?:(?:[ab]{99}){99}){99}){99}){99}"),
    "a pattern of hundreds of words": split("(?:(?:(?:(?:(?:abc){99}){99}){99}){99}){99}"),
    "a pattern of a megabyte": split("(a|b)" * 200_000),
    "100,000 patterns": tokenizer(
        lambda contents: contents.update(
            pre_tokenizer={
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Split", "pattern": {"Regex": f"a{i}"}, "behavior": "Isolated", "invert": False}
                    for i in range(100_000)
                ],
            }
        )
    ),
    "a Unigram piece of a megabyte": tokenizer(
        lambda contents: contents.update(model={"type": "Unigram", "unk_id": 0, "vocab": [["a" * 1_000_000, 0.0]]})
    ),
    "merges without the prefix": tokenizer(lambda contents: contents["model"].update(continuing_subword_prefix="####")),
    "1,100,000 words": tokenizer(
        lambda contents: contents["model"]["vocab"].update({f"{i}": i for i in range(1_100_000)})
    ),
    "a decoder that doubles": tokenizer(
        lambda contents: contents.update(decoder={"type": "Sequence", "decoders": [replaces("a", "aa")] * 64})
    ),
    "merges of unknown words": tokenizer(lambda contents: contents["model"].update(merges=[["qqq", "zzz"]])),
    "a million merges": tokenizer(lambda contents: contents["model"].update(merges=["a b"] * 1_000_000)),
    "a model of another kind": tokenizer(lambda contents: contents.update(model={"type": "Dream", "vocab": {}})),
    "a Unigram model without numbers": tokenizer(
        lambda contents: contents.update(model={"type": "Unigram", "unk_id": 2**40, "vocab": [["a", float("nan")]]})
    ),
    "an unknown token behind the vocabulary": tokenizer(
        lambda contents: contents.update(model={"type": "Unigram", "unk_id": 7, "vocab": [["a", 0.0]]})
    ),
    "a table that ends early": normalizer(
        {
            "type": "Precompiled",
            "precompiled_charsmap": base64.b64encode(struct.pack("<5I", 16, 2**31 - 1, 0, 0, 0) + b"a\0").decode(),
        }
    ),
    "a table that is none": normalizer({"type": "Precompiled", "precompiled_charsmap": "AAAA" * 1000}),
    "a post-processor of unknown tokens": tokenizer(
        lambda contents: contents.update(
            post_processor={
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "[NONE]", "type_id": 0}}],
                "pair": [],
                "special_tokens": {},
            }
        )
    ),
    "500 levels": tokenizer(lambda contents: contents.update(normalizer=json.loads("[" * 500 + "]" * 500))),
}
for name, change in TOKENIZERS.items():
    case(f"tokenizer.json: {name}", "tokenizer", change)
nested = '{"type": "Sequence", "normalizers": ['
case(
    "tokenizer.json: 20,000 sequences",
    "tokenizer",
    text("tokenizer.json", '{"normalizer": ' + nested * 20_000 + "]}" * 20_000 + "}"),
)
case("tokenizer.json: 100,000 brackets", "tokenizer", text("tokenizer.json", "[" * 100_000))
case("tokenizer.json: 120 MB of brackets", "tokenizer", text("tokenizer.json", '{"a": [' + "[]," * 40_000_000 + "[]]}"))
case("tokenizer.json: a pipe", "tokenizer", pipe("tokenizer.json"))


# ------------------------------------------------------------------------------------------ files beside tokenizer.json
FILES: dict[str, Change] = {
    "an id of 2^31": edit("tokenizer_config.json", added_tokens_decoder={str(2**31): {"content": "<far>"}}),
    "an id of 5,000 digits": edit("tokenizer_config.json", added_tokens_decoder={"9" * 5000: {"content": "<far>"}}),
    "50,000 tokens": edit(
        "tokenizer_config.json",
        added_tokens_decoder={str(FREE + i): {"content": f"<{i}>", "special": True} for i in range(50_000)},
    ),
    "100,000 extra tokens": edit("tokenizer_config.json", extra_special_tokens=[f"<{i}>" for i in range(100_000)]),
    "a token of a megabyte": edit("tokenizer_config.json", extra_special_tokens=["x" * 1_000_000]),
    "a beginning of a megabyte": edit("tokenizer_config.json", bos_token="x" * 1_000_000),
    "an end that is a tree": edit("tokenizer_config.json", eos_token=json.loads("[" * 50 + "]" * 50)),
    "500 levels": edit("tokenizer_config.json", extra=json.loads("[" * 500 + "]" * 500)),
    "a million ends": edit("generation_config.json", eos_token_id=list(range(1_000_000))),
    "an end below zero": edit("generation_config.json", eos_token_id=-1),
    "half an end": edit("generation_config.json", eos_token_id=0.5),
    "an end of 2^40": edit("generation_config.json", eos_token_id=[2**40]),
    "added_tokens.json with 100,000 tokens": edit("added_tokens.json", **{f"<{i}>": FREE + i for i in range(100_000)}),
    "added_tokens.json with an id of 4,000 digits": edit("added_tokens.json", **{"<far>": 10**4000}),
}
for name, change in FILES.items():
    case(f"beside it: {name}", "tokenizer", change)


def no_template_file(change: Change) -> Change:
    """The template that tokenizer_config.json names counts where there is no file."""

    def both(folder: Path) -> None:
        (folder / "chat_template.jinja").unlink(missing_ok=True)
        change(folder)

    return both


STATED: dict[str, Any] = {
    "a number": 3,
    "a list of trees": [{"name": "default", "template": {}}],
    "a list as a name": [{"name": [], "template": "x"}],
    "3 MB": "{{ 1 }}" * 430_000,
    "10,000 templates": [{"name": f"t{i}", "template": "x"} for i in range(10_000)],
}
for name, stated in STATED.items():
    case(f"stated template: {name}", "tokenizer", no_template_file(edit("tokenizer_config.json", chat_template=stated)))
case("template: bytes", "tokenizer", lambda folder: (folder / "chat_template.jinja").write_bytes(b"\xff{{ messages }}"))


def bare(*files: tuple[str, str | bytes], **config: Any) -> Change:
    """These vocabulary files instead of tokenizer.json."""

    def change(folder: Path) -> None:
        for path in (folder / "tokenizer.json", folder / "tokenizer_config.json", folder / "config.json"):
            path.unlink()
        for name, contents in files:
            (folder / name).write_bytes(contents if isinstance(contents, bytes) else contents.encode())
        if config:
            (folder / "tokenizer_config.json").write_text(json.dumps(config))

    return change


VOCABULARIES: dict[str, Change] = {
    "vocab.json with an id of 2^31": bare(
        ("vocab.json", json.dumps({"a": 0, "b": 2**31 - 1})),
        ("merges.txt", "#version: 0.2\na b\n"),
        tokenizer_class="GPT2Tokenizer",
    ),
    "vocab.json with an id of 2^40": bare(
        ("vocab.json", json.dumps({"a": 0, "b": 2**40})), ("merges.txt", ""), tokenizer_class="Qwen2Tokenizer"
    ),
    "vocab.json that is a list": bare(("vocab.json", "[1]"), ("merges.txt", "a b"), tokenizer_class="GPT2Tokenizer"),
    "merges.txt of three words a line": bare(
        ("vocab.json", json.dumps({"a": 0, "b": 1})), ("merges.txt", "a b c\n" * 10), tokenizer_class="GPT2Tokenizer"
    ),
    "merges.txt of bytes": bare(
        ("vocab.json", json.dumps({"a": 0, "b": 1})), ("merges.txt", b"\xff\xfe" * 100), tokenizer_class="GPT2Tokenizer"
    ),
    "a class that does not exist": bare(("vocab.json", "{}"), ("merges.txt", ""), tokenizer_class="DreamTokenizer"),
    "a class of another library": bare(("vocab.json", "{}"), ("merges.txt", ""), tokenizer_class="MecabTokenizer"),
    "a Japanese class": bare(("vocab.txt", "[UNK]\na\n"), tokenizer_class="BertJapaneseTokenizer"),
    "code of the folder's own": bare(
        ("tokenization_own.py", "raise SystemExit(3)"),
        tokenizer_class="OwnTokenizer",
        auto_map={"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]},
    ),
    "tokenizer.model of zeros": bare(("tokenizer.model", bytes(1_000_000))),
    "tokenizer.model of brackets": bare(("tokenizer.model", b"\x0a\xff\xff\xff\xff\x0f" * 10)),
    "ranks of 4,000 digits": bare(("tokenizer.model", b"YQ== " + b"9" * 4000 + b"\n")),
    "ranks of 2^31": bare(("tokenizer.model", b"YQ== 2147483648\nYg== 1\n")),
    "a rank of a megabyte": bare(("tokenizer.model", b"YQ== 0\n" + b"YWFh" * 350_000 + b" 1\n")),
    "no files at all": bare(),
}
for name, change in VOCABULARIES.items():
    case(f"vocabulary: {name}", "tokenizer", change)


def sentencepiece(kind: int, table: bytes, *pieces: str) -> Change:
    """A tokenizer.model with these pieces. kind: 1 unigram, 2 BPE."""

    def change(folder: Path) -> None:
        from transformers.convert_slow_tokenizer import import_protobuf

        schema: Any = import_protobuf()
        proto = schema.ModelProto()
        proto.trainer_spec.model_type, proto.normalizer_spec.precompiled_charsmap = kind, table
        for piece in ("<unk>", "<s>", "</s>", *pieces):
            proto.pieces.add(
                piece=piece, score=-1.0, type=2 if piece == "<unk>" else 3 if piece in ("<s>", "</s>") else 1
            )
        bare(("tokenizer.model", proto.SerializeToString()))(folder)

    return change


for kind, name in ((1, "unigram"), (2, "BPE")):
    case(f"vocabulary: a {name} piece of a megabyte", "tokenizer", sentencepiece(kind, b"", "a", "b" * 1_000_000))
    case(
        f"vocabulary: {name} pieces of 16 MB",
        "tokenizer",
        sentencepiece(kind, b"", *[f"{i:01000}" for i in range(16_000)]),
    )
    case(f"vocabulary: {name} with a table that is none", "tokenizer", sentencepiece(kind, b"\xff" * 999, "a"))
    case(
        f"vocabulary: {name} with a table that ends early",
        "tokenizer",
        sentencepiece(kind, struct.pack("<5I", 16, 2**31 - 1, 0, 0, 0) + b"a\0", "a"),
    )
    case(f"vocabulary: {name} with an empty table", "tokenizer", sentencepiece(kind, bytes(8), "a"))


# ---------------------------------------------------------------------------------------------------------- templates
SAYS = "{% set ns = namespace(s='x') %}"
TEMPLATES = {
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a string that doubles": SAYS + "{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
    "a string times a billion": "{{ 'x' * 10**9 }}",
    "10^12 characters": "{{ 'x' * 10**12 }}",
    "a billion slices": "{{ range(10) | slice(10**9) | list }}",
    "a long result": "{% for i in range(30000) %}{{ 'abcdefgh' * 1000 }}{% endfor %}",
    "loops after a question": "{% if messages | length > 1 %}{% for i in range(99999) %}{% for j in range(99999) %}"
    "{% endfor %}{% endfor %}{% endif %}",
}
for name, template in TEMPLATES.items():
    case(f"template: {name}", "tokenizer", text("chat_template.jinja", template))
