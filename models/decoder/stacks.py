"""How the weights of layers are stacked: `params["layers"]` of a model, and trees of the same form.

Layers whose weights have the same names and shapes (`Layer.weights`) are one stack. A model whose layers are all alike
has one, {"q_D_Hh": [L, ...]}. Of a model of several kinds of layers there is a stack for each kind, under "0", "1", …
in the order in which they first occur: {"0": {"q_D_Hh": [n, ...]}, "1": {...}}, where n are the layers of that kind, in
their order. A stack may be left out if it is empty, as that of factors where an adapter adapts nothing.

The learner scans stacks; the engine unrolls them (`each`). A scan would compile in the same time for any number of
layers (36 of Qwen3-8B: 8 s instead of 21 on a v5p, 2 s instead of 5 on an H100) but decode more slowly: XLA copies the
weights of each layer on GPUs and CPUs (15 to 40 % more time for a token of a model of 135M), and fetches none ahead on
TPUs (207,000 cycles a layer instead of 125,000, by the compiler's estimate).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import jax

from scope_jax.models.decoder.config import ModelConfig

Tree = Any  # of arrays, or of their declarations, shardings …


@lru_cache(maxsize=16)
def stacks(cfg: ModelConfig) -> tuple[tuple[int, ...], ...]:
    """The numbers of the layers of each stack."""
    kinds = {layer: layer.weights for layer in set(cfg.layers)}  # few, however many layers there are
    found: dict[Any, list[int]] = {}
    for number, layer in enumerate(cfg.layers):
        found.setdefault(kinds[layer], []).append(number)
    return tuple(map(tuple, found.values()))


def places(cfg: ModelConfig) -> list[tuple[int, int]]:
    """(stack, place in it) of each layer."""
    found = {number: (stack, place) for stack, own in enumerate(stacks(cfg)) for place, number in enumerate(own)}
    return [found[number] for number in range(cfg.num_layers)]


def split(cfg: ModelConfig, layers: Tree) -> list[Tree]:
    """The stacks of a tree."""
    count = len(stacks(cfg))
    return [layers] if count == 1 else [layers.get(str(stack), {}) for stack in range(count)]


def joined(own: Sequence[Tree]) -> Tree:
    """The tree of these stacks."""
    return own[0] if len(own) == 1 else {str(stack): tree for stack, tree in enumerate(own) if tree}


def mapped(cfg: ModelConfig, function: Callable[..., Tree], *layers: Tree) -> Tree:
    """The tree of function(stack, ...) of the stacks of one or more trees."""
    return joined([function(*own) for own in zip(*(split(cfg, tree) for tree in layers), strict=True)])


def each(
    cfg: ModelConfig, layers: Tree, take: Callable[[Any, int], Any] = lambda x, place: x[place], **options: Any
) -> tuple[Tree, ...]:
    """One tree for each layer: take(leaf, place) of the leaves of its stack. options: of jax.tree.map."""
    own = split(cfg, layers)
    return tuple(
        jax.tree.map(lambda leaf, place=place: take(leaf, place), own[stack], **options) for stack, place in places(cfg)
    )


def together(cfg: ModelConfig, layers: Sequence[Tree], stacked: Callable[..., Any]) -> Tree:
    """The reverse of `each`: the stacks of one tree for each layer, whose leaves are stacked(*leaves of the layers)."""
    return joined([jax.tree.map(stacked, *(layers[number] for number in own)) for own in stacks(cfg)])


def by_path(path: str) -> tuple[int, str]:
    """(stack, name of the weight) of "layers.q_D_Hh" or "layers.1.q_D_Hh"; what follows the name stays."""
    first, _, rest = path.removeprefix("layers.").partition(".")
    return (int(first), rest) if first.isdecimal() else (0, path.removeprefix("layers."))


def paths(cfg: ModelConfig, layers: Tree) -> Iterator[tuple[str, str]]:
    """(path, name) of every weight, stack by stack: ("layers.1.q_D_Hh", "q_D_Hh")."""
    own = split(cfg, layers)
    for stack, tree in enumerate(own):
        yield from ((f"layers.{stack}.{name}" if len(own) > 1 else f"layers.{name}", name) for name in tree)


def named(cfg: ModelConfig, layers: Tree) -> Iterator[str]:
    """The names of the weights in any stack, each once."""
    yield from dict.fromkeys(name for _, name in paths(cfg, layers))
