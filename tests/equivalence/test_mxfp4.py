"""gpt-oss's files: experts in MXFP4, read exactly and written as bfloat16."""

from __future__ import annotations

import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from scope_jax.models.fields import WeightsError
from scope_jax.models.files import mxfp4
from scope_jax.models.files.weights import load_hf, packed
from scope_jax.run.convert import convert
from tests.equivalence import test_families as families

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

EXPERTS, WIDTH, FFN = 3, 64, 32


def test_a_block_by_hand():
    """Every number once: 0, ½, 1, 1½, 2, 3, 4, 6 and their negatives, the lower half of a byte first, times 2³."""
    blocks = np.array([[0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE] + [0] * 8], np.uint8)[None, None]
    found = mxfp4.matrices(blocks, np.array([[[130]]], np.uint8))
    positive = [0, 4, 8, 12, 16, 24, 32, 48]
    assert found.shape == (1, 32, 1) and found[0, :16, 0].tolist() == [*positive, *(-x for x in positive)]
    assert np.signbit(found[0, 8, 0]) and not found[0, 16:].any()


def written(folder, rng, scales=(90, 140)):
    """Blocks and scales for both matrices of two layers beside a model's other tensors: (folder, blocks and scales)."""
    config = transformers.GptOssConfig(
        **(families.SIZES | families.CASES["gpt_oss"][1] | {"hidden_size": WIDTH, "intermediate_size": FFN}),
    )
    config.num_local_experts = EXPERTS
    torch.manual_seed(0)
    transformers.GptOssForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    parts = {}
    for name in [name for name in tensors if name.endswith("_proj") and ".experts." in name]:
        _, inner, outer = tensors.pop(name).shape
        parts[f"{name}_blocks"] = rng.integers(0, 256, (EXPERTS, outer, inner // 32, 16)).astype(np.uint8)
        parts[f"{name}_scales"] = rng.integers(*scales, (EXPERTS, outer, inner // 32)).astype(np.uint8)
    save_file(tensors | parts, folder / "model.safetensors", metadata={"format": "pt"})
    stated = json.loads((folder / "config.json").read_text())
    stated["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(stated))
    return parts


def test_experts_are_read_as_transformers_reads_them(tmp_path):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    source = tmp_path / "source"
    parts = written(source, np.random.default_rng(0))
    theirs = {
        name.removesuffix("_blocks"): convert_moe_packed_tensors(
            torch.tensor(blocks), torch.tensor(parts[name.replace("_blocks", "_scales")])
        )
        for name, blocks in parts.items()
        if name.endswith("_blocks")
    }
    assert packed(source) == set(theirs) and len(theirs) == 4
    _, params = load_hf(source, dtype=jnp.bfloat16)
    for layer in range(2):
        at = f"model.layers.{layer}.mlp.experts."
        both, down = (theirs[at + name].float().numpy() for name in ("gate_up_proj", "down_proj"))
        for ours, wanted in (("gate", both[..., ::2]), ("up", both[..., 1::2])):
            assert np.array_equal(params["layers"][f"{ours}_XDF"][layer], wanted)
        assert np.array_equal(params["layers"]["down_XFD"][layer], down)

    results = convert(source, tmp_path / "numbers", "hf")
    assert (results["dtype"], results["from_mxfp4"]) == ("bfloat16", 4)
    assert "quantization_config" not in json.loads((tmp_path / "numbers" / "config.json").read_text())
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "numbers", dtype="auto")
    assert again.dtype == torch.bfloat16
    assert all(torch.equal(again.state_dict()[name], values) for name, values in theirs.items())

    convert(source, tmp_path / "own", "orbax")
    convert(tmp_path / "own", tmp_path / "back", "hf")
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("numbers", "back"))
    assert one.keys() == two.keys() and all(np.array_equal(one[name], two[name]) for name in one)


def test_what_is_refused(tmp_path):
    source = tmp_path / "source"
    written(source, np.random.default_rng(0), scales=(255, 256))  # NaN
    with pytest.raises(WeightsError, match=r"experts.\w+_proj holds values that are NaN or infinite"):
        load_hf(source)
    stated = json.loads((source / "config.json").read_text())
    for change, said in (
        ({"quantization_config": {"quant_method": "fp8"}}, "quantised weights are not supported"),
        ({"swiglu_limit": 5.0}, "'swiglu_limit' is 5.0; only 7.0 is supported"),
    ):
        other = tmp_path / "other"
        shutil.copytree(source, other, dirs_exist_ok=True)
        (other / "config.json").write_text(json.dumps(stated | change))
        with pytest.raises(WeightsError, match=said):
            load_hf(other)
    tensors = load_file(source / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj_scales"
    save_file(tensors | {name: tensors[name][:, 1:]}, source / "model.safetensors")
    with pytest.raises(WeightsError, match=r"has unexpected 2 tensors \(model.layers.0.mlp.experts.down_proj_blocks"):
        load_hf(source)
