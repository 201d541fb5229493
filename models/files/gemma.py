"""What config.json says of Gemma 3 and Gemma 4 beside what other families have; see `models.files.families`.

In Gemma 4 the full layers have heads of another size and another number of kv heads. transformers 5.23 writes them for
each layer (per_layer_config), earlier ones once (global_head_dim, num_global_key_value_heads); both are read, and the
earlier form, which both understand, is written. The last num_kv_shared_layers attend to the keys and values of the last
layer before them that has the same window; they keep nothing of a token (E2B's cache: 12 sliding and 3 full layers, 18
KiB a token in bfloat16). Published files have keys and values of these layers, which no layer reads (`unread`): an
export of the whole class has them as they were, since other programs refuse files without them.

E2B and E4B have a vector of each layer for each token (hidden_size_per_layer_input): a row of a second table plus a
projection of the embedding, computed once before the layers. The table is half of E2B (2.35 of 4.63 billion weights)
and 2.82 of E4B's 7.46 billion; it is divided over the tensor group and fsdp and never gathered. A whole policy of E2B
has 52 GiB of weights and moments in float32, of which the table is 26.

Scores are scaled in the norm of queries, in float32 (query_pre_attn_scalar; 1 in Gemma 4), so that every backend
computes it; logits are capped in `transformer.logits_of`. Norms of Gemma 3 multiply by 1 + w in float32, as bfloat16
would lose most of w.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scope_jax.errors import UserError
from scope_jax.models.decoder.config import Attention, Dense, Experts, Feed, ModelConfig, Parallel
from scope_jax.models.fields import MOST_LAYERS, count, flag, number, shown, table

CAP = "final_logit_softcapping"
_GLOBAL = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
GLOBAL_HEAD = 512  # without global_head_dim


def whole(config: Mapping[str, Any], width: int) -> dict[str, Any]:
    """Figures of the `ModelConfig`."""
    cap = None if config[CAP] is None else number(config, CAP)
    return {"embed_scale": math.sqrt(width), "final_softcap": cap}


def _own_keys(config: Mapping[str, Any]) -> int:
    """The number of layers, the first ones, with keys and values of their own."""
    layers = count(config, "num_hidden_layers", most=MOST_LAYERS)
    return layers - count(config, "num_kv_shared_layers", 0, least=0)


def sources(config: Mapping[str, Any], windows: Sequence[int | None]) -> list[int | None]:
    """Of each layer the number of the one whose keys and values it attends to, None: its own."""
    own = _own_keys(config)
    last = {window: number for number, window in enumerate(windows[: max(own, 0)])}
    if missing := [number for number, window in enumerate(windows) if number >= own and window not in last]:
        raise UserError(
            f"config.json: field 'num_kv_shared_layers' is {shown(config['num_kv_shared_layers'])}, but layer "
            f"{missing[0]} has no layer of its type before these whose keys it could share."
        )
    return [None if number < own else last[window] for number, window in enumerate(windows)]


def unread(config: Mapping[str, Any]) -> frozenset[str]:
    """Tensors of published files that no layer reads: projections to keys and values of layers that have none."""
    if not config.get("num_kv_shared_layers"):
        return frozenset()
    shared = range(max(_own_keys(config), 0), count(config, "num_hidden_layers", most=MOST_LAYERS))
    names = ("k_proj", "v_proj", "k_norm")
    return frozenset(f"model.layers.{layer}.self_attn.{name}.weight" for layer in shared for name in names)


def inputs(config: Mapping[str, Any]) -> int:
    """`Layer.inputs`."""
    size = count(config, "hidden_size_per_layer_input", 0, least=0)
    if size and config["vocab_size_per_layer_input"] != config["vocab_size"]:
        raise UserError(
            "config.json: field 'vocab_size_per_layer_input' is "
            f"{shown(config['vocab_size_per_layer_input'])}; only that of 'vocab_size' is supported."
        )
    return size


def attention(config: Mapping[str, Any], mixer: Attention, layer: int, generation: int) -> Attention:
    """The attention of layer number `layer`, whose other figures `mixer` has."""
    if generation == 3:
        return replace(mixer, scale=number(config, "query_pre_attn_scalar") ** -0.5)
    mixer = replace(mixer, scale=1.0, v_norm=True)
    shared = flag(config, "attention_k_eq_v", False)
    own = _own(config, layer, shared) if mixer.window is None else {}
    heads = count(own, "num_key_value_heads", mixer.num_kv_heads)
    size = count(own, "head_dim", mixer.head_dim)
    values = "keys" if shared and mixer.window is None else "own"
    return replace(mixer, num_kv_heads=heads, head_dim=size, values=values)


def _own(config: Mapping[str, Any], layer: int, shared: bool) -> Mapping[str, Any]:
    """Figures of a full layer that differ from those of the sliding ones."""
    if "per_layer_config" in config:
        by_layer = table(config, "per_layer_config")
        return next((table(by_layer, name) for name in by_layer if name.isdecimal() and int(name) == layer), {})
    own = {"head_dim": config.get("global_head_dim") or GLOBAL_HEAD}
    heads = config.get("num_global_key_value_heads")
    return own if heads is None or not shared else own | {"num_key_value_heads": heads}


def feed(config: Mapping[str, Any], shared: bool) -> Feed:
    """Of a layer, with shared keys and values or not."""
    wide = shared and flag(config, "use_double_wide_mlp", False)
    dense = Dense(count(config, "intermediate_size") * (2 if wide else 1), "gelu_tanh")
    if not flag(config, "enable_moe_block", False):
        return dense
    experts = Experts(
        count(config, "moe_intermediate_size"),
        count(config, "num_experts", most=10_000),
        count(config, "top_k_experts"),
        normalised=True,
        activation="gelu_tanh",
    )
    return Parallel(dense, experts)


def to_hf(cfg: ModelConfig) -> dict[str, Any]:
    """The reverse of the above."""
    mixers = [layer.attention for layer in cfg.layers]
    local = next((mixer for mixer in mixers if mixer.window is not None), mixers[0])
    written: dict[str, Any] = {CAP: cfg.final_softcap}
    if not cfg.layers[0].scalar:
        assert local.scale is not None
        return written | {"query_pre_attn_scalar": round(local.scale**-2)}
    full = next((mixer for mixer in mixers if mixer.window is None), local)
    written |= {
        "num_key_value_heads": local.num_kv_heads,
        "head_dim": local.head_dim,
        "global_head_dim": full.head_dim,
        "attention_k_eq_v": full.values == "keys",
        "num_global_key_value_heads": full.num_kv_heads if full.values == "keys" else None,
        "num_kv_shared_layers": cfg.num_layers - len(cfg.cache_layers),
        "use_double_wide_mlp": cfg.layers[0].feed != cfg.layers[-1].feed,
    }
    if cfg.architecture == "gemma4_text":
        written |= {"hidden_size_per_layer_input": cfg.layers[0].inputs, "enable_moe_block": False}
        written |= {"vocab_size_per_layer_input": cfg.vocab_size} if cfg.layers[0].inputs else {}
    if (experts := cfg.layers[0].experts) is not None:
        written |= {
            "enable_moe_block": True,
            "moe_intermediate_size": experts.width,
            "num_experts": experts.count,
            "top_k_experts": experts.picked,
        }
    return written
