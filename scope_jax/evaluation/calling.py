"""Episodes of a model behind an endpoint whose turns call tools: native `tool_calls`, run here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scope_jax.grading.judge_client import CallingReply
from scope_jax.learner.types import Reply
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play.rollouts import Agent
from scope_jax.play.tool_calls import Tool, refusal
from scope_jax.play.tool_execution import Execution, MalformedCall, RolloutCalls, ToolCall
from scope_jax.rollouts import types
from scope_jax.rollouts.types import Completion, ToolResult, Turn
from scope_jax.text import parsing
from scope_jax.text.dialects import values

BYTES_PER_TOKEN = 4  # the estimate without a tokenizer
TOGETHER = 16  # episodes whose calls run at a time
NO_IDS, NO_LOGPROBS = np.zeros(0, np.int32), np.zeros(0, np.float32)
ROWS = (types.Row(NO_IDS, NO_IDS, np.zeros(0, bool), NO_LOGPROBS),)


class Unrecorded:
    """The record of an evaluation, which is not resumed."""

    closed = False

    def earlier(self, agent: str) -> list[Mapping[str, Any]]:
        return []

    def write(self, agent: str, number: int, result: ToolResult) -> None:
        """Nothing is kept."""

    def differs(self, agent: str, number: int) -> None:
        """There is no record to differ from."""


def execution(tokenizer: Tokenizer | None, tell: Callable[[str], None]) -> Execution:
    """Runs the calls of an exam."""
    if tokenizer is not None:
        return Execution(tokenizer.encode, tokenizer.decode, tell, 2 * TOGETHER)
    return Execution(_parts, lambda ids: b"".join(map(_bytes, ids)).decode(errors="ignore"), tell, 2 * TOGETHER)


def _parts(text: str) -> list[int]:
    written = text.encode()
    return [
        int.from_bytes(written[at : at + BYTES_PER_TOKEN].ljust(BYTES_PER_TOKEN, b"\0"), "big")
        for at in range(0, len(written), BYTES_PER_TOKEN)
    ]


def _bytes(part: int) -> bytes:
    return part.to_bytes(BYTES_PER_TOKEN, "big").rstrip(b"\0")


@contextmanager
def services(tools: Sequence[Tool]) -> Iterator[None]:
    """What the tools need runs meanwhile."""
    known = list(dict.fromkeys(tool.service for tool in tools if tool.service is not None))
    try:
        for service in known:
            service.start()
        yield
    finally:
        for service in known:
            service.close()


def offered(agent: Agent, tools: Sequence[Tool]) -> dict[str, Any]:
    """The fields of a request that offer the tools."""
    single = {} if agent.calls == "all" else {"parallel_tool_calls": False}
    return {"tools": [dict(tool.schema) for tool in tools], **single}


@dataclass
class Talk:
    """An episode: the conversation so far, and its turns. finish: how it ended, None: it goes on."""

    name: str
    messages: list[Mapping[str, Any]]
    agent: Agent
    tools: Sequence[Tool]
    calls: RolloutCalls
    turns: list[Turn] = field(default_factory=list)
    finish: str | None = None

    def take(self, reply: Reply) -> None:
        """Takes a turn; its calls are run and answered, unless a final tag is closed or it was cut off."""
        if reply.refused:
            self.finish = "overflow"
            return
        turn = turn_of(reply)
        self.turns.append(turn)
        called = reply.calls if isinstance(reply, CallingReply) else ()
        called = called if self.agent.calls == "all" else called[:1]
        final = any(parsing.spans(turn.content, tag) for tag in self.agent.finals)
        wanted = [(call["id"], self._understood(call["function"])) for call in called]
        if self.agent.malformed == "end":
            wanted = [(id, one) for id, one in wanted if isinstance(one, ToolCall)]
        if reply.cut or final or not wanted:
            self.finish = turn.finish
            return
        number = sum(turn.kind == "sampled" for turn in self.turns)
        if number == self.agent.max_turns:
            self.finish = "turns"
            return
        results = self.calls.run("policy", number - 1, [one for _, one in wanted])
        ids = {id for id, _ in wanted}
        shown = [call for call in called if call["id"] in ids]
        self.messages.append({"role": "assistant", "content": reply.text or None, "tool_calls": shown})
        for (id, _), result in zip(wanted, results, strict=True):
            self.messages.append({"role": "tool", "tool_call_id": id, "content": result.text})
        self.turns.append(Turn("observation", NO_IDS, NO_LOGPROBS, "\n".join(one.text for one in results), None))

    def _understood(self, function: Mapping[str, str]) -> ToolCall | MalformedCall:
        name = function["name"]
        try:
            arguments = values.from_json(function["arguments"]) if function["arguments"].strip() else {}
        except values.Malformed as error:
            return MalformedCall(name, f"error: the call of {name} cannot be read: {error}")
        if not isinstance(arguments, dict):
            return MalformedCall(name, f"error: the call of {name} cannot be read: the arguments must be a JSON object")
        if problem := refusal(name, arguments, self.tools):
            return MalformedCall(name, problem)
        return ToolCall(next(tool for tool in self.tools if tool.name == name), arguments)

    def completion(self) -> Completion:
        """The episode, without token ids."""
        results = tuple(self.calls.results.get("policy", ()))
        return Completion(ROWS, tuple(self.turns), self.finish or "turns", calls=results)


def completion_of(reply: Reply) -> Completion:
    """A reply as an episode of one turn, without token ids; a rejected request has no turn.

    A reply that was cut ends as one of the engine that reached its limit. An endpoint does not say whether its prompt
    opened a thought, so without a closing mark such a reply may be one, and counts as one.
    """
    if reply.refused:
        return Completion(ROWS, (), "overflow")
    turn = turn_of(reply)
    assert turn.finish is not None
    return Completion(ROWS, (turn,), turn.finish)


def turn_of(reply: Reply) -> Turn:
    """A reply as a turn, see `completion_of`."""
    finish, opened = ("length", True) if reply.cut else ("eos", False)
    return Turn("sampled", NO_IDS, NO_LOGPROBS, reply.text, finish, opened=opened, thought=parsing.THOUGHT)
