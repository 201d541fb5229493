"""Embedding models: a text's tokens in, one vector out, for BERT and RoBERTa (E5) and Qwen3 decoders (Qwen3-Embedding).

`models/encoders/sentence_files.py` reads how a folder makes a vector of hidden states.

Pure functions of a config and a tree of weights; `models/encoders/texts.py` adds tokenizer, batching and devices.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from scope_jax.errors import UserError
from scope_jax.models.decoder import transformer
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.hf import HfTensor
from scope_jax.models.decoder.hf import hf_tensor as decoder_tensor
from scope_jax.models.encoders import bert, sentence_files
from scope_jax.models.encoders.bert import BertConfig
from scope_jax.models.encoders.sentence_files import Activation, DenseModule, Modules, Pooling, Said
from scope_jax.models.fields import WeightsError, read_object, shown, texts
from scope_jax.models.files import claims, weights
from scope_jax.models.files.families import from_hf as decoder_config
from scope_jax.models.files.redundant import HEAD, Redundant, of_decoder
from scope_jax.models.files.tensorfile import Checkpoint
from scope_jax.models.kernels.masks import ends_of
from scope_jax.sharding.collectives import LOCAL
from scope_jax.sharding.rules import TRAIN, Rules
from scope_jax.sharding.spec import Param, zeros

Params = dict[str, Any]

# An encoder is small compared to the policy: it is replicated on every device, and texts are split over the mesh.
WHOLE: Rules = tuple((axis, ()) for axis, _ in TRAIN)
ACTIVATIONS: dict[Activation, Callable[[Array], Array]] = {
    "Identity": lambda x: x,
    "Tanh": jnp.tanh,
    "ReLU": jax.nn.relu,
    "GELU": partial(jax.nn.gelu, approximate=False),
    "Sigmoid": jax.nn.sigmoid,
}
ARCHITECTURES = {
    "BertModel": "bert",
    "RobertaModel": "roberta",
    "XLMRobertaModel": "xlm-roberta",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3Model": "qwen3",
}
# Prefix of a BERT saved within another model -> what that one may store besides.
HEADS = {"bert.": r"|cls\.(predictions|seq_relationship)\..+", "roberta.": r"|lm_head\..+"}
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
    """An embedding model: its transformer, how hidden states become a vector, and what its folder says about texts.

    described: False if the folder has no modules.json, so that the architecture decides pooling and normalisation.
    """

    model: BertConfig | ModelConfig
    modules: Modules
    said: Said
    described: bool

    @property
    def pooling(self) -> Pooling:
        return self.modules.pooling

    @property
    def normalize(self) -> bool:
        return self.modules.normalize

    @property
    def width(self) -> int:
        """Numbers of one vector."""
        return self.modules.dense[-1].outputs if self.modules.dense else self.model.width

    @property
    def unit(self) -> bool:
        """True if vectors are compared at length one, False for the inner product of vectors as they are."""
        return self.normalize or self.said.similarity != "dot"

    @property
    def kind(self) -> Literal["bert", "qwen3"]:
        return "bert" if isinstance(self.model, BertConfig) else "qwen3"


# -------------------------------------------------------------------------------------------------------------- folder
def load_config(folder: str | Path) -> EncoderConfig:
    """EncoderConfig of a Hugging Face folder, with what its sentence-transformers files specify.

    Without modules.json the architecture decides: mean for BERT and RoBERTa (E5), the last token for Qwen3, normalised
    for all.
    Raises FileNotFoundError if folder or config.json is missing, WeightsError for anything not supported.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"Encoder folder {folder} does not exist; give a folder in Hugging Face layout.")
    contents = read_object(folder / "config.json")
    try:
        names = texts(contents, "architectures")
        named = names or [name for name, kind in ARCHITECTURES.items() if kind == contents.get("model_type")]
        kind = next((ARCHITECTURES[name] for name in named if name in ARCHITECTURES), None)
        if kind is None:
            raise UserError(
                f"architectures {shown(names)} is not a supported encoder; supported are {', '.join(ARCHITECTURES)}."
            )
        if kind == "qwen3":
            model = decoder_config({**contents, "architectures": ["Qwen3ForCausalLM"]})
        else:
            model = bert.from_hf(contents, kind)
        modules, said = sentence_files.modules(folder, model.width), sentence_files.said(folder)
        usual = Modules("last" if kind == "qwen3" else "mean", (), normalize=True)
        cfg = EncoderConfig(model, modules or usual, said, modules is not None)
        if said.similarity == "euclidean" and not cfg.normalize:
            raise UserError("its vectors are compared by distance, which is supported only for normalised vectors.")
    except ValueError as error:
        raise WeightsError(f"{folder}: {error}") from None
    return cfg


