"""Weights between a Hugging Face folder (config.json and safetensors) and our tree.

Reading goes slice by slice: each device's shard is cut out of the memory-mapped files, so that a host touches only the
bytes its devices need.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from models.config import ModelConfig, from_hf, to_hf
from models.hf import HfTensor, hf_shapes, hf_tensor, tree_shapes
from models.tokenizer import Tokenizer
from models.transformer import Params, declare
from sharding.rules import Rules
from sharding.spec import Param, param_shardings, path_name

MAX_SHARD_BYTES = 5 * 10**9  # of one safetensors file, as transformers splits them
READABLE = {"F32", "F16", "BF16"}
INDEX = "model.safetensors.index.json"


class WeightsError(ValueError):
    """A folder that cannot be read as a model; the message says which file or tensor and what is wrong."""


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} is missing; give a model folder in Hugging Face layout.") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise WeightsError(f"{path} is not JSON ({error}); copy the file again.") from None


def load_config(folder: str | Path) -> ModelConfig:
    """ModelConfig of a model folder.

    Raises FileNotFoundError if folder or config.json is missing, WeightsError if it is not JSON or describes a model
    that is not supported.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"Model folder {folder} does not exist; give a folder in Hugging Face layout.")
    contents = _read_json(folder / "config.json")
    if not isinstance(contents, Mapping):
        raise WeightsError(f"{folder / 'config.json'} holds no JSON object; copy the file again.")
    try:
        return from_hf(contents)
    except ValueError as error:
        raise WeightsError(f"{folder}: {error}") from None


