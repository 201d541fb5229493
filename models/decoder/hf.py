"""Names of our weights in a Hugging Face checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from scope_jax.models.decoder import stacks
from scope_jax.models.decoder.config import Delta, Experts, ModelConfig, Parallel
from scope_jax.models.decoder.transformer import declare
from scope_jax.sharding.spec import path_name


@dataclass(frozen=True)
class HfTensor:
    """The checkpoint tensor of one of our weights: its name, whether it is transposed, and which part of it.

    "{i}" in the name stands for the layer and "{x}" for the expert; these are then the first dimensions of our weight.
    layers: the number of the layer at each place of a stack, () if they are the same. rows: (first, all) of a tensor of
    which our weight is only some rows, those of other weights around them. fused: the experts are the first dimension
    of one tensor. column: the tensor has a dimension of 1 behind its rows (a convolution of single features). turns:
    (which, of how many) weights whose columns take turns in one tensor.
    """

    name: str
    transposed: bool
    layers: tuple[int, ...] = ()
    rows: tuple[int, int] | None = None
    fused: bool = False
    column: bool = False
    turns: tuple[int, int] = (0, 1)

    @property
    def leading(self) -> int:
        """Number of leading dimensions of our weight (layer, expert) that are separate tensors in the checkpoint."""
        return ("{i}" in self.name) + ("{x}" in self.name or self.fused)

    def files(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of our weight's shape the leading dimensions that are tensors of their own."""
        return shape[: self.leading - self.fused]

    def stored(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a tensor, from our weight's."""
        rest = shape[self.leading :][::-1] if self.transposed else shape[self.leading :]
        if self.rows is not None:
            rest = (self.rows[1], *rest[1:])
        if self.column:
            rest = (rest[0], 1, *rest[1:])
        if self.turns[1] > 1:
            rest = (*rest[:-1], rest[-1] * self.turns[1])
        return (shape[self.leading - 1], *rest) if self.fused else rest

    def at(self, index: tuple[int, ...]) -> str:
        """The tensor's name at an index of the leading dimensions, () if there are none."""
        if self.layers and index:
            index = (self.layers[index[0]], *index[1:])
        return self.name.format(**dict(zip("ix", index, strict=False)))


EXPERT = re.compile(r"\.mlp\.experts\.\d+\.")
FUSED = ("qwen3_5_text", "qwen3_5_moe_text")  # whose files have several matrices in one tensor
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
    "sinks_H": HfTensor("self_attn.sinks", False),
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
    "scalar_1": HfTensor("layer_scalar", False),
    "input_gate_Dp": HfTensor("per_layer_input_gate.weight", True),
    "input_out_pD": HfTensor("per_layer_projection.weight", True),
    "input_norm_D": HfTensor("post_per_layer_input_norm.weight", False),
    "dense_out_norm_D": HfTensor("post_feedforward_layernorm_1.weight", False),
    "experts_norm_D": HfTensor("pre_feedforward_layernorm_2.weight", False),
    "experts_out_norm_D": HfTensor("post_feedforward_layernorm_2.weight", False),
    "router_norm_D": HfTensor("router.scale", False),
    "expert_scale_X": HfTensor("router.per_expert_scale", False),
}
_SHARED = {
    "shared_gate_DF": HfTensor("mlp.shared_expert.gate_proj.weight", True),
    "shared_up_DF": HfTensor("mlp.shared_expert.up_proj.weight", True),
    "shared_down_FD": HfTensor("mlp.shared_expert.down_proj.weight", True),
    "shared_D1": HfTensor("mlp.shared_expert_gate.weight", True),
}
_DELTA = {
    "z_D_He": HfTensor("linear_attn.in_proj_z.weight", True),
    "beta_DH": HfTensor("linear_attn.in_proj_b.weight", True),
    "decay_DH": HfTensor("linear_attn.in_proj_a.weight", True),
    "rate_H": HfTensor("linear_attn.A_log", False),
    "decay_bias_H": HfTensor("linear_attn.dt_bias", False),
    "norm_e": HfTensor("linear_attn.norm.weight", False),
    "o_He_D": HfTensor("linear_attn.out_proj.weight", True),
}
_OLMO_DELTA = _DELTA | {
    "attn_norm_D": HfTensor("attention_layer_norm.weight", False),
    "ffn_norm_D": HfTensor("feedforward_layer_norm.weight", False),
    "q_D_Kh": HfTensor("linear_attn.q_proj.weight", True),
    "k_D_Kh": HfTensor("linear_attn.k_proj.weight", True),
    "v_D_He": HfTensor("linear_attn.v_proj.weight", True),
    "q_taps_Kh_a": HfTensor("linear_attn.q_conv1d.weight", False, column=True),
    "k_taps_Kh_a": HfTensor("linear_attn.k_conv1d.weight", False, column=True),
    "v_taps_He_a": HfTensor("linear_attn.v_conv1d.weight", False, column=True),
    "z_D_He": HfTensor("linear_attn.g_proj.weight", True),
    "beta_DH": HfTensor("linear_attn.b_proj.weight", True),
    "decay_DH": HfTensor("linear_attn.a_proj.weight", True),
    "norm_e": HfTensor("linear_attn.o_norm.weight", False),
    "o_He_D": HfTensor("linear_attn.o_proj.weight", True),
}


