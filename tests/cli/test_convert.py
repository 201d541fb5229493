"""`convert` and `export`: round trips of layouts and dtypes, bit for bit; errors are clear and leave no files."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner, Result

from scope_jax.cli import app
from scope_jax.games import load_card
from scope_jax.models.files import weights
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.run.assemble import assemble_learner
from scope_jax.run.checkpoint_writer import Checkpoints
from scope_jax.run.folder import RunFolder
from scope_jax.sharding.rules import TRAIN

BASE = Path("assets/atlas/ssp/base")  # stored in bfloat16


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def converted(*words: object) -> dict[str, Any]:
    result = call("convert", *words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout.splitlines()[-1])


def refused(*words: object) -> str:
    result = call(*words)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.stderr
    sentences = [line for line in result.stderr.splitlines() if line.startswith("scope-jax: ")]
    assert len(sentences) == 1, result.stderr
    return sentences[0]


def same(a: Any, b: Any) -> bool:
    return jax.tree.all(jax.tree.map(lambda x, y: x.dtype == y.dtype and np.array_equal(x, y), a, b))


def same_tokenizer(folder: Path, other: Path) -> bool:
    messages = [{"role": "user", "content": "Which river <|im_end|> is it?"}]
    ours, theirs = Tokenizer.load(folder), Tokenizer.load(other)
    return ours.encode_chat(messages) == theirs.encode_chat(messages) and ours.eos_ids == theirs.eos_ids


@pytest.fixture(scope="module")
def base() -> dict[str, Any]:
    return weights.load_hf(BASE, dtype=jnp.bfloat16)[1]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Atlas base model in our own layout."""
    folder = tmp_path_factory.mktemp("own") / "base"
    results = converted(BASE, folder, "--to", "orbax")
    assert (results["layout"], results["dtype"]) == ("orbax", "bfloat16")
    assert results["folders"] == {"": str(folder)}
    assert results["bytes"] == sum(x.nbytes for x in load_file(BASE / "model.safetensors").values())
    assert results["tensors"] == len(load_file(BASE / "model.safetensors"))
    assert results["seconds"] > 0
    return folder


def test_conversion_round_trip_is_bitwise(own: Path, base: dict[str, Any], tmp_path: Path) -> None:
    assert same(weights.load(own, dtype=jnp.bfloat16)[1], base)
    assert same(weights.load(own)[1], jax.tree.map(lambda x: x.astype(jnp.float32), base))
    assert converted(own, tmp_path / "hf", "--to", "hf")["dtype"] == "bfloat16"
    back, first = load_file(tmp_path / "hf" / "model.safetensors"), load_file(BASE / "model.safetensors")
    assert same(back, first)
    assert same_tokenizer(own, BASE) and same_tokenizer(tmp_path / "hf", BASE)
    assert weights.load_config(tmp_path / "hf") == weights.load_config(own) == weights.load_config(BASE)


