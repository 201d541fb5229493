"""Converts weights between runs, Hugging Face folders and the orbax layout (`convert`, `export`)."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp

from scope_jax.config import Config
from scope_jax.errors import UserError
from scope_jax.games import game_of, load_card
from scope_jax.models.decoder.adapter import merge as merge_factors
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.hf import hf_shapes
from scope_jax.models.decoder.transformer import Params
from scope_jax.models.files import peft, weights
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.run.adapters import DTYPES, adapter_of, saved_factors
from scope_jax.run.checkpoint import load, locate, run_of, step_of
from scope_jax.run.fetching import fetched
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from scope_jax.sharding.rules import TRAIN

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
    merge: bool = False,
) -> dict[str, Any]:
    """Writes the weights of `source` into `folder` in another layout or dtype, together with the tokenizer.

    source: a run folder, one of its checkpoints, or a model folder in the Hugging Face or orbax layout. dtype:
    "float32" or "bfloat16"; None: the smaller of the two that is lossless (for a run: the dtype it was trained in).
    policy: which policy of a run with several; None writes each into its own folder below `folder`. merge: of a run of
    adapters, whole weights, the base with the adapter added, instead of the adapter in PEFT's format. Returns
    {"layout", "dtype", "tensors", "bytes", "seconds", "folders" by policy ("" for a model folder)}, for a run "step",
    and "from_mxfp4", the number of tensors that were read from MXFP4 and written as numbers of `dtype`. Raises
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
        if packed := weights.packed(source):
            results["from_mxfp4"] = len(packed)
    else:
        run = run_of(source)
        if run is None:
            raise UserError(
                f"{source} is neither a run (it has no config.toml) nor a model folder (it has no config.json)."
            )
        card = fetched(load_card(run / "config.toml"))
        for model in (card.model.checkpoint, card.model.tokenizer, *card.model.policies.values()):
            _apart(Path(model or card.model.checkpoint), folder, "a model of the run")
        _check_merge(card, run, layout, merge)
        if card.model.adapter is not None and not merge:
            results = export_adapters(source, card, folder, DTYPES[dtype or card.model.adapter.dtype], policy)
            return {**results, "seconds": time.monotonic() - began}
        name = dtype or ("float32" if merge else card.model.param_dtype)
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


def export_dtype(run: Path, merge: bool) -> tuple[str | None, str]:
    """(the dtype of an export for which none is asked, None: that of an adapter; a sentence if it is narrower than what
    was trained, else "").

    It is the base's own: what reads the base reads the export, in as much memory.
    """
    card = fetched(load_card(run / "config.toml"))
    if card.model.adapter is not None and not merge:
        return None, ""
    base, trained = card.model.checkpoint, "float32" if merge else card.model.param_dtype
    dtype = _own_dtype(Path(base))
    if dtype == trained:
        return dtype, ""
    return dtype, f"written in {dtype}, as {base} is stored; --dtype {trained} writes what was trained, bit for bit"


def _check_merge(card: Config, run: Path, layout: Layout, merge: bool) -> None:
    if merge and card.model.adapter is None:
        raise UserError(f"the run in {run} trains whole weights, there is no adapter to merge; remove --merge.")
    if card.model.adapter is not None and not merge and layout == "orbax":
        raise UserError(
            f"the run in {run} trains adapters, which have one layout, PEFT's; use `scope-jax export`, with --merge "
            "for whole weights, and convert these."
        )


def _apart(source: Path, folder: Path, what: str = "the source") -> None:
    inner, outer = folder.absolute().resolve(), source.absolute().resolve()
    if inner == outer or inner in outer.parents:
        raise UserError(f"the target {folder} is {what} or contains it; choose another folder.")


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
    base: Path,
    report: Report,
) -> None:
    if layout == "hf":
        weights.save_hf(folder, cfg, params, dtype, tokenizer, lambda d, n: report("tensors written", d, n), base)
    else:
        weights.save_orbax(folder, cfg, params, dtype, tokenizer)


