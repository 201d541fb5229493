"""FLOPs that a model needs: 2 per weight and token of a forward pass, and attention; backward takes twice as much. And
those that an update executes, which computes some of them again.

Needed FLOPs by seconds and the chip's published peak are the model FLOPs utilisation (MFU), executed ones the hardware
FLOPs utilisation (HFU; both Chowdhery et al. 2022, "PaLM", appendix B).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.kinds import mixer_of, multiplied
from scope_jax.models.decoder.transformer import Remat


def weights_per_token(model: ModelConfig) -> int:
    """Weights that multiply a token in all layers, and numbers of their states: of experts only those that are picked.
    Without the output table."""
    return sum(multiplied(model))


def pairs(length: int, window: int | None) -> int:
    """Pairs of a query and a key that it sees in a row of `length` tokens: each token itself and those before it, at
    most `window`."""
    reach = length if window is None else min(window, length)
    return reach * (reach + 1) // 2 + (length - reach) * reach


def pair_flops(model: ModelConfig, seen: Callable[[int | None], float]) -> float:
    """Forward FLOPs in all layers. seen: pairs of a query and a key that it sees, in a layer with this window."""
    layers = [model.layers[number] for number in model.attention_layers]
    return sum(mixer_of(layer).pair(layer.mixer) * seen(layer.attention.window) for layer in layers)


def attention_flops(model: ModelConfig, length: int) -> float:
    """The same of one row of a text."""
    return pair_flops(model, partial(pairs, length))


def forward_flops(model: ModelConfig, rows: int, length: int, trained: int) -> float:
    """FLOPs of a forward pass over `rows` rows of one sequence each, with the logits of `trained` positions."""
    head = 2.0 * trained * model.width * model.vocab_size
    return rows * (2.0 * weights_per_token(model) * length + attention_flops(model, length)) + head


def update_flops(model: ModelConfig, rows: int, length: int, trained: int, frozen: bool = False) -> float:
    """FLOPs of forward and backward: 6 N D and three times the attention of a forward pass. frozen: the weights have no
    gradient, as under an adapter, whose own products are left out: 4 N D."""
    forward = forward_flops(model, rows, length, trained)
    return 2 * forward + rows * attention_flops(model, length) if frozen else 3 * forward


@dataclass(frozen=True)
class Executed:
    """FLOPs that an update of one row executes."""

    products: float
    """Of dense matrix products."""
    attention: float
    """Over pairs that see each other."""
    experts: float
    """Of grouped products."""

    @property
    def total(self) -> float:
        return self.products + self.attention + self.experts


def executed_flops(
    model: ModelConfig, length: int, trained: int, remat: Remat, *, frozen: bool = False, splash: bool = False
) -> Executed:
    """Of one row. Beside `update_flops` they have what the backward pass finds nowhere: of the layers what `remat` does
    not keep, the scores of attention, the logits. splash: the kernels' backward pass has 7 products over the pairs
    instead of 5 (`splash_flops`)."""
    grouped, recomputed = expert_flops(model, 1, 3), remat != "none"
    # Of "qkv" and "dots" attention counts as computed again, as in the rows of benchmarks/calibration.
    attending = 0 if remat == "attention" else 2 * recomputed
    dense = 2.0 * weights_per_token(model) - grouped
    qkv = 2.0 * model.width * sum(mixer_of(layer).projected(layer.mixer) for layer in model.layers)
    again = {"full": dense, "attention": dense, "qkv": dense - qkv, "dots": 0.0, "none": 0.0}[remat]
    backward = 1 if frozen else 2
    head = 2.0 * trained * model.width * model.vocab_size * (2 + backward)
    pairs_products = 2 + (7 if splash else 5) + attending
    return Executed(
        length * (dense * (1 + backward) + again) + head,
        attention_flops(model, length) / 2 * pairs_products,
        expert_flops(model, length, (6 if frozen else 9) + 2 * recomputed),
    )


def splash_flops(model: ModelConfig, rows: int, length: int, *, backward: bool, recomputed: bool) -> float:
    """FLOPs of the splash kernels, whose products are not in the program's text. Forward has 2 products over the pairs;
    backward 7, as dq and dkv are separate kernels that both compute the scores again; a recomputed forward 2 more."""
    products = 2 + (7 if backward else 0) + (2 if recomputed else 0)
    return rows * attention_flops(model, length) / 2 * products


def expert_flops(model: ModelConfig, tokens: float, products: int) -> float:
    """FLOPs of so many grouped products of experts, which kernels compute: 3 forward, 6 backward (3 with frozen
    weights), 2 where they are recomputed, as the gradients do not need the last one. 0 of a dense model."""
    feeds = [layer.experts for layer in model.layers if layer.experts is not None]
    return products * sum(2.0 * model.width * feed.width * feed.picked for feed in feeds) * tokens
