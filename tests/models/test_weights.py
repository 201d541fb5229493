"""Folders in Hugging Face layout: round trips, slices, and one clear error for every kind of broken folder."""

import json
import struct
from contextlib import ExitStack
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from scope_jax.models.decoder.hf import hf_shapes
from scope_jax.models.decoder.transformer import declare
from scope_jax.models.files import streaming, tensorfile
from scope_jax.models.files.tensorfile import Checkpoint
from scope_jax.models.files.weights import WeightsError, load_config, load_hf, save_hf, save_orbax
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from scope_jax.sharding.rules import TRAIN
from scope_jax.sharding.spec import init_params


def same(a, b) -> bool:
    return jax.tree.all(jax.tree.map(lambda x, y: x.dtype == y.dtype and np.array_equal(x, y), a, b))


@pytest.fixture
def folder(tmp_path, tiny, params):
    save_hf(tmp_path / "model", tiny, params, jnp.float32, None)
    return tmp_path / "model"


def rewrite(folder, change) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_round_trip_is_bitwise(folder, tiny, params):
    cfg, loaded = load_hf(folder)
    assert cfg == tiny
    assert same(loaded, params)
    assert [path.name for path in folder.parent.iterdir()] == ["model"]  # no temporary folder is left


def test_matrices_are_transposed_and_layers_are_separate_tensors(folder, params):
    tensors = load_file(folder / "model.safetensors")
    assert {name: x.shape for name, x in tensors.items()} == hf_shapes(load_config(folder))
    assert np.array_equal(tensors["model.layers.1.mlp.down_proj.weight"], params["layers"]["down_FD"][1].T)
    assert np.array_equal(tensors["model.embed_tokens.weight"], params["embed"]["table_VD"])


def test_bfloat16_file_loads_into_either_dtype(tmp_path, tiny, params):
    save_hf(tmp_path / "half", tiny, params, jnp.bfloat16, None)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    assert same(load_hf(tmp_path / "half", dtype=jnp.bfloat16)[1], half)
    assert same(load_hf(tmp_path / "half")[1], jax.tree.map(lambda x: x.astype(jnp.float32), half))


def test_several_files_with_an_index(tmp_path, tiny, params, monkeypatch):
    monkeypatch.setattr(tensorfile, "MAX_SHARD_BYTES", 20_000)
    save_hf(tmp_path / "model", tiny, params, jnp.float32, None)
    index = json.loads((tmp_path / "model" / tensorfile.INDEX).read_text())
    files = sorted(path.name for path in (tmp_path / "model").glob("*.safetensors"))
    assert len(files) > 2 and sorted(set(index["weight_map"].values())) == files
    assert index["metadata"]["total_size"] == sum(x.size * 4 for x in jax.tree.leaves(params))
    assert same(load_hf(tmp_path / "model")[1], params)
    (tmp_path / "model" / files[1]).unlink()
    with pytest.raises(FileNotFoundError, match=f"{files[1]} is missing"):
        load_hf(tmp_path / "model")


def test_a_single_file_goes_before_the_index_of_an_earlier_model(folder, tmp_path, tiny, params, monkeypatch):
    """transformers reads it so, and leaves the index behind when it saves one file over several."""
    other = jax.tree.map(lambda x: x + 1, params)
    monkeypatch.setattr(tensorfile, "MAX_SHARD_BYTES", 20_000)
    save_hf(tmp_path / "several", tiny, other, jnp.float32, None)
    index = (tmp_path / "several" / tensorfile.INDEX).read_text()
    (folder / tensorfile.INDEX).write_text(index)
    assert same(load_hf(folder)[1], params)
    for file in (tmp_path / "several").glob("*.safetensors"):
        file.rename(folder / file.name)
    assert same(load_hf(folder)[1], params)


def test_a_mesh_gives_the_requested_shardings(folder, params):
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    loaded = load_hf(folder, mesh, TRAIN)[1]
    assert same(loaded, params)
    assert {leaf.sharding.mesh for leaf in jax.tree.leaves(loaded)} == {mesh}


