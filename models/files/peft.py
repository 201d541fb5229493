"""Adapters in PEFT's format: a folder with adapter_config.json and adapter_model.safetensors.

base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight    [r, in], our A transposed
base_model.model.model.layers.3.self_attn.q_proj.lora_B.weight    [out, r], our B transposed
base_model.model.model.layers.3.mlp.experts.7.up_proj.lora_A.weight    of an expert
base_model.model.model.layers.0.linear_attn.in_proj_qkv.lora_B.weight    [out, r], the B of three weights by rows
base_model.model.model.language_model.layers.3...    of a base with other modalities beside its decoder
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file

from scope_jax.models.decoder import stacks
from scope_jax.models.decoder.adapter import EXPERTS, Adapter, declare_factors, linear
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.hf import HfTensor, hf_tensor
from scope_jax.models.decoder.transformer import Params
from scope_jax.models.fields import WeightsError, count, cut, flag, number, read_object
from scope_jax.models.files import claims
from scope_jax.models.files.families import wrapper
from scope_jax.models.files.tensorfile import READABLE, finite, stored_shapes
from scope_jax.models.files.weights import whole_folder
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.sharding.spec import path_name

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
INSIDE = f"{PREFIX}model.language_model."  # how names begin over a class with other modalities
_DECODER = re.compile(rf"{re.escape(PREFIX)}(?:model\.language_model|language_model\.model)\.")
FACTOR = re.compile(r"\.(\w+)\.lora_([AB])\.weight$")
# What changes the computation and is not supported: the value that an adapter must have.
PLAIN: dict[str, Any] = {
    "bias": "none",
    "fan_in_fan_out": False,
    "use_dora": False,
    "lora_bias": False,
    "modules_to_save": None,
    "rank_pattern": None,
    "alpha_pattern": None,
    "layers_to_transform": None,
    "layer_replication": None,
    "target_parameters": None,
    "trainable_token_indices": None,
    "alora_invocation_tokens": None,
    "use_qalora": False,
    "use_bdlora": None,
    "arrow_config": None,
    "kasa_config": None,
}
# Initial factors beside a base that stays as it is; others (PiSSA, OLoRA, CorDA …) change it, whenever PEFT loads them.
BESIDE_THE_BASE = (None, True, False, "gaussian", "eva", "orthogonal", "mica")


def is_adapter(folder: str | Path) -> bool:
    """True if the folder holds an adapter in PEFT's format."""
    return (Path(folder) / CONFIG).is_file()


def _tensor_names(cfg: ModelConfig, path: str, shape: tuple[int, ...]) -> dict[tuple[int, ...], str]:
    """Names in the file, by layer (and expert), of one of our factors, "layers.q_D_Hh.a"."""
    tensor = _tensor_of(cfg, path)
    return {place: tensor.at(place) for place in np.ndindex(shape[: tensor.leading])}


def _tensor_of(cfg: ModelConfig, path: str) -> HfTensor:
    weight, _, which = path.rpartition(".")
    tensor = hf_tensor(cfg, weight)
    if ".experts." in tensor.name and "{x}" not in tensor.name:
        raise WeightsError(
            f"adapters of experts that one tensor holds ({tensor.name.partition('{i}.')[2]}) have no form in PEFT's "
            "files; export with --merge."
        )
    name = f"{PREFIX}{tensor.name.removesuffix('.weight')}.lora_{which.upper()}.weight"
    return replace(tensor, name=name, transposed=True, rows=tensor.rows if which == "b" else None)


