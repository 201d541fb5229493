"""Bases of Atlas cut to fewer layers, for tests that play without reading what is said: JAX traces layer by layer, so
that half of the layers is half of the time."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp

from scope_jax.models.files import weights

ATLAS = Path(__file__).parents[1] / "assets" / "atlas"
LAYERS = 2


@cache
def shallow(game: str) -> Path:
    """The folder of the game's base with its first two layers, written once in a process; nobody changes it."""
    base, folder = ATLAS / game / "base", Path(tempfile.mkdtemp(prefix="shallow-")) / "base"
    atexit.register(shutil.rmtree, folder.parent, ignore_errors=True)
    shutil.copytree(base, folder)
    (folder / "model.safetensors").unlink()
    cfg, params = weights.load(base)
    params["layers"] = jax.tree.map(lambda leaf: leaf[:LAYERS], params["layers"])
    weights.save_hf(folder, replace(cfg, layers=cfg.layers[:LAYERS]), params, jnp.float32, base)
    return folder
