"""Loads and saves the weights of a decoder: our parameter tree to and from a folder in Hugging Face or orbax layout.

Hugging Face: config.json and safetensors. Orbax: config.json, the tree as orbax writes it (tensorstore) and a seal. A
run can start from either. Weights are read and written in blocks (models/files/streaming.py): a process reads only the
slices its devices hold, and its host memory on top of the weights stays below the size of one tensor.
"""

from __future__ import annotations

import glob
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import Mesh, SingleDeviceSharding

from scope_jax.errors import UserError, writing
from scope_jax.files import STALE, alone
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.hf import HfTensor, hf_shapes, hf_tensor, tensors_of, tree_shapes
from scope_jax.models.decoder.transformer import Params, declare
from scope_jax.models.fields import WeightsError, read_object
from scope_jax.models.files import claims, redundant, streaming, tensorfile, wrappers
from scope_jax.models.files.families import from_hf, in_wrapper, to_hf, wrapper
from scope_jax.models.files.redundant import Redundant
from scope_jax.models.files.seal import SEAL, fault, seal
from scope_jax.models.files.wrappers import opened
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.sharding.rules import Rules
from scope_jax.sharding.spec import Param, param_shardings, path_name

ORBAX = "weights"  # folder of the tree in our own layout
CHUNK_BYTES = 64 * 2**20  # chunk size of arrays in an orbax folder, the smallest amount that can be read
# Files of a model folder besides the weights; they are copied unchanged.
COMPANIONS = (
    "tokenizer*",
    "vocab.*",
    "merges.txt",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template*",
    "spiece.model",
    "generation_config.json",
    *wrappers.PROCESSORS,
)
# What an export writes besides them.
WRITTEN = ("config.json", "adapter_config.json", "*.safetensors", "*.safetensors.index.json", ORBAX, SEAL)

Report = Callable[[int, int], None]  # (tensors done, tensors in all)


def quiet(done: int, total: int) -> None:
    """A Report that prints nothing."""


def load_config(folder: str | Path) -> ModelConfig:
    """ModelConfig of a model folder.

    Raises FileNotFoundError if folder or config.json is missing, WeightsError if it is not JSON or describes an
    unsupported model.
    """
    folder = Path(folder)
    if not folder.is_dir():
        known = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", str(folder))  # it may be a name on the hub
        such = f", such as DIR of `hf download {folder} --local-dir DIR`" if known else ""
        raise FileNotFoundError(f"Model folder {folder} does not exist; give a folder in Hugging Face layout{such}.")
    contents = read_object(folder / "config.json")
    try:
        return from_hf(contents)
    except ValueError as error:
        raise WeightsError(f"{folder}: {error}") from None


def checked_config(folder: str | Path) -> ModelConfig:
    """`load_config`, compared with the folder's weights if it has any: what is built from the result has their size.

    Raises as `load_config` does, and for files that are damaged.
    """
    folder, cfg = Path(folder), load_config(folder)
    if is_orbax(folder):
        _compare_orbax(folder, cfg)
    elif any((folder / name).is_file() for name in (tensorfile.SINGLE, tensorfile.INDEX)):
        with ExitStack() as stack:
            shapes = opened(folder, stack).shapes
            claims.compare(folder, shapes, declare(cfg), tensors_of(cfg, shapes))
    return cfg


def _shardings(tree: Params, mesh: Mesh | None, rules: Rules) -> Params:
    if mesh is None:
        return jax.tree.map(lambda _: SingleDeviceSharding(jax.local_devices()[0]), tree)
    return param_shardings(tree, mesh, rules)


def abstract(cfg: ModelConfig, mesh: Mesh | None, rules: Rules, dtype: Any) -> Params:
    """Shapes, dtype and shardings of the weights that `load` builds."""
    tree = declare(cfg)
    return jax.tree.map(
        lambda param, sharding: jax.ShapeDtypeStruct(param.shape, jnp.dtype(dtype), sharding=sharding),
        tree,
        _shardings(tree, mesh, rules),
    )


# ---------------------------------------------------------------------------------------------------------- reading
def load(
    folder: str | Path,
    mesh: Mesh | None = None,
    rules: Rules = (),
    dtype: Any = jnp.float32,
    report: Report = quiet,
) -> tuple[ModelConfig, Params]:
    """(config, weights in `dtype`) of a model folder in either layout; see load_hf and load_orbax."""
    if is_orbax(folder):
        return load_orbax(folder, mesh, rules, dtype)
    return load_hf(folder, mesh, rules, dtype, report)


def is_model(folder: str | Path) -> bool:
    """True if the folder holds a model in either layout."""
    return (Path(folder) / "config.json").is_file()


def is_orbax(folder: str | Path) -> bool:
    """True if the folder holds, or once held, weights in our own layout."""
    folder = Path(folder)
    return (folder / "config.json").is_file() and ((folder / SEAL).is_file() or (folder / ORBAX).is_dir())


