"""The BERT encoder (Devlin et al. 2019) as pure functions; layers are stacked over L and scanned, as in the decoder.

E5, BGE, GTE and most sentence encoders of similar size are this model with different weights; those of many languages
(multilingual E5) are RoBERTas, which count positions from the id of the padding token plus one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from scope_jax.errors import UserError
from scope_jax.models.decoder.hf import HfTensor
from scope_jax.models.fields import MOST_LAYERS, count, cut, number
from scope_jax.models.files.defaults import completed
from scope_jax.models.kernels.attention import Attend, attend_both_ways
from scope_jax.sharding.spec import Param, normal, ones, zeros

Params = dict[str, Any]

INIT_STD = 0.02  # BERT's initializer_range


@dataclass(frozen=True)
class BertConfig:
    """Shape of one BERT encoder: learned positions, post-norm layers, biases everywhere, exact GELU.

    max_positions: the longest text including special tokens. first_position: row of the position table for the first
    token, which the table has in addition.
    """

    vocab_size: int  # V
    num_layers: int  # L
    width: int  # D
    num_heads: int  # H
    ffn_width: int  # F
    norm_eps: float
    max_positions: int
    token_types: int
    first_position: int = 0

    def __post_init__(self) -> None:
        if self.width % self.num_heads:
            raise UserError(f"BertConfig.width ({self.width}) must be a multiple of num_heads ({self.num_heads}).")


def from_hf(config: Mapping[str, Any], model_type: str = "bert") -> BertConfig:
    """BertConfig from a Hugging Face config.json of a "bert", "roberta" or "xlm-roberta"; what it leaves out has the
    defaults of its class. Raises ValueError naming an unsupported or invalid field."""
    config = completed(model_type, config)
    wanted = {"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False}
    for name, value in wanted.items():
        if config.get(name, value) != value:
            raise UserError(f"config.json: field {name!r} is {cut(repr(config[name]))}; only {value!r} is supported.")
    first = 0 if model_type == "bert" else count(config, "pad_token_id", least=0) + 1
    return BertConfig(
        vocab_size=count(config, "vocab_size"),
        num_layers=count(config, "num_hidden_layers", most=MOST_LAYERS),
        width=count(config, "hidden_size"),
        num_heads=count(config, "num_attention_heads"),
        ffn_width=count(config, "intermediate_size"),
        norm_eps=number(config, "layer_norm_eps"),
        max_positions=count(config, "max_position_embeddings", least=first + 1) - first,
        token_types=count(config, "type_vocab_size"),
        first_position=first,
    )


# ------------------------------------------------------------------------------------------------------------ weights
_EMBED = {
    "embed.table_VD": HfTensor("embeddings.word_embeddings.weight", False),
    "embed.positions_TD": HfTensor("embeddings.position_embeddings.weight", False),
    "embed.types_D": HfTensor("embeddings.token_type_embeddings.weight", False),
    "embed.norm_scale_D": HfTensor("embeddings.LayerNorm.weight", False),
    "embed.norm_bias_D": HfTensor("embeddings.LayerNorm.bias", False),
}
_LAYER = {
    "q_D_Hh": HfTensor("attention.self.query.weight", True),
    "k_D_Hh": HfTensor("attention.self.key.weight", True),
    "v_D_Hh": HfTensor("attention.self.value.weight", True),
    "o_Hh_D": HfTensor("attention.output.dense.weight", True),
    "q_bias_Hh": HfTensor("attention.self.query.bias", False),
    "k_bias_Hh": HfTensor("attention.self.key.bias", False),
    "v_bias_Hh": HfTensor("attention.self.value.bias", False),
    "o_bias_D": HfTensor("attention.output.dense.bias", False),
    "attn_norm_scale_D": HfTensor("attention.output.LayerNorm.weight", False),
    "attn_norm_bias_D": HfTensor("attention.output.LayerNorm.bias", False),
    "up_DF": HfTensor("intermediate.dense.weight", True),
    "up_bias_F": HfTensor("intermediate.dense.bias", False),
    "down_FD": HfTensor("output.dense.weight", True),
    "down_bias_D": HfTensor("output.dense.bias", False),
    "ffn_norm_scale_D": HfTensor("output.LayerNorm.weight", False),
    "ffn_norm_bias_D": HfTensor("output.LayerNorm.bias", False),
}


def hf_tensor(path: str) -> HfTensor:
    """The checkpoint tensor of our weight "layers.q_D_Hh", "embed.table_VD", ..., as named in a bare BertModel."""
    if not path.startswith("layers."):
        return _EMBED[path]
    tensor = _LAYER[path.removeprefix("layers.")]
    return HfTensor("encoder.layer.{i}." + tensor.name, tensor.transposed)


def declare(cfg: BertConfig) -> Params:
    """The tree of Param: embed.*, layers.* with a leading L. The pooler is omitted: text embeddings do not use it."""
    D, F = cfg.width, cfg.ffn_width

    def weight(shape: tuple[int, ...], *axes: str | None, init=normal(INIT_STD)) -> Param:
        return Param((cfg.num_layers, *shape), ("layers", *axes), init, jnp.float32)

    def table(rows: int, axis: str | None) -> Param:
        return Param((rows, D), (axis, "width"), normal(INIT_STD), jnp.float32)

    layers = {
        "q_D_Hh": weight((D, D), "width", "heads"),
        "k_D_Hh": weight((D, D), "width", "heads"),
        "v_D_Hh": weight((D, D), "width", "heads"),
        "o_Hh_D": weight((D, D), "heads", "width"),
        "up_DF": weight((D, F), "width", "ffn"),
        "down_FD": weight((F, D), "ffn", "width"),
        "up_bias_F": weight((F,), None, init=zeros),
    }
    for name in ("q_bias_Hh", "k_bias_Hh", "v_bias_Hh", "o_bias_D", "down_bias_D"):
        layers[name] = weight((D,), None, init=zeros)
    for name in ("attn_norm", "ffn_norm"):
        layers[f"{name}_scale_D"] = weight((D,), None, init=ones)
        layers[f"{name}_bias_D"] = weight((D,), None, init=zeros)
    embed = {
        "table_VD": table(cfg.vocab_size, "vocab"),
        "positions_TD": table(cfg.first_position + cfg.max_positions, None),
        "types_D": table(cfg.token_types, None),
        "norm_scale_D": Param((D,), (None,), ones, jnp.float32),
        "norm_bias_D": Param((D,), (None,), zeros, jnp.float32),
    }
    return {"embed": embed, "layers": layers}


# ------------------------------------------------------------------------------------------------------------ forward
def layer_norm(
    x: Float[Array, "..."], scale: Float[Array, " n"], bias: Float[Array, " n"], eps: float
) -> Float[Array, "..."]:
    """(x − mean) / √(var + eps) · scale + bias over the last dimension, computed in float32 (Ba et al. 2016)."""
    x32 = x.astype(jnp.float32)
    centred = x32 - x32.mean(-1, keepdims=True)
    normed = centred * lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + eps)
    return (normed * scale.astype(jnp.float32) + bias.astype(jnp.float32)).astype(x.dtype)


def _layer(cfg: BertConfig, w: Params, x_BTD: jax.Array, attend: Attend) -> jax.Array:
    """norm(x + attention(x)), then norm(x + ffn(x))."""
    rows, length, width = x_BTD.shape
    x_ND = x_BTD.reshape(-1, width)

    def heads(name: str) -> jax.Array:
        return (x_ND @ w[f"{name}_D_Hh"] + w[f"{name}_bias_Hh"]).reshape(rows, length, cfg.num_heads, -1)

    o_ND = attend(heads("q"), heads("k"), heads("v")).reshape(-1, width)
    x_ND = x_ND + o_ND @ w["o_Hh_D"] + w["o_bias_D"]
    x_ND = layer_norm(x_ND, w["attn_norm_scale_D"], w["attn_norm_bias_D"], cfg.norm_eps)
    hidden_NF = jax.nn.gelu(x_ND @ w["up_DF"] + w["up_bias_F"], approximate=False)
    x_ND = x_ND + hidden_NF @ w["down_FD"] + w["down_bias_D"]
    return layer_norm(x_ND, w["ffn_norm_scale_D"], w["ffn_norm_bias_D"], cfg.norm_eps).reshape(x_BTD.shape)


def hidden(
    cfg: BertConfig, params: Params, ids_BT: Int[Array, "B T"], lengths_B: Int[Array, " B"], compute_dtype: Any
) -> Float[Array, "B T D"]:
    """Last hidden states in compute_dtype, one text per row: its first lengths_B tokens (at least one).

    Every token attends to all tokens of the text; outputs of padding are meaningless. All tokens have type 0, as in
    single texts.
    """
    embed = params["embed"]
    positions_TD = embed["positions_TD"][cfg.first_position :][: ids_BT.shape[1]]
    x_BTD = embed["table_VD"][ids_BT] + positions_TD + embed["types_D"][0]
    x_BTD = layer_norm(x_BTD.astype(compute_dtype), embed["norm_scale_D"], embed["norm_bias_D"], cfg.norm_eps)
    attend = attend_both_ways(lengths_B)

    def layer(x_BTD: jax.Array, w: Params) -> tuple[jax.Array, None]:
        return _layer(cfg, jax.tree.map(lambda x: x.astype(compute_dtype), w), x_BTD, attend), None

    return lax.scan(layer, x_BTD, params["layers"])[0]
