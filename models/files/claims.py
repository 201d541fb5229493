"""What a small file claims, compared with what the files beside it hold, before anything is built from it.

A config.json of a few hundred bytes can name 10,000 layers of 10,000 experts; names, arrays and programs that follow
from it would fill the memory before the first tensor is missed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from scope_jax.models.decoder.hf import HfTensor
from scope_jax.models.fields import WeightsError, cut
from scope_jax.sharding.spec import path_name

FEW, SMALL = 1024, 2**22  # missing tensors, and values of them, that are named rather than counted


def compare(
    folder: Path, stored: Mapping[str, tuple[int, ...]], tree: Any, tensor_of: Callable[[str], HfTensor]
) -> None:
    """Raises WeightsError where a tree of Param asks for far more tensors or values than are stored (name -> shape), or
    where the first of a weight's tensors has another shape. The time does not depend on the sizes that are claimed.
    """
    wanted = values = 0
    for path, param in jax.tree_util.tree_leaves_with_path(tree):
        tensor = tensor_of(path_name(path))
        wanted += math.prod(tensor.files(param.shape))
        values += math.prod(param.unpadded)
        name = tensor.at((0,) * tensor.leading)
        shape = tensor.stored(param.unpadded)
        if stored.get(name, shape) != shape:
            raise WeightsError(
                f"{folder}: {cut(name, 80)} has shape {stored[name]}, but config.json requires {shape}; copy the "
                "folder again."
            )
    held = sum(map(math.prod, stored.values()))
    if wanted > 2 * len(stored) + FEW or values > 2 * held + SMALL:
        raise WeightsError(
            f"{folder} holds {len(stored)} tensors of {held} values in all, but config.json requires {wanted} of "
            f"{values}; config.json and weights disagree."
        )
