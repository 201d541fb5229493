"""Safetensors files: reads slices and writes tensors with bounded host memory.

The safetensors library maps a file and keeps every page it touched resident until the file is closed, and it writes a
file only from tensors that are all in memory. Here the library only validates the files (those read and those just
written); the bytes are read through our own memory map, whose pages are released after each slice, and written by our
own writer.

Format: 8 bytes with the header's length (little endian), the header (JSON: name -> dtype, shape, data_offsets), data.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from scope_jax.models.fields import WeightsError, cut, no_pointer, read_object, within
from scope_jax.models.files import mxfp4

MOST_FILES = 4096
MOST_HEADER = 2**24  # bytes; a file of 100,000 tensors has about 12 MB
MAX_SHARD_BYTES = 5 * 10**9  # largest safetensors file, as in transformers
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
READABLE = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(jnp.bfloat16)}
NUMBERS = READABLE | {"F64": np.dtype(np.float64), "I64": np.dtype(np.int64), "I32": np.dtype(np.int32)}
CODES = {dtype: code for code, dtype in NUMBERS.items()}
PIECE = 2**22  # values that are copied at a time
# Weights in formats that are not read, with what to do: pickles, which may run code, and files of other programs.
RESAVE = "load the folder with transformers and save it with save_pretrained, or copy one that has safetensors"
OTHERS = {
    **dict.fromkeys(("pytorch_model*.bin", "*.bin"), RESAVE),
    "consolidated*.pth": "convert it with transformers' script for Llama's weights, or copy one that has safetensors",
    **dict.fromkeys(
        ("*.pth", "*.pt", "*.ckpt"), "copy a folder that has safetensors, or write them from the program's"
    ),
    **dict.fromkeys(
        ("*.gguf", "*.ggml"), "its weights are quantised: copy the folder of the model that it was made of"
    ),
    **dict.fromkeys(("*.h5", "*.msgpack", "*.npz", "*.onnx"), "copy a folder of the model that has safetensors"),
}
NO_WEIGHTS = ("training_args.bin", "optimizer", "scheduler", "rng_state", "scaler")  # how names of other files begin
# Names of what quantisation adds to a layer: GPTQ and AWQ, FP8, bitsandbytes.
QUANTISED = re.compile(
    r"\.(qweight|qzeros|g_idx|scales|weight_scale(_inv)?|weight_packed|SCB|weight\.(absmax|quant_\w+))\b"
)

Shapes = Mapping[str, tuple[int, ...]]
Blocks = Callable[[str], Iterable[Any]]  # tensor name -> its rows in order, in pieces (numpy or jax arrays)


def finite(block: np.ndarray) -> bool:
    """True if no value is NaN or infinite."""
    if block.dtype == READABLE["BF16"]:  # exponent bits all ones; ten times as fast as ml_dtypes' isfinite
        return not ((block.view(np.uint16) & 0x7F80) == 0x7F80).any()
    return bool(np.isfinite(block).all())


# ---------------------------------------------------------------------------------------------------------- reading
@dataclass(frozen=True)
class _Stored:
    """One tensor of a file: where its bytes are, its shape and its dtype, a safetensors code such as "BF16".

    packed: the two tensors from which it is computed (`models.files.mxfp4`) instead of bytes of its own.
    """

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int  # bytes from the beginning of the file
    packed: tuple[_Stored, _Stored] | None = None


def _header(path: Path) -> dict[str, _Stored]:
    """The tensors of one file, after the library has validated its header and its length."""
    with path.open("rb") as file:
        beginning = file.read(64)
    no_pointer(path, beginning)
    length = int.from_bytes(beginning[:8], "little")
    if MOST_HEADER < length < path.stat().st_size:
        raise WeightsError(f"{path} has a header of {length} bytes, but at most {MOST_HEADER} are read; copy it again.")
    try:
        with safe_open(path, framework="np") as file:
            file.metadata()
    except SafetensorError as error:
        raise WeightsError(f"{path} is not a complete safetensors file ({error}); copy it again.") from None
    with path.open("rb") as file:
        file.seek(8)
        entries = json.loads(file.read(length))
    entries.pop("__metadata__", None)
    return {
        name: _Stored(path, entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
        for name, entry in entries.items()
    }


def _unpacked(stored: dict[str, _Stored]) -> dict[str, _Stored]:
    """The tensors, with a matrix in place of its MXFP4 blocks and scales."""
    found = dict(stored)
    for name in stored:
        whole = name.removesuffix(mxfp4.BLOCKS)
        blocks, scales = stored[name], stored.get(whole + mxfp4.SCALES)
        if whole == name or scales is None or {blocks.dtype, scales.dtype} != {"U8"}:
            continue
        if (shape := mxfp4.matrix_shape(blocks.shape, scales.shape)) is not None:
            found[whole] = _Stored(blocks.path, "BF16", shape, blocks.start, (blocks, scales))
            del found[name], found[whole + mxfp4.SCALES]
    return found


def stored_shapes(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """(safetensors' code of the dtype, shape) of every tensor of one file. Raises WeightsError if it is damaged."""
    return {name: (stored.dtype, stored.shape) for name, stored in _header(path).items()}


def _dtype(name: str, stored: _Stored, known: Mapping[str, np.dtype]) -> np.dtype:
    """A tensor's dtype. Raises WeightsError if it is none of the known ones."""
    if stored.dtype not in known:
        raise WeightsError(
            f"{stored.path}: {cut(name, 80)} is {stored.dtype}; supported are {', '.join(sorted(known))}."
        )
    return known[stored.dtype]


def renamed(name: str, prefixes: Iterable[tuple[str, str]]) -> str:
    """The name with the first of these beginnings (old, new) that it has exchanged; otherwise as it is."""
    for old, new in prefixes:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


class Checkpoint:
    """The tensors of a folder's safetensors files, open for reading slices.

    bytes_read counts the bytes read so far. repeated: a name of the second tensor -> its name, where two files hold it.
    prefixes: how the names of the tensors in question begin in the files, and here. unread:
    names, here, of tensors that nothing reads. foreign: names, in the files, of these and of all others, which can be
    read but are not among `names`. Matrices in MXFP4 are read as bfloat16; packed:
    their names.
    """

    def __init__(
        self,
        folder: Path,
        stack: ExitStack,
        prefixes: Sequence[tuple[str, str]] = (("", ""),),
        unread: Collection[str] = (),
    ) -> None:
        self.folder = folder
        self.bytes_read = 0
        self._stored: dict[str, _Stored] = {}
        self._maps: dict[Path, mmap.mmap] = {}
        self.repeated: dict[str, str] = {}
        for path in self._paths():
            if not path.is_file():
                raise FileNotFoundError(self._missing(path))
            for name, stored in _header(path).items():
                again = f"{name} in {path.name}"
                if name in self._stored:
                    self.repeated[again] = name
                self._stored[again if name in self._stored else name] = stored
            with path.open("rb") as file:
                self._maps[path] = stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

        self._stored = _unpacked(self._stored)
        self.packed = frozenset(name for name, stored in self._stored.items() if stored.packed)
        begins, ours = tuple(there for there, _ in prefixes), {name: renamed(name, prefixes) for name in self._stored}
        self.foreign = frozenset(name for name in ours if not name.startswith(begins) or ours[name] in unread)
        self._stored = {name if name in self.foreign else ours[name]: stored for name, stored in self._stored.items()}

    def _paths(self) -> list[Path]:
        single, index = self.folder / SINGLE, self.folder / INDEX
        # As transformers does: it leaves the index of an earlier model of several files behind.
        if single.is_file() or not index.is_file():
            return [single]
        where = read_object(index).get("weight_map")
        if not isinstance(where, Mapping) or not where:
            raise WeightsError(f"{index} has no weight_map; copy the file again.")
        files = {name for name in where.values() if isinstance(name, str)}
        for name in where.values():
            if not isinstance(name, str):
                within(self.folder, name, index)
        if len(files) > MOST_FILES:
            raise WeightsError(f"{index} names {len(files)} files; up to {MOST_FILES} are supported.")
        return sorted(within(self.folder, name, index) for name in files)

    def _missing(self, path: Path) -> str:
        """Why there is no file at `path`, and what to do."""
        files = ((file, kind) for kind in OTHERS for file in sorted(self.folder.glob(kind)))
        other, kind = next((one for one in files if not one[0].name.startswith(NO_WEIGHTS)), (None, ""))
        parts = sorted(file.name for file in self.folder.glob("*.safetensors"))
        if parts and path.name == SINGLE:
            return f"{self.folder} has {parts[0]}, but neither {SINGLE} nor {INDEX}; copy the model folder again."
        if other is None or parts:
            return f"{path} is missing; copy the model folder again."
        return f"{self.folder} has its weights in {other.name}, and only safetensors are read; {OTHERS[kind]}."

    @property
    def names(self) -> frozenset[str]:
        """Names of all tensors."""
        return frozenset(self._stored) - set(self.repeated) - self.foreign

    def rename(self, name: str, new: str) -> None:
        """Lets a tensor be read under another name, instead of its own."""
        self._stored[new] = self._stored.pop(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape in the file."""
        return self._stored[name].shape

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors in the files."""
        return {name: self._stored[name].shape for name in self.names}

    def dtype(self, name: str) -> np.dtype:
        """A tensor's dtype in the file. Raises WeightsError if it is none of floating-point numbers."""
        return _dtype(name, self._stored[name], READABLE)

    def values(self, name: str) -> np.ndarray:
        """A whole small tensor in its own dtype. Raises WeightsError for a dtype that is none of numbers."""
        stored, dtype = self._stored[name], self.number_dtype(name)
        end = stored.start + math.prod(stored.shape) * dtype.itemsize
        return np.frombuffer(self._maps[stored.path][stored.start : end], dtype).reshape(stored.shape)

    def number_dtype(self, name: str) -> np.dtype:
        """The same of any numbers."""
        return _dtype(name, self._stored[name], NUMBERS)

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        """A tensor's values in file order, in its own dtype and whatever they are."""
        dtype, count = self.number_dtype(name), math.prod(self.shape(name))
        flat = replace(self._stored[name], shape=(count,))
        for first in range(0, count, PIECE):
            out = np.empty(min(PIECE, count - first), dtype)
            self._copy(flat, dtype, (slice(first, first + len(out)),), out)
            yield out

    def check(self, shapes: Shapes, spare: Collection[str]) -> None:
        """Raises WeightsError unless the files hold exactly these tensors in these shapes; those in `spare` may be
        there besides.
        """
        found = self.names
        for names, what in ((found - set(shapes) - set(spare), "has unexpected"), (set(shapes) - found, "lacks")):
            if names:
                some = ", ".join(cut(name, 80) for name in sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
                if what != "lacks" and (one := next(filter(QUANTISED.search, sorted(names)), None)):
                    raise WeightsError(
                        f"{self.folder} holds quantised weights ({cut(one, 80)}), which are not supported; use the "
                        "model that they were made of."
                    )
                raise WeightsError(
                    f"{self.folder} {what} {len(names)} tensors ({some}); config.json and weights disagree."
                )
        for name, shape in shapes.items():
            stored = self._stored[name]
            if stored.shape != shape:
                raise WeightsError(f"{stored.path}: {name} has shape {stored.shape}, but config.json requires {shape}.")
            _dtype(name, stored, READABLE)

    def read(self, name: str, index: tuple[slice, ...], out: np.ndarray) -> None:
        """Copies the slice `index` of a tensor, in the file's layout, into `out`, cast to its dtype.

        Raises WeightsError if a copied value is not finite, or the tensor is not of floating-point numbers.
        """
        stored = self._stored[name]
        if stored.packed is None:
            self._copy(stored, _dtype(name, stored, READABLE), index, out)
        else:
            self._unpack(stored.packed, stored.shape, index, out)
        if not finite(out):
            raise WeightsError(
                f"{stored.path}: {name} holds values that are NaN or infinite in {out.dtype}; use a checkpoint from "
                "before they appeared, or copy the file again."
            )

    def _copy(self, stored: _Stored, dtype: np.dtype, index: tuple[slice, ...], out: np.ndarray) -> None:
        mapped = self._maps[stored.path]
        # All views must be gone before the map is closed, so none may leave this function, not even in a traceback.
        whole = np.frombuffer(mapped, dtype, math.prod(stored.shape), stored.start).reshape(stored.shape)
        part = whole[index]
        out[...] = part
        self.bytes_read += part.nbytes
        del whole, part
        rows = index[0].indices(stored.shape[0]) if index and stored.shape else (0, 1, 1)
        row_bytes = math.prod(stored.shape[1:]) * dtype.itemsize
        first = (stored.start + rows[0] * row_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        mapped.madvise(mmap.MADV_DONTNEED, first, stored.start + rows[1] * row_bytes - first)

    def _unpack(
        self, packed: tuple[_Stored, _Stored], shape: tuple[int, ...], index: tuple[slice, ...], out: np.ndarray
    ) -> None:
        """A slice of MXFP4 matrices [X, in, out], one expert after another."""
        whole = (*index, *[slice(None)] * (len(shape) - len(index)))
        experts, within, columns = (cut.indices(size) for cut, size in zip(whole, shape, strict=True))
        near, far = within[0] // mxfp4.NUMBERS, -(-within[1] // mxfp4.NUMBERS)
        for place, expert in enumerate(range(*experts)):
            parts = []
            for stored in packed:
                cuts = slice(expert, expert + 1), slice(*columns), slice(near, far)
                sizes = 1, len(range(*columns)), far - near, *stored.shape[3:]
                parts.append(np.empty(sizes, np.uint8))
                self._copy(stored, parts[-1].dtype, cuts, parts[-1])
            first = within[0] - near * mxfp4.NUMBERS
            out[place] = mxfp4.matrices(*parts)[0, first : first + within[1] - within[0]]


# ---------------------------------------------------------------------------------------------------------- writing
def _write_file(
    path: Path, shapes: Shapes, dtypes: Mapping[str, np.dtype], blocks: Blocks, foreign: Collection[str]
) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + math.prod(shape) * dtypes[name].itemsize
        header[name] = {"dtype": CODES[dtypes[name]], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the data is aligned in memory
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in shapes:
            dtype = dtypes[name]
            for block in blocks(name):
                rows = np.ascontiguousarray(np.asarray(block), dtype)
                if name not in foreign and not finite(rows):
                    raise WeightsError(f"nothing was written: {name} holds values that are NaN or infinite in {dtype}.")
                file.write(rows.reshape(-1).view(np.uint8).data)
            if file.tell() != 8 + len(text) + header[name]["data_offsets"][1]:
                raise ValueError(f"{name}: the blocks are not the {shapes[name]} that were declared.")
        file.flush()
        os.fsync(file.fileno())
    if stored_shapes(path) != {name: (CODES[dtypes[name]], tuple(shape)) for name, shape in shapes.items()}:
        raise WeightsError(f"{path} does not read back as it was written; is the disk full or broken?")


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


def write(
    folder: Path | None,
    shapes: Shapes,
    dtypes: Mapping[str, np.dtype],
    blocks: Blocks,
    limit: int,
    foreign: Collection[str] = (),
) -> None:
    """Writes model.safetensors, or several files of at most `limit` bytes with their index, tensor after tensor.

    Each block is freed as soon as it is written. folder None: the blocks are only requested, in the same order (for a
    process that takes part in computing them but does not write). foreign: tensors that may hold infinities. When this
    returns, each file is on disk and has been validated by the safetensors library.
    """
    sizes = {name: math.prod(shape) * dtypes[name].itemsize for name, shape in shapes.items()}
    files = _split(sizes, limit)
    where: dict[str, str] = {}
    for number, names in enumerate(files, 1):
        file = SINGLE if len(files) == 1 else f"model-{number:05d}-of-{len(files):05d}.safetensors"
        if folder is None:
            for name in names:
                for _ in blocks(name):
                    pass
            continue
        _write_file(folder / file, {name: shapes[name] for name in names}, dtypes, blocks, foreign)
        where.update(dict.fromkeys(names, file))
    if folder is not None and len(files) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": where}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
