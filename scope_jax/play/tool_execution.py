"""Runs the calls of tools: in threads, within their time, recorded before anyone sees a result.

A result is text for the policy whatever happens: a tool that raises, or is late, is an observation and no end of the
run. What ends a run is a service that does not work: most calls of a step find it unavailable, or threads are left
behind that do not return.
"""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from scope_jax.errors import UserError, without_passwords
from scope_jax.play.rollouts import Failed
from scope_jax.play.tool_calls import Tool, ToolError, ToolUnavailable
from scope_jax.rollouts.types import RolloutError, ToolResult
from scope_jax.text.plain_data import NotPlain, plain, whole_texts
from scope_jax.web.exchange import whole

T = TypeVar("T")
TOGETHER = 8  # calls of one turn that run at a time
LEAST = 20  # calls of a step before their failures end a run
CUT = " … [cut]"
LONGEST_TOKEN = 64  # characters; no text of n tokens that is read is longer than n times this


class ToolCall(NamedTuple):
    """A call to be run."""

    tool: Tool
    arguments: Mapping[str, Any]


class MalformedCall(NamedTuple):
    """A call that is not run."""

    name: str
    """The tool's, as far as it could be read."""
    problem: str
    """What the policy reads."""


@runtime_checkable
class Record(Protocol):
    """The recorded calls of one rollout."""

    closed: bool
    """Nothing but the record answers: the tools are off."""

    def earlier(self, agent: str) -> list[Mapping[str, Any]]:
        """What an earlier process recorded of the calls of an agent, in order."""
        ...

    def write(self, agent: str, number: int, result: ToolResult) -> None:
        """Records a call; returns when a killed process would not lose it."""
        ...

    def differs(self, agent: str, number: int) -> None:
        """This call is not the recorded one: it is run, and so are those after it. Raises UserError if closed."""
        ...


@dataclass
class LateCalls:
    """Calls of a run that have not come back in their time."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    count: int = 0
    told: set[tuple[str, str]] = field(default_factory=set)
    """Errors of others' code that the user has seen, by type and place."""


