"""A program as plans see it: what is traced, and the abstract arguments that a run calls it with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import jax


@dataclass(frozen=True)
class AbstractProgram:
    """A jitted function and its arguments: all that is needed to compile it ahead of time, for devices that need not be
    there. Learner and engine give theirs by `programs`.
    """

    name: str
    """As a plan prints it, unique among the programs of a run."""
    kind: Literal["step", "score", "decode", "prefill", "teacher"]
    """An optimiser step or log-probs, of the learner; tokens of all slots or prompts, of the engine; log-probs under a
    teacher."""
    function: Any
    """From `jax.jit`."""
    arguments: tuple[Any, ...]
    """Trees of shapes with dtypes and shardings, and the values of static arguments."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The same, for arguments that are given by name."""
    resident: Any = ()
    """Those of the trees that are in memory whether the program runs or not: weights and states."""
    bucket: int = 0
    """Tokens of a row; 0 if its rows have none."""
    passes: int = 0
    """Under how many weights it scores; 0 if it does not."""

    def lower(self) -> Any:
        """The program, traced."""
        return self.function.lower(*self.arguments, **self.options)


def name_of(function: Any) -> str:
    """The name of what was given to `jax.jit`, by which JAX's events call its programs."""
    return function.__name__


def device_bytes(tree: Any) -> int:
    """Bytes on each device of arrays given by shape, dtype and sharding."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
        if leaf.sharding is not None
    )


def placed(shapes: Any, shardings: Any) -> Any:
    """The shapes of a tree with a sharding each; a sharding may stand for a whole branch."""

    def branch(sharding: Any, under: Any) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), under)

    return jax.tree.map(branch, shardings, shapes)
