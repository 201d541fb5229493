"""Reads a compiled program's text: FLOPs of its matrix products, collectives, kernels.

XLA's own cost analysis counts the body of a loop once, whatever its trip count; here everything is multiplied by it.
A loop whose trip count is known only at run time (micro-batches of a step, tokens of a dispatch) counts once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from scope_jax.models.decoder import flops
from scope_jax.plan.costs import Costs, Transfers

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
# Permutes that are not the program's, and bear no name of it: the TPU compiler scatters padded rows in some
# reduce-scatters, after which neighbours exchange those that crossed a border.
HALO = "halo-exchange"
CONTROL = ("while", "conditional", "call", "call-start", "async-start")
KERNEL = re.compile(r'custom_call_target="(?:tpu_custom_call|__gpu\$xla\.gpu\.triton|__cudnn\$fmha\w*)"')
FUSED_ATTENTION = re.compile(r'custom_call_target="__cudnn\$fmha\w*?(Backward)?"')
CAUSAL = re.compile(r'"mask_type":\s*"\w*CAUSAL"')  # of cuDNN's attention; 0 is no window
WINDOW = re.compile(r'"sliding_window_length":\s*"?([1-9]\d*)')
SCATTERED = re.compile(r'"emitter":"\w*AllReduceScatterFusion"')
BITS = {"pred": 8, "bf16": 16, "c64": 64, "c128": 128, "token": 0, "tuple": 0}
ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,]*)\]")
HEAD = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")


@dataclass(frozen=True)
class Instruction:
    """One line of a computation. shape: as text, a tuple in parentheses; attributes: the text after the operands."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    arguments: str  # the text between the parentheses, for constants and parameters
    attributes: str
    root: bool


def bits_of(kind: str) -> int:
    """Bits of one element of an XLA type: bf16 16, f8e4m3fn 8, s4 4."""
    if kind in BITS:
        return BITS[kind]
    found = re.match(r"[a-z]+(\d+)", kind)
    return int(found[1]) if found else 0


def dims_of(shape: str) -> tuple[int, ...]:
    """Dimensions of the first array of a shape."""
    found = ARRAY.search(shape)
    return tuple(int(dim) for dim in found[2].split(",") if dim) if found else ()


def bytes_of(shape: str) -> int:
    """Bytes of all arrays of a shape, without padding."""
    return sum(
        math.prod(int(dim) for dim in dims.split(",") if dim) * bits_of(kind) // 8
        for kind, dims in ARRAY.findall(shape)
    )


def _closing(text: str, start: int) -> int:
    """The place of the parenthesis that closes the one at `start`."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if not depth:
            return place
    return len(text) - 1


def _instruction(line: str) -> Instruction | None:
    found = HEAD.match(line)
    if not found:
        return None
    rest = line[found.end() :]
    end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.find(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    opening = rest.find("(")
    if opening < 1 or " " in rest[:opening]:
        return None
    closing = _closing(rest, opening)
    inside = rest[opening + 1 : closing]
    operands = tuple(re.findall(r"%([\w.\-]+)", inside))
    return Instruction(
        found[1], shape, rest[:opening], operands, inside, rest[closing + 1 :], line.lstrip().startswith("ROOT ")
    )


def parse(text: str) -> tuple[dict[str, dict[str, Instruction]], str]:
    """(computations by name, their instructions by name in order; the name of the entry). Raises ValueError if the text
    has no entry computation."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry = current = ""
    for line in text.splitlines():
        if not current:
            if line.endswith("{") and not line.startswith((" ", "HloModule")) and "->" in line:
                current = line.removeprefix("ENTRY ").split()[0].lstrip("%").partition("(")[0]
                entry = current if line.startswith("ENTRY ") else entry
                computations[current] = {}
        elif line == "}" or line.startswith("}, execution_thread="):  # a kernel's metadata may have lines like "} {"
            current = ""
        elif (one := _instruction(line)) is not None:
            computations[current][one.name] = one
    if not entry:
        raise ValueError("the text is not a compiled program: it has no entry computation.")
    return computations, entry


