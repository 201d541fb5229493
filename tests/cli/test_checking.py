"""What `scope-jax check` says of model folders that cannot be loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jax.numpy as jnp

from models import weights
from scope_jax.config import load_card
from scope_jax.run import checking

ROOT = Path(__file__).parents[2]
BASE = ROOT / "assets" / "atlas" / "ssp" / "base"


def finding(folder: Path) -> checking.Finding:
    cfg = load_card(ROOT / "configs" / "ssp" / "atlas.toml", [f"model.checkpoint={folder}"])
    return next(found for found in checking.check(cfg) if found.name.startswith("model "))


def test_a_config_of_another_width_is_reported(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BASE, tmp_path / "base"))
    assert not finding(folder).wrong
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": config["vocab_size"] + 1}))
    found = finding(folder)
    assert found.wrong and "but config.json requires" in found.text


def test_an_orbax_file_cut_short_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "orbax"
    weights.save_orbax(folder, *weights.load_hf(BASE), jnp.float32, BASE)
    assert not finding(folder).wrong
    longest = max(
        (path for path in (folder / weights.ORBAX).rglob("*") if path.is_file()), key=lambda p: p.stat().st_size
    )
    longest.write_bytes(longest.read_bytes()[:-1])
    found = finding(folder)
    assert found.wrong and "cannot be used" in found.text
