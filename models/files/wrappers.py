"""Files of models with other modalities beside a decoder: theirs pass through unread and unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from scope_jax.models.fields import read_object
from scope_jax.models.files import tensorfile
from scope_jax.models.files.families import WRAPPERS, unread, wrapper
from scope_jax.models.files.tensorfile import Blocks, Checkpoint, Shapes, renamed

PROCESSORS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")


def opened(folder: Path, stack: ExitStack) -> Checkpoint:
    """The tensors of a folder under the names that a decoder alone would give them; those of other modalities are
    foreign, and so are those that no layer reads."""
    config = read_object(folder / "config.json")
    name = wrapper(config)
    return Checkpoint(folder, stack, (("", ""),) if name is None else WRAPPERS[name], unread(config))


def write(
    new: Path | None,
    shapes: Shapes,
    dtype: np.dtype,
    blocks: Blocks,
    foreign: Checkpoint | None,
    config: Mapping[str, Any],
) -> None:
    """`tensorfile.write` of a decoder in `dtype`, under the names that the class of config gives it, and beside it what
    is foreign to it in another checkpoint, as it is there."""
    name = wrapper(config)
    prefixes = (("", ""),) if name is None or foreign is None else WRAPPERS[name]
    whole = {renamed(name, [(here, there) for there, here in prefixes]): name for name in shapes}
    others = {} if foreign is None else {name: foreign.shape(name) for name in sorted(foreign.foreign)}

    def rows(name: str) -> Any:
        if foreign is not None and name in others:
            return foreign.pieces(name)
        return blocks(whole[name])

    sizes = {name: shapes[ours] for name, ours in whole.items()} | others
    dtypes = {name: foreign.number_dtype(name) if foreign is not None and name in others else dtype for name in sizes}
    tensorfile.write(new, sizes, dtypes, rows, tensorfile.MAX_SHARD_BYTES, others)
