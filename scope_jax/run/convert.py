"""Converts weights between runs, Hugging Face folders and the orbax layout (`convert`, `export`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp

from models import weights
from models.config import ModelConfig
from models.hf import hf_shapes
from models.tokenizer import Tokenizer
from models.transformer import Params
from scope_jax.config import Config, load_card
from scope_jax.errors import UserError
from scope_jax.run.checkpoint import load, locate, run_of
from scope_jax.run.dtypes import DTYPES
from scope_jax.systems import game_of
from sharding.mesh import MeshConfig, make_mesh
from sharding.rules import TRAIN

Layout = Literal["hf", "orbax"]
Report = Callable[[str, int, int], None]  # name of the work, pieces done, pieces in total


def quiet(name: str, done: int, total: int) -> None:
    """A Report that does nothing."""


def convert(
    source: Path,
    folder: Path,
    layout: Layout,
    dtype: str | None = None,
    policy: str | None = None,
    report: Report = quiet,
) -> dict[str, Any]:
    """Writes the weights of `source` into `folder` in another layout or dtype, together with the tokenizer.

    source: a run folder, one of its checkpoints, or a model folder in the Hugging Face or orbax layout. dtype:
    "float32" or "bfloat16"; None: the smaller of the two that is lossless (for a run: the dtype it was trained in).
    policy: which policy of a run with several; None writes each into its own folder below `folder`. Returns {"layout",
    "dtype", "tensors", "bytes", "seconds", "folders" by policy ("" for a model folder)} and for a run "step". Raises
    UserError, WeightsError or OSError subclasses with one sentence.
    """
    began = time.monotonic()
    _apart(source, folder)
    if weights.is_model(source):
        if policy is not None:
            raise UserError(f"{source} is a model folder and has no policies; remove --policy.")
        name = dtype or _own_dtype(source)
        cfg = _convert_model(source, folder, layout, DTYPES[name], report)
        results: dict[str, Any] = {"folders": {"": str(folder)}}
    else:
        run = run_of(source)
        if run is None:
            raise UserError(
                f"{source} is neither a run (it has no config.toml) nor a model folder (it has no config.json)."
            )
        card = load_card(run / "config.toml")
        name = dtype or card.model.param_dtype
        cfg, results = _convert_run(source, card, folder, layout, DTYPES[name], policy, report)
    shapes, count = hf_shapes(cfg), len(results["folders"])
    size = count * sum(param.size for param in jax.tree.leaves(_abstract(cfg, DTYPES[name])))
    return {
        **results,
        "layout": layout,
        "dtype": name,
        "tensors": count * len(shapes),
        "bytes": size * jnp.dtype(DTYPES[name]).itemsize,
        "seconds": time.monotonic() - began,
    }


def _apart(source: Path, folder: Path) -> None:
    inner, outer = folder.absolute().resolve(), source.absolute().resolve()
    if inner == outer or inner in outer.parents:
        raise UserError(f"the target {folder} is the source or contains it; choose another folder.")


def _own_dtype(source: Path) -> str:
    return "bfloat16" if weights.stored_dtypes(source) == {"bfloat16"} else "float32"


def _abstract(cfg: ModelConfig, dtype: Any) -> Params:
    """Shapes and shardings of the weights over all devices, or over one if the model cannot be divided evenly."""
    devices = jax.devices()
    try:
        return weights.abstract(cfg, make_mesh(MeshConfig(1, -1, 1), devices), TRAIN, dtype)
    except ValueError:
        if jax.process_count() > 1:
            raise
        return weights.abstract(cfg, make_mesh(MeshConfig(1, 1, 1), devices[:1]), TRAIN, dtype)


def _save(
    folder: Path,
    layout: Layout,
    cfg: ModelConfig,
    params: Params,
    dtype: Any,
    tokenizer: Tokenizer | Path | None,
    report: Report,
) -> None:
    if layout == "hf":
        weights.save_hf(folder, cfg, params, dtype, tokenizer, lambda d, n: report("tensors written", d, n))
    else:
        weights.save_orbax(folder, cfg, params, dtype, tokenizer)


def _convert_model(source: Path, folder: Path, layout: Layout, dtype: Any, report: Report) -> ModelConfig:
    if layout == "hf" and not weights.is_orbax(source):
        weights.recast_hf(source, folder, dtype, lambda d, n: report("tensors written", d, n))
        return weights.load_config(source)
    mesh = jax.tree.leaves(_abstract(weights.load_config(source), dtype))[0].sharding.mesh
    cfg, params = weights.load(source, mesh, TRAIN, dtype, lambda d, n: report("tensors read", d, n))
    _save(folder, layout, cfg, params, dtype, source, report)
    return cfg


def _convert_run(
    source: Path, card: Config, folder: Path, layout: Layout, dtype: Any, policy: str | None, report: Report
) -> tuple[ModelConfig, dict[str, Any]]:
    policies = game_of(card).policies(card)
    if policy is not None and policy not in policies:
        raise UserError(f"the run in {source} has no policy {policy!r}; it has {', '.join(policies)}.")
    cfg = weights.load_config(card.model.checkpoint)
    tokenizer = Tokenizer.load(card.model.tokenizer or card.model.checkpoint, card.model.chat_template)
    place = locate(source)
    wanted = policies if policy is None else (policy,)
    folders = {name: folder if len(wanted) == 1 else folder / name for name in wanted}
    step = 0
    # One policy at a time, so that only one set of weights is in memory.
    for name, out in folders.items():
        saved = load(place, {name: {"params": _abstract(cfg, dtype)}})
        step = saved.step
        _save(out, layout, cfg, saved.states[name]["params"], dtype, tokenizer, report)
    return cfg, {"step": step, "folders": {name: str(out) for name, out in folders.items()}}