def test_dtype_round_trips(base: dict[str, Any], tmp_path: Path) -> None:
    assert converted(BASE, tmp_path / "wide", "--to", "hf", "--dtype", "float32")["dtype"] == "float32"
    wide = load_file(tmp_path / "wide" / "model.safetensors")
    assert {x.dtype for x in wide.values()} == {np.dtype(np.float32)}
    config = json.loads((tmp_path / "wide" / "config.json").read_text())
    assert config["dtype"] == config["torch_dtype"] == "float32"
    assert converted(tmp_path / "wide", tmp_path / "again", "--to", "hf", "--dtype", "bfloat16")["dtype"] == "bfloat16"
    assert same(weights.load(tmp_path / "again", dtype=jnp.bfloat16)[1], base)
    assert same_tokenizer(tmp_path / "again", BASE)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, base: dict[str, Any]) -> Path:
    """A run folder whose newest checkpoint, step 7, holds the base weights plus one."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    cfg = load_card(Path("configs/ssp/atlas.toml"), ())
    RunFolder(folder, cfg).close()
    checkpoints = Checkpoints(folder / "checkpoints", cfg)
    trained = jax.tree.map(lambda x: x.astype(jnp.float32) + 1, base)
    checkpoints.save(7, {"actor": {"params": trained, "step": jnp.zeros((), jnp.int32)}}, {})
    checkpoints.wait()
    return folder


def test_an_export_has_the_dtype_of_the_base_and_says_what_was_rounded(
    run: Path, base: dict[str, Any], tmp_path: Path
) -> None:
    result = call("export", run, tmp_path / "exported", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout.splitlines()[-1])["dtype"] == "bfloat16"
    sentence = f"written in bfloat16, as {BASE} is stored; --dtype float32 writes what was trained, bit for bit"
    assert sentence in result.stderr.splitlines()
    rounded = jax.tree.map(lambda x: (x.astype(jnp.float32) + 1).astype(jnp.bfloat16), base)
    assert same(weights.load(tmp_path / "exported", dtype=jnp.bfloat16)[1], rounded)
    exact = call("export", run, tmp_path / "exact", "--dtype", "float32")
    assert exact.exit_code == 0 and "written in" not in exact.stderr


@pytest.mark.slow  # evaluation/test_weights.py compares them, too
def test_a_run_and_its_export(run: Path, base: dict[str, Any], tmp_path: Path) -> None:
    trained = jax.tree.map(lambda x: x.astype(jnp.float32) + 1, base)
    results = converted(run, tmp_path / "hf", "--to", "hf", "--policy", "actor")
    assert (results["step"], results["dtype"], results["folders"]) == (7, "float32", {"actor": str(tmp_path / "hf")})
    assert same(weights.load(tmp_path / "hf")[1], trained)
    converted(run / "checkpoints" / "7", tmp_path / "own", "--to", "orbax")
    assert same(weights.load(tmp_path / "own")[1], trained)
    result = call("export", run, tmp_path / "exported", "--dtype", "float32")
    assert result.exit_code == 0, result.output
    exported, expected = (tmp_path / name / "model.safetensors" for name in ("exported", "hf"))
    assert exported.read_bytes() == expected.read_bytes()
    assert same_tokenizer(tmp_path / "own", BASE)


def _truncate(folder: Path) -> str:
    biggest = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    os.truncate(biggest, 100)
    return "100 bytes instead of"


def _flip(folder: Path) -> str:
    biggest = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    content = bytearray(biggest.read_bytes())
    content[len(content) // 2] ^= 8
    biggest.write_bytes(content)
    return "has changed since it was written"


def _unseal(folder: Path) -> str:
    (folder / "seal.json").unlink()
    return "never finished"


def _forget(folder: Path) -> str:
    shutil.rmtree(folder / "weights")
    return "is missing"


@pytest.mark.parametrize("damage", [_truncate, _flip, _unseal, _forget])
def test_damaged_folder(own: Path, tmp_path: Path, damage) -> None:
    shutil.copytree(own, tmp_path / "own")
    words = damage(tmp_path / "own")
    text = refused("convert", tmp_path / "own", tmp_path / "out", "--to", "hf")
    assert str(tmp_path / "own") in text and words in text
    with pytest.raises(weights.WeightsError, match=words):
        weights.load(tmp_path / "own")
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []


def test_a_card_starts_from_either_layout(own: Path, base: dict[str, Any], tmp_path: Path) -> None:
    """Loads as a run does, on the mesh of all devices; and checks the error for a damaged folder."""
    cfg = load_card(Path("configs/ssp/atlas.toml"), [f"model.checkpoint={own}"])
    learner = assemble_learner(cfg, weights.load_config(own))
    params = weights.load(cfg.model.checkpoint, learner.mesh, TRAIN, learner.layout.param_dtype)[1]
    assert same(params, jax.tree.map(lambda x: x.astype(jnp.float32), base))
    shutil.copytree(own, tmp_path / "own")
    words = _flip(tmp_path / "own")
    overrides = ["--set", f"model.checkpoint={tmp_path / 'own'}", "--set", "train.steps=1"]
    assert words in refused("train", "configs/ssp/atlas.toml", "--run", tmp_path / "run", *overrides)


def test_paths_may_be_relative_to_any_folder(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, out, (checkpoint,) = BASE.absolute(), tmp_path / "out", sorted((run / "checkpoints").iterdir())
    monkeypatch.chdir(run / "checkpoints")
    assert converted(checkpoint.name, out / "name", "--to", "hf")["step"] == int(checkpoint.name)
    monkeypatch.chdir(checkpoint)
    assert converted(".", out / "dot", "--to", "hf")["step"] == int(checkpoint.name)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert "is the current folder, which is not replaced" in refused("convert", base, ".", "--to", "hf")
    converted(base, "../there", "--to", "hf")
    assert (tmp_path / "there" / "config.json").is_file() and list((tmp_path / "here").iterdir()) == []


def test_inputs_that_cannot_be_converted(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "does not exist" in refused("convert", tmp_path / "none", out, "--to", "hf")
    (tmp_path / "empty").mkdir()
    assert "neither a run" in refused("convert", tmp_path / "empty", out, "--to", "hf")
    assert "no policy 'solver'; it has actor" in refused("convert", run, out, "--to", "hf", "--policy", "solver")
    assert "remove --policy" in refused("convert", BASE, out, "--to", "hf", "--policy", "actor")
    assert "choose another folder" in refused("convert", BASE, BASE, "--to", "hf")
    assert f"the target {BASE} is a model of the run or contains it" in refused("export", run, BASE)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "draft.txt").write_text("mine")
    assert "is not a model folder" in refused("convert", BASE, tmp_path / "thesis", "--to", "orbax")
    assert not out.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "thesis"]
