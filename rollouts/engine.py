"""The interface of the two engines, `rollouts.dense` and `rollouts.paged`: the same operations, the same completions.

An engine holds compiled programs for one model and mesh, but neither weights nor state: both are arguments of the
operations, and a state that an operation returns replaces the one it was given. The order of operations is the
caller's, see `rollouts.loop`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jax.sharding import Mesh

from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.transformer import Params
from scope_jax.rollouts.slots import EngineConfig, Extension, Placement, Result
from scope_jax.sharding.program import AbstractProgram

State = Any  # of an engine: what is kept between operations
Prompt = Sequence[int] | np.ndarray  # token ids


@dataclass(frozen=True)
class PageBudget:
    """The pages of one row shard of the mesh, of each shape."""

    pages: tuple[int, ...]
    """So many, with the one that is never given away."""
    least: tuple[int, ...]
    """So many hold an episode of max_length and what a dispatch may add to it."""
    page_bytes: tuple[int, ...]
    """Of one page on each device, all layers of a group together."""
    state_bytes: int = 0
    """Of all states on each device, of a model whose layers have some."""

    @property
    def least_bytes(self) -> int:
        """Of the smallest cache."""
        return sum(count * size for count, size in zip(self.least, self.page_bytes, strict=True)) + self.state_bytes


@runtime_checkable
class Engine(Protocol):
    """What generation, serving and plans know of an engine."""

    model: ModelConfig
    config: EngineConfig
    mesh: Mesh
    keeps_prompts: bool
    """Whether a state holds prompts for later requests, as long as the weights are the same."""

    # ------------------------------------------------------------------------------------------------------ weights
    def load_params(self, params: Params) -> Params:
        """The engine's own copy of stacked weights, see `EngineWeights.load_params`."""
        ...

    def take_params(self, params: Params) -> Params:
        """Like load_params, but frees the source weight by weight."""
        ...

    def load_adapter(self, params: Params, policy: str, factors: Params) -> Params:
        """The engine's weights with a copy of this policy's factors."""
        ...

    def number(self, policy: str | None) -> int:
        """The policy's place among the adapters. Raises ValueError if there is no such policy."""
        ...

    # --------------------------------------------------------------------------------------------------- operations
    def init_decode_state(self) -> State:
        """A state in which no slot decodes."""
        ...

    def prefill(self, params: Params, prompts: Sequence[Prompt], policies: Sequence[int] = ()) -> Any:
        """A prefix of prompts for `insert`. policies: the number of each prompt's, with adapters; () if all are 0.
        Raises ValueError for prompts that the engine does not take."""
        ...

    def room(self, state: State, asked: Sequence[tuple[np.ndarray, int]]) -> int:
        """How many of these (prompt, slot), from the first on, can be placed."""
        ...

    def insert(self, state: State, prefix: Any, placements: Sequence[Placement]) -> State:
        """Places rows of a prefix in slots, for which there is `room`; one row may be placed in many. Raises ValueError
        if a placement has too many stop ids."""
        ...

    def extend(self, params: Params, state: State, extensions: Sequence[Extension]) -> State:
        """Appends tokens to at most prefill_batch paused slots, all in one bucket. Raises OutOfPages before anything is
        appended."""
        ...

    def advance(self, params: Params, state: State, most: int | None = None) -> tuple[State, Sequence[int]]:
        """Computes what `insert` and `extend` have left to be computed, with at most `most` dispatches (None: all).
        Slots whose last token has been computed decode from now on; returns the others."""
        ...

    def generate(
        self, params: Params, state: State, longest: int | None = None, patience: int | None = None
    ) -> tuple[State, Result]:
        """Samples up to decode_steps tokens for every live slot; the result is still to be `read`.

        longest: tokens in the cache of the longest live slot (None: max_length). patience: the dispatch ends early once
        this many slots have finished (None: all of them). Neither changes any token or log-prob. Raises OutOfPages,
        before anything has changed but for pages already reserved.
        """
        ...

    def read(self, state: State, result: Result, slots: Sequence[int]) -> Result:
        """A dispatch's result in host memory, once it has been computed. slots: those whose turn has not been ended or
        replaced since its launch; `state` is the current one."""
        ...

    def pause(self, state: State, slots: Sequence[int]) -> State:
        """Pauses slots; their caches are kept."""
        ...

    def picks(self, state: State, slot: int) -> Callable[[], np.ndarray]:
        """With `config.picks`: launches what reads the experts that were picked of the tokens in a slot's cache. Its
        result waits for them: [tokens, L, k], L in the order of `expert_layers`, and meaningless behind the slot's
        tokens."""
        ...

    def release(self, state: State, slots: Iterable[int]) -> State:
        """Slots that do not decode have ended; their memory is free."""
        ...

    def compile(self, params: Params, state: State, *, extends: bool) -> State:
        """Compiles every program by running it for no slot. extends: that of `extend` as well. No slot decodes."""
        ...

    def most_programs(self) -> dict[str, int]:
        """How many programs `compile` compiles that take long, by the name of their function; requests of fewer lengths
        need fewer."""
        ...

    # -------------------------------------------------------------------------------------------------------- plans
    def abstract_weights(self) -> Params:
        """Shapes and shardings of the weights as the programs get them, one tree per layer."""
        ...

    def abstract_state(self) -> Any:
        """Shapes and shardings of the `DecodeState` on the devices."""
        ...

    def programs(self) -> list[AbstractProgram]:
        """Decoding, over whole rows of the cache, and the largest program for prompts."""
        ...

    def with_model(self, model: ModelConfig) -> Engine:
        """The same engine, with as large a cache, for a model of other layers."""
        ...

    @property
    def full_rows(self) -> int:
        """Episodes of max_length that the cache holds at a time, over the whole mesh."""
        ...

    @property
    def budget(self) -> PageBudget | None:
        """None if every slot has memory of its own for max_length tokens."""
        ...


@runtime_checkable
class PagingEngine(Engine, Protocol):
    """An engine whose memory may run out: only such a one raises OutOfPages, and moves episodes to host memory then."""

    slots: int
    """Of one row shard."""

    def set_aside(self, state: State, slot: int) -> Any:
        """Moves the tokens of a paused slot to host memory, and frees it."""
        ...

    def fits(self, state: State, aside: Any, kept: int, more: int, slot: int) -> bool:
        """Whether an episode in host memory can return to a slot, keep the first `kept` of its tokens there and be
        extended by `more`, and all live slots still decode for one dispatch."""
        ...

    def bring_back(self, state: State, aside: Any, slot: int, token: int, placement: Placement, *, live: bool) -> State:
        """Returns an episode to a slot of any shard. token: the input of its next step. live: it decodes on; otherwise
        it waits for `extend`. Raises OutOfPages before anything has changed."""
        ...