def fingerprint(folder: str | Path) -> str:
    """32 hex digits that change with the folder's model: a hash over its config, modules and tokenizer files, and over
    the size, the header and 64 evenly spread samples of 4 KiB of each weight file. Prefixes and lengths are not in it.

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
    cfg = load_config(folder)
    if cfg.said.lower_case:
        digest.update(b"lower case\n")
    layers = [path for layer in cfg.modules.dense for path in sorted((folder / layer.folder).glob("*.safetensors"))]
    for path in (*sorted(folder.glob("*.safetensors")), *layers):
        size = path.stat().st_size
        digest.update(f"{path.relative_to(folder).as_posix()} {size}\n".encode())
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
    with ExitStack() as stack:
        stored = Checkpoint(Path(folder), stack).shapes
    prefix = _prefix(cfg, stored)
    tree, tensor_of = declare(cfg), _names(cfg, prefix)
    claims.compare(Path(folder), stored, tree, tensor_of)  # before arrays of what may be stored besides
    params = weights.load_tree(folder, tree, tensor_of, _besides(cfg, prefix), mesh, WHOLE, dtype)
    if cfg.modules.dense:
        params["dense"] = tuple(_dense(Path(folder), layer, mesh) for layer in cfg.modules.dense)
    return cfg, params


def _dense(folder: Path, layer: DenseModule, mesh: Mesh | None) -> Params:
    """weight_DE and, if the layer has one, bias_E, in float32."""
    shapes = {"weight_DE": (layer.inputs, layer.outputs)} | ({"bias_E": (layer.outputs,)} if layer.bias else {})
    tree = {name: Param(shape, (None,) * len(shape), zeros, jnp.float32) for name, shape in shapes.items()}
    names = {"weight_DE": HfTensor("linear.weight", True), "bias_E": HfTensor("linear.bias", False)}
    return weights.load_tree(folder / layer.folder, tree, names.__getitem__, Redundant(), mesh, WHOLE, jnp.float32)


def _prefix(cfg: EncoderConfig, stored: Collection[str]) -> str:
    """What names of a model saved within another one begin with."""
    if isinstance(cfg.model, BertConfig):
        return next((one for one in HEADS if any(name.startswith(one) for name in stored)), "")
    return "model." if any(name.startswith("model.") for name in stored) else ""


def _names(cfg: EncoderConfig, prefix: str) -> Callable[[str], HfTensor]:
    """The checkpoint tensor of each weight."""
    model = cfg.model

    def tensor_of(path: str) -> HfTensor:
        if isinstance(model, BertConfig):
            tensor = bert.hf_tensor(path)
            return HfTensor(prefix + tensor.name, tensor.transposed)
        tensor = decoder_tensor(model, path)
        return HfTensor(prefix + tensor.name.removeprefix("model."), tensor.transposed)

    return tensor_of


def _besides(cfg: EncoderConfig, prefix: str) -> Redundant:
    """What may be stored besides. What predicts tokens or classes (a pooler, heads of pre-training, an output table)
    has no part in a vector."""
    model = cfg.model
    if isinstance(model, BertConfig):
        positions = np.arange(model.first_position + model.max_positions)
        buffers = {"position_ids": positions, "token_type_ids": np.zeros_like(positions)}
        named = {re.compile(re.escape(f"{prefix}embeddings.{name}")): (values,) for name, values in buffers.items()}
        unused = re.compile(rf"{re.escape(prefix)}pooler\.dense\.(weight|bias){HEADS.get(prefix, '')}")
        return Redundant({}, tuple(named.items()), unused)
    extra = of_decoder(model, prefix)
    return extra if model.tie_embeddings else replace(extra, unused=re.compile(re.escape(HEAD)))


# ------------------------------------------------------------------------------------------------------------- forward
def pool(hidden_BTD: Float[Array, "B T D"], lengths_B: Int[Array, " B"], pooling: Pooling) -> Float[Array, "B D"]:
    """One float32 vector per row, pooled over its first lengths_B tokens (at least one).

    weightedmean: the mean with weights 1, 2, 3, … (Muennighoff 2022); mean_sqrt_len: the sum over √length.
    """
    hidden_BTD = hidden_BTD.astype(jnp.float32)
    if pooling == "cls":
        return hidden_BTD[:, 0]
    if pooling == "last":
        return jnp.take_along_axis(hidden_BTD, (lengths_B - 1)[:, None, None], axis=1)[:, 0]
    places_T = jnp.arange(hidden_BTD.shape[1])
    real_BT1 = (places_T < lengths_B[:, None])[..., None]
    if pooling == "max":
        return jnp.where(real_BT1, hidden_BTD, -jnp.inf).max(1)
    weights_BT1 = jnp.where(real_BT1, places_T[:, None] + 1.0 if pooling == "weightedmean" else 1.0, 0)
    # Outputs of padding are not multiplied by 0, as they may be anything.
    total_BD = (jnp.where(real_BT1, hidden_BTD, 0) * weights_BT1).sum(1)
    weight_B1 = weights_BT1.sum(1)
    return total_BD / (jnp.sqrt(weight_B1) if pooling == "mean_sqrt_len" else weight_B1)


def embed(
    cfg: EncoderConfig, params: Params, ids_BT: Int[Array, "B T"], lengths_B: Int[Array, " B"], compute_dtype: Any
) -> Float[Array, "B E"]:
    """One float32 vector per row for its first lengths_B tokens (at least one), L2-normalised if cfg.normalize.

    Tokens after them affect rounding only.
    """
    if isinstance(cfg.model, BertConfig):
        hidden_BTD = bert.hidden(cfg.model, params, ids_BT, lengths_B, compute_dtype)
    else:
        positions_BT = jnp.broadcast_to(jnp.arange(ids_BT.shape[1]), ids_BT.shape)
        hidden_BTD = transformer.hidden(
            cfg.model,
            params,
            ids_BT,
            positions_BT,
            ends_of(lengths_B, ids_BT.shape[1]),
            shards=LOCAL,
            remat="none",
            compute_dtype=compute_dtype,
        )
    vectors_BE = pool(hidden_BTD, lengths_B, cfg.pooling)
    for layer, weights_ in zip(cfg.modules.dense, params.get("dense", ()), strict=True):
        vectors_BE = ACTIVATIONS[layer.activation](vectors_BE @ weights_["weight_DE"] + weights_.get("bias_E", 0))
    if not cfg.normalize:
        return vectors_BE
    return vectors_BE / jnp.maximum(jnp.linalg.norm(vectors_BE, axis=1, keepdims=True), 1e-12)
