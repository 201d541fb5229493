"""The responder of an agent with tools: reads the calls of a turn, runs them, and answers with their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from scope_jax.errors import UserError
from scope_jax.play.rollouts import Agent
from scope_jax.play.tool_calls import Tool
from scope_jax.play.tool_execution import MalformedCall, ToolCall
from scope_jax.play.tool_turns import neutralised, read_turn, stops
from scope_jax.play.turns import Cut, Joiner, Mode, Respond
from scope_jax.rollouts.types import ToolResult, Turn
from scope_jax.text.dialects import Call

Run = Callable[[str, int, Sequence[ToolCall | MalformedCall]], list[ToolResult]]  # see `RolloutCalls.run`
Remark = Callable[[int], str | None]  # see `Rollout.remark`


def tool_responder(
    name: str, agent: Agent, tools: Sequence[Tool], run: Run, joiner: Joiner, remark: Remark | None = None
) -> Respond:
    """Responds to the turns of the agent `name`; None after a turn that calls nothing, or ends its move.

    agent: one that `check_answered` accepts.
    """
    by_name = {tool.name: tool for tool in tools}

    def shown(call: Call, result: ToolResult) -> str:
        tool = by_name.get(call.name)
        if tool is not None and tool.batch is not None and call.valid:
            return result.text  # neutralised where it comes from
        return neutralised(result.text, tools, joiner.dialect, agent.finals)

    def respond(turns: tuple[Turn, ...]) -> str | Cut | None:
        turn, number = turns[-1], sum(turn.kind == "sampled" for turn in turns)
        wanted = read_turn(turn, tools, joiner.dialect, agent)
        ending = remark(number) if remark is not None and wanted else ""
        if not wanted or ending is None:
            return None
        first = agent.calls == "first" and wanted[0].valid
        if joiner.mode == "raw" and turn.finish == "eos" and not first:
            return None
        results = zip(wanted, run(name, number - 1, to_run(wanted, tools)), strict=True)
        if agent.malformed == "remind" and not wanted[0].valid:
            text = agent.reminder
        else:
            parts = groupby(results, key=lambda each: each[0].start)
            text = joiner.observations([[shown(*each) for each in part] for _, part in parts])
        text = f"{text}\n{ending}" if ending else text
        return Cut(wanted[0].closed, text) if first else text

    return respond


def to_run(calls: Sequence[Call], tools: Sequence[Tool]) -> list[ToolCall | MalformedCall]:
    """The calls that are answered, for `RolloutCalls.run`."""
    by_name = {tool.name: tool for tool in tools}
    return [
        ToolCall(by_name[call.name], call.arguments) if call.valid else MalformedCall(call.name, call.error)
        for call in calls
    ]


def check_answered(role: str, agent: Agent, mode: Mode) -> None:
    """Raises UserError if no call of the agent of a role would be answered, as in raw mode nothing can follow an end
    token that the policy has sampled."""
    if mode == "raw" and agent.tools and agent.calls == "all" and not agent.stop:
        raise UserError(
            f'with model.turns = "raw" the role {role!r} would read no result of its tools, as its turns run to their '
            'end token (calls = "all"); set model.turns = "chat", or in the game calls = "stop" or "first".'
        )


def stops_of(agent: Agent, tools: Sequence[Tool], joiner: Joiner) -> tuple[str, ...]:
    """The strings that end the agent's turns: its own and, if calls stop turns, the ends of calls and final tags."""
    if not tools or agent.calls != "stop":
        return tuple(dict.fromkeys(agent.stop))
    finals = (f"</{final}>" for final in agent.finals)
    return tuple(dict.fromkeys((*agent.stop, *stops(tools, joiner.dialect), *finals)))