class Program:
    """A compiled program's text, taken apart."""

    def __init__(self, text: str) -> None:
        self.computations, self.entry = parse(text)
        self._costs = cache(self._costs_of)
        self._fused = cache(self._fused_of)

    def costs(self) -> Costs:
        """Of one execution of the whole program on one device."""
        return self._costs(self.entry)

    def body(self) -> Costs:
        """Of one round of the loops of the entry computation, for programs that repeat one thing (decoding)."""
        inside = Costs()
        for one in self.computations[self.entry].values():
            if one.opcode == "while":
                inside = inside.plus(self._costs(named(one, "body")))
        return inside

    def largest_copy(self) -> int:
        """Bytes of the largest result of a copy."""
        return max((bytes_of(one.shape) for one in self._all() if one.opcode == "copy"), default=0)

    def _all(self) -> Iterator[Instruction]:
        for lines in self.computations.values():
            yield from lines.values()

    # ------------------------------------------------------------------------------------------------------- costs
    def _costs_of(self, name: str, begun: frozenset[str] = frozenset()) -> Costs:
        """Of a computation whose instructions run one after another: the entry, a loop's body, a branch. begun:
        collectives of the computations around it, which go on beside its own work and are not counted again."""
        lines = self.computations[name]
        moved = dict[str, tuple[str, Transfers]]()
        total = Costs(sum(self._plain(one, lines, moved) for one in lines.values() if one.opcode not in CONTROL))
        for key in begun & moved.keys():
            del moved[key]
        for kind, transfers in moved.values():
            total = total.plus(Costs(collectives={kind: transfers}))
        begun = begun.union(moved)
        for one in lines.values():
            if one.opcode == "while":
                number = self.trips(name, one)
                inside = self._costs(named(one, "body"), begun).times(1 if number is None else number)
                total = total.plus(inside).plus(Costs(unknown=int(number is None)))
            elif one.opcode == "conditional":
                total = total.plus(self._branches(one, begun))
            elif one.opcode in CONTROL:
                total = total.plus(self._costs(named(one, "calls|to_apply"), begun))
        return total

    def _branches(self, one: Instruction, begun: frozenset[str]) -> Costs:
        found = [self._costs(branch, begun) for branch in branches(one)]
        return max(found, key=lambda costs: costs.flops, default=Costs())

    def _plain(
        self, one: Instruction, lines: Mapping[str, Instruction], moved: dict[str, tuple[str, Transfers]]
    ) -> float:
        """FLOPs of an instruction without control flow; its collectives are added to `moved`, by name or channel."""
        flops = self._work(one, lines)
        if one.opcode == "fusion":
            flops, inside = self._inside(one)
            moved.update(inside)
        moved.update(self._moved(one, lines))
        return flops

    def _inside(self, one: Instruction) -> tuple[float, dict[str, tuple[str, Transfers]]]:
        """(FLOPs, collectives by channel) of a fusion or call. The TPU compiler writes some reduce-scatters as a fusion
        of an all-reduce and a slice, of which each device computes only its own part."""
        flops, moved = self._fused(named(one, "calls|to_apply"))
        if SCATTERED.search(one.attributes):
            moved = {
                name: ("reduce-scatter" if kind == "all-reduce" else kind, size) for name, (kind, size) in moved.items()
            }
        return flops, moved

    def _fused_of(self, name: str) -> tuple[float, dict[str, tuple[str, Transfers]]]:
        """(FLOPs, collectives by channel) of a fused computation. The compiler repeats a collective that overlaps with
        several fusions in each of them, always with the same channel."""
        flops, moved = 0.0, dict[str, tuple[str, Transfers]]()
        lines = self.computations[name]
        for one in lines.values():
            if one.opcode in ("fusion", "call"):
                more, inside = self._inside(one)
                flops += more
                moved.update(inside)
            flops += self._work(one, lines)
            channel = re.search(r"channel_id=(\d+)", one.attributes)
            for kind, sent in self._moved(one, lines).values():
                moved[f"{kind} {sent.bytes} {channel[1]}" if channel else one.name] = (kind, sent)
        return flops, moved

    # ------------------------------------------------------------------------------------------------ instructions
    def _moved(self, one: Instruction, lines: Mapping[str, Instruction]) -> dict[str, tuple[str, Transfers]]:
        kind = one.opcode.removesuffix("-start")
        if kind not in COLLECTIVES:
            return {}
        taken = sum(bytes_of(lines[name].shape) for name in one.operands if name in lines)
        given = bytes_of(one.shape)
        if one.opcode.endswith("-start") and kind != "all-reduce":
            given -= taken  # the result of a start holds its operands, too
        if kind == "collective-permute" and "op_name=" not in one.attributes:
            kind = HALO
        size, combined = float(max(taken, given)), kind in ("all-gather", "reduce-scatter")
        return {one.name: (kind, Transfers(len(one.operands) if combined else 1, size, size))}

    def _work(self, one: Instruction, lines: Mapping[str, Instruction]) -> float:
        """FLOPs of a dot, a convolution or cuDNN's attention, 0 of anything else."""
        if one.opcode == "dot":
            left = dims_of(lines[one.operands[0]].shape)
            inner = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", one.attributes)
            places = [int(place) for place in inner[1].split(",") if place] if inner else []
            return 2.0 * math.prod(dims_of(one.shape)) * math.prod(left[place] for place in places)
        if one.opcode == "convolution":
            left, right = (dims_of(lines[name].shape) for name in one.operands[:2])
            return _convolution(one, left, right)
        if one.opcode == "custom-call" and (found := FUSED_ATTENTION.search(one.attributes)):
            (rows, queries, heads, width), keys = (dims_of(lines[name].shape) for name in one.operands[:2])
            products = 5 if found[1] else 2  # the backward pass computes the scores again, and four gradients
            pairs = queries * keys[1]
            if CAUSAL.search(one.attributes):
                window = WINDOW.search(one.attributes)
                pairs = flops.pairs(queries, int(window[1]) if window else None)
            return 2.0 * products * rows * heads * pairs * width
        return 0.0

    def trips(self, name: str, loop: Instruction) -> int | None:
        """How often a loop runs; None if that is known only at run time. Loops count from 0 in steps of 1."""
        del name
        if known := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', loop.attributes):
            return int(known[1])
        lines = self.computations[named(loop, "condition")]
        root = next(one for one in lines.values() if one.root)
        bounds = [lines[operand] for operand in root.operands]
        if root.opcode == "fusion":
            inside = self.computations[named(root, "calls")]
            root = next(one for one in inside.values() if one.root)
            bounds = [
                bounds[int(inside[operand].arguments)] if inside[operand].opcode == "parameter" else inside[operand]
                for operand in root.operands
            ]
        if root.opcode != "compare" or "direction=LT" not in root.attributes or bounds[1].opcode != "constant":
            return None
        return int(bounds[1].arguments)


