"""Counts what a compiled program starts on a device: kernels by kind, bytes that they read and write, waits of the host
for the device, and collectives with no product between their start and their end.

Of a conditional the branch with the fewest kernels counts, as most of ours do nothing unless a setting asks for it. A
loop whose number of rounds is not in the program counts once. Bytes are those of operands and results, without padding:
what is only sliced, gathered or written into counts by its part.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache

from scope_jax.plan import hlo
from scope_jax.plan.hlo import Instruction, bytes_of, dims_of, named

# Not on the device: names of buffers, and ends of what was started elsewhere.
NOTHING = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "partition-id",
    "replica-id",
    "opt-barrier",
    "add-dependency",
}
PRODUCT = re.compile(r'custom_call_target="__cublas')
WORKSPACE = re.compile(r"\b[su]8\[\d+\]")
SLICES = ("dynamic-slice", "slice", "gather")
WRITES = {"dynamic-update-slice": 1, "scatter": 2}  # into their first operand; the place of what is written
ALIAS = re.compile(r"\{\d*\}: \((\d+), \{\}\)")  # the operand whose memory a result has
PLACES = re.compile(r"/place_tokens/pallas_call")


@dataclass(frozen=True)
class Launches:
    """What one execution starts. kernels: by kind. waits: of the host for a predicate. alone: collectives without a
    product beside them, by kind."""

    kernels: Mapping[str, float] = field(default_factory=dict)
    bytes: float = 0.0
    waits: float = 0.0
    alone: Mapping[str, float] = field(default_factory=dict)

    @property
    def count(self) -> float:
        """Of all kernels."""
        return sum(self.kernels.values())

    def times(self, number: float) -> Launches:
        def scaled(x: Mapping[str, float]) -> dict[str, float]:
            return {kind: value * number for kind, value in x.items()}

        return Launches(scaled(self.kernels), self.bytes * number, self.waits * number, scaled(self.alone))

    def plus(self, other: Launches) -> Launches:
        def added(x: Mapping[str, float], y: Mapping[str, float]) -> dict[str, float]:
            return {kind: x.get(kind, 0) + y.get(kind, 0) for kind in {**x, **y}}

        kernels, alone = added(self.kernels, other.kernels), added(self.alone, other.alone)
        return Launches(kernels, self.bytes + other.bytes, self.waits + other.waits, alone)


class Reader(hlo.Program):
    """A compiled program's text. waits: whether the host reads the predicates of loops and conditionals, as it does for
    GPUs."""

    def __init__(self, text: str, *, waits: bool) -> None:
        super().__init__(text)
        self._waits = waits
        self._users = cache(self._users_of)
        self._multiplies = cache(self._multiplies_in)
        self._read = cache(self._read_of)

    def launches(self) -> Launches:
        """Of one execution of the whole program."""
        return self._of(self.entry, self._waits)

    def round(self) -> Launches:
        """Of one round of the loops of the entry computation: of decoding, a token of every slot."""
        total = Launches()
        for one in self.computations[self.entry].values():
            if one.opcode == "while":
                total = total.plus(self._round(one, self._waits))
        return total

    def _round(self, loop: Instruction, waits: bool) -> Launches:
        """The number of rounds may be noted, and then nothing is asked before each."""
        body = self._of(named(loop, "body"), waits)
        if "known_trip_count" in loop.attributes:
            return body
        return body.plus(self._of(named(loop, "condition"), waits)).plus(Launches(waits=float(waits)))

    def _of(self, name: str, waits: bool) -> Launches:
        lines, total = self.computations[name], Launches()
        for one in lines.values():
            if one.opcode == "while":
                trips = self.trips(name, one)
                inside = self._round(one, waits).times(1 if trips is None else trips)
            elif one.opcode == "conditional":
                branches = [self._of(branch, waits) for branch in hlo.branches(one)]
                inside = min(branches, key=lambda branch: branch.count).plus(Launches(waits=float(waits)))
            elif one.opcode in hlo.CONTROL:  # a graph of kernels is launched at once, its conditions are on the device
                called = named(one, "calls|to_apply")
                inside = self._of(called, waits and not called.startswith("command_buffer"))
            else:
                inside = self._one(one, lines)
            total = total.plus(inside)
        return total.plus(Launches(alone=self._alone(lines)))

    # ------------------------------------------------------------------------------------------------------- kernels
    def _one(self, one: Instruction, lines: Mapping[str, Instruction]) -> Launches:
        if one.opcode in NOTHING or one.opcode.endswith("-done"):
            return Launches()
        return Launches({self._kind(one): 1.0}, float(self._bytes(one, lines)))

    def _kind(self, one: Instruction) -> str:
        opcode = one.opcode.removesuffix("-start")
        if opcode in hlo.COLLECTIVES:
            return "collective"
        if self._product(one):
            return "product"
        if one.opcode == "custom-call":
            return "kernel" if hlo.KERNEL.search(one.attributes) else "call"
        return opcode if opcode in ("copy", "sort") else "fusion"

    def _product(self, one: Instruction) -> bool:
        if one.opcode == "fusion":
            return self._multiplies(named(one, "calls"))
        return one.opcode in ("dot", "convolution") or PRODUCT.search(one.attributes) is not None

    def _multiplies_in(self, name: str) -> bool:
        return any(self._product(one) for one in self.computations[name].values())

    def _alone(self, lines: Mapping[str, Instruction]) -> dict[str, float]:
        """Collectives of a computation with no product or kernel between their start and their end, by kind."""
        found, order = dict[str, float](), list(lines.values())
        for place, one in enumerate(order):
            kind = one.opcode.removesuffix("-start")
            if kind not in hlo.COLLECTIVES:
                continue
            ends = (n for n, other in enumerate(order) if other.opcode.endswith("-done") and one.name in other.operands)
            beside = order[place + 1 : next(ends, place)]
            if not any(self._kind(other) in ("product", "kernel") for other in beside if other.opcode not in NOTHING):
                found[kind] = found.get(kind, 0.0) + 1
        return found

    # --------------------------------------------------------------------------------------------------------- bytes
    def _bytes(self, one: Instruction, lines: Mapping[str, Instruction]) -> int:
        if one.opcode == "fusion":
            name = named(one, "calls")
            inside = self.computations[name]
            parameters = (other.name for other in inside.values() if other.opcode == "parameter")
            written = sum(_written(root, inside) for root in _results(inside))
            return sum(self._read(name, parameter) for parameter in parameters) + written
        if one.opcode in WRITES:
            return 2 * _written(one, lines)
        read = [bytes_of(lines[name].shape) for name in one.operands if name in lines]
        given = bytes_of(one.shape)
        if one.opcode == "custom-call":  # its result may have room to work in
            given = bytes_of(WORKSPACE.sub("", one.shape)) - _untouched(one, lines)
        if one.opcode.endswith("-start"):  # its result has its operands, too
            given -= sum(read)
        if one.opcode in SLICES:
            read = [given]
        return sum(read) + given

    def _read_of(self, name: str, operand: str) -> int:
        """Bytes that a fused computation reads of an array."""
        lines, total = self.computations[name], 0
        whole = bytes_of(lines[operand].shape)
        for user in self._users(name).get(operand, ()):
            if user.opcode in SLICES and user.operands[0] == operand:
                total += bytes_of(user.shape)
            elif user.opcode in WRITES and user.operands[0] == operand:
                continue
            elif not user.root and math.prod(dims_of(user.shape)) == math.prod(dims_of(lines[operand].shape)):
                # Number by number: no more is computed than is read of it.
                total += self._read(name, user.name) * whole // max(1, bytes_of(user.shape))
            else:
                return whole
        return min(total, whole)

    def _users_of(self, name: str) -> dict[str, list[Instruction]]:
        found = dict[str, list[Instruction]]()
        for one in self.computations[name].values():
            for operand in one.operands:
                found.setdefault(operand, []).append(one)
        return found


def _results(lines: Mapping[str, Instruction]) -> Iterator[Instruction]:
    """What a fused computation gives."""
    root = next(one for one in lines.values() if one.root)
    yield from (lines[name] for name in root.operands) if root.opcode == "tuple" else (root,)


def _written(one: Instruction, lines: Mapping[str, Instruction]) -> int:
    """Bytes of a result that are written."""
    if one.opcode == "bitcast":
        return _written(lines[one.operands[0]], lines)
    place = WRITES.get(one.opcode)
    return bytes_of(one.shape if place is None else lines[one.operands[place]].shape)


def _untouched(one: Instruction, lines: Mapping[str, Instruction]) -> int:
    """Bytes of the arrays that a Triton kernel writes into, as operands and as results, which it leaves alone: rows
    beyond those of its grid; of pages all but the tokens that it places."""
    aliased = [lines[one.operands[int(number)]].shape for number in ALIAS.findall(one.attributes)]
    whole = sum(map(bytes_of, aliased))
    if PLACES.search(one.attributes):  # its first operand has queries, keys and values; it gives the queries
        queries = bytes_of(one.shape) - whole
        return 2 * whole - (bytes_of(lines[one.operands[0]].shape) - queries)
    grid = re.search(r"grid_x = (\d+)", one.attributes)
    if not aliased or grid is None:
        return 0
    rows = dims_of(aliased[0])[0]
    return 2 * (whole // rows) * max(0, rows - int(grid[1]))
