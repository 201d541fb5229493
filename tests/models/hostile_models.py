"""Hostile config.json, safetensors, indices, adapters and sentence-transformers files."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

from tests.models.hostile_cases import Change, case, edit, pipe, text

# ------------------------------------------------------------------------------------------------------- config.json
MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 10_000,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "10,000 layers": {"num_hidden_layers": 10_000},
    "2,000 layers": {"num_hidden_layers": 2_000},
    "2,000 layers of 10,000 experts": {"num_hidden_layers": 2_000, **MOE},
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

        from scope_jax.models.decoder.hf import tree_shapes
        from scope_jax.models.encoders import bert

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
    "2,000 layers": encoder({"num_hidden_layers": 2_000}),
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