def load_hf(
    folder: str | Path,
    mesh: Mesh | None = None,
    rules: Rules = (),
    dtype: Any = jnp.float32,
    report: Report = quiet,
) -> tuple[ModelConfig, Params]:
    """(config, weights in `dtype`) from a Hugging Face folder: model.safetensors, or several files with their index.

    With a mesh each weight is sharded according to the rules and every process reads only its devices' slices; without
    one it is put on the first device. Raises FileNotFoundError or WeightsError with one sentence for a missing folder
    or file, a broken file, an unsupported model, missing or unexpected tensors, and shapes that do not match.
    """
    folder = Path(folder)
    cfg = checked_config(folder)
    tree, extra = declare(cfg), redundant.of_decoder(cfg)
    return cfg, load_tree(folder, tree, _tensors(folder, cfg), extra, mesh, rules, dtype, report)


def _tensors(folder: Path, cfg: ModelConfig) -> Callable[[str], HfTensor]:
    with ExitStack() as stack:
        return tensors_of(cfg, opened(folder, stack).names)


def stored_dtypes(folder: str | Path) -> set[str]:
    """Names of the dtypes in which a model folder stores its weights ("bfloat16", ...). Raises as load does."""
    folder = Path(folder)
    if is_orbax(folder):
        dtype = read_object(folder / "config.json").get("dtype")
        if not isinstance(dtype, str):
            raise WeightsError(f"{folder / 'config.json'} does not state the dtype of the weights; convert them again.")
        return {dtype}
    with ExitStack() as stack:
        checkpoint = opened(folder, stack)
        cfg = checked_config(folder)
        shapes = tree_shapes(declare(cfg), tensors_of(cfg, checkpoint.names))
        redundant.open_checked(checkpoint, shapes, redundant.of_decoder(cfg))
        return {checkpoint.dtype(name).name for name in shapes}


def packed(folder: str | Path) -> frozenset[str]:
    """The tensors of a model folder that are stored in MXFP4 and read as bfloat16."""
    if is_orbax(folder):
        return frozenset()
    with ExitStack() as stack:
        return opened(Path(folder), stack).packed


def load_tree(
    folder: str | Path,
    tree: Params,
    tensor_of: Callable[[str], HfTensor],
    extra: Redundant,
    mesh: Mesh | None,
    rules: Rules,
    dtype: Any,
    report: Report = quiet,
) -> Params:
    """The weights of a tree of Param, for models with other tensor names: tensor_of("layers.q_D_Hh") returns the
    checkpoint tensor of a weight; extra: what may be stored besides. Otherwise like load_hf.
    """
    shardings = _shardings(tree, mesh, rules)
    done = 0
    with ExitStack() as stack:
        checkpoint = opened(Path(folder), stack)
        claims.compare(Path(folder), checkpoint.shapes, tree, tensor_of)
        shapes = tree_shapes(tree, tensor_of)
        redundant.open_checked(checkpoint, shapes, extra)
        redundant.compare(checkpoint, extra)

        def one(path: tuple[Any, ...], param: Param, sharding: Any) -> jax.Array:
            nonlocal done
            tensor = tensor_of(path_name(path))
            weight = streaming.build(checkpoint, tensor, param.shape, sharding, dtype)
            done += int(np.prod(tensor.files(param.shape)))
            report(min(done, len(shapes)), len(shapes))
            return weight

        return jax.tree_util.tree_map_with_path(one, tree, shardings)


def load_orbax(
    folder: str | Path, mesh: Mesh | None = None, rules: Rules = (), dtype: Any = jnp.float32
) -> tuple[ModelConfig, Params]:
    """Like load_hf, from a folder in our own layout. Raises WeightsError with one sentence if its seal is broken."""
    folder = Path(folder)
    if wrong := fault(folder):
        raise WeightsError(f"the weights in {folder} cannot be used: {wrong}; convert or copy them again.")
    cfg = load_config(folder)
    _compare_orbax(folder, cfg)
    target = abstract(cfg, mesh, rules, dtype)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        place = (folder / ORBAX).absolute()
        args = ocp.args.PyTreeRestore(target, restore_args=ocp.checkpoint_utils.construct_restore_args(target))
        params = checkpointer.restore(place, args=args)
    check_finite(params, f"{folder}: ")
    return cfg, params


def _compare_orbax(folder: Path, cfg: ModelConfig) -> None:
    """Raises WeightsError if the weights in our own layout have other shapes than config.json requires."""
    if wrong := fault(folder, sizes_only=True):
        raise WeightsError(f"the weights in {folder} cannot be used: {wrong}; convert or copy them again.")
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        saved = _leaves(checkpointer.metadata((folder / ORBAX).absolute()).item_metadata.tree)
    wanted = _leaves(declare(cfg))
    if saved != wanted:
        name = min(path for path in saved | wanted if saved.get(path) != wanted.get(path))
        raise WeightsError(
            f"{folder}: {name} has shape {saved.get(name)}, but config.json requires {wanted.get(name)}."
        )


