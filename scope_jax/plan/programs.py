"""Programs compiled ahead of time, for devices that need not be there, and the figures of each.

Learner and engine are the run's own, and what they give (`programs`) are the programs that a run executes.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

import jax

from scope_jax.errors import UserError
from scope_jax.plan import hlo
from scope_jax.plan.costs import Costs
from scope_jax.sharding.program import AbstractProgram

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class Compiled:
    """A compiled program's figures; bytes are per device."""

    program: AbstractProgram
    arguments: float
    temporaries: float
    peak: float
    """The most that is alive at any time, arguments included; of a refused program, the temporaries it asked for."""
    in_place: float
    """Bytes of arguments that are overwritten."""
    refused: bool
    """The compiler refused it for lack of memory."""
    seconds: float
    """What compiling took."""
    costs: Costs
    round: Costs
    """Of one round of its outer loop."""
    largest_copy: float
    kernels: int

    @property
    def phase(self) -> str:
        """The phase of a step in which it runs."""
        return {"step": "learn", "score": "learn", "teacher": "rate"}.get(self.program.kind, "generate")


def compiled(wanted: AbstractProgram, platform: str) -> Compiled:
    """Compiles a program for a platform, and reads its figures. Programs that the compiler refuses for lack of memory
    have only a peak; other errors are raised, as a UserError if the compiler lacks a memory on the chip."""
    lowered, began = wanted.lower(), time.monotonic()
    try:
        program = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        needed = memory_asked(str(error))
        if needed is None and "RESOURCE_EXHAUSTED" in str(error):  # of another memory than the device's
            reason = " ".join(str(error).partition("RESOURCE_EXHAUSTED:")[2].split())[:200]
            raise UserError(
                f"the compiler refuses the program {wanted.name!r} for lack of on-chip memory ({reason})."
            ) from error
        if needed is None:
            raise
        nothing = Costs()
        return Compiled(wanted, 0, 0, needed, 0, True, time.monotonic() - began, nothing, nothing, 0, 0)
    seconds = time.monotonic() - began
    memory, text = program.memory_analysis(), program.as_text()
    assert memory is not None
    assert text is not None
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    peak = memory.argument_size_in_bytes + outputs + memory.temp_size_in_bytes
    if platform == "tpu":  # elsewhere temporaries share no memory with each other that the compiler counts
        peak = memory.peak_memory_in_bytes
    parsed = hlo.Program(text)
    return Compiled(
        wanted,
        memory.argument_size_in_bytes,
        memory.temp_size_in_bytes,
        peak,
        memory.alias_size_in_bytes,
        False,
        seconds,
        parsed.costs(),
        parsed.body(),
        parsed.largest_copy(),
        len(hlo.KERNEL.findall(text)),
    )


def memory_asked(message: str) -> float | None:
    """Bytes of temporaries, from the compiler's refusal; None if the message is about something else."""
    found = re.search(r"memory required[^(]*\(([\d.]+)([KMG]?)\) exceeds available HBM", message)
    return float(found[1]) * UNITS[found[2]] if found else None
