"""TPU slices by the name that Google Cloud gives them: topology, chips, hosts.

A name counts TensorCores for v5p, of which a chip has two (v5p-32: 16 chips), and chips for v5e and v6e. Sources: the
pages "TPU v5p", "TPU v5e" and "TPU v6e" of cloud.google.com/tpu/docs, "TPU software versions" for the runtimes, and the
table of AI-Hypercomputer/xpk (src/xpk/core/system_characteristics.py) for the labels of GKE.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Slice:
    """generation: as in `scope-jax plan --on`: v5p, v5e, v6e. topology: chips along each axis, e.g. 2x2x4.

    runtime: the software version of its TPU VMs. accelerator: GKE's label of its nodes.
    """

    tpu_type: str
    generation: str
    topology: str
    runtime: str
    accelerator: str

    @property
    def chips(self) -> int:
        """Number of chips of the whole slice."""
        return math.prod(int(size) for size in self.topology.split("x"))

    @property
    def hardware(self) -> str:
        """The name that `scope-jax plan --on` takes: v5p:2x2x4."""
        return f"{self.generation}:{self.topology}"

    @property
    def chips_per_node(self) -> int:
        """Chips of one GKE node: four, or all of a smaller slice. (A TPU VM of v5litepod-8 or v6e-8 has eight.)"""
        return min(self.chips, 4)

    @property
    def nodes(self) -> int:
        """GKE nodes of the slice."""
        return self.chips // self.chips_per_node


# generation: prefix of the names, TensorCores per chip, runtime version, GKE's label
_GENERATIONS = {
    "v5p": ("v5p", 2, "v2-alpha-tpuv5", "tpu-v5p-slice"),
    "v5e": ("v5litepod", 1, "v2-alpha-tpuv5-lite", "tpu-v5-lite-podslice"),
    "v6e": ("v6e", 1, "v2-alpha-tpuv6e", "tpu-v6e-slice"),
}
_FLAT = "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16"
_TOPOLOGIES = {
    "v5p": "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x4x12 4x8x8 4x8x12 8x8x8 8x8x12 8x8x16 8x16x16 16x16x16",
    "v5e": _FLAT,
    "v6e": _FLAT,
}


def _slices() -> dict[str, Slice]:
    found = {}
    for generation, (prefix, cores, runtime, accelerator) in _GENERATIONS.items():
        for topology in _TOPOLOGIES[generation].split():
            chips = math.prod(int(size) for size in topology.split("x"))
            name = f"{prefix}-{cores * chips}"
            found[name] = Slice(name, generation, topology, runtime, accelerator)
    return found


SLICES = _slices()


def known_type(name: str) -> str:
    """The name, if it is a known TPU type; raises ValueError with the names of its generation otherwise."""
    if name not in SLICES:
        prefix = name.partition("-")[0]
        near = [known for known in SLICES if known.startswith(prefix + "-")]
        choices = near or ["v5p-8", "v5litepod-16", "v6e-16"]
        raise ValueError(f"is not a known TPU type; give the name of a slice such as {', '.join(choices)}")
    return name