@jax.jit
def _finite(tree: Params) -> Params:
    return jax.tree.map(lambda leaf: jnp.isfinite(leaf).all(), tree)


def check_finite(params: Params, where: str) -> None:
    """Raises WeightsError, beginning with `where`, if a weight holds a NaN or an infinity; checked on the devices."""
    for path, finite in jax.tree_util.tree_leaves_with_path(jax.device_get(_finite(params))):
        if not finite:
            raise WeightsError(f"{where}{path_name(path)} holds values that are NaN or infinite; use other weights.")


def _leaves(tree: Any) -> dict[str, tuple[int, ...]]:
    return {path_name(path): tuple(leaf.shape) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


# ---------------------------------------------------------------------------------------------------------- writing
@contextmanager
def whole_folder(folder: Path, kind: str = "config.json") -> Iterator[Path]:
    """A temporary folder that replaces `folder` at the end, or is removed if writing failed.

    All processes of a run get the same one; process 0 creates, moves and removes it. kind: the file that such folders
    have. Raises FileExistsError if `folder` exists, is not empty and does not have it, or has files of others, and
    UserError while another process writes it.
    """
    if folder.exists() and not (folder.is_dir() and ((folder / kind).is_file() or not any(folder.iterdir()))):
        what = "a model folder" if kind == "config.json" else f"a folder with {kind}"
        raise FileExistsError(f"{folder} exists and is not {what}; choose another place to export to.")
    if other := next((file for file in sorted(folder.glob("*")) if not _is_written(file.name)), None):
        raise FileExistsError(
            f"{folder} also holds {other.name}, which would be lost; move it, or choose another place to export to."
        )
    folder = folder.resolve()  # "." has no name, and a link stays one
    if folder == Path.cwd():
        raise FileExistsError(f"{folder} is the current folder, which is not replaced; give another one.")
    writer, several = jax.process_index() == 0, jax.process_count() > 1
    with ExitStack() as held:
        refusal: UserError | None = None
        try:
            held.enter_context(alone(folder) if writer else nullcontext())
        except UserError as error:
            refusal = error
        number = -1 if refusal else secrets.randbits(31)
        number = int(multihost_utils.broadcast_one_to_all(np.int32(number))) if several else number
        if number < 0:
            raise refusal or UserError(f"{folder} is not written: process 0 was refused.")
        yield from _in_new_folder(folder, folder.with_name(f".{folder.name}.new-{number}"), writer, several)


def _in_new_folder(folder: Path, new: Path, writer: bool, several: bool) -> Iterator[Path]:
    try:
        with writing(folder):
            if writer:
                _remove_stale(folder)
                new.mkdir(parents=True)
            if several:
                multihost_utils.sync_global_devices(f"{folder}: begun")
            yield new
            if writer:
                _replace(new, folder)
        if several:
            multihost_utils.sync_global_devices(f"{folder}: in its place")
    finally:
        if writer:
            shutil.rmtree(new, ignore_errors=True)


def _is_written(name: str) -> bool:
    """True for files and folders of the kinds that `save_hf`, `save_orbax`, `recast_hf` and `peft.save` write."""
    return any(fnmatch(name, pattern) for pattern in (*COMPANIONS, *WRITTEN))


def _replace(new: Path, folder: Path) -> None:
    """Moves the finished folder into place; an earlier export there is deleted only after the move."""
    old = folder.with_name(f".{folder.name}.old-{secrets.randbits(31)}")
    if folder.exists():
        os.replace(folder, old)
    os.replace(new, folder)
    shutil.rmtree(old, ignore_errors=True)


def _remove_stale(folder: Path) -> None:
    """Removes what killed exports to this folder left a day or more ago; an earlier export that was moved away stays
    as long as there is no other."""
    kinds = ["new", "old"] if folder.exists() else ["new"]
    for path in folder.parent.glob(f".{glob.escape(folder.name)}.*-*"):
        known = any(re.fullmatch(rf"{kind}-\d+", path.name.removeprefix(f".{folder.name}.")) for kind in kinds)
        if known and time.time() - path.stat().st_mtime > STALE:
            shutil.rmtree(path, ignore_errors=True)


def _companions(new: Path, config: Mapping[str, Any], dtype: Any, tokenizer: Tokenizer | Path | None) -> None:
    """Writes config.json for weights in `dtype`, and the tokenizer's files (its own, or copied from a model folder)."""
    name = jnp.dtype(dtype).name
    contents = {**config, "dtype": name, "torch_dtype": name}
    if isinstance(tokenizer, Tokenizer):
        tokenizer.save(new)
        ids = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id, "pad": tokenizer.pad_id}
        contents |= {f"{name}_token_id": id for name, id in ids.items()}
    elif tokenizer is not None:
        _copy(tokenizer, new, COMPANIONS)
    (new / "config.json").write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")


