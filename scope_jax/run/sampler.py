"""Placement of each policy's weights, on the accelerator or in host memory, and the choice of the engine's weights."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax

from scope_jax.learner.state import TrainState
from scope_jax.play.tools import BASE
from scope_jax.rollouts.types import Completion, Rollouts
from scope_jax.rollouts.weights import without_adapters

ACCELERATOR, HOST = "device", "pinned_host"  # JAX's memory kinds
States = dict[str, TrainState]


def moved(tree: Any, memory: str) -> Any:
    """The arrays of a tree in ACCELERATOR or HOST memory, sharded as before; those already there are not copied."""

    def move(x: jax.Array) -> jax.Array:
        target = x.sharding.with_memory_kind(memory)
        return x if x.sharding == target else jax.device_put(x, target)

    return jax.tree.map(move, tree)


def in_memory(abstract: Any, memory: str) -> Any:
    """`moved` for jax.ShapeDtypeStruct with shardings, as targets for loading a checkpoint."""

    def move(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        assert leaf.sharding is not None
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding.with_memory_kind(memory))

    return jax.tree.map(move, abstract)


def with_one_reference(states: Mapping[str, Any]) -> dict[str, Any]:
    """The states as saved: all policies share one reference, so only the first state keeps it."""
    first = next(iter(states))
    return {name: state if name == first else state.replace(ref_params=None) for name, state in states.items()}


def with_shared_reference(states: Mapping[str, TrainState]) -> States:
    """The inverse of `with_one_reference`: every state refers to the same buffers."""
    reference = next(iter(states.values())).ref_params
    return {name: state.replace(ref_params=reference) for name, state in states.items()}


class Sampler:
    """The engine and the weights it can sample with, by policy; the engine holds one policy's weights at a time."""

    def __init__(self, rollouts: Rollouts, adapters: bool = False) -> None:
        self.rollouts = rollouts
        self.adapters = adapters  # over one base, which stays in the engine
        self._based = False  # the base is in the engine
        self._held: dict[str, Any] = {}  # by policy, the factors that the engine has a copy of
        self._published: dict[str, Any] = {}  # by policy, its weights among the states
        self._copies: dict[str, tuple[Any, Any]] = {}  # by policy, weights and their copy in host memory, see `hold`
        self._load: dict[str, Callable[[], None]] = {}  # by policy, loads its weights into the engine
        self._policy: str | None = None  # the policy whose weights are loaded
        self.publishing = 0.0  # seconds that the host has spent on loading weights into the engine
        self.generated = 0  # tokens that were sampled, see `count`

    def publish(self, states: Mapping[str, TrainState]) -> None:
        """Makes these states, and their reference as BASE, available for sampling; nothing is copied yet.

        A policy's weights are copied to the engine when it is used, from device to device or from the host. Of adapters
        the engine gets the base once, and the factors that have changed.
        """
        if self.adapters:
            base = next(iter(states.values())).ref_params
            factors = {name: state.params for name, state in states.items()}
            self._load = dict.fromkeys((*factors, BASE), partial(self._adapt, base, factors))
            self._policy = None
            return
        weights = {name: state.params for name, state in states.items()}
        weights[BASE] = next(iter(states.values())).ref_params
        self._published = {name: params for name, params in weights.items() if params is not None}
        self._load = {name: partial(self._copy, params) for name, params in self._published.items()}
        self._copies = {name: each for name, each in self._copies.items() if each[0] is self._published.get(name)}
        self._policy = None

    def hold(self, policies: Sequence[str]) -> None:
        """Lets only these be sampled until the next `publish`, from copies, so that an update may take the buffers of
        the states meanwhile: one model, or adapters, in the engine, of several models each, as the engine has it, in
        host memory. Those that have not changed since they were copied are not copied again."""
        if self.adapters or len(policies) == 1:
            self.use(policies[0])
            self._load = {name: self._load[name] for name in policies}
            return
        for name in policies:
            if name not in self._copies:
                self.use(name)
                self._copies[name] = self._published[name], moved(self.rollouts.params, HOST)
        self._load = {name: partial(self._return, self._copies[name][1]) for name in policies}

    def load(self, taken: Mapping[str, Any]) -> None:
        """Makes these weights available for sampling: by policy, from `Rollouts.take_params`, never copied."""
        self.rollouts.use(None)
        self._based = False
        self._load = {name: partial(self.rollouts.use, weights) for name, weights in taken.items()}
        self._policy = None

    def load_adapters(self, base: Any, factors: Mapping[str, Any]) -> None:
        """Makes adapters and their base available for sampling. base: from `Rollouts.take_params`, never copied."""
        self.rollouts.use(base)
        self._based, self._held = True, {}
        self._load = dict.fromkeys((*factors, BASE), partial(self._adapt, None, factors))
        self._policy = None

    def share(self, base: Any) -> Any:
        """Converts the base of adapters, which is freed, into the engine's own form and loads it; the engine's buffers
        themselves, without adapters, for the learner."""
        taken = self.rollouts.take_params(base)
        self.rollouts.use(taken)
        self._based, self._held = True, {}
        return without_adapters(taken)

    def rest(self) -> None:
        """Frees the engine's weights and cache, as before an update; `use` loads weights again. The base of adapters
        stays."""
        if self.adapters:
            self.rollouts.clear()
        else:
            self.rollouts.use(None)
        self._policy = None

    def use(self, policy: str) -> None:
        """Loads the policy's weights into the engine. Raises ValueError for a policy without weights."""
        if policy != self._policy:
            if policy not in self._load:
                raise ValueError(
                    f"there are no weights for the policy {policy!r}; the run has {', '.join(self._load)}."
                )
            self._policy = None
            began = time.monotonic()
            self._load[policy]()
            self.publishing += time.monotonic() - began
            self._policy = policy

    @contextmanager
    def unquantized(self) -> Iterator[None]:
        """In this block policies are sampled with whole matrices, whatever `rollout.quantization` says."""
        with self.rollouts.unquantized() as anew:
            if anew:
                self._forget()
            yield
        if anew:
            self._forget()

    def _forget(self) -> None:
        """The engine has no weights."""
        self._policy, self._based, self._held = None, False, {}

    def weights(self, policy: str) -> str:
        """What the weights are called that a policy's rows wait for: all adapters have one base."""
        return "" if self.adapters else policy

    def named(self, policy: str) -> str | None:
        """What requests for this policy name: its adapter, if it is one."""
        return policy if self.adapters and policy != BASE else None

    def count(self, completions: Sequence[Completion]) -> None:
        """Adds the tokens that were sampled in these completions to `generated`."""
        self.generated += sum(int(row.sampled_T.sum()) for completion in completions for row in completion.rows)

    def _adapt(self, base: Any, factors: Mapping[str, Any]) -> None:
        if not self._based:
            self.rollouts.load_params(base)
            self._based = True
        for policy, own in factors.items():
            if self._held.get(policy) is not own:
                self.rollouts.load_adapter(policy, own)
                self._held[policy] = own

    def _copy(self, params: Any) -> None:
        self.rollouts.load_params(moved(params, ACCELERATOR))

    def _return(self, copy: Any) -> None:
        self.rollouts.use(None)  # frees the weights that are there
        self.rollouts.use(moved(copy, ACCELERATOR))