def test_only_the_requested_slice_is_read(folder, params):
    """Reading two columns of our weight reads two rows of the file, where it is transposed."""
    with ExitStack() as stack:
        checkpoint = Checkpoint(folder, stack)
        part = np.zeros((2, 32), np.float32)
        checkpoint.read("model.layers.1.mlp.gate_proj.weight", (slice(4, 6), slice(0, 32)), part)
        assert checkpoint.bytes_read == 2 * 32 * 4
        column = np.zeros((48, 1), np.float32)
        checkpoint.read("model.layers.1.mlp.gate_proj.weight", (slice(0, 48), slice(3, 4)), column)
        assert checkpoint.bytes_read == 2 * 32 * 4 + 48 * 4
    assert np.array_equal(part.T, params["layers"]["gate_DF"][1, :, 4:6])
    assert np.array_equal(column[:, 0], params["layers"]["gate_DF"][1, 3])


@pytest.mark.parametrize("block", [64, 1000, 4096, 50_000])
def test_blocks_of_any_size_give_the_same_bits(folder, tmp_path, tiny, params, monkeypatch, block):
    """Blocks of one row, of part of a tensor, or of several layers, for reading and for writing."""
    monkeypatch.setattr(streaming, "BLOCK_BYTES", block)
    assert same(load_hf(folder)[1], params)
    save_hf(tmp_path / "again", tiny, params, jnp.float32, None)
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


@pytest.mark.parametrize("block", [1024, 4 * 2**20])
def test_every_16_bit_value_is_cast_exactly(tmp_path, tiny, params, monkeypatch, block):
    """All finite float16 and bfloat16 values, both on the devices (small blocks) and on the host: exact in float32,
    and in bfloat16 as numpy rounds (ties to even).
    """
    patterns = np.arange(2**16, dtype=np.uint16)
    sized = replace(tiny, vocab_size=2**11)  # its table of width 32 has one element for each
    save_hf(tmp_path / "m", sized, init_params(declare(sized), jax.random.key(0)), jnp.float32, None)
    monkeypatch.setattr(streaming, "BLOCK_BYTES", block)
    for kind in (np.float16, jnp.bfloat16):
        values = patterns.view(kind).astype(np.float32)
        values = np.where(np.isfinite(values), values, 1.0).astype(kind).reshape(2**11, 32)
        rewrite(tmp_path / "m", lambda t, values=values: t.update({"model.embed_tokens.weight": values}))
        for dtype in (jnp.float32, jnp.bfloat16):
            loaded = np.asarray(load_hf(tmp_path / "m", dtype=dtype)[1]["embed"]["table_VD"])
            assert np.array_equal(loaded.view(np.uint8), values.astype(dtype).view(np.uint8))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", [np.float32, jnp.bfloat16])
def test_a_non_finite_weight_is_named(folder, tiny, params, tmp_path, kind, value):
    """On loading and on saving, where nothing is written."""
    name = "model.layers.1.mlp.down_proj.weight"

    def poison(tensors):
        tensors[name] = tensors[name].astype(kind)
        tensors[name][3, 1] = value

    rewrite(folder, poison)
    for dtype in (jnp.float32, jnp.bfloat16):
        with pytest.raises(WeightsError, match=rf"model\.safetensors: {name} holds values that are NaN or infinite"):
            load_hf(folder, dtype=dtype)
    bad = params | {"layers": params["layers"] | {"down_FD": params["layers"]["down_FD"].at[1, 1, 3].set(value)}}
    with pytest.raises(WeightsError, match=f"nothing was written: {name} holds values that are NaN or infinite in"):
        save_hf(tmp_path / "out", tiny, bad, kind, None)
    with pytest.raises(
        WeightsError, match=r"nothing was written: layers\.down_FD holds values that are NaN or infinite"
    ):
        save_orbax(tmp_path / "out", tiny, bad, kind, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_missing_folder_and_config(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        load_hf(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"such as DIR of `hf download Qwen/Qwen3-8B --local-dir DIR`\.$"):
        load_hf("Qwen/Qwen3-8B")
    with pytest.raises(FileNotFoundError, match=r"config\.json is missing"):
        load_hf(tmp_path)
    (tmp_path / "config.json").write_text('{"architectures": ')
    with pytest.raises(WeightsError, match=r"config\.json is not JSON"):
        load_hf(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(WeightsError, match="not hold a JSON object"):
        load_hf(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("architectures", ["MambaForCausalLM"], "'architectures' is .*MambaForCausalLM"),
        ("hidden_act", "gelu", "'hidden_act' is 'gelu'"),
        ("rope_parameters", {"rope_type": "dynamic", "rope_theta": 1e4}, "rope type 'dynamic'"),
        ("num_key_value_heads", 3, "multiple of num_kv_heads"),
    ],
)
def test_configs_that_are_not_supported(folder, field, value, message):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {field: value}))
    with pytest.raises(WeightsError, match=message):
        load_hf(folder)