@dataclass
class Execution:
    """The calls of all rollouts of a step: threads, shared results, failures.

    tokens: ids of a text; decode: their text. tell: shows the user a sentence. threads: how many calls may be left
    behind, twice. late: of all steps.
    """

    tokens: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    tell: Callable[[str], None]
    threads: int
    late: LateCalls = field(default_factory=LateCalls)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _shared: dict[tuple[Tool, str], tuple[str, str]] = field(default_factory=dict)
    _calls: int = 0
    _unavailable: int = 0

    def another(self) -> Execution:
        """That of another step: nothing is shared with this one, and failures are counted anew."""
        return Execution(self.tokens, self.decode, self.tell, self.threads, self.late)

    def run(self, tool: Tool, arguments: Mapping[str, Any], state: Callable[[], Any] | None) -> tuple[str, str, float]:
        """(status, text, seconds) of a call. state: returns the state of the episode, for a tool that has one.

        Raises UserError if the service does not work, see above.
        """
        key = tool, json.dumps(dict(arguments), sort_keys=True) if tool.pure else ""
        if tool.pure and key in self._shared:
            return *self._shared[key], 0.0
        began = time.monotonic()
        try:
            status, text, unavailable = self.within(
                tool.name, lambda: self._outcome(tool, arguments, state), tool.seconds
            )
        except TimeoutError as error:
            status, text, unavailable = "timeout", f"error: {error}", True
        seconds = time.monotonic() - began
        text = self.shortened(text, tool.max_output_tokens)
        with self._lock:
            self._calls += 1
            self._unavailable += unavailable
            if unavailable and self._calls >= LEAST and 2 * self._unavailable > self._calls:
                raise UserError(
                    f"{self._unavailable} of {self._calls} calls of tools in this step failed, last of {tool.name}: "
                    f"{text.removeprefix('error: ').rstrip('.')}; mend the service, then run the same command again."
                )
            if tool.pure and status == "ok":
                self._shared[key] = status, text
        return status, text, seconds

    def shortened(self, text: str, tokens: int) -> str:
        """The text, cut to so many tokens, with a mark."""
        text = whole(text)
        ids = self.tokens(text[: tokens * LONGEST_TOKEN])
        if len(ids) <= tokens and len(text) <= tokens * LONGEST_TOKEN:
            return text
        return self.decode(ids[: max(tokens - len(self.tokens(CUT)), 1)]) + CUT

    def within(self, name: str, work: Callable[[], T], seconds: float) -> T:
        """The result of `work`, in a thread of its own. Raises what it raises, TimeoutError if it takes longer, and
        UserError if too many calls have not come back."""
        outcome: list[T] = []
        failure: list[BaseException] = []
        done = threading.Event()

        def worker() -> None:
            try:
                outcome.append(work())
            except BaseException as error:  # noqa: BLE001 (raised in the thread that waits)
                failure.append(error)
            finally:
                done.set()

        threading.Thread(target=copy_context().run, args=(worker,), name=f"tool {name}", daemon=True).start()
        if not done.wait(seconds):
            with self.late.lock:
                self.late.count += 1
                left = self.late.count
            threading.Thread(target=self._returned, args=(done,), daemon=True).start()
            if 2 * left > self.threads:
                raise UserError(
                    f"{left} calls of tools, last of {name}, have not come back after their time of {seconds:g} s; let "
                    "the tool end its calls itself, or raise rollout.search_threads."
                )
            raise TimeoutError(f"no result within {seconds:g} s")
        if failure:
            raise failure[0]
        return outcome[0]

    def _returned(self, done: threading.Event) -> None:
        done.wait()
        with self.late.lock:
            self.late.count -= 1

    def _outcome(
        self, tool: Tool, arguments: Mapping[str, Any], state: Callable[[], Any] | None
    ) -> tuple[str, str, bool]:
        try:
            text = tool.run(**arguments) if state is None else tool.run(state(), **arguments)
        except ToolError as error:
            return "error", f"error: {without_passwords(str(error))}", isinstance(error, ToolUnavailable)
        except (Exception, SystemExit) as error:  # noqa: BLE001 (whatever a tool raises is read by the policy)
            self.tell_once(f"a call of the tool {tool.name} raised", error)
            return "error", f"error: {type(error).__name__}: {without_passwords(_first_line(error))}", False
        if not isinstance(text, str):
            raise TypeError(f"the tool {tool.name} returned {type(text).__name__}; a tool returns text.")
        return "ok", text, False

    def tell_once(self, what: str, error: BaseException) -> None:
        """Shows the user an error of others' code, the first of its type from one place. what: the sentence before."""
        frames = traceback.extract_tb(error.__traceback__)
        kind = type(error).__name__, f"{frames[-1].filename}:{frames[-1].lineno}" if frames else what
        with self.late.lock:
            if kind in self.late.told:
                return
            self.late.told.add(kind)
        self.tell(without_passwords(f"{what}:\n{''.join(traceback.format_exception(error)).rstrip()}"))


def _first_line(error: BaseException) -> str:
    """The first line of an error's text, of paths only the last part."""
    line = next(iter(str(error).splitlines()), "")
    return " ".join(word.rpartition("/")[2] if word.count("/") > 1 else word for word in line.split(" "))


