"""Small files that claim much, each in a folder that is otherwise good; test_hostile.py opens them.

As a script: opens the named cases one after the other and prints a line of JSON for each, with what was said, the CPU
time of this process and its children, and the peak of the memory of either so far.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

BASE = Path("assets/atlas/ssp/base")
Change = Callable[[Path], Any]
CASES: dict[str, tuple[str, Change]] = {}  # name -> (how the folder is opened, what is changed in it)


def case(name: str, door: str, change: Change) -> None:
    assert name not in CASES
    CASES[name] = (door, change)


def edit(file: str, **fields: Any) -> Change:
    """Sets fields of a JSON file."""

    def change(folder: Path) -> None:
        path = folder / file
        path.write_text(json.dumps((json.loads(path.read_text()) if path.is_file() else {}) | fields))

    return change


def text(file: str, contents: str) -> Change:
    return lambda folder: (folder / file).write_text(contents)


def pipe(file: str) -> Change:
    def change(folder: Path) -> None:
        (folder / file).unlink()
        os.mkfifo(folder / file)

    return change


# ------------------------------------------------------------------------------------------------------- config.json
MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 10_000,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "10,000 layers": {"num_hidden_layers": 10_000},
    "10,000 layers of 10,000 experts": {"num_hidden_layers": 10_000, **MOE},
    "10,000 experts": MOE,
    "2^31 words": {"vocab_size": 2**31 - 1},
    "a width of 2^31": {"hidden_size": 2**31 - 1},
    "a head of 2^31": {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 2**31 - 2},
    "2^31 heads": {"num_attention_heads": 2**31 - 1, "num_key_value_heads": 1},
    "2^31 in the middle": {"intermediate_size": 2**31 - 1},
    "layers below zero": {"num_hidden_layers": -1},
    "half a layer": {"num_hidden_layers": 2.5},
    "true layers": {"num_hidden_layers": True},
    "no number for theta": {"rope_theta": float("nan"), "rope_parameters": None},
    "a theta of 1": {"rope_parameters": {"rope_theta": 1.0, "rope_type": "yarn", "factor": 2.0}},
    "a theta that float32 lacks": {"rope_parameters": {"rope_theta": 1e-29, "rope_type": "default"}},
    "an infinite epsilon": {"rms_norm_eps": float("inf")},
    "a number of 4,000 digits": {"hidden_size": 10**4000},
    "a million layer types": {"layer_types": ["full_attention"] * 1_000_000},
    "a layer type of a megabyte": {"layer_types": ["a\n" * 500_000]},
    "100,000 architectures": {"architectures": [f"A{i}" for i in range(100_000)]},
    "an activation of a megabyte": {"hidden_act": "x" * 1_000_000},
    "a tree of rotary parameters": {"rope_parameters": {"full_attention": {"a": [[[[[[]]]]]]}}},
}
for name, fields in CONFIGS.items():
    case(f"config.json: {name}", "model", edit("config.json", **fields))
case("config.json: 100,000 brackets", "model", text("config.json", "[" * 100_000))
case("config.json: 500 levels", "model", edit("config.json", quantization_config=json.loads("[" * 500 + "]" * 500)))
case("config.json: 20 MB of brackets", "model", text("config.json", "[" + "[]," * 7_000_000 + "[]]"))
case("config.json: 5,000 digits", "model", text("config.json", '{"vocab_size": ' + "9" * 5000 + "}"))
case("config.json: a pipe", "model", pipe("config.json"))


# ------------------------------------------------------------------------------------- safetensors and their index
def header(entries: dict[str, Any] | bytes, data: int = 0) -> Change:
    """A model.safetensors with this header, and so many bytes of data."""

    def change(folder: Path) -> None:
        written = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(written)) + written + bytes(data))

    return change


def huge_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    old = path.read_bytes()
    length = struct.unpack("<Q", old[:8])[0]
    written = old[8 : 8 + length] + b" " * (40 * 2**20)
    path.write_bytes(struct.pack("<Q", len(written)) + written + old[8 + length :])


def tensor(shape: list[int], start: int = 0, end: int = 0, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


HEADERS: dict[str, dict[str, Any] | bytes] = {
    "a product above 2^64": {"a": tensor([2**40, 2**40], 0, 4)},
    "an end before the beginning": {"a": tensor([1], 4, 0)},
    "an end behind the file": {"a": tensor([2**30], 0, 2**32)},
    "a negative size": {"a": tensor([-1], 0, 4)},
    "a size that is a fraction": {"a": tensor([1.5], 0, 4)},  # type: ignore[list-item]
    "100,000 empty tensors": {f"tensor.{i}": tensor([0]) for i in range(100_000)},
    "100,000 brackets": b"[" * 100_000,
    "a name of a megabyte": {"n\n" * 500_000: tensor([0])},
    "an unknown dtype": {"a": tensor([1], 0, 4, "F31")},
}
for name, entries in HEADERS.items():
    case(f"safetensors: {name}", "model", header(entries, 4))
case("safetensors: 40 MiB of header", "model", huge_header)
case(
    "safetensors: a length of 2^63",
    "model",
    lambda folder: (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2**63) + b"{}"),
)


def index(contents: Any) -> Change:
    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps(contents))

    return change


case("index: 100,000 files", "model", index({"weight_map": {f"t{i}": f"{i}.safetensors" for i in range(100_000)}}))
case("index: a name of a megabyte", "model", index({"weight_map": {"a": "x\n" * 500_000}}))
case("index: a name of a megabyte in one line", "model", index({"weight_map": {"a": "x" * 1_000_000}}))
case("index: 500 levels", "model", index({"weight_map": {"a": json.loads("[" * 500 + "]" * 500)}}))


# ----------------------------------------------------------------------------------------------------------- adapters
def adapter(rank: int = 4, stored: int | None = None, tensors: int = 0, **fields: Any) -> Change:
    """An adapter of the base's q_proj with factors of rank `stored`, whose configuration has these fields."""

    def change(folder: Path) -> None:
        import numpy as np
        from safetensors.numpy import save_file

        config = json.loads((folder / "config.json").read_text())
        width, heads = config["hidden_size"], config["num_attention_heads"] * config["head_dim"]
        prefix = "base_model.model.model.layers.{}.self_attn.q_proj.lora_"
        own = stored or rank
        factors: dict[str, Any] = {}
        for layer in range(config["num_hidden_layers"]):
            factors[prefix.format(layer) + "A.weight"] = np.zeros((own, width), np.float32)
            factors[prefix.format(layer) + "B.weight"] = np.zeros((heads, own), np.float32)
        factors |= {f"{prefix.format(9)}A{i}.weight": np.zeros(0, np.float32) for i in range(tensors)}
        save_file(factors, folder / "adapter_model.safetensors")
        contents = {"peft_type": "LORA", "r": rank, "lora_alpha": 8, **fields}
        (folder / "adapter_config.json").write_text(json.dumps(contents))

    return change


