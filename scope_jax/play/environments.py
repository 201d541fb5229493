"""Environments with reset, step and close as rollouts, and adapters for those of OpenEnv, SkyRL-gym and Gymnasium."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol, runtime_checkable

from scope_jax.errors import UserError
from scope_jax.play.rollouts import Ask, Context, Failed, Response, Rollout
from scope_jax.play.tool_calls import ToolError
from scope_jax.text.messages import Messages


@runtime_checkable
class Environment(Protocol):
    """The world of one episode. Its methods may raise Failed: the rollout is not used."""

    def reset(self) -> str | Messages:
        """Begins the episode; returns the agent's prompt."""
        ...

    def step(self, text: str) -> tuple[str, float, bool]:
        """Takes a turn of the agent, without its thinking: (what the agent reads next, reward, whether it is over)."""
        ...

    def close(self) -> None:
        """Releases what the episode used."""
        ...


def environment(name: str, agent: str, make: Callable[[Context], Environment], *, seconds: float = 60.0) -> Rollout:
    """A rollout of one agent in an environment, which `make(context)` makes. Its value is {"rewards": [one number for
    each turn], "done": whether the environment, and not the agent's limits, ended it}.

    What the environment answers is recorded: in a resumed run the recorded answers stand, and an environment that has
    to go on takes the turns before first. seconds: of an answer; a later one makes the rollout fail.
    """

    def play(context: Context) -> Generator[Ask, Response, dict[str, Any]]:
        world: list[Environment] = []
        taken: list[str | None] = []  # None: reset

        def act(text: str | None) -> Any:
            if not world:
                world.append(make(context))
                for before in taken:
                    _act(world[0], before)
            return _act(world[0], text)

        def answered(text: str | None) -> Any:
            try:
                answer = context.recorded("environment", {"text": text}, partial(act, text), seconds)
            except TimeoutError as error:
                raise Failed(f"the environment gave {error}") from None
            taken.append(text)
            return answer

        try:
            rewards, done, over = [], False, False
            say = _prompt(answered(None))
            while not (done or over):
                response = yield Ask(agent, say)
                if response.finish is None:  # it could not speak: the prompt or the message does not fit
                    break
                say, reward, done = answered(response.content.strip())
                rewards.append(float(reward))
                over = response.over
            return {"rewards": rewards, "done": done}
        finally:
            for environment in world:
                environment.close()

    return Rollout(name, play=play)


def _act(world: Environment, text: str | None) -> Any:
    """The environment's answer as plain data."""
    if text is not None:
        say, reward, done = world.step(text)
        return [say, float(reward), bool(done)]
    prompt = world.reset()
    return prompt if isinstance(prompt, str) else asdict(prompt)


def _prompt(plain: str | dict[str, Any]) -> str | Messages:
    if isinstance(plain, str):
        return plain
    tools = None if plain["tools"] is None else tuple(plain["tools"])
    return Messages(plain["user"], plain["system"], tools, tuple(plain["before"]), plain["role"])


def as_messages(conversation: Sequence[Mapping[str, Any]]) -> Messages:
    """OpenAI's messages as a prompt: turns so far, perhaps after a system message, and a user message. Raises UserError
    for others."""
    if not conversation or conversation[-1]["role"] != "user":
        raise UserError("a prompt ends with a user message; give one.")
    if not all(isinstance(message["content"], str) for message in conversation):
        raise UserError("a message of a prompt is not text; give texts alone.")
    system = conversation[0]["content"] if conversation[0]["role"] == "system" else None
    before = tuple({"role": m["role"], "content": m["content"]} for m in conversation[system is not None : -1])
    if wrong := [message["role"] for message in before if message["role"] not in ("user", "assistant")]:
        raise UserError(f"a message of the role {wrong[0]!r} cannot stand within a prompt; user and assistant can.")
    return Messages(conversation[-1]["content"], system=system, before=before)


def _readable(observation: Any) -> str:
    """An observation for the agent: a text as it is, anything else as JSON."""
    return observation if isinstance(observation, str) else json.dumps(observation, ensure_ascii=False)


