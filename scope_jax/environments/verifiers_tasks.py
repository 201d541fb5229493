"""Task sets of `verifiers` (extra): their rows as prompts, their tool servers as tools, their rewards of our turns.

A task is one move of one agent: the prompt, tools that it may call until a turn has none, and a score of what was said.
Sampling and turns are ours. A set whose tasks need a container, whose rewards need a runtime, or that comes with an
environment of its own is refused by name, as its tasks would not be the ones that its authors wrote.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from scope_jax.environments.environment import as_messages
from scope_jax.environments.mcp import Mcp
from scope_jax.errors import UserError
from scope_jax.text.messages import Messages

HOOKS = ("setup", "finalize")  # of a task, around a rollout in a runtime


class VerifiersTasks:
    """The tasks of a set. name: an installed package, or one of verifiers' own. config: fields of the set's config.
    limit: takes the first so many; a set without an end needs it. Raises UserError for a set that cannot be used."""

    def __init__(self, name: str, config: Mapping[str, Any] | None = None, limit: int | None = None) -> None:
        try:
            from verifiers.v1.envs.single_agent import SingleAgentEnv  # pyright: ignore[reportMissingImports]
            from verifiers.v1.utils import loaders  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "verifiers":
                raise
            raise UserError("task sets of verifiers need it; run pip install 'scope-jax[verifiers]'.") from None
        try:
            kind = loaders.taskset_class(name)
        except ModuleNotFoundError as error:
            if "not found (tried to import" not in str(error):
                raise
            raise UserError(f"there is no task set {name!r} of verifiers; install its package.") from None
        self.name = f"the task set {name}"
        if loaders.environment_class(name) is not SingleAgentEnv:
            raise UserError(f"{self.name} brings an environment of its own; play it through an endpoint of the agent.")
        self._set = kind(_config(self.name, loaders.taskset_config_type(name), {"id": name, **(config or {})}))
        self._check_kind(kind.task_type())
        if limit is None and not self._set.bounded:
            raise UserError(f"{self.name} has no end; give a limit.")
        self._tasks = list(islice(self._set, limit))
        if not self._tasks:
            raise UserError(f"{self.name} has no tasks; correct its config.")
        for task in self._tasks:
            self._check(task)

    def __len__(self) -> int:
        return len(self._tasks)

    def rows(self) -> list[dict[str, Any]]:
        """For each task its place in this list, its stable key, its name and its text."""
        return [
            {"task": place, "key": task.key, "name": task.data.name or "", "question": task.data.prompt_text}
            for place, task in enumerate(self._tasks)
        ]

    def messages(self, place: int) -> Messages:
        """The prompt of a task. Raises UserError for a prompt with earlier turns or pictures."""
        data = self._tasks[place].data
        system = [] if data.system_prompt is None else [{"role": "system", "content": data.system_prompt}]
        if isinstance(data.prompt, str):
            return as_messages([*system, {"role": "user", "content": data.prompt}])
        return as_messages([*system, *(message.model_dump() for message in data.prompt or [])])

    def servers(self) -> tuple[Mcp, ...]:
        """The MCP servers of the set's tools: those of the set for the run, those of its tasks for each episode.
        Raises UserError for one that needs to know the task or the rollout."""
        task = type(self._tasks[0])
        own = [(toolset, "episode") for toolset in task.toolsets(self._tasks[0].config)]
        shared = [(toolset, "run") for toolset in type(self._set).toolsets(self._set.config)]
        return tuple(self._server(toolset, per) for toolset, per in [*shared, *own])

    def score(self, place: int, turns: Sequence[Mapping[str, Any]], cut: bool = False) -> dict[str, Any]:
        """What the set's rewards say of an episode: {"reward": their weighted sum, "rewards": {name: weighted value},
        "metrics": {name: value}}. turns: the messages after the prompt in OpenAI's form, an assistant's without its
        thinking. cut: whether the last turn ran into a limit."""
        task = self._tasks[place]
        prompt = self.messages(place).conversation()
        trace = _trace(task, prompt, turns, cut)
        asyncio.run(task.score(trace))
        rewards = {name: reward.value for name, reward in trace.rewards.items()}
        return {"reward": trace.reward, "rewards": rewards, "metrics": dict(trace.metrics)}

    def _check_kind(self, kind: Any) -> None:
        """Raises UserError for tasks that no rollout without a runtime can play."""
        from verifiers.v1 import Task  # pyright: ignore[reportMissingImports]

        if kind.NEEDS_CONTAINER:
            raise UserError(f"{self.name} has tasks that need a container ({kind.__name__}); it cannot be used.")
        for hook in HOOKS:
            if getattr(kind, hook) is not getattr(Task, hook):
                raise UserError(f"{self.name} prepares a runtime ({kind.__name__}.{hook}); it cannot be used.")

    def _check(self, task: Any) -> None:
        """Raises UserError for a task that would not be scored as it was meant."""
        if task.data.image is not None:
            raise UserError(f"{self.name} has tasks that need a container (task {task.data.idx}); it cannot be used.")
        signals = [*task.hooks("reward"), *task.hooks("metric"), *(judge.score for judge in task.plugged_judges())]
        for signal in signals:
            runtime = inspect.signature(signal).parameters.get("runtime")
            if runtime is not None and runtime.default is inspect.Parameter.empty:
                raise UserError(
                    f"{self.name} has the reward {signal.__name__!r}, which needs a runtime; it cannot be used."
                )

    def _server(self, toolset: Any, per: str) -> Mcp:
        from verifiers.v1.mcp.server import ServerBase  # pyright: ignore[reportMissingImports]
        from verifiers.v1.state import State, state_cls  # pyright: ignore[reportMissingImports]

        prefix = f"{toolset.server_name}_" if toolset.server_name else ""
        if toolset.config.url is not None:
            return Mcp(url=toolset.config.url, per=per, prefix=prefix)
        kind = type(toolset)
        if kind.setup_task is not ServerBase.setup_task or state_cls(kind) is not State:
            raise UserError(
                f"{self.name} has the tools {kind.__name__}, which share state with the rollout; it cannot be used."
            )
        command = (
            sys.executable,
            "-m",
            "scope_jax.environments.toolset_server",
            f"{kind.__module__}:{kind.__qualname__}",
        )
        env = {"PYTHONPATH": ":".join(path for path in sys.path if path), "TOOLSET": toolset.config.model_dump_json()}
        return Mcp(command=command, env=env, per=per, prefix=prefix)


def _config(name: str, kind: Any, fields: Mapping[str, Any]) -> Any:
    """The set's config. Raises UserError for fields that it does not take."""
    from pydantic import ValidationError

    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"the config of {name} is not valid ({where}: {first['msg']}); correct it.") from None


