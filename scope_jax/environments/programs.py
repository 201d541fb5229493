"""Programs of others as agents: each request of theirs to an OpenAI-compatible endpoint is a row of a policy.

A program runs beside the rollout, in a thread, and is told an address for each agent that it may speak as. What it
sends is the whole conversation so far, so that every request begins a new row; the tokens that the policy samples are
trained like any others.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import cache, partial
from itertools import groupby
from typing import Any

from scope_jax.environments.loopback import ChatRefused, ChatReply, ChatRequest, Loopback
from scope_jax.errors import UserError, sentence
from scope_jax.play.failures import failed
from scope_jax.play.rollouts import Ask, Context, Failed, Response, Rollout
from scope_jax.play.tool_calls import clients_tools
from scope_jax.play.tool_turns import UNFINISHED
from scope_jax.text import conversations, turns
from scope_jax.text.dialects import Dialect
from scope_jax.text.messages import Messages
from scope_jax.text.plain_data import NotPlain, plain

Run = Callable[[Context, Mapping[str, str]], Any]


def program(name: str, agents: Sequence[str], run: Run, dialect: Dialect, *, seconds: float = 600.0) -> Rollout:
    """A rollout in which `run(context, urls)` speaks as these agents, to the base URL of each. Its value, plain data,
    is that of the rollout; a program that raises (`failures`), exits with a status or returns other data makes the
    rollout fail.

    dialect: in which calls of the program's own functions are written and read (`model.dialect`). seconds: most time
    between two requests. A resumed run plays a rollout that had not ended anew, as nobody has seen it; one that had
    ended is played from what the program sent, without the program.
    """

    def play(context: Context) -> Generator[Ask, Response, Any]:
        asked: set[str] = set()
        earlier = context.stored("program", {})
        sent: list[dict[str, Any]] = []
        with _Program(context, agents, run, seconds) if earlier is None else _Recorded(earlier) as source:
            while (request := source.next()) is not None:
                sent.append(request)
                agent, tools = request["agent"], request["tools"]
                try:
                    messages = prompt(request["messages"], tools, dialect)
                    response = yield Ask(agent, messages, anew=agent in asked)
                except UserError as error:  # the second: the chat template cannot render it
                    source.refuse(ChatRefused(sentence(error)))
                    continue
                asked.add(agent)
                if response.finish is None:
                    source.refuse(ChatRefused("The conversation is too long.", "context_length_exceeded"))
                else:
                    source.reply(reply(response, tools, dialect))
            value = source.value
        if earlier is None:
            context.store("program", {}, {"requests": sent, "value": value})
        return value

    return Rollout(name, play=play)


# ---------------------------------------------------------------------------------------------------- what is said
def prompt(conversation: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], dialect: Dialect) -> Messages:
    """OpenAI's conversation as a prompt: calls in it as the dialect writes them, results as it shows them.

    Raises UserError for one that cannot be a prompt.
    """
    if dialect.structured and (tools or any(map(_is_result, conversation))):
        raise UserError(
            f'functions of a program are not supported with model.dialect = "{dialect.format}"; give the agent tools '
            "of the game."
        )
    clients_tools(tools)
    if any("arguments" not in call["function"] for each in conversation for call in each.get("tool_calls") or ()):
        raise UserError("a call in the conversation cannot be written (it has no arguments).")
    shown: list[Mapping[str, str]] = []
    for results, alike in groupby(conversations.messages([*conversation], "messages"), _is_result):
        group = list(alike)
        if results:
            shown += dialect.messages(dialect.observations([message["content"] for message in group]))
            continue
        for message in group:
            thought = {key: message[key] for key in ("reasoning_content",) if key in message}
            shown.append({"role": message["role"], "content": dialect.in_text(message, tools), **thought})
    return _as_prompt(shown, tools, dialect.results.role)


def _is_result(message: Mapping[str, Any]) -> bool:
    return message["role"] == "tool"


def _as_prompt(said: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]], results: str) -> Messages:
    """Messages as a prompt, which ends with a question or with results. results: the role of results."""
    if not said or said[-1]["role"] not in ("user", results):
        raise UserError("a prompt ends with a user message or a result; give one.")
    system = said[0]["content"] if said[0]["role"] == "system" else None
    before = tuple(said[system is not None : -1])
    if wrong := [each["role"] for each in before if each["role"] not in ("user", "assistant", results)]:
        raise UserError(f"a message of the role {wrong[0]!r} cannot stand within a prompt; user and assistant can.")
    return Messages(said[-1]["content"], system, tuple(tools), before, role=said[-1]["role"])


def reply(response: Response, tools: Sequence[Mapping[str, Any]], dialect: Dialect) -> ChatReply:
    """What the program reads of a turn: what a client of `serve` would, but neither thinking, nor calls of a turn that
    was cut, as the calls of rollouts count for nothing there."""
    cut = response.finish in UNFINISHED
    schemas = [tool.schema for tool in clients_tools(tools)]
    found = [] if cut else turns.read(response.content, dialect, schemas, turns.checks_of(schemas))
    content, calls = turns.delivered(response.content, found)
    return ChatReply(dialect.shown(content).strip(), calls, cut=cut, completion_tokens=len(response.turns[-1].ids))


# --------------------------------------------------------------------------------------------------------- programs
@cache
def _loopback() -> Loopback:
    return Loopback()


class _Program:
    """A program that runs, and its requests one after the other."""

    def __init__(self, context: Context, agents: Sequence[str], run: Run, seconds: float) -> None:
        self._context, self._agents, self._run, self._seconds = context, agents, run, seconds
        self._inbox: queue.SimpleQueue[tuple[str, ChatRequest, Future[ChatReply]] | None] = queue.SimpleQueue()
        self._stack = ExitStack()
        self._under_way: Future[ChatReply] | None = None
        self._error: BaseException | None = None
        self.value: Any = None

    def __enter__(self) -> _Program:
        urls = {
            agent: self._stack.enter_context(_loopback().open(partial(self._receive, agent))).url
            for agent in self._agents
        }
        threading.Thread(target=self._work, args=(urls,), name="program", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _receive(self, agent: str, request: ChatRequest) -> Future[ChatReply]:
        future: Future[ChatReply] = Future()
        self._inbox.put((agent, request, future))
        return future

    def _work(self, urls: Mapping[str, str]) -> None:
        try:
            self.value = plain(self._run(self._context, urls))
        except NotPlain as error:
            self._error = Failed(f"the program returned what is no plain data ({error})")
        except BaseException as error:  # noqa: BLE001 (the rollout fails with it)
            if not isinstance(error, SystemExit) or error.code not in (None, 0):
                self._error = error
        finally:
            self._inbox.put(None)

    def next(self) -> dict[str, Any] | None:
        """The next request, None if the program has ended. Raises Failed if it has failed, or sends nothing."""
        try:
            item = self._inbox.get(timeout=self._seconds)
        except queue.Empty:
            raise Failed(f"the program neither asked nor ended within {self._seconds:g} s") from None
        if item is None:
            if self._error is not None:
                raise failed(self._error, "the program ended with") from self._error
            return None
        agent, request, self._under_way = item
        return {"agent": agent, "messages": [*request.messages], "tools": [*request.tools]}

    def reply(self, reply: ChatReply) -> None:
        assert self._under_way is not None
        if not self._under_way.cancelled():
            self._under_way.set_result(reply)

    def refuse(self, error: ChatRefused) -> None:
        assert self._under_way is not None
        if not self._under_way.cancelled():
            self._under_way.set_exception(error)


class _Recorded:
    """What a program of an earlier process has sent."""

    def __init__(self, earlier: Mapping[str, Any]) -> None:
        self._requests = iter(earlier["requests"])
        self.value = earlier["value"]

    def __enter__(self) -> _Recorded:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is open."""

    def next(self) -> dict[str, Any] | None:
        return next(self._requests, None)

    def reply(self, reply: ChatReply) -> None:
        """The program has read it before."""

    def refuse(self, error: ChatRefused) -> None:
        """As `reply`."""