ADAPTERS: dict[str, Change] = {
    "a rank of 2^31": adapter(2**31 - 1, 4),
    "a rank of 2^60": adapter(2**60, 4),
    "a true rank": adapter(1, r=True),
    "another rank": adapter(8, 4),
    "no number for alpha": adapter(lora_alpha=float("nan")),
    "an infinite alpha": adapter(lora_alpha=float("inf")),
    "alpha of 4,000 digits": adapter(lora_alpha=10**4000),
    "a list for the initial factors": adapter(init_lora_weights=["gaussian"]),
    "a type of a megabyte": adapter(peft_type="x\n" * 500_000),
    "patterns of a megabyte": adapter(rank_pattern={"x" * 1_000_000: 4}),
    "100,000 tensors more": adapter(tensors=100_000),
    "500 levels": adapter(alpha_pattern=json.loads("[" * 500 + "]" * 500)),
}
for name, change in ADAPTERS.items():
    case(f"adapter: {name}", "adapter", change)


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


# ----------------------------------------------------------------------------------------------------------- encoders
BERT = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": 12,
    "num_hidden_layers": 1,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 64,
}


def encoder(config: dict[str, Any] | None = None, *changes: Change) -> Change:
    """A small BERT, whose config.json has these fields besides."""

    def change(folder: Path) -> None:
        import jax
        from safetensors.numpy import save_file

        from scope_jax.models import bert
        from scope_jax.models.hf import tree_shapes

        shutil.rmtree(folder)
        folder.mkdir()
        import numpy as np

        shapes = tree_shapes(bert.declare(bert.from_hf(BERT)), bert.hf_tensor)
        save_file({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(BERT | (config or {})))
        (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n")
        del jax
        for one in changes:
            one(folder)

    return change


def modules(*more: dict[str, Any]) -> Change:
    first = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    first += [{"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]

    def change(folder: Path) -> None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
        (folder / "2_Dense").mkdir()
        dense = {"in_features": 8, "out_features": 2**31 - 1, "activation_function": "torch.nn.modules.linear.Identity"}
        (folder / "2_Dense" / "config.json").write_text(json.dumps(dense))
        shutil.copyfile(folder / "model.safetensors", folder / "2_Dense" / "model.safetensors")
        (folder / "modules.json").write_text(json.dumps([*first, *more]))

    return change


DENSE = {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}
ENCODERS: dict[str, Change] = {
    "2^31 positions": encoder({"max_position_embeddings": 2**31 - 1}),
    "10,000 layers": encoder({"num_hidden_layers": 10_000}),
    "2^31 types": encoder({"type_vocab_size": 2**31 - 1}),
    "a width of 2^31": encoder({"hidden_size": 2**31 - 2}),
    "100,000 modules": encoder({}, modules(*[DENSE] * 100_000)),
    "a dense layer of 2^31": encoder({}, modules(DENSE)),
    "a module of a megabyte": encoder({}, modules({"path": "x" * 1_000_000, "type": "y" * 1_000_000})),
    "a module outside": encoder({}, modules({"path": "../../etc", "type": "Dense"})),
    "a length that is no number": encoder({}, text("sentence_bert_config.json", '{"max_seq_length": NaN}')),
    "a prompt that is a tree": encoder(
        {}, edit("config_sentence_transformers.json", prompts={"query": json.loads("[" * 50 + "]" * 50)})
    ),
    "vocab.txt of 2,000,000 lines": encoder({}, text("vocab.txt", "a\n" * 2_000_000)),
    "vocab.txt of bytes": encoder({}, lambda folder: (folder / "vocab.txt").write_bytes(b"\xff\xfe\xfd" * 1000)),
}
for name, change in ENCODERS.items():
    case(f"encoder: {name}", "encoder", change)


# -------------------------------------------------------------------------------------------------------- as a script
def opened(door: str, folder: Path) -> None:
    from scope_jax.models import peft, weights
    from scope_jax.models.tokenizer import Tokenizer

    if door == "model":
        weights.load_hf(folder)
    elif door == "adapter":
        base = weights.checked_config(folder)
        peft.load(folder, base, peft.adapter_of(folder, base))
    elif door == "tokenizer":
        Tokenizer.load(folder)
    else:
        import jax.numpy as jnp

        from scope_jax.models.texts import TextEncoder

        TextEncoder.load(folder, max_tokens=16, rows=1, compute_dtype=jnp.float32)


def processor_time() -> float:
    """CPU seconds of this process and its children, ended or not."""
    import psutil

    own = os.times()
    live = [child.cpu_times() for child in psutil.Process().children()]
    return own.user + own.system + own.children_user + own.children_system + sum(one.user + one.system for one in live)


def main(root: Path, names: list[str]) -> None:
    from scope_jax.errors import is_users, sentence
    from scope_jax.models import rendering

    rendering.start()
    opened("tokenizer", BASE)  # imports are paid for
    for number, name in enumerate(names):
        door, change = CASES[name]
        folder = Path(shutil.copytree(BASE, root / str(number)))
        change(folder)
        began = processor_time()
        try:
            opened(door, folder)
            said, user = "", True
        except Exception as error:  # noqa: BLE001 - what it is, is the result
            said, user = sentence(error), is_users(error)
        line = {"case": name, "said": said, "user": user, "seconds": processor_time() - began}
        peaks = [resource.getrusage(who).ru_maxrss * 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        print(json.dumps(line | {"peak": max(peaks)}), flush=True)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
