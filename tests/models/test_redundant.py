"""No tensor is left out unread because a config calls it redundant: it has the values that are used, or is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.transformer import declare
from scope_jax.models.encoders import encoder
from scope_jax.models.files import streaming
from scope_jax.models.files.families import to_hf
from scope_jax.models.files.weights import WeightsError, load_hf, recast_hf, save_hf, stored_dtypes
from scope_jax.models.kernels.rope import Rope, frequencies
from scope_jax.sharding.spec import init_params
from tests.retrieval import tiny_encoders
from tests.shapes import uniform

TABLE, HEAD = "model.embed_tokens.weight", "lm_head.weight"
Tensors = dict[str, np.ndarray]
Change = Callable[[Tensors], Any]


def shape(architecture: str, **changes: Any) -> ModelConfig:
    qk: Any = {"llama": "none", "olmo3": "width"}.get(architecture, "head")
    experts = {"num_experts": 4, "experts_per_token": 2} if architecture == "qwen3_moe" else {}
    post: Any = {"norm": "post", "layer_windows": (8, None)} if architecture == "olmo3" else {}
    fields: dict[str, Any] = experts | post | changes
    rope = Rope(1e6)
    fixed = ("vocab_size", "num_layers", "width", "num_heads", "num_kv_heads", "head_dim", "ffn_width")
    sizes: dict[str, Any] = dict(zip(fixed, (64, 2, 32, 4, 2, 8, 48), strict=True))
    bias = {"qkv_bias": False, "output_bias": False, "max_positions": 128}
    plain: dict[str, Any] = {
        "architecture": architecture,
        "rope": rope,
        "norm_eps": 1e-6,
        "tie_embeddings": True,
        "qk_norm": qk,
    }
    return uniform(**(sizes | bias | plain | fields))


@cache
def params_of(cfg: ModelConfig) -> Any:
    return jax.jit(lambda: init_params(declare(cfg), jax.random.key(0)))()


def written(folder: Path, cfg: ModelConfig, change: Change, dtype: Any = jnp.float32) -> tuple[Path, Any]:
    params = params_of(cfg)
    save_hf(folder, cfg, params, dtype, None)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder, jax.tree.map(lambda x: x.astype(dtype).astype(jnp.float32), params)


def same(a: Any, b: Any) -> bool:
    return jax.tree.all(jax.tree.map(np.array_equal, a, b))


def put(**tensors: Any) -> Change:
    return lambda stored: stored.update({name.replace("__", "."): value for name, value in tensors.items()})


def add(name: str, value: Any) -> Change:
    def change(stored: Tensors) -> None:
        stored[name] = np.asarray(value(stored) if callable(value) else value)

    return change


def changed(name: str, at: tuple[int, ...]) -> Callable[[Tensors], np.ndarray]:
    def copy(stored: Tensors) -> np.ndarray:
        other = stored[name].copy()
        other[at] += 0.5
        return other

    return copy


PLAIN = frequencies(Rope(1e6), 8)
LLAMA3 = Rope(5e5, "llama3", 8.0, 64, low_freq_factor=1.0, high_freq_factor=4.0)
INV = "model.layers.{}.self_attn.rotary_emb.inv_freq"
ONES = np.ones((32,), np.float32)
LAYER = "model.layers.0.self_attn."


def inverse(values: np.ndarray, name: str = INV, layers: int = 2) -> Change:
    return put(**{name.format(i): values for i in range(layers)})


# kind -> (name, config, change of the file's tensors), all of which give the same weights as without the change.
GOOD: dict[str, list[tuple[str, ModelConfig, Change]]] = {
    "output table of a tied model": [
        ("stored twice", shape("qwen3"), add(HEAD, lambda t: t[TABLE])),
        ("stored twice, llama", shape("llama"), add(HEAD, lambda t: t[TABLE])),
        ("alone", shape("qwen3"), lambda t: t.update({HEAD: t.pop(TABLE)})),
        ("alone, with experts", shape("qwen3_moe"), lambda t: t.update({HEAD: t.pop(TABLE)})),
        ("alone, olmo3", shape("olmo3"), lambda t: t.update({HEAD: t.pop(TABLE)})),
    ],
    "rotary frequencies": [
        ("of each layer", shape("llama"), inverse(PLAIN)),
        ("of the model", shape("llama"), inverse(PLAIN, "model.rotary_emb.inv_freq", 1)),
        ("in bfloat16", shape("llama"), inverse(PLAIN.astype(ml_dtypes.bfloat16))),
        ("in float16", shape("llama"), inverse(PLAIN.astype(np.float16))),
        ("before scaling", shape("llama", rope=LLAMA3), inverse(frequencies(Rope(5e5), 8))),
        ("after scaling", shape("llama", rope=LLAMA3), inverse(frequencies(LLAMA3, 8))),
    ],
}
# Refused, with a part of the sentence.
BAD: dict[str, list[tuple[str, ModelConfig, Change, str]]] = {
    "output table of a tied model": [
        ("one value of the first row", shape("qwen3"), add(HEAD, changed(TABLE, (0, 0))), "has other values"),
        ("one value of the last row", shape("llama"), add(HEAD, changed(TABLE, (63, 31))), "has other values"),
        ("other rows", shape("qwen3"), add(HEAD, lambda t: t[TABLE][:-1].copy()), "has other values"),
        ("alone with other rows", shape("qwen3"), lambda t: t.update({HEAD: t.pop(TABLE)[:-1].copy()}), "has shape"),
        ("not finite", shape("qwen3"), add(HEAD, lambda t: t[TABLE] * np.nan), "NaN or infinite"),
        ("of integers", shape("qwen3"), add(HEAD, np.zeros((64, 32), np.int32)), "is I32"),
        ("a bias", shape("qwen3"), add("lm_head.bias", np.zeros(64, np.float32)), "unexpected"),
    ],
    "rotary frequencies": [
        ("another theta", shape("llama"), inverse(frequencies(Rope(1e4), 8)), "rope_theta"),
        ("nearly the same theta", shape("llama"), inverse(frequencies(Rope(1.001e6), 8)), "rope_theta"),
        (
            "another theta in bfloat16",
            shape("llama"),
            inverse(frequencies(Rope(5e5), 8).astype(ml_dtypes.bfloat16)),
            "rope",
        ),
        ("scaled", shape("llama"), inverse(frequencies(Rope(1e6, "linear", 4.0), 8)), "rope_scaling"),
        ("of another head", shape("llama"), inverse(frequencies(Rope(1e6), 16)), "rope_theta"),
        ("of one layer", shape("llama"), inverse(PLAIN * 2, INV.replace("{}", "1"), 1), "layers.1"),
        ("not finite", shape("llama"), inverse(PLAIN * np.nan), "rope_theta"),
    ],
    "weights that the config says are absent": [
        ("attention bias", shape("llama"), add(f"{LAYER}q_proj.bias", ONES), "unexpected"),
        ("attention bias of zeros", shape("qwen3"), add(f"{LAYER}o_proj.bias", 0 * ONES), "unexpected"),
        ("norm of queries", shape("llama"), add(f"{LAYER}q_norm.weight", ONES[:8]), "unexpected"),
        ("bias of the feed-forward layer", shape("llama"), add("model.layers.0.mlp.up_proj.bias", ONES), "unexpected"),
        ("causal mask", shape("llama"), add(f"{LAYER}bias", np.ones((8, 8), np.float32)), "unexpected"),
        ("value of masked scores", shape("llama"), add(f"{LAYER}masked_bias", -1e4 * ONES[:1]), "unexpected"),
        ("one more layer", shape("qwen3"), add("model.layers.2.input_layernorm.weight", ONES), "unexpected"),
        ("one more expert", shape("qwen3_moe"), add("model.layers.0.mlp.experts.4.up_proj.weight", ONES), "unexpected"),
        ("shared expert", shape("qwen3_moe"), add("model.layers.0.mlp.shared_expert_gate.weight", ONES), "unexpected"),
        ("sinks", shape("olmo3"), add(f"{LAYER}sinks", ONES[:4]), "unexpected"),
        (
            "another model's table",
            shape("llama"),
            add("embed_tokens.weight", np.ones((64, 32), np.float32)),
            "unexpected",
        ),
    ],
}


def cases(kinds: dict[str, list[Any]]) -> list[Any]:
    return [pytest.param(*case[1:], id=f"{kind}: {case[0]}") for kind, found in kinds.items() for case in found]


@pytest.mark.parametrize(("cfg", "change"), cases(GOOD))
def test_what_is_redundant_changes_nothing(tmp_path, cfg, change):
    folder, params = written(tmp_path / "m", cfg, change)
    assert same(load_hf(folder)[1], params)
    assert stored_dtypes(folder) == {"float32"}
    recast_hf(folder, tmp_path / "again", jnp.float32)
    assert same(load_hf(tmp_path / "again")[1], params)
    assert HEAD not in load_file(tmp_path / "again" / "model.safetensors")


@pytest.mark.parametrize(("cfg", "change", "said"), cases(BAD))
def test_what_differs_is_refused(tmp_path, cfg, change, said):
    folder, _ = written(tmp_path / "m", cfg, change)
    for read in (load_hf, lambda source: recast_hf(source, tmp_path / "again", jnp.float32)):
        with pytest.raises(WeightsError, match=rf"^{re.escape(str(folder))}.*{said}"):
            read(folder)
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("block", [1000, *(pytest.param(size, marks=pytest.mark.slow) for size in (64, 4 * 2**20))])
def test_tables_are_compared_by_blocks_whatever_their_dtypes(tmp_path, monkeypatch, block):
    monkeypatch.setattr(streaming, "BLOCK_BYTES", block)
    folder, params = written(
        tmp_path / "m", shape("qwen3"), add(HEAD, lambda t: t[TABLE].astype(np.float32)), jnp.bfloat16
    )
    assert same(load_hf(folder)[1], params)
    folder, _ = written(tmp_path / "m", shape("qwen3"), add(HEAD, changed(TABLE, (41, 3))), jnp.bfloat16)
    with pytest.raises(WeightsError, match="has other values"):
        load_hf(folder)


def test_each_process_compares_its_rows(tmp_path, monkeypatch):
    """Together they compare all: of four, the one that has row 41 of 64 sees the difference."""
    folder, _ = written(tmp_path / "m", shape("qwen3"), add(HEAD, changed(TABLE, (41, 3))))
    refused = []
    for process in range(4):
        with monkeypatch.context() as here:
            here.setattr(jax, "process_count", lambda: 4)
            here.setattr(jax, "process_index", lambda process=process: process)
            try:
                load_hf(folder)
            except WeightsError:
                refused.append(process)
    assert refused == [2]


@pytest.mark.parametrize("differs", [False, True])
def test_a_tensor_in_two_files(tmp_path, differs):
    cfg = shape("llama")
    folder, params = written(tmp_path / "m", cfg, lambda t: None)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    save_file(tensors, folder / "a.safetensors")
    again = "model.norm.weight"
    save_file({again: tensors[again] + (1 if differs else 0)}, folder / "b.safetensors")
    where = dict.fromkeys(tensors, "a.safetensors") | {again: "b.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    if not differs:
        assert same(load_hf(folder)[1], params)
        return
    with pytest.raises(WeightsError, match=r"two files hold model\.norm\.weight with other values"):
        load_hf(folder)


# ---------------------------------------------------------------------------------------------------------- encoders
POSITIONS = np.arange(64, dtype=np.int64)[None]
MATRIX = np.ones((32, 32), np.float32)
# (name, prefix of the tensors, change, part of the sentence or None)
BERT: list[tuple[str, str, Change, str | None]] = [
    ("positions", "", add("embeddings.position_ids", POSITIONS), None),
    ("positions with a prefix", "bert.", add("bert.embeddings.position_ids", POSITIONS[0]), None),
    ("types", "", add("embeddings.token_type_ids", np.zeros((1, 64), np.int64)), None),
    ("pooler", "", put(pooler__dense__weight=MATRIX, pooler__dense__bias=ONES), None),
    ("heads of pre-training", "bert.", put(cls__predictions__bias=ONES, cls__seq_relationship__weight=MATRIX), None),
    ("shifted positions", "", add("embeddings.position_ids", POSITIONS + 2), "has other values"),
    ("fewer positions", "", add("embeddings.position_ids", POSITIONS[:, :32].copy()), "has other values"),
    ("other types", "", add("embeddings.token_type_ids", np.ones((1, 64), np.int64)), "has other values"),
    ("positions of truth values", "", add("embeddings.position_ids", POSITIONS > 0), "is BOOL"),
    ("projection", "", put(linear__weight=MATRIX), "unexpected"),
    ("projection beside a prefix", "bert.", put(linear__weight=MATRIX), "unexpected"),
    ("dense layer beside a prefix", "bert.", put(dense__weight=MATRIX), "unexpected"),
    ("classifier", "bert.", put(classifier__weight=MATRIX), "unexpected"),
    ("two sets of weights", "bert.", put(embeddings__LayerNorm__weight=ONES), "unexpected"),
    ("one more layer", "", add("encoder.layer.2.output.dense.bias", ONES), "unexpected"),
    ("rotary frequencies", "", add("encoder.layer.0.rotary_emb.inv_freq", PLAIN), "unexpected"),
]
# (name, tied, change, part of the sentence or None)
QWEN3: list[tuple[str, bool, Change, str | None]] = [
    ("tied head", True, add(HEAD, lambda t: t[TABLE]), None),
    ("tied head alone", True, lambda t: t.update({HEAD: t.pop(TABLE)}), None),
    ("head of its own", False, lambda t: None, None),
    ("rotary frequencies", True, inverse(PLAIN), None),
    ("tied head that differs", True, add(HEAD, changed(TABLE, (5, 5))), "has other values"),
    ("score", True, add("score.weight", MATRIX), "unexpected"),
    ("other frequencies", True, inverse(PLAIN + 1), "rope_theta"),
]


def encoded(folder: Path, said: str | None, params: Any) -> None:
    if said is None:
        assert same(encoder.load(folder, None, jnp.float32)[1], params)
    else:
        with pytest.raises(WeightsError, match=rf"^{re.escape(str(folder))}.*{said}"):
            encoder.load(folder, None, jnp.float32)


@pytest.mark.parametrize(("prefix", "change", "said"), [pytest.param(*case[1:], id=case[0]) for case in BERT])
def test_encoders_read_or_refuse_what_is_stored_besides(tmp_path, prefix, change, said):
    folder = tiny_encoders.write_bert(tmp_path / "m", prefix=prefix)
    params = encoder.load(folder, None, jnp.float32)[1]
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    encoded(folder, said, params)


@pytest.mark.parametrize(("tied", "change", "said"), [pytest.param(*case[1:], id=case[0]) for case in QWEN3])
def test_decoders_as_encoders_too(tmp_path, tied, change, said):
    folder, params = written(tmp_path / "m", shape("qwen3", tie_embeddings=tied), change)
    encoded(folder, said, {name: part for name, part in params.items() if name != "head"})


def test_a_tied_model_that_stores_its_head_alone_is_transformers(tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    cfg = shape("qwen3")
    folder, params = written(tmp_path / "m", cfg, lambda t: t.update({HEAD: t.pop(TABLE)}))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert np.array_equal(model.model.embed_tokens.weight.detach().numpy(), params["embed"]["table_VD"])
    assert to_hf(replace(cfg, tie_embeddings=True))["tie_word_embeddings"] is True
