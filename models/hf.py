"""Names of our weights in a Hugging Face checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from scope_jax.models import stacks
from scope_jax.models.config import ModelConfig
from scope_jax.models.transformer import declare
from scope_jax.sharding.spec import path_name


@dataclass(frozen=True)
class HfTensor:
    """The checkpoint tensor of one of our weights: its name, and whether it is transposed.

    "{i}" in the name stands for the layer and "{x}" for the expert; these are then the first dimensions of our weight.
    layers: the number of the layer at each place of a stack, () if they are the same.
    """

    name: str
    transposed: bool
    layers: tuple[int, ...] = ()

    @property
    def leading(self) -> int:
        """Number of leading dimensions of our weight (layer, expert) that are separate tensors in the checkpoint."""
        return ("{i}" in self.name) + ("{x}" in self.name)

    def at(self, index: tuple[int, ...]) -> str:
        """The tensor's name at an index of the leading dimensions, () if there are none."""
        if self.layers and index:
            index = (self.layers[index[0]], *index[1:])
        return self.name.format(**dict(zip("ix", index, strict=False)))


_LAYER = {
    "attn_norm_D": HfTensor("input_layernorm.weight", False),
    "q_D_Hh": HfTensor("self_attn.q_proj.weight", True),
    "k_D_Kh": HfTensor("self_attn.k_proj.weight", True),
    "v_D_Kh": HfTensor("self_attn.v_proj.weight", True),
    "o_Hh_D": HfTensor("self_attn.o_proj.weight", True),
    "q_bias_Hh": HfTensor("self_attn.q_proj.bias", False),
    "k_bias_Kh": HfTensor("self_attn.k_proj.bias", False),
    "v_bias_Kh": HfTensor("self_attn.v_proj.bias", False),
    "o_bias_D": HfTensor("self_attn.o_proj.bias", False),
    "q_norm_h": HfTensor("self_attn.q_norm.weight", False),
    "k_norm_h": HfTensor("self_attn.k_norm.weight", False),
    "q_norm_Hh": HfTensor("self_attn.q_norm.weight", False),
    "k_norm_Kh": HfTensor("self_attn.k_norm.weight", False),
    "ffn_norm_D": HfTensor("post_attention_layernorm.weight", False),
    "gate_DF": HfTensor("mlp.gate_proj.weight", True),
    "up_DF": HfTensor("mlp.up_proj.weight", True),
    "down_FD": HfTensor("mlp.down_proj.weight", True),
    "router_DX": HfTensor("mlp.gate.weight", True),
    "gate_XDF": HfTensor("mlp.experts.{x}.gate_proj.weight", True),
    "up_XDF": HfTensor("mlp.experts.{x}.up_proj.weight", True),
    "down_XFD": HfTensor("mlp.experts.{x}.down_proj.weight", True),
}
# Post-norm models use names of their own: there post_attention_layernorm really follows attention.
_POST_NORM = {
    "attn_norm_D": HfTensor("post_attention_layernorm.weight", False),
    "ffn_norm_D": HfTensor("post_feedforward_layernorm.weight", False),
}
# With norms before and after, too.
_BOTH_NORMS = {
    "attn_out_norm_D": HfTensor("post_attention_layernorm.weight", False),
    "ffn_norm_D": HfTensor("pre_feedforward_layernorm.weight", False),
    "ffn_out_norm_D": HfTensor("post_feedforward_layernorm.weight", False),
}
_BY_NORMS = {"pre": _LAYER, "post": _LAYER | _POST_NORM, "both": _LAYER | _BOTH_NORMS}
_TOP = {
    "embed.table_VD": HfTensor("model.embed_tokens.weight", False),
    "final_norm.scale_D": HfTensor("model.norm.weight", False),
    "head.table_VD": HfTensor("lm_head.weight", False),
}


def hf_tensor(cfg: ModelConfig, path: str) -> HfTensor:
    """The checkpoint tensor of this model's weight "layers.q_D_Hh", "layers.1.q_D_Hh", "embed.table_VD", ..."""
    if not path.startswith("layers."):
        return _TOP[path]
    stack, name = stacks.by_path(path)
    numbers = stacks.stacks(cfg)
    layer = cfg.layers[numbers[stack][0]]
    tensor = _BY_NORMS[layer.norms][name]
    return replace(tensor, name="model.layers.{i}." + tensor.name, layers=numbers[stack] if len(numbers) > 1 else ())


def hf_shapes(cfg: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of this model's checkpoint, in file order."""
    return tree_shapes(declare(cfg), lambda path: hf_tensor(cfg, path))


def tree_shapes(tree: Any, tensor_of: Callable[[str], HfTensor]) -> dict[str, tuple[int, ...]]:
    """Name and shape of every checkpoint tensor of a tree of Param; tensor_of maps our path to its HfTensor."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path, param in jax.tree_util.tree_leaves_with_path(tree):
        tensor = tensor_of(path_name(path))
        shape = param.unpadded[tensor.leading :]
        for index in np.ndindex(param.shape[: tensor.leading]):
            shapes[tensor.at(index)] = shape[::-1] if tensor.transposed else shape
    return shapes