@pytest.mark.parametrize("kept", [4, 200, -5])
def test_truncated_file(folder, kept):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(WeightsError, match=r"model\.safetensors is not a complete safetensors file"):
        load_hf(folder)


def test_corrupt_header(folder):
    path = folder / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 8) + b"not json" + path.read_bytes())
    with pytest.raises(WeightsError, match="not a complete safetensors file"):
        load_hf(folder)


def test_no_weights_at_all(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors is missing"):
        load_hf(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), r"lacks 1 tensors \(model.norm.weight\)"),
        (lambda t: t.update({"extra.weight": np.zeros(3, np.float32)}), r"unexpected 1 tensors \(extra.weight\)"),
        (
            lambda t: t.update({"model.norm.weight": np.zeros(3, np.float32)}),
            r"model.norm.weight has shape \(3,\).*\(32,\)",
        ),
        (lambda t: t.update({"model.norm.weight": np.zeros(32, np.int8)}), "model.norm.weight is I8"),
    ],
)
def test_tensors_that_do_not_fit(folder, change, message):
    rewrite(folder, change)
    with pytest.raises(WeightsError, match=message):
        load_hf(folder)


def test_export_overwrites_a_model_but_nothing_else(folder, tiny, params, tmp_path):
    other = jax.tree.map(lambda x: x + 1, params)
    save_hf(folder, tiny, other, jnp.float32, None)
    assert same(load_hf(folder)[1], other)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "draft.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is not a model folder"):
        save_hf(tmp_path / "thesis", tiny, params, jnp.float32, None)
    assert (tmp_path / "thesis" / "draft.txt").read_text() == "mine"
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"also holds notes.txt, which would be lost"):
        save_hf(folder, tiny, params, jnp.float32, None)
    assert same(load_hf(folder)[1], other)
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    save_hf(tmp_path / "link", tiny, params, jnp.float32, None)
    assert (tmp_path / "link").is_symlink() and same(load_hf(tmp_path / "disk")[1], params)


def test_failed_export_leaves_no_files(folder, tiny, params, tmp_path):
    before = (folder / "model.safetensors").read_bytes()
    wrong = {name: value for name, value in params.items() if name != "head"}
    with pytest.raises(ValueError, match="do not match the model config"):
        save_hf(folder, tiny, wrong, jnp.float32, None)
    assert (folder / "model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_export_with_a_tokenizer(tiny, params, byte_level, tmp_path):
    byte_level(tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "generation_config.json").write_text(json.dumps({"eos_token_id": [259, 7]}))
    tokenizer = Tokenizer.load(tmp_path / "tokenizer")
    save_hf(tmp_path / "model", tiny, params, jnp.float32, tokenizer)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert (config["eos_token_id"], config["pad_token_id"]) == (259, 257)
    again = Tokenizer.load(tmp_path / "model")
    messages = [{"role": "user", "content": "the <|im_end|>"}]
    assert again.encode_chat(messages) == tokenizer.encode_chat(messages)
    assert again.eos_ids == tokenizer.eos_ids == (259, 7)
    assert load_hf(tmp_path / "model")[0] == tiny


def test_files_can_be_read_by_safetensors(folder):
    assert (folder / "model.safetensors").stat().st_mode & 0o777 == 0o644
    with safe_open(folder / "model.safetensors", framework="np") as file:
        assert file.metadata() == {"format": "pt"}
