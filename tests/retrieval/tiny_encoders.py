"""Folders of tiny random embedding models in Hugging Face layout, made without torch."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save_file

from scope_jax.models.encoders import bert
from scope_jax.sharding.spec import path_name

MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    *("the", "of", "a", "is", "in", "on", "to", "river", "mountain", "city", "sea", "long", "high", "old", "new"),
    *("water", "north", "south", "flows", "lies", "capital", "near"),
]
CHARACTERS = [*string.ascii_lowercase, *string.digits, *string.punctuation]
VOCABULARY = list(dict.fromkeys([*MARKS, *WORDS, *CHARACTERS, *(f"##{c}" for c in CHARACTERS), "##ing", "##er"]))
BERT = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": len(VOCABULARY),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]


def write_vocabulary(folder: Path) -> None:
    """vocab.txt of a lower-casing WordPiece tokenizer."""
    lines = "".join(f"{piece}\n" for piece in VOCABULARY)
    (folder / "vocab.txt").write_text(lines, encoding="utf-8")


def write_bert(folder: Path, seed: int = 0, prefix: str = "", **changes: Any) -> Path:
    """A BERT encoder with its tokenizer; `prefix` is prepended to the tensors' names, as in models that have one."""
    folder.mkdir(parents=True, exist_ok=True)
    config = BERT | changes
    (folder / "config.json").write_text(json.dumps(config))
    write_vocabulary(folder)
    rng = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    for path, param in jax.tree_util.tree_leaves_with_path(bert.declare(bert.from_hf(config))):
        tensor = bert.hf_tensor(path_name(path))
        mean = 1.0 if "scale" in path_name(path) else 0.0
        values = mean + 0.2 * rng.normal(size=param.shape).astype(np.float32)
        for index in np.ndindex(param.shape[: tensor.leading]):
            part = values[index].T if tensor.transposed else values[index]
            tensors[prefix + tensor.at(index)] = np.ascontiguousarray(part, np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_modules(folder: Path, pooling: Mapping[str, Any], normalize: bool = True) -> None:
    """The files in which sentence-transformers describes how hidden states become a vector."""
    (folder / "modules.json").write_text(json.dumps(MODULES if normalize else MODULES[:2]))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **pooling}))


def write_dense(
    folder: Path, outputs: int, activation: str, bias: bool = True, normalize: bool = True, **changes: Any
) -> dict[str, np.ndarray]:
    """A dense layer between pooling and normalisation, after write_modules; returns its tensors."""
    inputs = changes.get("in_features", 32)
    place = folder / "2_Dense"
    place.mkdir(exist_ok=True)
    config = {"in_features": inputs, "out_features": outputs, "bias": bias, "activation_function": activation}
    (place / "config.json").write_text(json.dumps(config | changes))
    rng = np.random.default_rng(3)
    tensors = {"linear.weight": rng.normal(size=(outputs, inputs)).astype(np.float32)}
    if bias:
        tensors["linear.bias"] = rng.normal(size=outputs).astype(np.float32)
    save_file(tensors, place / "model.safetensors")
    dense = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    last = [MODULES[2] | {"idx": 3, "name": "3", "path": "3_Normalize"}] if normalize else []
    (folder / "modules.json").write_text(json.dumps([*MODULES[:2], dense, *last]))
    return tensors
