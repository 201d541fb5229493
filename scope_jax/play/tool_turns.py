"""The calls of a turn: which of them are run, what is wrong with the others, and the text of their results.

Running the tools is not done here. Thinking is ignored: calls and final tags are looked for in the rest of a turn
(`Turn.content`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from scope_jax.play.tool_calls import Tool
from scope_jax.rollouts.thoughts import blanked
from scope_jax.rollouts.types import Turn
from scope_jax.text import parsing, turns
from scope_jax.text.dialects import Call, Dialect

Policy = Literal["all", "stop", "first"]
OnMalformed = Literal["answer", "end", "remind"]
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
    malformed: OnMalformed = "answer",
) -> list[Call]:
    """The calls of a turn that are answered, in order: valid ones by their tool, the others by their `error`.

    Without one the episode's turns are over.

    finals: if a tag of these is closed outside of calls, nothing is answered. calls: "first": only the first valid
    call, if no final tag begins before it, however the turn ended; the caller drops the text from its `closed` on.
    Otherwise nothing is answered after a turn that was cut off. malformed: "end" leaves out malformed calls, "remind"
    does if a call is valid.
    """
    found = read_calls(turn.content, tools, dialect, calls=calls, malformed=malformed)
    return answered(turn, found, calls=calls, finals=finals, malformed=malformed)


def answered(
    turn: Turn,
    found: list[Call],
    *,
    calls: Policy = "all",
    finals: Sequence[str] = (),
    malformed: OnMalformed = "answer",
) -> list[Call]:
    """Those of the calls of a turn, as `read_calls` finds them, that are answered; see `read_turn`."""
    begins = _first_final(turn.content, found, finals)
    valid = [call for call in found if call.valid]
    if calls == "first" and valid:
        return valid[:1] if begins < 0 or valid[0].start < begins else []
    if turn.finish in UNFINISHED or begins >= 0:
        return []
    return valid if malformed == "end" or (malformed == "remind" and valid) else found


def read_calls(
    text: str, tools: Sequence[Tool], dialect: Dialect, *, calls: Policy = "all", malformed: OnMalformed = "answer"
) -> list[Call]:
    """Every call of a text, valid or malformed, in order, as the tools take them (`as_taken`)."""
    found = turns.read(text, dialect, [tool.schema for tool in tools], checks_of(tools))
    return as_taken(found, tools, calls=calls, malformed=malformed)


def checks_of(tools: Sequence[Tool]) -> dict[str, turns.Check]:
    """How the arguments of tools are checked."""
    return {tool.name: "all" if tool.strict else "named" for tool in tools}


def as_taken(
    found: Sequence[Call], tools: Sequence[Tool], *, calls: Policy = "all", malformed: OnMalformed = "answer"
) -> list[Call]:
    """Each of the calls that one stands for, unless only the first is run. malformed: unless each is answered, what
    follows a malformed call inside the same tags is part of it."""
    parts = {tool.name: tool.parts for tool in tools}
    taken: list[Call] = []
    refused = -1  # where the tags end in which a call was malformed
    for call in found:
        if call.closed == refused:
            taken[-1] = replace(taken[-1], end=call.end)
            continue
        refused = -1 if call.valid or malformed == "answer" else call.closed
        divide = parts.get(call.name)
        if not call.valid or divide is None:
            taken.append(call)
            continue
        each = divide(call.arguments, calls != "first")
        taken += [replace(call, arguments=one) for one in each]
        if not each:
            taken.append(replace(call, error=f"error: the call of {call.name} is empty"))
    return taken


def _first_final(text: str, found: Sequence[Call], finals: Sequence[str]) -> int:
    """Where the first closed pair of a final tag begins that is not inside a valid call; -1 without one."""
    text = blanked(text, tuple((call.start, call.end) for call in found if call.valid))
    begins = []
    for final in finals:
        opened = -1
        for mark in re.finditer(f"<(/?){re.escape(final)}>", text):
            if mark[1] and opened >= 0:
                begins.append(opened)
                break
            opened = -1 if mark[1] else mark.start()
    return min(begins, default=-1)


def neutralised(result: str, tools: Sequence[Tool], dialect: Dialect, finals: Sequence[str] = ()) -> str:
    """A tool's result as a policy may read it: no tag of a call, a result or an answer, and no special token.

    Like a document, see `parsing.neutralise`. Idempotent.
    """
    return parsing.neutralise(result, (*dialect.tags, *finals, *(tool.name for tool in tools)))
