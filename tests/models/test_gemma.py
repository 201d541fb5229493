"""Gemma's config.json in its older and newer forms, what is refused."""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.config import OptimizerSection
from scope_jax.errors import UserError
from scope_jax.learner.state import advance, fresh
from scope_jax.models.decoder.config import Attention, Dense, Experts, Parallel
from scope_jax.models.decoder.flops import weights_per_token
from scope_jax.models.decoder.hf import hf_shapes
from scope_jax.models.decoder.kinds import MIXERS, cached_bytes
from scope_jax.models.files.families import from_hf, to_hf
from scope_jax.models.kernels.rope import Rope
from scope_jax.plan.architectures import SHAPES

GEMMA4 = {
    "model_type": "gemma4_text",
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 64,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 30.0,
}
OLDER = {"global_head_dim": 16, "num_global_key_value_heads": 1, "attention_k_eq_v": True}
NEWER = {
    "attention_k_eq_v": True,
    "per_layer_config": {name: {"head_dim": 16, "num_key_value_heads": 1} for name in ("01", "3")},
}


def test_full_layers_have_heads_of_their_own_in_both_forms():
    cfg = from_hf(GEMMA4 | OLDER)
    assert cfg == from_hf(GEMMA4 | NEWER) == from_hf(to_hf(cfg))
    sliding, full = cfg.layers[0].mixer, cfg.layers[3].mixer
    assert sliding == Attention(4, 2, 8, Rope(1e4), 8, "head", scale=1.0, v_norm=True)
    turns = Rope(1e6, "proportional", share=0.25)
    assert full == Attention(4, 1, 16, turns, None, "head", scale=1.0, v_norm=True, values="keys")
    assert cfg.layers[0].scalar and cfg.final_softcap == 30.0 and cfg.embed_scale == math.sqrt(32)
    assert (cfg.norm_offset, cfg.layers[0].norms, cfg.layers[0].feed) == (0.0, "both", Dense(48, "gelu_tanh"))
    own = from_hf(GEMMA4 | OLDER | {"attention_k_eq_v": False}).layers[3].attention  # then the number is another's
    assert (own.num_kv_heads, own.head_dim, own.values) == (2, 16, "own")


def test_experts_stand_beside_a_dense_layer():
    moe = {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 24}
    cfg = from_hf(GEMMA4 | OLDER | moe)
    experts = Experts(24, 6, 2, normalised=True, activation="gelu_tanh")
    assert cfg.layers[1].feed == Parallel(Dense(48, "gelu_tanh"), experts) and cfg.num_experts == 6
    assert from_hf(to_hf(cfg)) == cfg


