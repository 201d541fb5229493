"""The responder of an agent with tools: reads the calls of a turn, runs them, and answers with their results."""

from __future__ import annotations

from collections.abc import Sequence

from scope_jax.errors import UserError
from scope_jax.play.rollouts import Agent
from scope_jax.play.tool_calls import Tool
from scope_jax.play.tool_execution import Malformed, RolloutCalls, ToolCall
from scope_jax.play.tool_turns import neutralised, read_turn, stops
from scope_jax.play.turns import Cut, Joiner, Respond
from scope_jax.rollouts.types import Turn


def tool_responder(name: str, agent: Agent, tools: Sequence[Tool], calls: RolloutCalls, joiner: Joiner) -> Respond:
    """Responds to the turns of the agent `name`; None after a turn that calls nothing, or ends its move.

    In raw mode nothing can follow an end token that the policy has sampled. Raises UserError if no call would be
    answered for that reason.
    """
    if joiner.mode == "raw" and agent.calls == "all" and not agent.stop:
        raise UserError(
            f'With model.turns = "raw" the agent {name!r} would read no result, as its turns run to their end token '
            '(calls = "all"); choose model.turns = "chat", or calls = "stop" or "first".'
        )
    by_name = {tool.name: tool for tool in tools}

    def respond(turns: tuple[Turn, ...]) -> str | Cut | None:
        turn = turns[-1]
        wanted = read_turn(
            turn, tools, joiner.dialect, calls=agent.calls, finals=agent.finals, malformed=agent.malformed
        )
        if not wanted or (joiner.mode == "raw" and turn.finish == "eos" and agent.calls != "first"):
            return None
        number = sum(turn.kind == "sampled" for turn in turns) - 1
        results = calls.run(
            name,
            number,
            [
                ToolCall(by_name[call.name], call.arguments) if call.valid else Malformed(call.name, call.error)
                for call in wanted
            ],
        )
        text = joiner.observations([neutralised(each.text, tools, joiner.dialect, agent.finals) for each in results])
        return Cut(wanted[0].closed, text) if agent.calls == "first" else text

    return respond


def stops_of(agent: Agent, tools: Sequence[Tool], joiner: Joiner) -> tuple[str, ...]:
    """The strings that end the agent's turns: its own and, if calls stop turns, the ends of calls and final tags."""
    finals = tuple(f"</{final}>" for final in agent.finals) if tools and agent.calls == "stop" else ()
    return tuple(dict.fromkeys((*agent.stop, *stops(tools, joiner.dialect, agent.calls), *finals)))
