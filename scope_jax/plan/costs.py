"""What a compiled program costs per execution and device: products, kernels, collectives, memory, estimated cycles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True)
class Transfers:
    """Collectives of one kind per execution and device: their number and bytes, and the bytes of the largest one.

    Bytes of one: the larger of its input and its output on a device. Where the compiler has combined several gathers or
    scatters into one, each of its arrays counts, and its bytes are those of all.
    """

    count: float = 0.0
    bytes: float = 0.0
    largest: float = 0.0

    def times(self, number: float) -> Transfers:
        return Transfers(self.count * number, self.bytes * number, self.largest)

    def plus(self, other: Transfers) -> Transfers:
        return Transfers(self.count + other.count, self.bytes + other.bytes, max(self.largest, other.largest))


class Kernel(NamedTuple):
    """What a Pallas kernel declares of itself (`pallas.CostEstimate`), 0 if nothing: FLOPs, bytes read and written."""

    flops: float
    bytes: float


@dataclass(frozen=True)
class Costs:
    """Per execution and device. flops: of dots and convolutions, 2 · m · n · k; of branches the dearest. cycles: XLA's
    estimates without kernels, which have none; of branches the cheapest. kernels: executions of Pallas kernels.
    unknown: loops that counted once because their trip count is not in the program. memory: bytes read and written by
    all that is neither a product nor a kernel; of branches those of the dearest. beside: bytes of collectives that are
    scheduled around products."""

    flops: float = 0.0
    cycles: float = 0.0
    kernels: Mapping[Kernel, float] = field(default_factory=dict)
    collectives: Mapping[str, Transfers] = field(default_factory=dict)
    unknown: int = 0
    memory: float = 0.0
    beside: float = 0.0

    def times(self, number: float) -> Costs:
        return Costs(
            self.flops * number,
            self.cycles * number,
            {kernel: count * number for kernel, count in self.kernels.items()},
            {kind: moved.times(number) for kind, moved in self.collectives.items()},
            self.unknown,
            self.memory * number,
            self.beside * number,
        )

    def plus(self, other: Costs) -> Costs:
        kinds = {**self.collectives, **other.collectives}
        nothing = Transfers()
        return Costs(
            self.flops + other.flops,
            self.cycles + other.cycles,
            {k: self.kernels.get(k, 0.0) + other.kernels.get(k, 0.0) for k in {**self.kernels, **other.kernels}},
            {k: self.collectives.get(k, nothing).plus(other.collectives.get(k, nothing)) for k in kinds},
            self.unknown + other.unknown,
            self.memory + other.memory,
            self.beside + other.beside,
        )
