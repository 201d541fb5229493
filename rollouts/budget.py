"""Sizes of the cache: bytes of a page, pages that episodes need, and those that a budget has room for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.kinds import kept_bytes, vector_bytes
from scope_jax.models.decoder.paging import SHARED, Paging, arrays, layer_groups, page_shapes, picks_bytes
from scope_jax.rollouts.pages import CHUNK, Counts, snapshots_for
from scope_jax.rollouts.slots import EngineConfig
from scope_jax.sharding.mesh import row_shards


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


def page_bytes(
    model: ModelConfig, dtype: Any, tensor: int, picks: bool = False, paging: Paging = SHARED
) -> tuple[int, ...]:
    """Bytes of one page of each shape on each of the `tensor` devices that share its heads, all layers of a group
    together. dtype: int8 has a scale in float32 for each token and head. picks: with the picked experts, which each
    device has whole."""
    of_shape = arrays(model, paging)
    found = [
        2 * paging.length * of_shape.count(shape) * max(1, heads // tensor) * vector_bytes(dtype, dim)
        for shape, (heads, dim) in enumerate(page_shapes(model))
    ]
    if picks:
        found[arrays(model, paging, picks)[-1]] += paging.length * picks_bytes(model)
    return tuple(found)


def pages_within(model: ModelConfig, config: EngineConfig, mesh: Mesh, limit: float) -> tuple[int, ...]:
    """Pages of each shape that take `limit` bytes of a device together: what an episode of max_length needs, and the
    rest in the proportion of what all slots need.

    But shapes of which every group has a window get all that the slots need, up to half of the rest: it grows with the
    episodes, which may be shorter than max_length, up to the window alone.
    """
    sizes = np.asarray(page_bytes(model, config.cache_dtype, mesh.shape["tensor"], config.picks))
    if len(sizes) == 1:
        return (int(limit) // int(sizes[0]),)
    needs = PageNeeds(model, config, row_shards(mesh))
    least, more = needs.least * sizes, (needs.enough - needs.least) * sizes + 1
    rest = max(0.0, float(limit - least.sum()))
    share = more * rest / more.sum()
    bounded = np.asarray([all(needs.windows[group] for group in own) for own in needs.groups])
    if rest < more.sum() and bounded.any() and not bounded.all():
        part = min(more[bounded].sum(), rest / 2)
        room = np.where(bounded, part, rest - part)
        share = more * room / np.where(bounded, more[bounded].sum(), more[~bounded].sum())
    total = least + share if rest else least * limit / least.sum()
    return tuple((total // sizes).astype(int).tolist())


def least_bytes(model: ModelConfig, config: EngineConfig, tensor: int) -> int:
    """Bytes of the pages that one episode of max_length needs, on each of `tensor` devices."""
    sizes = page_bytes(model, config.cache_dtype, tensor, config.picks)
    return int(np.dot(PageNeeds(model, config, 1).least, sizes))


class PageNeeds:
    """What a model's episodes need of pages. windows: of the groups. groups: those of each shape. least: with which one
    episode of max_length can be computed. enough: for all slots of a row shard."""

    def __init__(self, model: ModelConfig, config: EngineConfig, shards: int, paging: Paging = SHARED) -> None:
        groups = layer_groups(model, paging)
        self._config, self._paging = config, paging
        self.windows = tuple(group.window for group in groups)
        self.shapes = tuple(group.shape for group in groups)
        self.groups = [
            [number for number, group in enumerate(groups) if group.shape == shape]
            for shape in range(len(page_shapes(model)))
        ]
        self.of_shape = np.asarray(list(map(len, self.groups)))
        self.chunks = max(1, config.prefill_tokens // CHUNK)  # per dispatch and shard
        self._span = max(self.chunks * CHUNK, config.most_tokens)
        columns = paging.count(config.max_length)
        longest = self.of_shape * (columns + 1 + paging.count(config.most_tokens))
        self.least = 1 + (self.of_shape if paging.by_slot else longest)
        self.enough = np.maximum(self.least, 1 + config.slots // shards * self.of_tokens(config.max_length))

    def of_tokens(self, tokens: int) -> Counts:
        """Most pages that a prompt of so many tokens takes, at any time, with a row of its own."""
        if self._paging.by_slot:
            return self.of_shape
        seen = [tokens if window is None else window + self._span - 1 for window in self.windows]
        needed = [1 + min(self._paging.count(tokens), self._paging.touched(count)) for count in seen]
        return np.asarray([sum(needed[group] for group in own) for own in self.groups])

    def with_dispatch(self, tokens: int) -> Counts:
        """The same with those of the first dispatch after it."""
        if self._paging.by_slot:
            return self.of_shape
        return self.of_tokens(tokens) + self.of_shape * self._paging.count(self._config.most_tokens)

    def of_row(self, tokens: int) -> Counts:
        """Pages of a row with so many tokens, and those of the dispatch after it."""
        most = min(tokens + self._config.most_tokens, self._config.max_length)
        return self.of_shape * self._paging.count(most)


def state_bytes(model: ModelConfig, dtype: Any, slots: int, tensor: int) -> int:
    """Bytes of the states of so many slots of a shard, and of their snapshots, on each of `tensor` devices."""
    return (slots + snapshots_for(slots)) * kept_bytes(model, jnp.dtype(dtype).itemsize) // tensor
