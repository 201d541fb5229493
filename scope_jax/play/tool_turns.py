"""The calls of a turn: which of them are run, what is wrong with the others, and the text of their results.

Running the tools is not done here. Thinking is ignored: calls and final tags are looked for in the rest of a turn
(`Turn.content`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from scope_jax.play.rollouts import Agent
from scope_jax.play.tool_calls import Tool
from scope_jax.rollouts.thoughts import blanked
from scope_jax.rollouts.types import Turn
from scope_jax.text import parsing, turns
from scope_jax.text.dialects import Call, Dialect

UNFINISHED = ("length", "overflow")  # finish reasons of a turn that was cut off


def stops(tools: Sequence[Tool], dialect: Dialect) -> tuple[str, ...]:
    """The strings with which calls of the tools end."""
    return tuple(dict.fromkeys(stop for tool in tools for stop in dialect.stops(tool.name)))


def read_turn(turn: Turn, tools: Sequence[Tool], dialect: Dialect, agent: Agent) -> list[Call]:
    """The calls of a turn that are answered, in order: valid ones by their tool, the others by their `error`.

    Without one the episode's turns are over.
    """
    return answered(turn, read_calls(turn.content, tools, dialect, agent), agent)


def answered(turn: Turn, found: list[Call], agent: Agent) -> list[Call]:
    """Those of the calls of a turn, as its tools take them, that are answered.

    agent: its `finals`: if such a tag is closed outside of calls, nothing is. `calls`: "first": only the first valid
    call, if no final tag begins before it, however the turn ended; the caller drops the text from its `closed` on.
    Otherwise nothing is answered after a turn that was cut off. `malformed`: "end" leaves out malformed calls, "remind"
    does if a call is valid.
    """
    begins = _first_final(turn.content, found, agent.finals)
    valid = [call for call in found if call.valid]
    if agent.calls == "first" and valid:
        return valid[:1] if begins < 0 or valid[0].start < begins else []
    if turn.finish in UNFINISHED or begins >= 0:
        return []
    return valid if agent.malformed == "end" or (agent.malformed == "remind" and valid) else found


def read_calls(text: str, tools: Sequence[Tool], dialect: Dialect, agent: Agent) -> list[Call]:
    """Every call of a text, valid or malformed, in order, as the tools take them (`as_taken`)."""
    return as_taken(turns.read(text, dialect, [tool.schema for tool in tools], checks_of(tools)), tools, agent)


def checks_of(tools: Sequence[Tool]) -> dict[str, turns.Check]:
    """How the arguments of tools are checked."""
    return {tool.name: "all" if tool.strict else "named" for tool in tools}


def as_taken(found: Sequence[Call], tools: Sequence[Tool], agent: Agent) -> list[Call]:
    """Each of the calls that one stands for, unless only the first is run. Unless the agent's malformed calls are
    answered, what follows one inside the same tags is part of it."""
    parts = {tool.name: tool.parts for tool in tools}
    taken: list[Call] = []
    refused = -1  # where the tags end in which a call was malformed
    for call in found:
        if call.closed == refused:
            taken[-1] = replace(taken[-1], end=call.end)
            continue
        refused = -1 if call.valid or agent.malformed == "answer" else call.closed
        divide = parts.get(call.name)
        if not call.valid or divide is None:
            taken.append(call)
            continue
        each = divide(call.arguments, agent.calls != "first")
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