# ---------------------------------------------------------------------------------------------------------- reading
def load_config(folder: str | Path) -> Mapping[str, Any]:
    """The contents of adapter_config.json. Raises FileNotFoundError or WeightsError with one sentence if it is missing,
    not of LoRA, or uses what is not supported."""
    path = Path(folder) / CONFIG
    contents = read_object(path)
    if contents.get("peft_type") != "LORA":
        raise WeightsError(
            f"{path}: peft_type is {cut(repr(contents.get('peft_type')))}; only LORA adapters are supported."
        )
    for name, plain in PLAIN.items():
        if contents.get(name) not in (None, False, "none", {}, [], plain):
            raise WeightsError(
                f"{path}: {name} is {cut(repr(contents[name]))}, which is not supported; use a plain LoRA adapter."
            )
    init = contents.get("init_lora_weights")
    if isinstance(init, list | dict) or (init.lower() if isinstance(init, str) else init) not in BESIDE_THE_BASE:
        raise WeightsError(
            f"{path}: init_lora_weights is {cut(repr(init))}, with which the adapter belongs to a changed base; save "
            "it with PEFT's path_initial_model_for_weight_conversion, as a plain LoRA adapter."
        )
    try:
        count(contents, "r")
        number(contents, "lora_alpha")
        flag(contents, "use_rslora", False)
    except ValueError as error:
        raise WeightsError(f"{path}: {str(error).removeprefix('config.json: ')}") from None
    return contents


def adapter_of(folder: str | Path, cfg: ModelConfig) -> Adapter:
    """The Adapter of a folder, with the targets that its tensors have. Raises as `load_config` and `load` do."""
    contents = load_config(folder)
    names = sorted(_shapes(folder, contents["r"]))
    modules, known = set(), dict.fromkeys((*linear(cfg), *(f"{name.partition('_')[0]}_proj" for name in EXPERTS)))
    for name in names:
        factor = FACTOR.search(name)
        if factor is None or factor[1] not in known:
            raise WeightsError(
                f"{Path(folder) / WEIGHTS}: {cut(name, 80)} is not supported; an adapter has lora_A and lora_B of "
                f"{', '.join(known)}."
            )
        if ".mlp.experts." not in name:
            modules.add(factor[1])
    experts = any(".mlp.experts." in name for name in names)
    targets = (*sorted(modules), *(["experts"] if experts else []))
    return Adapter(contents["r"], float(contents["lora_alpha"]), targets, bool(contents.get("use_rslora")))


