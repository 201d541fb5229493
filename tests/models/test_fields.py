"""Model folders with invalid JSON fields: one error with file and field, and no file outside the folder is opened."""

from __future__ import annotations

import json
import math
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scope_jax.models.encoders import bert, encoder
from scope_jax.models.fields import WeightsError
from scope_jax.models.files import families, seal, weights
from scope_jax.models.files.tensorfile import INDEX, Checkpoint
from scope_jax.models.tokenizers.tokenizer import Tokenizer

BASE = Path("assets/atlas/ssp/base")
QWEN3 = json.loads((BASE / "config.json").read_text(encoding="utf-8"))
MOE = QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "norm_topk_prob": True,
}
OLMO3 = QWEN3 | {
    "architectures": ["Olmo3ForCausalLM"],
    "sliding_window": 8,
    "layer_types": ["full_attention"] * QWEN3["num_hidden_layers"],
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 16,
        "attention_factor": 1.2,
        "beta_fast": 32,
        "beta_slow": 1,
        "truncate": True,
    },
}
BERT = {
    "architectures": ["BertModel"],
    "vocab_size": 64,
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
}
SIZES = ("vocab_size", "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads")
SIZES += ("intermediate_size", "max_position_embeddings", "head_dim")
NONSENSE: list[Any] = ["64", "", [], [64], {}, {"a": 1}, True, 1.5, 0, -1, 10**30, math.nan, math.inf]


# ---------------------------------------------------------------------------------------------------------- config.json
@pytest.mark.parametrize("value", NONSENSE, ids=repr)
@pytest.mark.parametrize("name", SIZES)
def test_a_size_is_a_positive_integer(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"config\.json: field '{name}' is .*; it must be a whole number from 1"):
        families.from_hf(QWEN3 | {name: value})
    if name in BERT:
        with pytest.raises(ValueError, match=rf"config\.json: field '{name}' is"):
            bert.from_hf(BERT | {name: value})


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("rms_norm_eps", "1e-6", "a finite number above 0"),
        ("rms_norm_eps", -1.0, "a finite number above 0"),
        ("rope_theta", math.nan, "a finite number above 0"),
        ("rope_theta", 10**400, "a finite number above 0"),
        ("tie_word_embeddings", "false", "true or false"),
        ("attention_bias", 0, "true or false"),
        ("architectures", "Qwen3ForCausalLM", "a list of texts"),
        ("architectures", [["Qwen3ForCausalLM"]], "a list of texts"),
        ("rope_scaling", [], "an object"),
        ("rope_parameters", "yarn", "an object"),
        ("rope_scaling", {"rope_type": "yarn", "factor": "8"}, "a finite number above 0"),
        ("num_hidden_layers", 100_000, "a whole number from 1 to 2000"),
    ],
)
def test_other_fields_have_the_right_type(name: str, value: Any, wanted: str) -> None:
    plain = {key: given for key, given in QWEN3.items() if key not in ("rope_parameters", "rope_scaling")}
    with pytest.raises(ValueError, match=rf"config\.json: field .*; it must be {wanted}"):
        families.from_hf(plain | {"rope_theta": 1e4, name: value})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=300, deadline=None)
@given(base=st.sampled_from([QWEN3, MOE, OLMO3]), data=st.data())
def test_any_value_of_a_field_gives_a_model_or_a_clear_error(base: dict[str, Any], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(base)))
    value = data.draw(JSON)
    if isinstance(base[name], dict) and data.draw(st.booleans()):  # one field of an object
        value = base[name] | {data.draw(st.sampled_from(sorted(base[name]))): value}
    refusal = "config.json"
    try:
        families.from_hf(base | {name: value})
    except ValueError as error:  # no other exception
        refusal = str(error)
    named = ("config.json", "ModelConfig.", "Attention.", "Dense.", "Experts.")
    assert refusal.startswith(named) and "\n" not in refusal


def test_the_unchanged_configs_are_valid() -> None:
    rope = families.from_hf(OLMO3).layers[0].attention.rope
    assert families.from_hf(MOE).num_experts == 4 and rope is not None and rope.kind == "yarn"
    assert bert.from_hf(BERT).token_types == 2