def _fused_delta(mixer: Delta) -> dict[str, HfTensor]:
    """Of a Gated DeltaNet whose queries, keys and values are one tensor in files, and so their convolutions."""
    keys, values = mixer.num_key_heads * mixer.key_dim, mixer.num_heads * mixer.value_dim
    found = dict(_DELTA)
    for first, weight, taps in (
        (0, "q_D_Kh", "q_taps_Kh_a"),
        (keys, "k_D_Kh", "k_taps_Kh_a"),
        (2 * keys, "v_D_He", "v_taps_He_a"),
    ):
        rows = (first, 2 * keys + values)
        found[weight] = HfTensor("linear_attn.in_proj_qkv.weight", True, rows=rows)
        found[taps] = HfTensor("linear_attn.conv1d.weight", False, rows=rows, column=True)
    return found


def _fused_experts(feed: Experts, place: str) -> dict[str, HfTensor]:
    """Of experts whose matrices are one tensor in files, gate and up beside each other."""
    first, second = (0, 2 * feed.width), (feed.width, 2 * feed.width)
    return {
        "gate_XDF": HfTensor(f"{place}experts.gate_up_proj", True, rows=first, fused=True),
        "up_XDF": HfTensor(f"{place}experts.gate_up_proj", True, rows=second, fused=True),
        "down_XFD": HfTensor(f"{place}experts.down_proj", True, fused=True),
    }


# Post-norm models use names of their own: there post_attention_layernorm really follows attention.
_POST_NORM = {
    "attn_norm_D": HfTensor("post_attention_layernorm.weight", False),
    "ffn_norm_D": HfTensor("post_feedforward_layernorm.weight", False),
}
# gpt-oss has the matrices of a layer's experts in one tensor, and gate and up in one, in turns.
_CLAMPED = {
    "router_DX": HfTensor("mlp.router.weight", True),
    "router_bias_X": HfTensor("mlp.router.bias", False),
    "gate_XDF": HfTensor("mlp.experts.gate_up_proj", False, fused=True, turns=(0, 2)),
    "gate_bias_XF": HfTensor("mlp.experts.gate_up_proj_bias", False, turns=(0, 2)),
    "up_XDF": HfTensor("mlp.experts.gate_up_proj", False, fused=True, turns=(1, 2)),
    "up_bias_XF": HfTensor("mlp.experts.gate_up_proj_bias", False, turns=(1, 2)),
    "down_XFD": HfTensor("mlp.experts.down_proj", False, fused=True),
    "down_bias_XD": HfTensor("mlp.experts.down_proj_bias", False),
}
# With norms before and after, too.
_BOTH_NORMS = {
    "attn_out_norm_D": HfTensor("post_attention_layernorm.weight", False),
    "ffn_norm_D": HfTensor("pre_feedforward_layernorm.weight", False),
    "ffn_out_norm_D": HfTensor("post_feedforward_layernorm.weight", False),
}
_PARALLEL = {"router_DX": HfTensor("router.proj.weight", True)}
_BY_NORMS = {"pre": _LAYER, "post": _LAYER | _POST_NORM, "both": _LAYER | _BOTH_NORMS}
_TOP = {
    "embed.table_VD": HfTensor("model.embed_tokens.weight", False),
    "final_norm.scale_D": HfTensor("model.norm.weight", False),
    "head.table_VD": HfTensor("lm_head.weight", False),
    "inputs.table_V_Lp": HfTensor("model.embed_tokens_per_layer.weight", False),
    "inputs.project_D_Lp": HfTensor("model.per_layer_model_projection.weight", True),
    "inputs.norm_p": HfTensor("model.per_layer_projection_norm.weight", False),
}


def tensors_of(cfg: ModelConfig, names: Iterable[str]) -> Callable[[str], HfTensor]:
    """`hf_tensor` of a checkpoint with tensors of these names: transformers writes each expert's matrices as tensors of
    their own where the published files have one for all."""
    return partial(hf_tensor, cfg, fused=not any(map(EXPERT.search, names)))


def hf_tensor(cfg: ModelConfig, path: str, fused: bool = True) -> HfTensor:
    """The checkpoint tensor of this model's weight "layers.q_D_Hh", "layers.1.q_D_Hh", "embed.table_VD", ... fused: of
    families that have it so, a layer's experts are one tensor."""
    if not path.startswith("layers."):
        return _TOP[path]
    stack, name = stacks.by_path(path)
    numbers = stacks.stacks(cfg)
    layer = cfg.layers[numbers[stack][0]]
    tensors = _BY_NORMS[layer.norms] | _SHARED
    if isinstance(layer.mixer, Delta):
        tensors |= _fused_delta(layer.mixer) if cfg.architecture in FUSED else _OLMO_DELTA
    if isinstance(layer.feed, Experts) and layer.feed.activation == "clamped":
        tensors |= _CLAMPED
    elif isinstance(layer.feed, Experts) and cfg.architecture in FUSED and fused:
        tensors |= _fused_experts(layer.feed, "mlp.")
    if isinstance(layer.feed, Parallel):
        tensors |= _PARALLEL | _fused_experts(layer.feed.experts, "")
    tensor = tensors[name]
    return replace(tensor, name="model.layers.{i}." + tensor.name, layers=numbers[stack] if len(numbers) > 1 else ())


def hf_shapes(cfg: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of this model's checkpoint, in file order."""
    return tree_shapes(declare(cfg), lambda path: hf_tensor(cfg, path))


def tree_shapes(tree: Any, tensor_of: Callable[[str], HfTensor]) -> dict[str, tuple[int, ...]]:
    """Name and shape of every checkpoint tensor of a tree of Param; tensor_of maps our path to its HfTensor."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path, param in jax.tree_util.tree_leaves_with_path(tree):
        tensor = tensor_of(path_name(path))
        for index in np.ndindex(tensor.files(param.shape)):
            shapes[tensor.at(index)] = tensor.stored(param.unpadded)
    return shapes
