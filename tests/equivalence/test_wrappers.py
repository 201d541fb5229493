"""Models with other modalities beside a decoder: Ministral-3 and Gemma 3 as published, with a vision tower."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from scope_jax.models import weights
from scope_jax.models.families import from_hf
from scope_jax.run.convert import convert
from tests.equivalence import test_families as families

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


VISION = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
# By class: the case of its decoder, the type of its vision tower, what its configuration adds.
CASES = {
    "Mistral3": ("ministral3", {"model_type": "pixtral", "head_dim": 8}, {}),
    "Gemma3": ("gemma3", {"model_type": "siglip_vision_model"}, {"mm_tokens_per_image": 4}),
}


@pytest.fixture(scope="module", params=[("Mistral3", False), ("Mistral3", True), ("Gemma3", True)], ids=str)
def written(request, tmp_path_factory):
    """(torch model, its folder)."""
    name, tied = request.param
    case, vision, more = CASES[name]
    decoder, text = families.CASES[case]
    model_type = getattr(transformers, f"{decoder}Config").model_type
    config = getattr(transformers, f"{name}Config")(
        text_config={**families.SIZES, **text, "model_type": model_type, "tie_word_embeddings": tied},
        vision_config=VISION | vision,
        tie_word_embeddings=tied,
        attn_implementation="eager",
        **more,
    )
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("norm.weight", "layernorm.weight")):
                weight.add_(0.1 * torch.randn(weight.shape))
    folder = tmp_path_factory.mktemp("wrapper")
    model.save_pretrained(folder)
    (folder / "processor_config.json").write_text("{}")
    return model, folder


def tensors(folder):
    return load_file(folder / "model.safetensors")


def test_the_decoder_of_a_wrapper(written):
    model, folder = written
    cfg, params = weights.load_hf(folder)
    ids_BT = np.random.default_rng(0).integers(0, families.VOCAB, (2, 40)).astype(np.int32)
    assert np.abs(families.our_logits(cfg, params, ids_BT) - families.torch_logits(model, ids_BT)).max() <= 1e-5


def test_what_is_not_of_the_decoder_passes_through_an_export(written, tmp_path):
    """Trained weights go under the names of the file they came from; every other tensor and setting is as it was, in a
    dtype of its own, and transformers loads the whole."""
    _, folder = written
    cfg, params = weights.load_hf(folder)
    params["final_norm"]["scale_D"] = params["final_norm"]["scale_D"] + 1
    weights.save_hf(tmp_path / "out", cfg, params, jnp.bfloat16, None, base=folder)
    before, after = tensors(folder), tensors(tmp_path / "out")
    assert set(before) == set(after)
    foreign = [name for name in before if not name.startswith("language_model.")]
    assert len(foreign) >= 15
    for name in before:
        if name in foreign:
            assert after[name].dtype == np.float32 and np.array_equal(before[name], after[name])
        else:
            wanted = before[name] + (name == "language_model.model.norm.weight")
            assert np.array_equal(jnp.asarray(wanted, jnp.bfloat16), after[name])
    ours, theirs = (json.loads((place / "config.json").read_text()) for place in (tmp_path / "out", folder))
    assert set(ours) >= set(theirs) - {"dtype"}
    for name in set(theirs) - {"dtype", "text_config"}:
        assert ours[name] == theirs[name], name
    assert from_hf(ours) == cfg and (tmp_path / "out/processor_config.json").is_file()
    again = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path / "out", dtype=torch.float32)
    kept = dict(written[0].named_parameters())
    for name, weight in again.named_parameters():
        assert ".language_model." in name or "lm_head" in name or torch.equal(weight, kept[name]), name


def test_converting_there_and_back_changes_no_bit(written, tmp_path):
    _, folder = written
    convert(folder, tmp_path / "copy", "hf", "float32")
    before, after = tensors(folder), tensors(tmp_path / "copy")
    assert set(before) == set(after)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_without_a_base_the_decoder_is_written_alone(written, tmp_path):
    model, folder = written
    cfg, params = weights.load_hf(folder)
    weights.save_hf(tmp_path / "out", cfg, params, jnp.float32, None)
    alone = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    assert type(alone).__name__ in ("Ministral3ForCausalLM", "Gemma3ForCausalLM")
    ids_BT = np.random.default_rng(0).integers(0, families.VOCAB, (1, 20))
    assert np.abs(families.torch_logits(alone, ids_BT) - families.torch_logits(model, ids_BT)).max() <= 1e-6
