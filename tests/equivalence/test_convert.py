"""`convert` of MoE models, OLMo-3 and gpt-oss: between layouts and dtypes and from a run, read by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from scope_jax.games import load_card
from scope_jax.models.files.weights import load, load_config
from scope_jax.run.checkpoint_writer import Checkpoints
from scope_jax.run.convert import convert
from scope_jax.run.folder import RunFolder
from tests.equivalence.test_families import VOCAB, torch_logits, torch_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

IDS_BT = np.random.default_rng(0).integers(0, VOCAB, (2, 24))


def tensors(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "model.safetensors")


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return set(a) == set(b) and all(a[name].dtype == b[name].dtype and np.array_equal(a[name], b[name]) for name in a)


def read_by_transformers(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto", attn_implementation="eager").eval()


@pytest.fixture(scope="module", params=["qwen3_moe", "olmo3", pytest.param("gpt_oss", marks=pytest.mark.slow)])
def source(request, tmp_path_factory) -> tuple[Any, Path]:
    """(torch model, its folder as transformers writes it)."""
    folder = tmp_path_factory.mktemp("source") / "theirs"
    model = torch_model(request.param)
    model.save_pretrained(folder)
    return model, folder


def test_conversion_round_trip_is_bitwise(source, tmp_path):
    model, folder = source
    own, back = tmp_path / "own", tmp_path / "back"
    assert convert(folder, own, "orbax")["tensors"] == len(tensors(folder))
    assert convert(own, back, "hf")["dtype"] == "float32"
    assert load_config(own) == load_config(back) == load_config(folder)
    assert same(tensors(back), tensors(folder))
    again = read_by_transformers(back)
    assert type(again) is type(model)
    assert np.array_equal(torch_logits(again, IDS_BT), torch_logits(model, IDS_BT))


def test_bfloat16_from_file_and_from_our_layout(source, tmp_path):
    model, folder = source
    convert(folder, tmp_path / "own", "orbax", "bfloat16")
    convert(tmp_path / "own", tmp_path / "from_own", "hf")
    convert(folder, tmp_path / "from_file", "hf", "bfloat16")
    assert same(tensors(tmp_path / "from_own"), tensors(tmp_path / "from_file"))
    again = read_by_transformers(tmp_path / "from_own")
    assert again.dtype == torch.bfloat16
    expected = {name: weight.to(torch.bfloat16) for name, weight in model.state_dict().items()}
    assert all(torch.equal(weight, expected[name]) for name, weight in again.state_dict().items())


def test_a_run_of_such_a_model(source, tmp_path):
    """Its newest checkpoint: transformers finds the trained float32 weights, bit for bit, under its own names."""
    _, folder = source
    card = load_card(
        Path("configs/ssp/atlas.toml"), (f"model.checkpoint={folder}", "model.tokenizer=assets/atlas/ssp/base")
    )
    run, out = tmp_path / "run", tmp_path / "out"
    RunFolder(run, card).close()
    trained = jax.tree.map(lambda x: x + 1, load(folder)[1])
    checkpoints = Checkpoints(run / "checkpoints", card)
    checkpoints.save(3, {"actor": {"params": trained, "step": jnp.zeros((), jnp.int32)}}, {})
    checkpoints.wait()
    results = convert(run, out, "hf")
    assert (results["step"], results["tensors"]) == (3, len(tensors(folder)))
    assert same(tensors(out), {name: values + 1 for name, values in tensors(folder).items()})
    assert load_config(out) == load_config(folder)
