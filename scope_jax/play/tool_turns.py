"""The calls of a turn: which of them are run, what is wrong with the others, and the text of their results.

Running the tools is not done here. Thinking is ignored: calls and final tags are looked for in the rest of a turn
(`Turn.content`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from scope_jax.play.tool_calls import Tool, refusal
from scope_jax.rollouts.thoughts import blanked
from scope_jax.rollouts.types import Turn
from scope_jax.text import parsing
from scope_jax.text.dialects import Call, Dialect

Policy = Literal["all", "stop", "first"]
UNFINISHED = ("length", "overflow")  # finish reasons of a turn that was cut off


def stops(tools: Sequence[Tool], dialect: Dialect, calls: Policy) -> tuple[str, ...]:
    """The strings that end a turn with its call, if calls are to stop turns."""
    return tuple(dict.fromkeys(stop for tool in tools for stop in dialect.stops(tool.name))) if calls == "stop" else ()


def read_turn(
    turn: Turn,
    tools: Sequence[Tool],
    dialect: Dialect,
    *,
    calls: Policy = "all",
    finals: Sequence[str] = (),
    malformed: Literal["answer", "end"] = "answer",
) -> list[Call]:
    """The calls of a turn that are answered, in order: valid ones by their tool, the others by their `error`.

    Without one the episode's turns are over.

    finals: if a tag of these is closed outside of calls, nothing is answered. calls: "first": only the first valid
    call, if no final tag begins before it, however the turn ended; the caller drops the text from its `closed` on.
    Otherwise nothing is answered after a turn that was cut off. malformed: "end" leaves out malformed calls.
    """
    text = turn.content
    schemas = [tool.schema for tool in tools]
    found = [call if call.error else _checked(call, tools) for call in dialect.read(text, schemas)]
    begins = _first_final(text, found, finals)
    valid = [call for call in found if call.valid]
    if calls == "first" and valid:
        return valid[:1] if begins < 0 or valid[0].start < begins else []
    if turn.finish in UNFINISHED or begins >= 0:
        return []
    return valid if malformed == "end" else found


def _checked(call: Call, tools: Sequence[Tool]) -> Call:
    return replace(call, error=refusal(call.name, call.arguments, tools))


def _first_final(text: str, found: Sequence[Call], finals: Sequence[str]) -> int:
    """Where the first closed pair of a final tag begins that is not inside a valid call; -1 without one."""
    text = blanked(text, tuple((call.start, call.end) for call in found if call.valid))
    begins = []
    for final in finals:
        end = text.find(f"</{final}>")
        if end >= 0 and (start := text.rfind(f"<{final}>", 0, end)) >= 0:
            begins.append(start)
    return min(begins, default=-1)


def neutralised(result: str, tools: Sequence[Tool], dialect: Dialect, finals: Sequence[str] = ()) -> str:
    """A tool's result as a policy may read it: no tag of a call, a result or an answer, and no special token.

    Like a document, see `parsing.neutralise`. Idempotent.
    """
    return parsing.neutralise(result, (*dialect.tags, *finals, *(tool.name for tool in tools)))
