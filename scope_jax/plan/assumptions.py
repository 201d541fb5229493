"""What estimates of time assume about programs, by platform: the one place of such figures.

Each is fitted to the rows of benchmarks/calibration that are not held out (docs/plans.md); a share is at most 1, so
that no estimate is below the roofline.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Assumptions:
    """Shares of a chip's figures that programs reach, and seconds that take no part in them."""

    products: float
    """Of the peak, in dense matrix products."""
    attention: float
    """Of the peak, in an update, over pairs of tokens that see each other."""
    experts: float
    """Of the peak, in the grouped products of experts."""
    weights: float
    """Of the bandwidth of memory, as weights are read for a token of every slot."""
    cache: float
    """Of the bandwidth, as pages of the cache are read."""
    memory: float
    """Of the bandwidth, in everything else: activations, logits, the optimiser."""
    link: float
    """Of the links within a slice or node."""
    network: float
    """Of the network between them."""
    layer: float
    """Seconds that a layer takes beside its work in one pass: launches, norms, waiting."""
    slot: float
    """Seconds for each slot and layer of a token: its keys and values are written, its attention begins."""
    collective: float
    """Seconds until a collective within a token begins to move bytes."""


ASSUMED = {
    "gpu": Assumptions(
        products=0.6,
        attention=0.52,
        experts=0.12,
        weights=0.71,
        cache=0.82,
        memory=0.2,
        link=0.8,
        network=0.8,
        layer=1.2e-5,
        slot=1e-7,
        collective=1.6e-5,
    ),
    "tpu": Assumptions(
        products=0.75,
        attention=0.62,
        experts=0.34,
        weights=0.95,
        cache=0.9,
        memory=0.67,
        link=0.48,
        network=0.8,
        layer=1.2e-4,
        slot=4e-7,
        collective=5e-6,
    ),
}