# --------------------------------------------------------------------------------------------------------------- files
@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BASE, tmp_path / "model"))


@pytest.mark.parametrize("text", ["[]", "3", '"x"', "null", "{", "\x00", "[" * 100_000, "9" * 5000])
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json"])
def test_a_file_without_a_json_object(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(WeightsError, match=name.replace(".", r"\.")) as caught:
        weights.load_config(folder) if name == "config.json" else Tokenizer.load(folder)
    assert "\n" not in str(caught.value)
    if name == "config.json":
        for load in (encoder.load_config, Tokenizer.load):
            with pytest.raises(WeightsError, match=r"config\.json"):
                load(folder)


SAID = "Which river flows through Bern in 2023?"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer.json", "[]"),
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", '{"added_tokens_decoder": []}'),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"a": 1}}'),
        ("tokenizer_config.json", '{"eos_token": 3}'),
        ("tokenizer_config.json", '{"tokenizer_class": 3}'),
        ("tokenizer_config.json", '{"extra_special_tokens": "<x>"}'),
        ("added_tokens.json", '{"a": "b"}'),
        ("config.json", json.dumps(QWEN3 | {"num_hidden_layers": -1})),
        ("config.json", json.dumps(QWEN3 | {"hidden_size": "128"})),
        ("generation_config.json", '{"eos_token_id": "x"}'),
        ("generation_config.json", '{"eos_token_id": [1, true]}'),
    ],
)
def test_tokenizer_files_of_wrong_types(folder: Path, name: str, text: str) -> None:
    """A model's config.json does not matter to a tokenizer that tokenizer.json describes."""
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match=str(folder)) as caught:
        (weights.load_config if name == "config.json" else Tokenizer.load)(folder)
    assert "\n" not in str(caught.value)
    if name == "config.json":
        place = folder / "tokenizer_config.json"
        place.write_text(json.dumps(json.loads(place.read_text()) | {"tokenizer_class": "Qwen2Tokenizer"}))
        assert Tokenizer.load(folder).encode(SAID) == Tokenizer.load(BASE).encode(SAID)


@pytest.mark.parametrize("named", ["../model.safetensors", "/etc/passwd", "a/../../b", "", ".", 3, None, ["x"], "a\0b"])
def test_an_index_names_files_in_its_own_folder(folder: Path, named: Any) -> None:
    shutil.copyfile(folder / "model.safetensors", folder.parent / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "one.safetensors", "b": named}}))
    with ExitStack() as stack, pytest.raises(WeightsError, match=r"index\.json names .* not a file in the same folder"):
        Checkpoint(folder, stack)


@pytest.mark.parametrize("contents", [[], {}, {"weight_map": []}, {"weight_map": {}}, {"weight_map": None}])
def test_an_index_has_a_map(folder: Path, contents: Any) -> None:
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    (folder / INDEX).write_text(json.dumps(contents))
    with ExitStack() as stack, pytest.raises(WeightsError, match=INDEX.replace(".", r"\.")):
        Checkpoint(folder, stack)


def test_a_file_may_be_a_link_and_in_a_subfolder(folder: Path) -> None:
    """As in the cache of the Hugging Face hub, where files are links to blobs."""
    blob = folder.parent / "blob"
    shutil.move(folder / "model.safetensors", blob)
    (folder / "parts").mkdir()
    (folder / "parts" / "one.safetensors").symlink_to(blob)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "parts/one.safetensors"}}))
    with ExitStack() as stack:
        assert "model.norm.weight" in Checkpoint(folder, stack).names


# ---------------------------------------------------------------------------------------------------------------- seals
@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        "null",
        "3",
        '"x"',
        "{",
        "[" * 100_000,
        '{"a": 1}',
        '{"a": [1]}',
        '{"a": ["1", 2]}',
        '{"a": [true, 2]}',
    ],
)
def test_an_invalid_seal_counts_as_damage(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").write_text("x")
    seal.seal(tmp_path)
    assert seal.fault(tmp_path) is None
    (tmp_path / seal.SEAL).write_text(text)
    assert seal.fault(tmp_path) == "seal.json is damaged"