def named(one: Instruction, attribute: str) -> str:
    """The computation that an instruction names as this attribute."""
    found = re.search(rf"\b(?:{attribute})=%?([\w.\-]+)", one.attributes)
    if found is None:
        raise ValueError(f"{one.opcode} {one.name} of a compiled program names no computation as {attribute}.")
    return found[1]


def branches(one: Instruction) -> list[str]:
    """The computations of a conditional."""
    found = re.findall(r"(?:true_computation|false_computation)=%?([\w.\-]+)", one.attributes)
    if listed := re.search(r"branch_computations=\{([^}]*)\}", one.attributes):
        found += re.findall(r"%?([\w.\-]+)", listed[1])
    return found


def _convolution(one: Instruction, left: tuple[int, ...], right: tuple[int, ...]) -> float:
    """FLOPs of a convolution, as which the TPU compiler writes matrix products. Only positions of the window that lie
    inside the input count, as batch dimensions become windows that slide over padding."""
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", one.attributes)
    assert labels is not None  # every convolution has them
    out = dims_of(one.shape)
    features = right[labels[2].index("i")]
    total = 2.0 * out[labels[3].index("b")] * out[labels[3].index("f")] * features
    window = re.search(r"window=\{([^}]*)\}", one.attributes)
    settings = dict(part.split("=") for part in window[1].split()) if window else {}
    for place in range(len(labels[1]) - 2):
        digit = str(place)
        width = left[labels[1].index(digit)]
        size = right[labels[2].index(digit)]
        reach = out[labels[3].index(digit)]
        stride = _entry(settings, "stride", place, 1)
        low = _entry(settings, "pad", place, 0)
        spread = _entry(settings, "lhs_dilate", place, 1)
        apart = _entry(settings, "rhs_dilate", place, 1)
        total *= sum(
            0 <= at <= (width - 1) * spread and at % spread == 0
            for position in range(reach)
            for at in (position * stride + tap * apart - low for tap in range(size))
        )
    return total


def _entry(settings: Mapping[str, str], name: str, place: int, default: int) -> int:
    """The value of a window's setting in one dimension; of padding, that before the input."""
    if name not in settings:
        return default
    return int(settings[name].split("x")[place].split("_")[0])