class Checkpoint:
    """The tensors of a folder's safetensors files, open for reading slices."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._slices: dict[str, Any] = {}
        self._files: dict[str, Path] = {}
        for path in self._paths():
            if not path.is_file():
                raise FileNotFoundError(f"{path} is missing; copy the model folder again.")
            try:
                file = stack.enter_context(safe_open(path, framework="np"))
            except SafetensorError as error:
                raise WeightsError(f"{path} is not a whole safetensors file ({error}); copy it again.") from None
            for name in file.keys():  # noqa: SIM118 (safe_open is no mapping)
                self._slices[name] = file.get_slice(name)
                self._files[name] = path

    @property
    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        return frozenset(self._slices)

    def _paths(self) -> list[Path]:
        index = self.folder / INDEX
        if not index.is_file():
            return [self.folder / "model.safetensors"]
        contents = _read_json(index)
        if not isinstance(contents, Mapping) or not isinstance(contents.get("weight_map"), Mapping):
            raise WeightsError(f"{index} has no weight_map; copy the file again.")
        return [self.folder / name for name in sorted(set(contents["weight_map"].values()))]

    def check(self, shapes: Mapping[str, tuple[int, ...]], spare: frozenset[str]) -> None:
        """Raises WeightsError unless exactly these tensors are there, in these shapes; `spare` ones may be too."""
        found = set(self._slices)
        for names, what in ((set(shapes) - found, "lacks"), (found - set(shapes) - spare, "has unexpected")):
            if names:
                some = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
                raise WeightsError(
                    f"{self.folder} {what} {len(names)} tensors ({some}); config.json and weights disagree."
                )
        for name, shape in shapes.items():
            stored, dtype = tuple(self._slices[name].get_shape()), self._slices[name].get_dtype()
            if stored != shape:
                raise WeightsError(f"{self._files[name]}: {name} has shape {stored}, but config.json asks for {shape}.")
            if dtype not in READABLE:
                raise WeightsError(
                    f"{self._files[name]}: {name} is {dtype}; readable are {', '.join(sorted(READABLE))}."
                )

    def read(self, tensor: HfTensor, index: tuple[slice, ...], dtype: Any) -> np.ndarray:
        """The part `index` (slices with bounds) of our weight, in our layout."""
        lead = [range(cut.start, cut.stop) for cut in index[: tensor.leading]]
        names = [tensor.at(place) for place in itertools.product(*lead)]
        parts = [self._read(name, index[tensor.leading :], tensor.transposed).astype(dtype) for name in names]
        return np.stack(parts).reshape(*map(len, lead), *parts[0].shape)

    def _read(self, name: str, index: tuple[slice, ...], transposed: bool) -> np.ndarray:
        return self._slices[name][index[::-1]].T if transposed else self._slices[name][index]


def load_hf(
    folder: str | Path, mesh: Mesh | None = None, rules: Rules = (), dtype: Any = jnp.float32
) -> tuple[ModelConfig, Params]:
    """(config, weights in `dtype`) from a Hugging Face folder: model.safetensors, or several files with their index.

    With a mesh each weight is built under the rules' sharding and every process reads only its devices' slices; without
    one it is put on the first device. Raises FileNotFoundError or WeightsError with one sentence for a missing folder
    or file, a broken file, a model that is not supported, missing or unexpected tensors, and shapes that do not fit.
    """
    folder = Path(folder)
    cfg = load_config(folder)
    # Some writers store the output table of a tied model a second time.
    spare = frozenset({"lm_head.weight"}) if cfg.tie_embeddings else frozenset()
    return cfg, load_tree(folder, declare(cfg), lambda path: hf_tensor(cfg, path), spare, mesh, rules, dtype)


def tensor_names(folder: str | Path) -> frozenset[str]:
    """Names of all tensors of a folder. Raises FileNotFoundError or WeightsError."""
    with ExitStack() as stack:
        return Checkpoint(Path(folder), stack).names


def load_tree(
    folder: str | Path,
    tree: Params,
    tensor_of: Callable[[str], HfTensor],
    spare: frozenset[str],
    mesh: Mesh | None,
    rules: Rules,
    dtype: Any,
) -> Params:
    """The weights of a tree of Param, for models with names of their own: tensor_of("layers.q_D_Hh") says where one
    lies, `spare` tensors may be there too. Otherwise as load_hf.
    """
    if mesh is None:
        shardings = jax.tree.map(lambda _: SingleDeviceSharding(jax.local_devices()[0]), tree)
    else:
        shardings = param_shardings(tree, mesh, rules)
    with ExitStack() as stack:
        checkpoint = Checkpoint(Path(folder), stack)
        checkpoint.check(tree_shapes(tree, tensor_of), spare)

        def load(path: tuple[Any, ...], param: Param, sharding: Any) -> jax.Array:
            tensor = tensor_of(path_name(path))

            def shard(index: tuple[slice, ...] | None) -> np.ndarray:
                assert index is not None  # jax's signature allows it; a device of this process always has one
                bounds = tuple(slice(*cut.indices(n)[:2]) for cut, n in zip(index, param.shape, strict=True))
                return checkpoint.read(tensor, bounds, dtype)

            return jax.make_array_from_callback(param.shape, sharding, shard)

        return jax.tree_util.tree_map_with_path(load, tree, shardings)


def _split(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """Tensor names in order, cut into files of at most `limit` bytes (a larger tensor gets a file of its own)."""
    files: list[list[str]] = [[]]
    room = limit
    for name, size in sizes.items():
        if size > room and files[-1]:
            files.append([])
            room = limit
        files[-1].append(name)
        room -= size
    return files


def _save_weights(folder: Path, cfg: ModelConfig, params: Params, dtype: np.dtype) -> None:
    sources: dict[str, tuple[jax.Array, tuple[int, ...], bool]] = {}
    for path, weight in jax.tree_util.tree_leaves_with_path(params):
        tensor = hf_tensor(cfg, path_name(path))
        for index in np.ndindex(weight.shape[: tensor.leading]):
            sources[tensor.at(index)] = (weight, index, tensor.transposed)

    def to_host(name: str) -> np.ndarray:
        weight, index, transposed = sources[name]
        array = np.asarray(weight[index]).astype(dtype)
        return np.ascontiguousarray(array.T if transposed else array)

    shapes = hf_shapes(cfg)
    if set(shapes) != set(sources):
        raise ValueError("save_hf: the weights are not those that the model config declares.")
    sizes = {name: int(np.prod(shape)) * dtype.itemsize for name, shape in shapes.items()}
    files = _split(sizes, MAX_SHARD_BYTES)
    where: dict[str, str] = {}
    for number, names in enumerate(files, 1):
        whole = len(files) == 1
        file = "model.safetensors" if whole else f"model-{number:05d}-of-{len(files):05d}.safetensors"
        save_file({name: to_host(name) for name in names}, folder / file, metadata={"format": "pt"})
        (folder / file).chmod(0o644)  # safetensors writes for the owner alone
        where.update(dict.fromkeys(names, file))
    if len(files) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": where}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _replace(new: Path, folder: Path) -> None:
    """Puts the finished folder in its place; an earlier export there goes away only after the new one stands."""
    old = folder.with_name(f".{folder.name}.old-{os.getpid()}")
    if folder.exists():
        os.replace(folder, old)
    os.replace(new, folder)
    shutil.rmtree(old, ignore_errors=True)


def save_hf(folder: str | Path, cfg: ModelConfig, params: Params, dtype: Any, tokenizer: Tokenizer | None) -> None:
    """Writes a folder that transformers' AutoModelForCausalLM (and AutoTokenizer, if a tokenizer is given) loads.

    params: as declare(cfg), layers stacked, on devices of this host; written in `dtype`. With a tokenizer its files,
    its chat template and generation_config.json are written too. The folder appears whole or not at all. Raises
    FileExistsError if something that is no model folder is in the way.
    """
    folder = Path(folder)
    if folder.exists() and not (folder.is_dir() and ((folder / "config.json").is_file() or not any(folder.iterdir()))):
        raise FileExistsError(f"{folder} exists and is no model folder; choose another place to export to.")
    config = to_hf(cfg) | {"dtype": jnp.dtype(dtype).name, "torch_dtype": jnp.dtype(dtype).name}
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = folder.with_name(f".{folder.name}.new-{os.getpid()}")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    try:
        _save_weights(new, cfg, params, jnp.dtype(dtype))
        if tokenizer is not None:
            tokenizer.save(new)
            config |= {
                "bos_token_id": tokenizer.bos_id,
                "eos_token_id": tokenizer.eos_id,
                "pad_token_id": tokenizer.pad_id,
            }
        (new / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        _replace(new, folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