def _line(error: Exception) -> str:
    """An error's message on one line."""
    return " ".join(str(error).split()) or type(error).__name__


class OpenEnv:
    """An episode on an OpenEnv server, by the project's client (extra `openenv`), which needs no code of the server.

    to_action: the server's action of a turn; it may raise ToolError, whose sentence the agent reads, and has another
    turn, as it does after an action that the server rejects. to_text: what the agent reads of an observation, whose
    fields are those of the server; its JSON by default. prompt: stands before the first observation. reset: arguments
    of the server's reset, such as {"seed": 3}. seconds: of each answer. headers: sent as the connection is opened.
    Raises Failed if the server cannot be asked.
    """

    def __init__(
        self,
        url: str,
        to_action: Callable[[str], Mapping[str, Any]],
        *,
        to_text: Callable[[Mapping[str, Any]], str] = _readable,
        prompt: str = "",
        reset: Mapping[str, Any] | None = None,
        seconds: float = 60.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        try:
            from openenv import GenericEnvClient  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError as error:
            if error.name != "openenv":
                raise
            raise UserError("OpenEnv servers need its client; run pip install 'scope-jax[openenv]'.") from None
        self._url, self._to_action, self._to_text, self._prompt = url, to_action, to_text, prompt
        self._reset = dict(reset or {})
        self._client = GenericEnvClient(
            base_url=url, message_timeout_s=seconds, headers=dict(headers) if headers else None
        ).sync()

    def reset(self) -> str:
        try:
            result = self._asked(lambda: self._client.reset(**self._reset))
        except RuntimeError as error:
            raise Failed(f"the OpenEnv server {self._url}: {_line(error)}") from None
        text = self._to_text(result.observation)
        return f"{self._prompt}\n\n{text}" if self._prompt else text

    def step(self, text: str) -> tuple[str, float, bool]:
        try:
            action = dict(self._to_action(text))
        except ToolError as error:
            return f"error: {error}", 0.0, False
        try:
            result = self._asked(lambda: self._client.step(action))
        except RuntimeError as error:  # the client's for an action that the server rejects; the session goes on
            return f"error: {_line(error)}", 0.0, False
        return self._to_text(result.observation), float(result.reward or 0.0), bool(result.done)

    def close(self) -> None:
        self._client.close()

    def _asked(self, request: Callable[[], Any]) -> Any:
        try:
            return request()
        except OSError as error:  # of connections, and of time
            raise Failed(f"the OpenEnv server {self._url}: {_line(error)}") from None


class SkyRlGym:
    """A text environment of SkyRL-gym: `init(prompt)`, and `step(text)`, whose observations are messages."""

    def __init__(self, env: Any, prompt: Sequence[Mapping[str, str]]) -> None:
        self._env, self._prompt = env, list(prompt)

    def reset(self) -> Messages:
        conversation, _ = self._env.init(self._prompt)
        return as_messages(conversation)

    def step(self, text: str) -> tuple[str, float, bool]:
        result = self._env.step(text)
        say = "\n\n".join(message["content"] for message in result["observations"])
        return say, float(result["reward"]), bool(result["done"])

    def close(self) -> None:
        self._env.close()


class Gymnasium:
    """An environment of Gymnasium. to_action, to_text: as of `OpenEnv`. seed: of its reset."""

    def __init__(
        self,
        env: Any,
        to_action: Callable[[str], Any],
        *,
        to_text: Callable[[Any], str] = _readable,
        prompt: str = "",
        seed: int | None = None,
    ) -> None:
        self._env, self._to_action, self._to_text, self._prompt, self._seed = env, to_action, to_text, prompt, seed

    def reset(self) -> str:
        observation, _ = self._env.reset(seed=self._seed)
        text = self._to_text(observation)
        return f"{self._prompt}\n\n{text}" if self._prompt else text

    def step(self, text: str) -> tuple[str, float, bool]:
        try:
            action = self._to_action(text)
        except ToolError as error:
            return f"error: {error}", 0.0, False
        observation, reward, terminated, truncated, _ = self._env.step(action)
        return self._to_text(observation), float(reward), bool(terminated or truncated)

    def close(self) -> None:
        self._env.close()