def _trace(task: Any, prompt: Sequence[Mapping[str, Any]], turns: Sequence[Mapping[str, Any]], cut: bool) -> Any:
    """A finished trace of the conversation, as verifiers' own rollouts leave one."""
    import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]
    from pydantic import TypeAdapter
    from verifiers.v1.configs.agent import WireAgentConfig  # pyright: ignore[reportMissingImports]
    from verifiers.v1.graph import MessageNode  # pyright: ignore[reportMissingImports]
    from verifiers.v1.state import state_cls  # pyright: ignore[reportMissingImports]
    from verifiers.v1.trace import AgentInfo, ModelCall, TraceTask  # pyright: ignore[reportMissingImports]
    from verifiers.v1.types import Message  # pyright: ignore[reportMissingImports]

    adapter = TypeAdapter(Message)
    conversation = [*prompt, *map(_flat, turns)]
    nodes = [
        MessageNode(
            parent=place - 1 if place else None,
            message=adapter.validate_python(message),
            sampled=place >= len(prompt) and message["role"] == "assistant",
        )
        for place, message in enumerate(conversation)
    ]
    sampled = [place for place, node in enumerate(nodes) if node.sampled]
    calls = [
        ModelCall(node=place, finish_reason="length" if cut and place == sampled[-1] else "stop") for place in sampled
    ]
    return vf.Trace(
        task=TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        agent=AgentInfo(config=WireAgentConfig()),
        nodes=nodes,
        calls=calls,
        state=state_cls(type(task))(),
        is_completed=True,
        ok=True,
        stop_condition="agent_completed",
    )


def _flat(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """An OpenAI message in verifiers' form, whose calls have name and arguments without a `function` around them."""
    calls = [{"id": call["id"], **call["function"]} for call in message.get("tool_calls", [])]
    return {**message, "tool_calls": calls or None} if message["role"] == "assistant" else message