class RolloutCalls:
    """The calls of tools in one sample of a rollout, and the state that tools have in it.

    rng: by name of a tool, for its state. Recorded calls are answered by the record. A state is opened at the first
    call that is run; the recorded calls of its tool are then run before it, so that the state is what it was.
    """

    def __init__(self, execution: Execution, rng: Callable[[str], np.random.Generator], record: Record) -> None:
        self._execution = execution
        self._rng = rng
        self._record = record
        self._lock = threading.Lock()
        self._states: dict[Any, Any] = {}  # by what opens them: tools with an equal `open` share a state
        self._in_order: dict[Any, threading.Lock] = {}
        self._rebuilt: dict[Any, list[ToolCall]] = {}  # recorded calls that were not run
        self._numbers: dict[str, int] = {}
        self._earlier: dict[str, list[Mapping[str, Any]]] = {}
        self._opened: list[tuple[Tool, AbstractContextManager[Any]]] = []
        self._closed = False
        self.results: dict[str, list[ToolResult]] = {}  # by agent, in order

    @property
    def holds(self) -> bool:
        """Whether a tool has a state in it."""
        return bool(self._opened)

    def run(self, agent: str, turn: int, calls: Sequence[ToolCall | MalformedCall]) -> list[ToolResult]:
        """The results of the calls of one turn, in order; those of one state run in order, others together."""
        numbers = range(first := self._numbers.get(agent, 0), first + len(calls))
        self._numbers[agent] = first + len(calls)
        places = list(zip(numbers, calls, strict=True))
        together = {number: call for number, call in places if isinstance(call, ToolCall) and call.tool.batch}
        results = self._batched(agent, turn, together)
        chains: dict[Any, list[tuple[int, ToolCall | MalformedCall]]] = {}
        for number, call in places:
            if number not in results:
                state = call.tool.open if isinstance(call, ToolCall) else None
                chains.setdefault(state or number, []).append((number, call))

        def chain(members: list[tuple[int, ToolCall | MalformedCall]]) -> None:
            for number, call in members:
                results[number] = self._result(agent, turn, number, call)

        if len(chains) == 1:
            chain(next(iter(chains.values())))
        elif chains:
            with ThreadPoolExecutor(min(len(chains), TOGETHER)) as pool:
                list(pool.map(chain, chains.values()))
        ordered = [results[number] for number in numbers]
        self.results.setdefault(agent, []).extend(ordered)
        return ordered

    def _batched(self, agent: str, turn: int, calls: Mapping[int, ToolCall]) -> dict[int, ToolResult]:
        """The results of calls of tools that run them together, by number: those of the record, and the others."""
        results = {
            number: ToolResult(turn, agent, call.tool.name, dict(call.arguments), stored["text"], stored["status"])
            for number, call in calls.items()
            if not call.tool.pure
            and (stored := self._recorded(agent, number, call.tool.name, dict(call.arguments))) is not None
        }
        new = {number: call for number, call in calls.items() if number not in results}
        for (number, call), result in zip(new.items(), run_batches(agent, turn, [*new.values()]), strict=True):
            results[number] = result
            if not call.tool.pure:
                self._record.write(agent, number, result)
        return results

    def recorded(self, name: str, arguments: Mapping[str, Any], work: Callable[[], Any], seconds: float) -> Any:
        """The result of `work`, plain data as JSON has it, recorded like a call that the rollout makes; what it raises
        is raised here. Raises TimeoutError if it takes longer."""
        if (stored := self.stored(name, arguments)) is not None:
            return stored
        return self.store(name, arguments, self._execution.within(name, work, seconds))

    def stored(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """What an earlier process has stored at this place of the rollout; None if it has not."""
        line = self._recorded("", self._numbers.get("", 0), name, arguments)
        if line is None:
            return None
        self._numbers[""] = self._numbers.get("", 0) + 1
        return json.loads(line["text"])

    def store(self, name: str, arguments: Mapping[str, Any], value: Any) -> Any:
        """Records plain data at this place of the rollout; returns it as it will be read."""
        try:
            data = plain(value)
        except NotPlain as error:
            raise Failed(f"{name} gave what is no plain data ({error})") from None
        number = self._numbers.get("", 0)
        self._numbers[""] = number + 1
        text = json.dumps(data, ensure_ascii=False)
        self._record.write("", number, ToolResult(-1, "", name, dict(arguments), text, "ok"))
        return data

    def end(self, name: str, work: Callable[[], Any], seconds: float) -> None:
        """Runs a clean-up. An error, or that it takes longer, is shown to the user once, and changes nothing."""
        what = f"the clean-up of {name} raised"

        def shown() -> None:
            try:
                work()
            except (MemoryError, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 (of others' code)
                self._execution.tell_once(what, error)

        try:
            self._execution.within(name, shown, seconds)
        except TimeoutError as error:
            self._execution.tell_once(what, error)

    def tell(self, what: str, error: BaseException) -> None:
        """See `Execution.tell_once`."""
        self._execution.tell_once(what, error)

    def close(self) -> None:
        """Closes the states of the rollout."""
        with self._lock:
            self._states.clear()
            self._closed = True
            opened, self._opened = self._opened, []
        for tool, manager in reversed(opened):
            self.end(f"the tool {tool.name}", partial(manager.__exit__, None, None, None), tool.seconds)

    def _result(self, agent: str, turn: int, number: int, call: ToolCall | MalformedCall) -> ToolResult:
        if isinstance(call, MalformedCall):
            return _not_run(agent, turn, call)
        tool, arguments = call.tool, dict(call.arguments)
        if not tool.pure and (stored := self._recorded(agent, number, tool.name, arguments)) is not None:
            if tool.open is not None:
                self._rebuilt.setdefault(tool.open, []).append(ToolCall(tool, arguments))
            return ToolResult(turn, agent, tool.name, arguments, stored["text"], stored["status"])
        if tool.open is None:
            status, text, seconds = self._execution.run(tool, arguments, None)
        else:
            with self._ordered(tool):
                for before in self._rebuilt.pop(tool.open, ()):
                    self._execution.run(before.tool, before.arguments, partial(self._state, before.tool))
                status, text, seconds = self._execution.run(tool, arguments, partial(self._state, tool))
                if status == "timeout":
                    self._states.pop(tool.open, None)  # it may still be at work; the next call opens another one
        result = ToolResult(turn, agent, tool.name, arguments, text, status, seconds)  # type: ignore[arg-type]
        if not tool.pure:
            self._record.write(agent, number, result)
        return result

    def _recorded(self, agent: str, number: int, tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The record of a call; None if there is none. A call that differs from it ends the agent's record."""
        if agent not in self._earlier:
            self._earlier[agent] = [*self._record.earlier(agent)]
        earlier = {line["number"]: line for line in self._earlier[agent]}
        stored = earlier.get(number)
        if stored is not None and (stored["tool"], stored["arguments"]) == (tool, whole_texts(arguments)):
            return stored
        if stored is not None or self._record.closed:
            self._record.differs(agent, number)
            self._earlier[agent] = []
        return None

    def _ordered(self, tool: Tool) -> threading.Lock:
        with self._lock:
            return self._in_order.setdefault(tool.open, threading.Lock())

    def _state(self, tool: Tool) -> Any:
        """The state of a tool in this rollout; called in the thread of a call, one at a time for each tool."""
        if tool.open not in self._states:
            assert tool.open is not None
            manager = tool.open(self._rng(tool.name))
            state = manager.__enter__()
            with self._lock:
                closed = self._closed
                if not closed:
                    self._opened.append((tool, manager))
                    self._states[tool.open] = state
            if closed:  # the rollout has ended while a late call opened it
                manager.__exit__(None, None, None)
                raise ToolError("the rollout has ended")
        return self._states[tool.open]


def run_batches(agent: str, turn: int, calls: Sequence[ToolCall | MalformedCall]) -> list[ToolResult]:
    """The results of calls of one turn, in order, all of tools that run them together (`Tool.batch`)."""
    texts: dict[int, str] = {}
    began = time.monotonic()
    places = {number: call for number, call in enumerate(calls) if isinstance(call, ToolCall)}
    for tool in dict.fromkeys(call.tool for call in places.values()):
        members = {number: call.arguments for number, call in places.items() if call.tool is tool}
        assert tool.batch is not None
        texts |= dict(zip(members, tool.batch([*members.values()]), strict=True))
    seconds = time.monotonic() - began
    return [
        ToolResult(turn, agent, call.tool.name, dict(call.arguments), texts[number], "ok", seconds)
        if isinstance(call, ToolCall)
        else _not_run(agent, turn, call)
        for number, call in enumerate(calls)
    ]


def _not_run(agent: str, turn: int, call: MalformedCall) -> ToolResult:
    return ToolResult(turn, agent, call.name, None, call.problem, "malformed")


def tools_of(tools: Sequence[Tool | str], toolbox: Mapping[str, Tool]) -> tuple[Tool, ...]:
    """The tools, those of the game by name. Raises RolloutError for a name that is unknown, or there twice."""
    for tool in tools:
        if isinstance(tool, str) and tool not in toolbox:
            raise RolloutError(f"there is no tool {tool!r}; the game has {', '.join(toolbox) or 'none'} (Game.tools).")
    known = tuple(toolbox[tool] if isinstance(tool, str) else tool for tool in tools)
    names = [tool.name for tool in known]
    if twice := {name for name in names if names.count(name) > 1}:
        raise RolloutError(f"an agent has two tools of the name {min(twice)}; give each its own.")
    return known
