"""Runs a case on every participant in turn, one repetition after the other.

A repetition is one run of the matmul and one of every contender. All processes but the one that was asked are idle; a
repetition during which anything else used more than machine.LIMIT of the cores, an idle participant included, is
rejected and repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.peers import cases, machine
from scope_jax.errors import UserError

SETTLE = 0.3  # seconds before a run, in which the threads of the last one go to sleep


@dataclass(frozen=True)
class Contender:
    """One way of doing cases: a participant's process, and a variant that it knows."""

    name: str
    process: str
    variant: str
    cases: tuple[str, ...]


CONTENDERS = (
    Contender("ours", "ours", "", cases.CASES),
    Contender("generate, dynamic cache", "torch", "dynamic", cases.GENERATION),
    Contender("generate, static cache", "torch", "static", cases.GENERATION),
    Contender("generate, static cache, compiled", "torch", "compiled", cases.GENERATION),
    Contender("torch", "torch", "", cases.TRAINING),
    Contender("TRL", "trl", "", cases.CASES),
    Contender("Tunix", "tunix", "", cases.CASES),
)
MATMUL = Contender("matmul", "ours", "", ())


class Process(Protocol):
    """A participant's process: `client.Client`, or a test's."""

    name: str

    @property
    def pid(self) -> int: ...

    def ask(self, do: str, **order: Any) -> dict[str, Any]: ...


@dataclass
class Measured:
    """Results of one case.

    seconds: of each repetition, by contender. matmul: FLOP/s of each repetition. others: the largest share of the
    cores that others used in a repetition that counts. cannot: contender → why it does not do the case.
    """

    case: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    matmul: list[float] = field(default_factory=list)
    others: float = 0.0
    rejected: int = 0
    cannot: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """repetitions: that count, of every case. rejections: most of a case. allow_busy: reject none.

    compiled: also measure `generate` with a compiled decoding step.
    """

    repetitions: int
    rejections: int
    allow_busy: bool
    compiled: bool = False


def measure(
    case: str,
    processes: Mapping[str, Process],
    settings: Settings,
    say: Callable[[str], None],
    usage: Callable[[int], machine.Usage] = machine.usage,
    settle: float = SETTLE,
) -> Measured:
    """Prepares the case on every process that does it, and repeats it. Raises UserError on a machine that is busy."""
    result = Measured(case)
    processes["ours"].ask("prepare", case="matmul", variant="")
    contenders = []
    for contender in CONTENDERS:
        if case not in contender.cases or contender.process not in processes:
            continue
        if contender.variant == "compiled" and not settings.compiled:
            continue
        began = time.perf_counter()
        reply = processes[contender.process].ask("prepare", case=case, variant=contender.variant)
        if "cannot" in reply:
            result.cannot[contender.name] = reply["cannot"]
            continue
        say(f"{case}: {contender.name} is ready after {time.perf_counter() - began:.0f} s")
        contenders.append(contender)
    while len(result.matmul) < settings.repetitions:
        others = _repetition(result, contenders, processes, settings, usage, settle)
        if others is None:
            result.rejected += 1
            if result.rejected > settings.rejections:
                raise UserError(
                    f"{case}: {result.rejected} repetitions were rejected because others used more than "
                    f"{machine.LIMIT:.0%} of the cores; end what else runs on this machine, or raise --rejections."
                )
            say(f"{case}: repetition rejected, others used the machine")
        else:
            result.others = max(result.others, others)
            say(f"{case}: repetition {len(result.matmul)} of {settings.repetitions}, others {others:.1%}")
    for process in processes.values():
        process.ask("forget")
    return result


def _repetition(
    result: Measured,
    contenders: Sequence[Contender],
    processes: Mapping[str, Process],
    settings: Settings,
    usage: Callable[[int], machine.Usage],
    settle: float,
) -> float | None:
    """Adds one repetition and returns the largest share of others; None, and nothing is added, if it was too large."""
    times, largest = {}, 0.0
    for contender in (MATMUL, *contenders):
        process = processes[contender.process]
        case = "matmul" if contender is MATMUL else result.case
        time.sleep(settle)
        before = usage(process.pid)
        reply = process.ask("run", case=case, variant=contender.variant)
        share = machine.others_share(before, usage(process.pid), machine.cores())
        if share > machine.LIMIT and not settings.allow_busy:
            return None
        largest = max(largest, share)
        if contender is not MATMUL and reply["tokens"] != cases.tokens(case):
            raise UserError(f"{contender.name} did {reply['tokens']} tokens of {case}, not {cases.tokens(case)}.")
        times[contender.name] = reply["seconds"] / (reply["tokens"] if contender is MATMUL else 1)
    result.matmul.append(cases.MATMUL_FLOPS / times.pop(MATMUL.name))
    for name, seconds in times.items():
        result.seconds.setdefault(name, []).append(seconds)
    return largest
