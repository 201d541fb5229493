"""Embedding models: a text's tokens in, one vector out, for BERT encoders (E5) and Qwen3 decoders (Qwen3-Embedding).

Pure functions of a config and a tree of weights; `models/texts.py` adds tokenizer, batching and devices.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from scope_jax.models import bert, transformer, weights
from scope_jax.models.bert import BertConfig
from scope_jax.models.config import ModelConfig
from scope_jax.models.config import from_hf as decoder_config
from scope_jax.models.fields import WeightsError, read_json, read_object, texts, within
from scope_jax.models.hf import HfTensor
from scope_jax.models.hf import hf_tensor as decoder_tensor
from scope_jax.models.redundant import HEAD, Redundant, of_decoder
from scope_jax.sharding.collectives import LOCAL
from scope_jax.sharding.rules import TRAIN, Rules

Params = dict[str, Any]
Pooling = Literal["mean", "cls", "last"]

# An encoder is small compared to the policy: it is replicated on every device, and texts are split over the mesh.
WHOLE: Rules = tuple((axis, ()) for axis, _ in TRAIN)
ARCHITECTURES = {"BertModel": "bert", "Qwen3ForCausalLM": "qwen3", "Qwen3Model": "qwen3"}
# Files of a folder, besides the weights, that affect a text's vector.
NAMED_FILES = (
    "config.json",
    "modules.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
)
SAMPLES, SAMPLE_BYTES = 64, 4096  # samples of a weight file that enter its fingerprint, and bytes of each


@dataclass(frozen=True)
class EncoderConfig:
    """An embedding model: its transformer, its pooling, and whether vectors are L2-normalised.

    pooling: the "mean" over the text's tokens, its first token ("cls") or its last one.
    """

    model: BertConfig | ModelConfig
    pooling: Pooling
    normalize: bool

    @property
    def kind(self) -> Literal["bert", "qwen3"]:
        return "bert" if isinstance(self.model, BertConfig) else "qwen3"


# -------------------------------------------------------------------------------------------------------------- folder
def load_config(folder: str | Path) -> EncoderConfig:
    """EncoderConfig of a Hugging Face folder, with the pooling that its sentence-transformers files specify.

    Without modules.json the architecture decides: mean for BERT (E5), the last token for Qwen3, normalised for both.
    Raises FileNotFoundError if folder or config.json is missing, WeightsError for anything not supported.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"Encoder folder {folder} does not exist; give a folder in Hugging Face layout.")
    contents = read_object(folder / "config.json")
    try:
        names = texts(contents, "architectures")
        kind = next((ARCHITECTURES[name] for name in names if name in ARCHITECTURES), None)
        if kind is None:
            raise ValueError(
                f"architectures {names} is not a supported encoder; supported are {', '.join(ARCHITECTURES)}."
            )
        if kind == "bert":
            model = bert.from_hf(contents)
        else:
            model = decoder_config({**contents, "architectures": ["Qwen3ForCausalLM"]})
        pooling, normalize = _pooling(folder, "mean" if kind == "bert" else "last")
    except ValueError as error:
        raise WeightsError(f"{folder}: {error}") from None
    return EncoderConfig(model, pooling, normalize)


def _pooling(folder: Path, default: Pooling) -> tuple[Pooling, bool]:
    """(pooling, normalize) from modules.json and the pooling module's config.json; (default, True) without them."""
    path = folder / "modules.json"
    if not path.is_file():
        return default, True
    listed = read_json(path)
    if not isinstance(listed, list) or not all(isinstance(module, Mapping) for module in listed):
        raise ValueError("modules.json is not a list of modules.")
    modules = {str(module.get("type", "")).rsplit(".", 1)[-1]: module for module in listed}
    if unknown := set(modules) - {"Transformer", "Pooling", "Normalize"}:
        raise ValueError(
            f"modules.json has a module {min(unknown)}; only Transformer, Pooling and Normalize are supported."
        )
    pooling = default
    if "Pooling" in modules:
        config = read_object(within(folder, modules["Pooling"].get("path", "1_Pooling"), path) / "config.json")
        pooling = _pooling_mode(config)
    return pooling, "Normalize" in modules


def _pooling_mode(config: Mapping[str, Any]) -> Pooling:
    flags: dict[str, Pooling] = {
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_cls_token": "cls",
        "pooling_mode_lasttoken": "last",
    }
    modes = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    if "pooling_mode" in config:  # newer files name the mode itself
        named = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
        modes = [named.get(config["pooling_mode"], f"pooling_mode_{config['pooling_mode']}")]
    if len(modes) != 1 or modes[0] not in flags:
        raise ValueError(f"the pooling {modes} is not supported; use mean, cls or lasttoken.")
    if config.get("include_prompt", True) is not True:
        raise ValueError("pooling without the prompt (include_prompt) is not supported.")
    return flags[modes[0]]


