"""Models with other modalities beside a decoder: Ministral-3, Gemma 3, Gemma 4 and Qwen3.5 as published, with a vision
tower."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from scope_jax.models.decoder.adapter import Adapter, combined, declare_factors
from scope_jax.models.files import peft, weights
from scope_jax.models.files.families import WRAPPERS, from_hf
from scope_jax.run.convert import convert
from scope_jax.sharding.spec import init_params
from tests.equivalence import test_families as families

torch = pytest.importorskip("torch")
torch_peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")


VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
AUDIO = {
    "model_type": "gemma4_audio",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "subsampling_conv_channels": [4, 4],
    "output_proj_dims": 16,
}
# By class: the case of its decoder, its vision tower, what its configuration adds.
CASES = {
    "Mistral3": ("ministral3", VISION | {"model_type": "pixtral", "head_dim": 8}, {}),
    "Gemma3": ("gemma3", VISION | {"model_type": "siglip_vision_model"}, {"mm_tokens_per_image": 4}),
    "Gemma4": (
        "gemma4_moe",
        {name: value for name, value in VISION.items() if name != "image_size"}
        | {"model_type": "gemma4_vision", "num_key_value_heads": 2, "head_dim": 8, "position_embedding_size": 16},
        {"audio_config": None},
    ),
    "Gemma4E": (
        "gemma4_e2b",
        {name: value for name, value in VISION.items() if name != "image_size"}
        | {"model_type": "gemma4_vision", "num_key_value_heads": 2, "head_dim": 8, "position_embedding_size": 16},
        {"audio_config": AUDIO},
    ),
    "Qwen3_5": (
        "qwen3_5",
        VISION | {"model_type": "qwen3_5_vision", "out_hidden_size": 32, "num_position_embeddings": 4},
        {},
    ),
}
# What published files have, but not transformers' classes: weights of a head that predicts further tokens, keys of
# layers that attend to those of earlier ones.
MORE = {
    "Qwen3_5": {"mtp.fc.weight": np.arange(64, dtype=np.float32).reshape(32, 2)},
    "Gemma4E": {
        f"model.language_model.layers.{layer}.self_attn.{name}.weight": np.arange(8, dtype=np.float32) + layer
        for layer in (3, 4)
        for name in ("k_proj", "v_proj", "k_norm")
    },
}
KINDS = [
    ("Mistral3", False),
    ("Mistral3", True),
    ("Gemma3", True),
    ("Gemma4", True),
    ("Gemma4E", True),
    ("Qwen3_5", False),
]


@pytest.fixture(
    scope="module",
    params=[pytest.param(kind, marks=pytest.mark.slow if kind[0] != "Mistral3" else ()) for kind in KINDS],
    ids=str,
)
def written(request, tmp_path_factory):
    """(torch model, its folder)."""
    name, tied = request.param
    case, vision, more = CASES[name]
    name = name.removesuffix("E")
    decoder, text = families.CASES[case]
    model_type = getattr(transformers, f"{decoder}Config").model_type
    config = getattr(transformers, f"{name}Config")(
        text_config={
            **families.SIZES,
            **text,
            "model_type": model_type,
            "tie_word_embeddings": tied,
            **({"pad_token_id": 0} if name == "Gemma4" else {}),  # stands for images, without which it fails
        },
        vision_config=vision,
        tie_word_embeddings=tied,
        attn_implementation="eager",
        **more,
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(families.PERTURBED):
                weight.add_(0.1 * torch.randn(weight.shape))
    folder = tmp_path_factory.mktemp("wrapper")
    model.save_pretrained(folder)
    if more := MORE.get(request.param[0]):
        save_file(tensors(folder) | more, folder / "model.safetensors", {"format": "pt"})
    (folder / "processor_config.json").write_text("{}")
    return model, folder


def tensors(folder):
    return load_file(folder / "model.safetensors")


def test_the_decoder_of_a_wrapper(written):
    model, folder = written
    cfg, params = weights.load_hf(folder)
    ids_BT = np.random.default_rng(0).integers(0, families.VOCAB, (2, 40)).astype(np.int32)
    error = np.abs(families.our_logits(cfg, params, ids_BT) - families.torch_logits(model, ids_BT)).max()
    assert error <= families.tolerance_of(cfg)


def test_what_is_not_of_the_decoder_passes_through_an_export(written, tmp_path):
    """Trained weights go under the names of the file they came from; every other tensor and setting is as it was, in a
    dtype of its own, and transformers loads the whole."""
    _, folder = written
    cfg, params = weights.load_hf(folder)
    params["final_norm"]["scale_D"] = params["final_norm"]["scale_D"] + 1
    weights.save_hf(tmp_path / "out", cfg, params, jnp.bfloat16, None, base=folder)
    before, after = tensors(folder), tensors(tmp_path / "out")
    assert set(before) == set(after)
    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    begins = tuple(there for there, _ in WRAPPERS[name])
    added = {name: tensor for more in MORE.values() for name, tensor in more.items() if name in before}
    unread = [name for name, tensor in added.items() if np.array_equal(before[name], tensor)]
    foreign = [name for name in before if not name.startswith(begins) or name in unread]
    assert len(foreign) >= 15
    for name in before:
        if name in foreign:
            assert after[name].dtype == np.float32 and np.array_equal(before[name], after[name])
        else:
            wanted = before[name] + name.endswith(("language_model.model.norm.weight", "language_model.norm.weight"))
            assert np.array_equal(jnp.asarray(wanted, jnp.bfloat16), after[name])
    ours, theirs = (json.loads((place / "config.json").read_text()) for place in (tmp_path / "out", folder))
    assert set(ours) >= set(theirs) - {"dtype"}
    for name in set(theirs) - {"dtype", "text_config"}:
        assert ours[name] == theirs[name], name
    assert from_hf(ours) == cfg and (tmp_path / "out/processor_config.json").is_file()
    again = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path / "out", dtype=torch.float32)
    kept = dict(written[0].named_parameters())
    for name, weight in again.named_parameters():
        assert "language_model." in name or "lm_head" in name or torch.equal(weight, kept[name]), name


def test_converting_there_and_back_changes_no_bit(written, tmp_path):
    _, folder = written
    convert(folder, tmp_path / "copy", "hf", "float32")
    before, after = tensors(folder), tensors(tmp_path / "copy")
    assert set(before) == set(after)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_an_adapter_of_the_decoder_loads_in_peft(written, tmp_path):
    """Over the class that config.json names, whose vision tower it leaves alone; and here again."""
    model, folder = written
    cfg, params = weights.load_hf(folder)
    adapter = Adapter(2, 4.0, ("all-linear",), base_dtype=jnp.float32)
    factors = init_params(declare_factors(cfg, adapter), jax.random.key(0))
    factors = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(1), x.shape), factors)
    peft.save(tmp_path / "adapter", cfg, adapter, factors, str(folder))
    again = peft.load(tmp_path / "adapter", cfg, peft.adapter_of(tmp_path / "adapter", cfg))
    jax.tree.map(np.testing.assert_array_equal, again, factors)
    fresh = type(model).from_pretrained(folder, attn_implementation="eager")
    adapted = torch_peft.PeftModel.from_pretrained(fresh, tmp_path / "adapter").eval()
    assert not any("lora" in name and "vision" in name for name, _ in adapted.named_parameters())
    ids_BT = np.random.default_rng(0).integers(1, families.VOCAB, (2, 24)).astype(np.int32)
    ours = families.our_logits(cfg, combined(cfg, params, factors, adapter.scale), ids_BT)
    theirs = families.torch_logits(adapted, ids_BT)
    families.assert_close(ours, theirs, families.tolerance_of(cfg))
    assert np.abs(theirs - families.torch_logits(model, ids_BT)).max() > 0.1


def test_without_a_base_the_decoder_is_written_alone(written, tmp_path):
    model, folder = written
    cfg, params = weights.load_hf(folder)
    weights.save_hf(tmp_path / "out", cfg, params, jnp.float32, None)
    alone = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    known = ("Ministral3ForCausalLM", "Gemma3ForCausalLM", "Gemma4ForCausalLM", "Qwen3_5ForCausalLM")
    assert type(alone).__name__ in known
    ids_BT = np.random.default_rng(0).integers(0, families.VOCAB, (1, 20))
    assert np.abs(families.torch_logits(alone, ids_BT) - families.torch_logits(model, ids_BT)).max() <= 1e-6
