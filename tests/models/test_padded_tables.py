"""Tables of large vocabularies have rows that no token refers to: zero in the state, absent in files."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from scope_jax.models.decoder.hf import hf_shapes
from scope_jax.models.decoder.transformer import declare
from scope_jax.models.files import streaming
from scope_jax.models.files.weights import load_hf, save_hf
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from scope_jax.sharding.rules import TRAIN
from scope_jax.sharding.spec import init_params
from tests.shapes import like


@pytest.fixture
def large(tiny):
    return like(tiny, vocab_size=16_500, width=8, head_dim=4, ffn_width=8, num_layers=1)


def test_rows_are_a_multiple_of_512_from_16384_tokens_on(tiny):
    rows = {vocab: replace(tiny, vocab_size=vocab).table_rows for vocab in (300, 16_383, 16_384, 100_278, 151_936)}
    assert rows == {300: 300, 16_383: 16_383, 16_384: 16_384, 100_278: 100_352, 151_936: 152_064}


def test_initial_values_of_real_rows_do_not_depend_on_the_padding(large):
    table_VD = init_params(declare(large), jax.random.key(0))["embed"]["table_VD"]
    unpadded = replace(declare(large)["embed"]["table_VD"], shape=(16_500, 8), padding=0)
    plain_VD = init_params({"embed": {"table_VD": unpadded}}, jax.random.key(0))["embed"]["table_VD"]
    assert table_VD.shape == (16_896, 8)
    assert np.array_equal(table_VD[:16_500], plain_VD) and not np.any(table_VD[16_500:])


@pytest.mark.parametrize("block_bytes", [4 * 2**20, 5000])  # in one transfer, and in blocks that end inside the padding
def test_a_folder_has_no_padding_and_loads_with_zeros(tmp_path, large, monkeypatch, block_bytes):
    monkeypatch.setattr(streaming, "BLOCK_BYTES", block_bytes)
    params = init_params(declare(large), jax.random.key(0))
    save_hf(tmp_path / "model", large, params, jnp.float32, None)
    stored = load_file(tmp_path / "model" / "model.safetensors")
    assert {name: x.shape for name, x in stored.items()} == hf_shapes(large)
    assert stored["lm_head.weight"].shape == (16_500, 8)
    for mesh in (None, make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])):
        cfg, loaded = load_hf(tmp_path / "model", mesh, () if mesh is None else TRAIN)
        assert cfg == large
        assert jax.tree.all(jax.tree.map(np.array_equal, loaded, params))