def _copy(folder: Path, new: Path, patterns: Iterable[str]) -> None:
    for file in sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}):
        shutil.copyfile(file, new / file.name)


def save_hf(
    folder: str | Path,
    cfg: ModelConfig,
    params: Params,
    dtype: Any,
    tokenizer: Tokenizer | Path | None,
    report: Report = quiet,
    base: Path | None = None,
) -> None:
    """Writes a folder that transformers' AutoModelForCausalLM (and AutoTokenizer, if a tokenizer is given) loads.

    params: as declared by declare(cfg), layers stacked; written in `dtype`. If they are sharded over the devices of
    several processes, all of them must call this, and process 0 writes. tokenizer: its files, its chat template and
    generation_config.json are written too; if it is a folder, they are copied from there. The new folder appears
    complete or not at all. base: the model folder from which the weights come; if it has other modalities beside the
    decoder, so has the new one: their tensors as they are, and the base's config.json with this decoder. Raises
    FileExistsError if `folder` exists and is not a model folder.
    """
    shapes = hf_shapes(cfg)
    sources: dict[str, list[streaming.Source]] = {}  # in the order of their rows
    for path, weight in jax.tree_util.tree_leaves_with_path(params):
        tensor = hf_tensor(cfg, path_name(path))
        for place in np.ndindex(weight.shape[: tensor.leading]):
            sources.setdefault(tensor.at(place), []).append((weight, tensor, place))
    for parts in sources.values():
        parts.sort(key=lambda part: (part[2][-1:] if part[1].fused else (), part[1].rows or (0, 0), part[1].turns))
    if set(shapes) != set(sources):
        raise ValueError("save_hf: the weights do not match the model config.")
    done = 0

    def blocks(name: str) -> Iterator[jax.Array]:
        nonlocal done
        yield from streaming.tensor_blocks(sources[name], dtype, shapes[name])
        done += 1
        report(done, len(shapes))

    writer, config = jax.process_index() == 0, to_hf(cfg)
    with ExitStack() as stack:
        foreign = None
        if base is not None and not is_orbax(base) and wrapper(contents := read_object(base / "config.json")):
            foreign, config = opened(base, stack), in_wrapper(cfg, contents)
        new = stack.enter_context(whole_folder(Path(folder)))
        wrappers.write(new if writer else None, shapes, np.dtype(dtype), blocks, foreign, config)
        if writer:
            _companions(new, config, dtype, tokenizer)
            if foreign is not None and base is not None:
                _copy(base, new, wrappers.PROCESSORS)


def recast_hf(source: str | Path, folder: str | Path, dtype: Any, report: Report = quiet) -> None:
    """Copies a Hugging Face folder with its weights cast to another dtype, file to file: no device is involved.

    Redundant tensors (models/files/redundant.py) are left out. Raises as load_hf and save_hf do.
    """
    source = Path(source)
    cfg = checked_config(source)
    extra, done = redundant.of_decoder(cfg), 0
    with ExitStack() as stack:
        checkpoint = opened(source, stack)
        shapes = tree_shapes(declare(cfg), tensors_of(cfg, checkpoint.names))
        redundant.open_checked(checkpoint, shapes, extra)
        redundant.compare(checkpoint, extra)

        def blocks(name: str) -> Iterator[np.ndarray]:
            nonlocal done
            yield from streaming.file_blocks(checkpoint, name, shapes[name], dtype)
            done += 1
            report(done, len(shapes))

        with whole_folder(Path(folder)) as new:
            if jax.process_index() == 0:
                config = {**read_object(source / "config.json")}
                config.pop("quantization_config", None)  # what it names was read as numbers
                wrappers.write(new, shapes, np.dtype(dtype), blocks, checkpoint, config)
                _companions(new, config, dtype, source)


def save_orbax(
    folder: str | Path, cfg: ModelConfig, params: Params, dtype: Any, tokenizer: Tokenizer | Path | None
) -> None:
    """Writes a model folder in our own layout, which model.checkpoint of a card accepts; otherwise like save_hf."""
    check_finite(params, "nothing was written: ")
    with whole_folder(Path(folder)) as new:
        save_args = jax.tree.map(lambda _: ocp.SaveArgs(dtype=jnp.dtype(dtype), chunk_byte_size=CHUNK_BYTES), params)
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            checkpointer.save((new / ORBAX).absolute(), args=ocp.args.PyTreeSave(params, save_args=save_args))
        if jax.process_index() == 0:
            _companions(new, to_hf(cfg), dtype, tokenizer)
            seal(new)