def _convert_model(source: Path, folder: Path, layout: Layout, dtype: Any, report: Report) -> ModelConfig:
    if layout == "hf" and not weights.is_orbax(source):
        weights.recast_hf(source, folder, dtype, lambda d, n: report("tensors written", d, n))
        return weights.load_config(source)
    mesh = jax.tree.leaves(_abstract(weights.load_config(source), dtype))[0].sharding.mesh
    cfg, params = weights.load(source, mesh, TRAIN, dtype, lambda d, n: report("tensors read", d, n))
    _save(folder, layout, cfg, params, dtype, source, source, report)
    return cfg


def _convert_run(
    source: Path, card: Config, folder: Path, layout: Layout, dtype: Any, policy: str | None, report: Report
) -> tuple[ModelConfig, dict[str, Any]]:
    folders = _folders(source, card, folder, policy)
    cfg = weights.load_config(card.model.checkpoint)
    tokenizer = _tokenizer(card)
    place = locate(source)
    step = 0
    # One policy at a time, so that only one set of weights is in memory.
    for name, out in folders.items():
        if card.model.adapter is None:
            saved = load(place, {name: {"params": _abstract(cfg, dtype)}})
            step, params = saved.step, saved.states[name]["params"]
        else:
            step, params = step_of(place), _merged(card, cfg, place, name, dtype)
        _save(out, layout, cfg, params, dtype, tokenizer, Path(card.model.checkpoint), report)
    return cfg, {"step": step, "folders": {name: str(out) for name, out in folders.items()}}


def _tokenizer(card: Config) -> Tokenizer:
    """The tokenizer of a run, with the end tokens of its base."""
    base = card.model.checkpoint
    return Tokenizer.load(card.model.tokenizer or base, card.model.chat_template, model=base)


def _folders(source: Path, card: Config, folder: Path, policy: str | None) -> dict[str, Path]:
    """Where each of a run's policies goes. Raises UserError if there is no such policy."""
    policies = game_of(card).policies(card)
    if policy is not None and policy not in policies:
        raise UserError(f"the run in {source} has no policy {policy!r}; it has {', '.join(policies)}.")
    wanted = policies if policy is None else (policy,)
    return {name: folder if len(wanted) == 1 else folder / name for name in wanted}


def _merged(card: Config, cfg: ModelConfig, place: Path, policy: str, dtype: Any) -> Params:
    """A policy's whole weights: the base, as it was in training, with the adapter added, rounded once to `dtype`."""
    adapter = adapter_of(card.model.adapter)
    assert adapter is not None
    mesh = jax.tree.leaves(_abstract(cfg, dtype))[0].sharding.mesh
    _, base = weights.load(card.model.checkpoint, mesh, TRAIN, adapter.base_dtype)
    factors = saved_factors(card, cfg, mesh, TRAIN, place, policy)
    donated = 0 if adapter.base_dtype == dtype else ()
    return jax.jit(partial(merge_factors, cfg, scale=adapter.scale, dtype=dtype), donate_argnums=donated)(base, factors)


def export_adapters(source: Path, card: Config, folder: Path, dtype: Any, policy: str | None) -> dict[str, Any]:
    """Writes the adapters of a run in PEFT's format, one folder per policy. Returns the results of `convert`."""
    adapter, cfg = adapter_of(card.model.adapter), weights.load_config(card.model.checkpoint)
    assert adapter is not None
    tokenizer = _tokenizer(card)
    place, folders, size, tensors = locate(source), _folders(source, card, folder, policy), 0, 0
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.local_devices()[:1])
    for name, out in folders.items():
        factors = saved_factors(card, cfg, mesh, TRAIN, place, name)
        tensors += peft.save(out, cfg, adapter, factors, str(Path(card.model.checkpoint).resolve()), dtype, tokenizer)
        size += sum(leaf.size for leaf in jax.tree.leaves(factors)) * jnp.dtype(dtype).itemsize
    return {
        "step": step_of(place),
        "folders": {name: str(out) for name, out in folders.items()},
        "layout": "peft",
        "dtype": jnp.dtype(dtype).name,
        "tensors": tensors,
        "bytes": size,
    }
