"""Folders in the format of PEFT that cannot be used are refused by name; merging. See equivalence/test_adapters.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from scope_jax.models.decoder.adapter import merge
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.fields import WeightsError
from scope_jax.models.files import peft

PLAIN = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "init_lora_weights": True, "loftq_config": {}, "use_dora": False}


def folder(place: Path, **changes: Any) -> Path:
    (place / peft.CONFIG).write_text(json.dumps(PLAIN | changes), encoding="utf-8")
    return place


@pytest.mark.parametrize("init", [None, True, False, "gaussian", "Gaussian", "eva", "orthogonal", "mica"])
def test_initial_factors_beside_the_base_are_any_adapters(tmp_path: Path, init: Any) -> None:
    assert peft.load_config(folder(tmp_path, init_lora_weights=init))["r"] == 4


@pytest.mark.parametrize("init", ["pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga"])
def test_initial_factors_that_change_the_base_are_refused(tmp_path: Path, init: str) -> None:
    """PEFT subtracts them from the base whenever it loads the adapter."""
    with pytest.raises(WeightsError, match=f"init_lora_weights is '{init}'.*path_initial_model_for_weight_conversion"):
        peft.load_config(folder(tmp_path, init_lora_weights=init))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("use_dora", True),
        ("rank_pattern", {"q_proj": 2}),
        ("bias", "all"),
        ("use_bdlora", {"nblocks": 2}),
        ("kasa_config", {"beta": 1.0}),
        ("arrow_config", {"top_k": 2}),
    ],
)
def test_what_changes_the_computation_is_refused_by_name(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(WeightsError, match=f"{name} is .* not supported; use a plain LoRA adapter"):
        peft.load_config(folder(tmp_path, **{name: value}))


@pytest.mark.parametrize(("dtype", "code"), [(jnp.float8_e4m3fn, "F8_E4M3"), (np.int8, "I8")])
def test_dtypes_that_are_no_plain_numbers_are_refused(tiny: ModelConfig, tmp_path: Path, dtype: Any, code: str) -> None:
    save_file({"x.lora_A.weight": np.ones((4, 8), dtype)}, tmp_path / peft.WEIGHTS)
    with pytest.raises(WeightsError, match=f"x.lora_A.weight is {code}; supported are BF16, F16, F32"):
        peft.adapter_of(folder(tmp_path), tiny)


@pytest.mark.parametrize(
    "name", ["lm_head.lora_A.weight", "model.embed_tokens.lora_embedding_A", "lm_head.weight", "a.q_proj.lora_C.weight"]
)
def test_a_tensor_that_is_no_factor_of_a_layer_is_named(tiny: ModelConfig, tmp_path: Path, name: str) -> None:
    """PEFT saves the output table and the embeddings as they are, beside their factors."""
    query = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    save_file(
        {name: np.ones((4, 8), np.float32) for name in (query, f"base_model.model.{name}")}, tmp_path / peft.WEIGHTS
    )
    with pytest.raises(
        WeightsError, match=f"{name} is not supported; an adapter has lora_A and lora_B of q_proj, k_pr"
    ):
        peft.adapter_of(folder(tmp_path), tiny)


def test_merging_rounds_once(tiny) -> None:
    """float32 factors and base into bfloat16: the nearest number to the exact sum."""
    rng = np.random.default_rng(0)
    base, a, b = (rng.normal(size=shape).astype(np.float32) for shape in ((256, 128), (256, 4), (4, 128)))
    whole = merge(tiny, {"layers": {"q_D_Hh": base}}, {"layers": {"q_D_Hh": {"a": a, "b": b}}}, 0.5, jnp.bfloat16)
    exact = base.astype(np.float64) + 0.5 * (a.astype(np.float64) @ b)
    ours, nearest = whole["layers"]["q_D_Hh"], jnp.asarray(exact.astype(np.float32)).astype(jnp.bfloat16)
    assert ours.dtype == jnp.bfloat16 and np.mean(np.asarray(ours != nearest)) < 1e-3  # where float32 is half way
