"""What `scope-jax check` says of model folders that cannot be loaded."""

from __future__ import annotations

import itertools
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


def test_what_a_start_would_refuse_is_reported(tmp_path: Path) -> None:
    def wrong(*overrides: str) -> list[str]:
        cfg = load_card(ROOT / "configs" / "ssp" / "atlas.toml", overrides)
        early = itertools.takewhile(lambda found: found.name != "prompts", checking.check(cfg))
        return [f"{found.name}: {found.text}" for found in early if found.wrong]

    assert wrong() == []
    (said,) = wrong(f"model.policies={{nobody='{BASE}'}}")
    assert said == "game: model.policies names 'nobody', but the card trains actor; correct it."
    (said,) = wrong("train.one_step_off_policy=true", "rollout.devices=1")
    assert "its loss does not correct for that; set rollout_cap there" in said
    (said,) = wrong(f"model.tokenizer={ROOT / 'assets' / 'atlas' / 'scope' / 'base'}")
    assert said.startswith("tokenizer and template: the tokenizer has 1266 tokens but the model")
    other = Path(shutil.copytree(BASE, tmp_path / "other"))
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    (said,) = wrong(f"model.policies={{actor='{other}'}}")
    assert said.startswith(f"model {other}: the model in {other}, from which actor starts, differs from the base")


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
