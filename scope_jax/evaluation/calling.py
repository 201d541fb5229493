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
from scope_jax.play.tool_calls import Tool
from scope_jax.play.tool_execution import Execution, RolloutCalls
from scope_jax.play.tool_responder import to_run
from scope_jax.play.tool_turns import answered, as_taken, checks_of
from scope_jax.rollouts import types
from scope_jax.rollouts.types import Completion, ToolResult, Turn
from scope_jax.text import parsing, turns
from scope_jax.text.dialects import JOINT, Call

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
        """Takes a turn; its calls are run and answered by the rules of rollouts (`tool_turns.answered`)."""
        if reply.refused:
            self.finish = "overflow"
            return
        turn = turn_of(reply)
        self.turns.append(turn)
        given = reply.calls if isinstance(reply, CallingReply) else ()
        wanted = self._wanted(turn, given)
        number = sum(turn.kind == "sampled" for turn in self.turns)
        if not wanted or number == self.agent.max_turns:
            self.finish = "turns" if wanted else turn.finish
            return
        results = self.calls.run("policy", number - 1, to_run(wanted, self.tools))
        self.turns.append(Turn("observation", NO_IDS, NO_LOGPROBS, "\n".join(one.text for one in results), None))
        if self.agent.malformed == "remind" and not wanted[0].valid:
            self.messages.append({"role": "assistant", "content": reply.text})
            self.messages.append({"role": "user", "content": self.agent.reminder})
            return
        texts: dict[int, list[str]] = {}  # by the place of a call among those given: one may stand for several
        for call, result in zip(wanted, results, strict=True):
            texts.setdefault(call.start - len(turn.content), []).append(result.text)
        shown = [given[place] for place in texts]
        self.messages.append({"role": "assistant", "content": reply.text or None, "tool_calls": shown})
        for call, parts in zip(shown, texts.values(), strict=True):
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": JOINT.join(parts)})

    def _wanted(self, turn: Turn, given: Sequence[Mapping[str, Any]]) -> list[Call]:
        """The calls of a turn that are answered. given: as the endpoint has read them; they follow its text."""
        agent, tools = self.agent, self.tools
        functions = [call["function"] for call in (given[:1] if agent.calls == "stop" else given)]
        schemas = [tool.schema for tool in tools]
        found = turns.native(functions, schemas, checks_of(tools), start=len(turn.content))
        return answered(turn, as_taken(found, tools, agent), agent)

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
