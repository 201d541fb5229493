"""Activations of gated layers, by the name in `models.decoder.config`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import jax

from scope_jax.models.decoder.config import Activation

ACTIVATIONS: Mapping[Activation, Callable[[jax.Array], jax.Array]] = {
    "silu": jax.nn.silu,
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
}