def _shapes(folder: str | Path, rank: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors by name; their ranks are that of the configuration."""
    path = Path(folder) / WEIGHTS
    if not path.is_file():
        if (pickled := path.with_suffix(".bin")).is_file():
            raise FileNotFoundError(
                f"{path.parent} has its adapter in {pickled.name}, and only safetensors are read; load it with PEFT "
                "and save it with save_pretrained."
            )
        raise FileNotFoundError(f"{path} is missing; copy the adapter's folder again.")
    shapes = {}
    for name, (dtype, shape) in stored_shapes(path).items():
        if dtype not in READABLE:
            raise WeightsError(f"{path}: {cut(name, 80)} is {dtype}; supported are {', '.join(sorted(READABLE))}.")
        factor = FACTOR.search(name)
        if factor is not None and (len(shape) != 2 or shape["AB".index(factor[2])] != rank):
            raise WeightsError(
                f"{path}: {cut(name, 80)} has shape {shape}, but {CONFIG} gives the rank {rank}; copy the folder again."
            )
        shapes[_bare(name)] = shape
    return shapes


def _bare(name: str) -> str:
    """A tensor's name over the decoder alone."""
    return _DECODER.sub(f"{PREFIX}model.", name)


def load(folder: str | Path, cfg: ModelConfig, adapter: Adapter, shardings: Params | None = None) -> Params:
    """A policy's factors in the adapter's dtype. shardings: of the factors; None: on the first device.

    Raises FileNotFoundError or WeightsError with one sentence if the folder's adapter has another rank, alpha, scaling
    or other targets, if a file is damaged, or if a value is not finite.
    """
    folder = Path(folder)
    contents = load_config(folder)
    shapes = _shapes(folder, contents["r"])
    given = (contents["r"], float(contents["lora_alpha"]), bool(contents.get("use_rslora")))
    if given != (wanted := (adapter.rank, float(adapter.alpha), adapter.rslora)):
        raise WeightsError(
            f"the adapter in {folder} has (rank, alpha, rslora) = {given}, but [model.adapter] has {wanted}; make "
            "them equal."
        )
    declared = declare_factors(cfg, adapter)
    claims.compare(folder, shapes, declared, lambda path: _tensor_of(cfg, path))
    names = {
        path_name(path): _tensor_names(cfg, path_name(path), param.shape)
        for path, param in jax.tree_util.tree_leaves_with_path(declared)
    }
    expected = {name for places in names.values() for name in places.values()}
    for missing, what in ((expected - set(shapes), "lacks"), (set(shapes) - expected, "also adapts")):
        if missing:
            raise WeightsError(
                f"the adapter in {folder} {what} {cut(min(missing), 120)} and {len(missing) - 1} more tensors; the "
                "targets of [model.adapter] must be the adapter's."
            )

    stored = {_bare(name): value for name, value in load_file(folder / WEIGHTS).items()}

    def one(path: tuple[Any, ...], param: Any) -> np.ndarray:
        out, rows = np.empty(param.shape, adapter.dtype), _tensor_of(cfg, path_name(path)).rows
        for place, name in names[path_name(path)].items():
            value = stored[name]
            if rows is not None and len(value) == rows[1]:
                value = value[rows[0] : rows[0] + out[place].shape[-1]]
            if value.shape[::-1] != out[place].shape or not finite(value):
                raise WeightsError(
                    f"{folder / WEIGHTS}: {name} has the shape {value.shape} or values that are not finite; the model "
                    f"needs finite values of shape {out[place].shape[::-1]}."
                )
            out[place] = value.T
        return out

    factors = jax.tree_util.tree_map_with_path(one, declared)
    return jax.device_put(factors, jax.local_devices()[0] if shardings is None else shardings)


# ---------------------------------------------------------------------------------------------------------- writing
def save(
    folder: str | Path,
    cfg: ModelConfig,
    adapter: Adapter,
    factors: Params,
    base: str,
    dtype: Any = jnp.float32,
    tokenizer: Tokenizer | None = None,
) -> int:
    """Writes a folder that PEFT's `PeftModel.from_pretrained` loads over the base model, as the class that its
    config.json names; the number of its tensors.

    base: the base's name or folder, for readers. The folder appears complete or not at all. Raises FileExistsError if
    it exists and holds no adapter, WeightsError if a value is not finite.
    """
    tensors: dict[str, np.ndarray] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(jax.device_get(factors)):
        values = np.asarray(leaf, dtype)
        if not finite(values):
            raise WeightsError(f"nothing was written: {path_name(path)} holds values that are NaN or infinite.")
        rows = _tensor_of(cfg, path_name(path)).rows
        for place, name in _tensor_names(cfg, path_name(path), values.shape).items():
            value = np.ascontiguousarray(values[place].T)
            if rows is None:
                tensors[name] = value
            else:
                whole = tensors.setdefault(name, np.empty((rows[1], value.shape[1]), dtype))
                whole[rows[0] : rows[0] + len(value)] = value
    chosen = {path for path, _ in stacks.paths(cfg, factors["layers"])}
    targets = {module for module, ours in linear(cfg).items() if ours & chosen}
    targets |= {f"{name.partition('_')[0]}_proj" for name in EXPERTS if name in stacks.named(cfg, factors["layers"])}
    config = Path(base) / "config.json"
    modules: list[str] | str = sorted(targets)
    if config.is_file() and wrapper(read_object(config)) is not None:
        tensors = {name.replace(f"{PREFIX}model.", INSIDE, 1): value for name, value in tensors.items()}
        modules = rf"model\.language_model\..*\.({'|'.join(modules)})"  # not of the other modalities
    contents = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": adapter.rank,
        "lora_alpha": int(adapter.alpha) if float(adapter.alpha).is_integer() else adapter.alpha,
        "lora_dropout": 0.0,
        "target_modules": modules,
        "use_rslora": adapter.rslora,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True if adapter.init == "kaiming" else "gaussian",
    }
    with whole_folder(Path(folder), CONFIG) as new:
        save_file(tensors, new / WEIGHTS, metadata={"format": "pt"})
        (new / CONFIG).write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")
        if tokenizer is not None:
            tokenizer.save(new)
    return len(tensors)
