"""What a compiled program costs per execution and device: products and collectives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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


@dataclass(frozen=True)
class Costs:
    """Per execution and device. flops: of dots and convolutions, 2 · m · n · k; of branches the dearest. unknown: loops
    that counted once because their trip count is not in the program."""

    flops: float = 0.0
    collectives: Mapping[str, Transfers] = field(default_factory=dict)
    unknown: int = 0

    def times(self, number: float) -> Costs:
        moved = {kind: moved.times(number) for kind, moved in self.collectives.items()}
        return Costs(self.flops * number, moved, self.unknown)

    def plus(self, other: Costs) -> Costs:
        kinds = {**self.collectives, **other.collectives}
        nothing = Transfers()
        return Costs(
            self.flops + other.flops,
            {k: self.collectives.get(k, nothing).plus(other.collectives.get(k, nothing)) for k in kinds},
            self.unknown + other.unknown,
        )
