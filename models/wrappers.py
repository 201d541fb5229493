"""Files of models with other modalities beside a decoder: theirs pass through unread and unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from scope_jax.models import fused, streaming, tensorfile
from scope_jax.models.families import FAMILIES, WRAPPERS, wrapper
from scope_jax.models.fields import read_object, table, texts
from scope_jax.models.fused import FUSED, Fused
from scope_jax.models.tensorfile import Blocks, Checkpoint, Shapes

PROCESSORS = ("preprocessor_config.json", "processor_config.json")


def opened(folder: Path, stack: ExitStack) -> Checkpoint:
    """The tensors of a folder under the names that a decoder alone would give them, fused ones in parts; those of other
    modalities are foreign."""
    config = read_object(folder / "config.json")
    name = wrapper(config)
    return Checkpoint(folder, stack, () if name is None else WRAPPERS[name], _rules(config))


def _rules(config: Mapping[str, Any]) -> Sequence[Fused]:
    """The fused tensors of the decoder."""
    types = (one.get("model_type") for one in (config, table(config, "text_config")))
    names = {*texts(config, "architectures"), *types}
    return next((rules for family, rules in FUSED.items() if names & {family, FAMILIES[family].hf}), ())


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
    back = [] if name is None or foreign is None else [(ours, theirs) for theirs, ours in WRAPPERS[name]]
    held = fused.together(_rules(config), shapes)
    own = {tensorfile.rebegun(name, back) or name: name for name in held}
    others = {} if foreign is None else {name: foreign.shape(name) for name in sorted(foreign.foreign)}

    def rows(name: str) -> Any:
        if foreign is not None and name in others:
            return streaming.file_blocks(foreign, name, others[name], foreign.dtype(name))
        return chain.from_iterable(map(blocks, held[own[name]][1]))

    whole = {theirs: held[name][0] for theirs, name in own.items()} | others
    dtypes = {name: foreign.dtype(name) if foreign is not None and name in others else dtype for name in whole}
    tensorfile.write(new, whole, dtypes, rows, tensorfile.MAX_SHARD_BYTES)
