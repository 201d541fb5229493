"""What generators and tools need of a run, without one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scope_jax.data.keys import rng
from scope_jax.play.driver import EpisodeContext
from scope_jax.play.tool_calls import Tool
from scope_jax.play.tool_execution import Execution, RolloutCalls
from scope_jax.rollouts.types import ToolResult


@dataclass
class Record:
    """A record in memory. lines: what an earlier process has left."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    closed: bool = False
    written: list[dict[str, Any]] = field(default_factory=list)
    differed: list[int] = field(default_factory=list)

    def earlier(self, agent: str) -> list[Mapping[str, Any]]:
        return [line for line in self.lines if line["agent"] == agent]

    def write(self, agent: str, number: int, result: ToolResult) -> None:
        self.written.append({"agent": agent, "number": number, **vars(result)})

    def differs(self, agent: str, number: int) -> None:
        self.differed.append(number)


def execution(told: list[str] | None = None, threads: int = 8) -> Execution:
    """One character is one token."""
    told = [] if told is None else told
    return Execution(lambda text: [*map(ord, text)], lambda ids: "".join(map(chr, ids)), told.append, threads)


def calls(record: Record | None = None, run: Execution | None = None) -> RolloutCalls:
    return RolloutCalls(run or execution(), lambda name: rng("tests", name), record or Record())


def context(record: Record | None = None, toolbox: Mapping[str, Tool] | None = None) -> EpisodeContext:
    return EpisodeContext("a", 0, lambda: rng("tests"), calls(record), toolbox or {})
