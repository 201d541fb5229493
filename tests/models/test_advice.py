"""What a folder of another kind is told: the sentence fits what is in it, and what it says to do can be done."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from scope_jax.models.files import peft, weights
from scope_jax.models.files.tensorfile import Checkpoint
from scope_jax.models.tokenizers.tokenizer import Tokenizer

BASE = Path("assets/atlas/ssp/base")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BASE, tmp_path / "model"))


def refused(folder: Path) -> str:
    with ExitStack() as stack, pytest.raises((FileNotFoundError, weights.WeightsError)) as caught:
        Checkpoint(folder, stack)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("pytorch_model.bin", "save_pretrained"),
        ("pytorch_model-00001-of-00002.bin", "save_pretrained"),
        ("model.bin", "save_pretrained"),
        ("consolidated.00.pth", "Llama"),
        ("model.pt", "copy a folder that has safetensors"),
        ("last.ckpt", "copy a folder that has safetensors"),
        ("model-Q4_K_M.gguf", "quantised"),
        ("ggml-model-q4.ggml", "quantised"),
        ("tf_model.h5", "copy a folder of the model"),
        ("flax_model.msgpack", "copy a folder of the model"),
        ("model.onnx", "copy a folder of the model"),
    ],
)
def test_weights_in_another_format(folder: Path, name: str, advice: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(b"x")
    found = refused(folder)
    assert f"has its weights in {name}, and only safetensors are read" in found and advice in found


@pytest.mark.parametrize(
    "name", ["training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth", "optimizer.bin"]
)
def test_a_trainers_files_are_no_weights(folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(b"x")
    assert refused(folder).endswith("model.safetensors is missing; copy the model folder again.")


def test_shards_without_their_index(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    assert "has model-00001-of-00002.safetensors, but neither model.safetensors nor" in refused(folder)


@pytest.mark.parametrize("suffix", ["qweight", "weight_scale", "weight_scale_inv", "weight.absmax", "SCB"])
def test_quantised_tensors_that_config_json_does_not_mention(folder: Path, suffix: str) -> None:
    """AutoAWQ and GPTQ wrote quant_config.json and quantize_config.json beside config.json."""
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name in tensors if name.endswith("q_proj.weight"))
    tensors[f"{name.removesuffix('.weight')}.{suffix}"] = np.zeros(4, np.int32)
    if suffix == "qweight":
        del tensors[name]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(weights.WeightsError, match=r"holds quantised weights .*; use the model that they were made of"):
        weights.load_hf(folder)


def test_an_adapter_in_a_pickle(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8}))
    (tmp_path / "adapter_model.bin").write_bytes(b"x")
    with pytest.raises(
        FileNotFoundError, match=r"adapter_model\.bin, and only safetensors are read; load it with PEFT"
    ):
        peft.adapter_of(tmp_path, weights.load_config(BASE))


def test_several_templates_and_none_by_default(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    several = [{"name": "rag", "template": "{{ messages }}"}, {"name": "tool_use", "template": "{{ tools }}"}]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": several}))
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer = Tokenizer.load(folder)
    with pytest.raises(ValueError, match=r"named rag, tool_use, none of them 'default'; set model\.chat_template"):
        tokenizer.encode_chat([{"role": "user", "content": "?"}])
    assert tokenizer.encode_chat([{"role": "user", "content": "?"}], tools=[{"name": "a"}])  # tool_use is for these
