"""Where the weights of each policy are: on the accelerator or in host memory; and which ones the engine uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax

from rollouts.types import Rollouts
from scope_jax.learner.state import TrainState
from scope_jax.play.tools import BASE

ACCELERATOR, HOST = "device", "pinned_host"  # JAX's names of the two memories
States = dict[str, TrainState]


def moved(tree: Any, memory: str) -> Any:
    """The arrays of a tree in ACCELERATOR or HOST memory, sharded as before; those that lie there already stay."""

    def move(x: jax.Array) -> jax.Array:
        target = x.sharding.with_memory_kind(memory)
        return x if x.sharding == target else jax.device_put(x, target)

    return jax.tree.map(move, tree)


def in_memory(abstract: Any, memory: str) -> Any:
    """The same for jax.ShapeDtypeStruct with shardings: what a checkpoint is to be read into."""

    def move(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        assert leaf.sharding is not None
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding.with_memory_kind(memory))

    return jax.tree.map(move, abstract)


def with_one_reference(states: Mapping[str, Any]) -> dict[str, Any]:
    """The states as they are saved: all policies share one reference, so only the first keeps it."""
    first = next(iter(states))
    return {name: state if name == first else state.replace(ref_params=None) for name, state in states.items()}


def with_shared_reference(states: Mapping[str, TrainState]) -> States:
    """The inverse of `with_one_reference`: every state refers to the same buffers."""
    reference = next(iter(states.values())).ref_params
    return {name: state.replace(ref_params=reference) for name, state in states.items()}


class Sampler:
    """The engine, and the weights it samples with, by policy; it holds those of one policy at a time."""

    def __init__(self, rollouts: Rollouts) -> None:
        self.rollouts = rollouts
        self._bring: dict[str, Callable[[], None]] = {}  # what brings a policy's weights into the engine
        self._policy: str | None = None  # whose weights are there

    def publish(self, states: Mapping[str, TrainState]) -> None:
        """From now on samples come from these states, and from their reference as BASE; nothing is copied yet.

        The engine copies a policy's weights when it is asked for, from device to device or from the host.
        """
        weights = {name: state.params for name, state in states.items()}
        weights[BASE] = next(iter(states.values())).ref_params
        self._bring = {name: partial(self._copy, params) for name, params in weights.items() if params is not None}
        self._policy = None

    def load(self, taken: Mapping[str, Any]) -> None:
        """From now on samples come from these weights: by policy, as `Rollouts.take_params` made them, never copied."""
        self.rollouts.use(None)
        self._bring = {name: partial(self.rollouts.use, weights) for name, weights in taken.items()}
        self._policy = None

    def use(self, policy: str) -> Rollouts:
        """The engine with the policy's weights. Raises ValueError for a policy without weights."""
        if policy != self._policy:
            if policy not in self._bring:
                raise ValueError(
                    f"there are no weights for the policy {policy!r}; the run has {', '.join(self._bring)}."
                )
            self._policy = None
            self._bring[policy]()
            self._policy = policy
        return self.rollouts

    def _copy(self, params: Any) -> None:
        self.rollouts.load_params(moved(params, ACCELERATOR))