def fingerprint(folder: str | Path) -> str:
    """32 hex digits that change with the folder's model: a hash over its config, pooling and tokenizer files, and over
    the size, the header and 64 evenly spread samples of 4 KiB of each weight file.

    Only samples, because hashing an 8-billion-parameter model at every start takes a minute, and training changes all
    weights: two checkpoints that differ in only a few weights may get the same fingerprint.
    """
    folder = Path(folder)
    digest = hashlib.blake2b(digest_size=16)
    pooling = sorted(path.relative_to(folder).as_posix() for path in folder.glob("*/config.json"))
    for name in (*NAMED_FILES, *pooling):
        if (folder / name).is_file():
            data = (folder / name).read_bytes()
            digest.update(f"{name} {len(data)}\n".encode())
            digest.update(data)
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with open(path, "rb") as file:
            header = int.from_bytes(file.read(8), "little")
            digest.update(file.read(min(header, size)))
            for sample in range(SAMPLES):
                file.seek(8 + header + max(size - 8 - header - SAMPLE_BYTES, 0) * sample // (SAMPLES - 1))
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


# ------------------------------------------------------------------------------------------------------------- weights
def declare(cfg: EncoderConfig) -> Params:
    """The tree of Param; for a decoder, without its output table."""
    if isinstance(cfg.model, BertConfig):
        return bert.declare(cfg.model)
    tree = transformer.declare(cfg.model)
    return {name: part for name, part in tree.items() if name != "head"}


def load(folder: str | Path, mesh: Mesh | None, dtype: Any) -> tuple[EncoderConfig, Params]:
    """(config, weights in `dtype`), replicated on every device of the mesh, or on the first device if there is no mesh.

    Raises FileNotFoundError or WeightsError with one sentence.
    """
    cfg = load_config(folder)
    tensor_of, extra = _names(cfg, weights.tensor_names(folder))
    return cfg, weights.load_tree(folder, declare(cfg), tensor_of, extra, mesh, WHOLE, dtype)


def _names(cfg: EncoderConfig, stored: frozenset[str]) -> tuple[Callable[[str], HfTensor], Redundant]:
    """(checkpoint name of each weight, what may be stored besides). Names of a model saved within another one have a
    prefix. What predicts tokens or classes (a pooler, heads of pre-training, an output table) has no part in a vector.
    """
    model = cfg.model
    if isinstance(model, BertConfig):
        prefix = "bert." if any(name.startswith("bert.") for name in stored) else ""
        heads = r"|cls\.(predictions|seq_relationship)\..+" if prefix else ""
        positions = np.arange(model.max_positions)
        buffers = {"position_ids": positions, "token_type_ids": np.zeros_like(positions)}
        named = {re.compile(re.escape(f"{prefix}embeddings.{name}")): (values,) for name, values in buffers.items()}
        unused = re.compile(rf"{re.escape(prefix)}pooler\.dense\.(weight|bias){heads}")

        def bert_tensor(path: str) -> HfTensor:
            tensor = bert.hf_tensor(path)
            return HfTensor(prefix + tensor.name, tensor.transposed)

        return bert_tensor, Redundant({}, tuple(named.items()), unused)
    bare = not any(name.startswith("model.") for name in stored)

    def qwen_tensor(path: str) -> HfTensor:
        tensor = decoder_tensor(model, path)
        return HfTensor(tensor.name.removeprefix("model."), tensor.transposed) if bare else tensor

    extra = of_decoder(model, "" if bare else "model.")
    return qwen_tensor, extra if model.tie_embeddings else replace(extra, unused=re.compile(re.escape(HEAD)))


# ------------------------------------------------------------------------------------------------------------- forward
def pool(hidden_BTD: Float[Array, "B T D"], lengths_B: Int[Array, " B"], pooling: Pooling) -> Float[Array, "B D"]:
    """One float32 vector per row, pooled over its first lengths_B tokens (at least one)."""
    hidden_BTD = hidden_BTD.astype(jnp.float32)
    if pooling == "cls":
        return hidden_BTD[:, 0]
    if pooling == "last":
        return jnp.take_along_axis(hidden_BTD, (lengths_B - 1)[:, None, None], axis=1)[:, 0]
    real_BT = jnp.arange(hidden_BTD.shape[1]) < lengths_B[:, None]
    return jnp.where(real_BT[..., None], hidden_BTD, 0).sum(1) / lengths_B[:, None]


def embed(
    cfg: EncoderConfig, params: Params, ids_BT: Int[Array, "B T"], lengths_B: Int[Array, " B"], compute_dtype: Any
) -> Float[Array, "B D"]:
    """One float32 vector per row for its first lengths_B tokens (at least one), L2-normalised if cfg.normalize.

    Tokens after them affect rounding only.
    """
    segments_BT = (jnp.arange(ids_BT.shape[1]) < lengths_B[:, None]).astype(jnp.int32)
    if isinstance(cfg.model, BertConfig):
        hidden_BTD = bert.hidden(cfg.model, params, ids_BT, segments_BT, compute_dtype)
    else:
        positions_BT = jnp.broadcast_to(jnp.arange(ids_BT.shape[1]), ids_BT.shape)
        hidden_BTD = transformer.hidden(
            cfg.model,
            params,
            ids_BT,
            positions_BT,
            segments_BT,
            shards=LOCAL,
            remat="none",
            compute_dtype=compute_dtype,
        )
    vectors_BD = pool(hidden_BTD, lengths_B, cfg.pooling)
    if not cfg.normalize:
        return vectors_BD
    return vectors_BD / jnp.maximum(jnp.linalg.norm(vectors_BD, axis=1, keepdims=True), 1e-12)