def test_the_last_layers_share_keys_and_each_has_a_vector_of_its_own():
    shared = {"num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 64}
    cfg = from_hf(GEMMA4 | OLDER | shared)
    assert [layer.attention.source for layer in cfg.layers] == [None, None, 0, 1] and cfg.cache_layers == (0, 1)
    assert cfg.layers[2].attention == replace(cfg.layers[0].attention, source=0)
    assert {(layer.feed, layer.inputs) for layer in cfg.layers} == {(Dense(48, "gelu_tanh"), 8)}
    wide = from_hf(GEMMA4 | OLDER | shared | {"use_double_wide_mlp": True})
    assert [layer.feed for layer in wide.layers] == [Dense(48, "gelu_tanh")] * 2 + [Dense(96, "gelu_tanh")] * 2
    assert from_hf(to_hf(cfg)) == cfg and from_hf(to_hf(wide)) == wide
    later = {**shared, "num_kv_shared_layers": 1, "layer_types": ["sliding_attention", "full_attention"] * 2}
    assert [layer.attention.source for layer in from_hf(GEMMA4 | OLDER | later).layers] == [None, None, None, 1]
    names = hf_shapes(cfg)
    assert (
        names["model.embed_tokens_per_layer.weight"] == (64, 32)
        and "model.layers.2.self_attn.k_norm.weight" not in names
    )
    # Matrices of the last layer: queries and results of four heads of 16, a dense layer, its vector's two.
    assert (
        weights_per_token(cfg) - weights_per_token(from_hf(to_hf(cfg) | {"hidden_size_per_layer_input": 0})) == 4 * 768
    )
    last = MIXERS[Attention].multiplied(32, cfg.layers[3].attention)
    kept = cached_bytes(cfg, 1, "bfloat16", lambda _: 1)
    assert last == 2 * 32 * 64 and kept == 2 * 2 * (2 * 8 + 16)
    assert cached_bytes(cfg, 1, "bfloat16", lambda _: 1, read=True) == 2 * kept
    # Two heads of 8 and one of 16, keys and values: a byte each, and a scale for a vector.
    assert cached_bytes(cfg, 1, "int8", lambda _: 1) == 2 * (2 * 8 + 16 + 3 * 4)


def test_a_layer_reads_the_keys_of_an_earlier_one_with_the_same_attention():
    cfg = from_hf(GEMMA4 | OLDER | {"num_kv_shared_layers": 2})
    layers = cfg.layers
    for source, message in (
        (1, "an earlier one with the same attention"),
        (2, "an earlier one"),
        (-1, "an earlier one"),
    ):
        bad = replace(layers[2], mixer=replace(layers[2].attention, source=source))
        with pytest.raises(UserError, match=message):
            replace(cfg, layers=(*layers[:2], bad, layers[3]))
    twice = replace(layers[2], mixer=replace(layers[2].attention, source=2))
    with pytest.raises(UserError, match="layer 2, whose keys layer 3 uses, has none"):
        replace(cfg, layers=(*layers[:3], twice))
    with pytest.raises(UserError, match="differ in inputs"):
        replace(cfg, layers=(*layers[:3], replace(layers[3], inputs=8)))


def test_gemma_3():
    gemma3 = {name: value for name, value in GEMMA4.items() if name != "layer_types"} | {
        "model_type": "gemma3_text",
        "num_hidden_layers": 7,
        "query_pre_attn_scalar": 168,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    cfg = from_hf(gemma3)
    assert cfg.windows == (8,) * 5 + (None, 8) and cfg == from_hf(to_hf(cfg))
    assert cfg.layers[5].attention.rope == Rope(1e6, "linear", 8.0) and cfg.layers[0].attention.rope == Rope(1e4)
    assert cfg.norm_offset == 1.0 and cfg.layers[0].attention.scale == 168**-0.5
    assert from_hf(gemma3 | {"sliding_window_pattern": 3}).windows == (8, 8, None, 8, 8, None, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size_per_layer_input": 8}, "'vocab_size_per_layer_input' is 262144; only that of 'vocab_size'"),
        ({"num_kv_shared_layers": 3}, "'num_kv_shared_layers' is 3, but layer 1 has no layer of its type"),
        ({"num_kv_shared_layers": 5}, "'num_kv_shared_layers' is 5, but layer 0 has no layer of its type"),
        ({"use_bidirectional_attention": "all"}, "'use_bidirectional_attention' is \"all\""),
        ({"hidden_activation": "gelu"}, "'hidden_activation' is 'gelu'; only gelu_pytorch_tanh"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "Gemma 4 has no 'rope_scaling'"),
        ({"model_type": "gemma3_text", "attn_logit_softcapping": 50.0}, "'attn_logit_softcapping' is 50.0"),
    ],
)
def test_what_is_not_implemented_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        from_hf(GEMMA4 | change)
    assert from_hf(GEMMA4 | {"use_bidirectional_attention": "vision"}) == from_hf(GEMMA4)  # text is causal


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [  # as Google states them: of Gemma 3 1B to the last weight
        ("gemma-3-1b-it", 0.999_885_952, None),
        # With the towers for images and audio 5.1 and 8; without the table of vectors 2.3 and 4.6 (stated: 4.5).
        ("gemma-4-E2B-it", 4.6, None),
        ("gemma-4-E4B-it", 7.5, None),
        ("gemma-4-26B-A4B-it", 25.2, 3.8),
        ("gemma-4-31B-it", 30.7, None),
    ],
)
def test_published_models_have_as_many_weights_as_stated(name, billions, active):
    cfg = from_hf(SHAPES[name])
    count = sum(math.prod(shape) for shape in hf_shapes(cfg).values())
    assert count == 999_885_952 if active is None and billions < 1 else round(count / 1e9, 1) == billions
    if cfg.layers[0].inputs:
        rest = count - cfg.vocab_size * cfg.num_layers * cfg.layers[0].inputs
        assert round(rest / 1e9, 1) == {35: 2.3, 42: 4.6}[cfg.num_layers]
    table = cfg.vocab_size * cfg.width
    assert active is None or round((weights_per_token(cfg) + table) / 1e9, 1) == active


def test_a_buffer_is_not_trained():
    """Not by its gradient, which is 0, and not by weight decay."""
    section = OptimizerSection(learning_rate=0.1, weight_decay=0.5, warmup_steps=0)
    params = {"layers": {"up_DF": jnp.ones(3), "scalar_1": jnp.full(1, 0.3)}}
    state = fresh(params, section, None)
    grads = jax.tree.map(jnp.zeros_like, params)
    after, _, taken = advance(state, grads, jnp.float32(0), section)
    assert bool(taken)
    np.testing.assert_allclose(after.params["layers"]["up_DF"], 0.95)
    np.testing.assert_array_equal(after.params["layers"]["scalar_1"], params["layers"]["scalar_1"])
