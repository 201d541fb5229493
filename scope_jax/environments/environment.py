"""Environments with reset, step and close as rollouts, and adapters for those of OpenEnv, SkyRL-gym and Gymnasium."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol, SupportsFloat, runtime_checkable

from scope_jax.errors import UserError
from scope_jax.play.failures import blaming
from scope_jax.play.rollouts import Ask, Context, Failed, Response, Rollout
from scope_jax.play.tool_calls import ToolError
from scope_jax.text.messages import Messages
from scope_jax.text.plain_data import NotPlain, plain
from scope_jax.web.exchange import shown


@runtime_checkable
class Environment(Protocol):
    """The world of one episode. A method that raises, Failed or anything else, makes the rollout fail (`failures`)."""

    def reset(self) -> str | Messages:
        """Begins the episode; returns the agent's prompt."""
        ...

    def step(self, text: str) -> tuple[str, float, bool]:
        """Takes a turn of the agent, without its thinking: (what the agent reads next, reward, whether it is over). The
        reward is any finite number, of Python or of a library."""
        ...

    def close(self) -> None:
        """Releases what the episode used."""
        ...


def environment(name: str, agent: str, make: Callable[[Context], Environment], *, seconds: float = 60.0) -> Rollout:
    """A rollout of one agent in an environment, which `make(context)` makes. Its value is {"rewards": [one number for
    each turn], "done": whether the environment, and not the agent's limits, ended it}.

    What the environment answers is recorded: in a resumed run the recorded answers stand, and an environment that has
    to go on takes the turns before first. What it raises, and an answer that is not as `Environment` says, makes the
    rollout fail. seconds: of an answer, and of `close`; a later answer makes the rollout fail, and the environment is
    closed once it has come.
    """

    def play(context: Context) -> Generator[Ask, Response, dict[str, Any]]:
        world = _World(partial(make, context))
        taken: list[str | None] = []  # None: reset
        closing = seconds

        def answered(text: str | None) -> Any:
            nonlocal closing
            act = partial(world.act, text, tuple(taken))
            taken.append(text)
            try:
                return context.recorded("environment", {"text": text}, act, seconds)
            except TimeoutError as error:
                closing = 0.0  # it waits for the late answer
                raise Failed(f"{world.name} gave {error}") from None

        try:
            rewards, done, over = [], False, False
            say = _prompt(answered(None))
            while not (done or over):
                response = yield Ask(agent, say)
                if response.finish is None:  # it could not speak: the prompt or the message does not fit
                    break
                say, reward, done = answered(response.content.strip())
                rewards.append(reward)
                over = response.over
            return {"rewards": rewards, "done": done}
        finally:
            if world.begun:
                context.end(f"{world.name}.close", world.close, closing)

    return Rollout(name, play=play)


class _World:
    """An environment that is made for the first answer; its methods are called one at a time."""

    def __init__(self, make: Callable[[], Environment]) -> None:
        self._make = make
        self._environment: Environment | None = None
        self._in_order = threading.Lock()
        self.name = "the environment"
        self.begun = False
        """Whether an answer has been asked for, and there may be something to close."""

    def act(self, text: str | None, before: Sequence[str | None]) -> Any:
        """The environment's answer as plain data. text: None: reset. before: the turns that a new one takes first."""
        self.begun = True
        with self._in_order:
            if self._environment is None:
                with blaming("making the environment raised"):
                    self._environment = self._make()
                self.name = f"the environment {type(self._environment).__name__}"
                for turn in before:
                    self._answer(self._environment, turn)
            return self._answer(self._environment, text)

    def close(self) -> None:
        with self._in_order:
            if self._environment is not None:
                self._environment.close()

    def _answer(self, environment: Environment, text: str | None) -> Any:
        if text is None:
            with blaming(f"{self.name}.reset raised"):
                prompt = environment.reset()
            return _checked_prompt(prompt, f"{self.name}.reset")
        method = f"{self.name}.step"
        with blaming(f"{method} raised"):
            answer = environment.step(text)
        if not isinstance(answer, tuple | list) or len(answer) != 3:
            raise Failed(f"{method} gave {type(answer).__name__}; give (text, reward, whether it is over)")
        say, reward, done = answer
        if not isinstance(say, str):
            raise Failed(f"{method} gave {type(say).__name__} for the agent to read; give text")
        over = _number(done, f"{method} gave, for whether it is over,")
        if over not in (0.0, 1.0):
            raise Failed(f"{method} gave {over:g} for whether it is over; give True or False")
        return [say, _number(reward, f"{method} gave the reward"), bool(over)]


def _number(value: Any, what: str) -> float:
    """A finite number, perhaps of some library. Raises Failed for anything else, a sentence that begins with `what`."""
    if isinstance(value, str) or not isinstance(value, SupportsFloat):
        raise Failed(f"{what} {type(value).__name__}; give a number")
    with blaming(f"{what} {type(value).__name__}, which raised"):
        number = float(value)
    if not math.isfinite(number):
        raise Failed(f"{what} {number}; give a finite number")
    return number


def _checked_prompt(prompt: Any, method: str) -> str | dict[str, Any]:
    """A prompt as plain data; raises Failed for what is none."""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, Messages):
        raise Failed(f"{method} gave {type(prompt).__name__} as the prompt; give text or Messages")
    texts = [prompt.user, prompt.role, *([] if prompt.system is None else [prompt.system])]
    before = [message.get(key) for message in prompt.before for key in ("role", "content")]
    if not all(isinstance(text, str) for text in (*texts, *before)):
        raise Failed(f"{method} gave Messages with what is no text; give texts alone")
    return asdict(prompt)


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
    """An observation for the agent: a text as it is, anything else as JSON. Raises Failed for what JSON has not."""
    try:
        return observation if isinstance(observation, str) else json.dumps(plain(observation), ensure_ascii=False)
    except NotPlain as error:
        raise Failed(f"an observation has no text ({error}); give to_text") from None


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
            raise Failed(f"the OpenEnv server {shown(self._url)}: {_line(error)}") from None
        text = self._to_text(result.observation)
        return f"{self._prompt}\n\n{text}" if self._prompt else text

    def step(self, text: str) -> tuple[str, Any, Any]:
        try:
            action = dict(self._to_action(text))
        except ToolError as error:
            return f"error: {error}", 0.0, False
        try:
            result = self._asked(lambda: self._client.step(action))
        except RuntimeError as error:  # the client's for an action that the server rejects; the session goes on
            return f"error: {_line(error)}", 0.0, False
        return self._to_text(result.observation), 0.0 if result.reward is None else result.reward, result.done

    def close(self) -> None:
        self._client.close()

    def _asked(self, request: Callable[[], Any]) -> Any:
        try:
            return request()
        except OSError as error:  # of connections, and of time
            raise Failed(f"the OpenEnv server {shown(self._url)}: {_line(error)}") from None


class SkyRlGym:
    """A text environment of SkyRL-gym: `init(prompt)`, and `step(text)`, whose observations are messages."""

    def __init__(self, env: Any, prompt: Sequence[Mapping[str, str]]) -> None:
        self._env, self._prompt = env, list(prompt)

    def reset(self) -> Messages:
        conversation, _ = self._env.init(self._prompt)
        try:
            return as_messages(conversation)
        except UserError as error:
            raise Failed(f"{type(self._env).__name__}.init: {error}") from None

    def step(self, text: str) -> tuple[str, Any, Any]:
        result = self._env.step(text)
        say = "\n\n".join(message["content"] for message in result["observations"])
        return say, result["reward"], result["done"]

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

    def step(self, text: str) -> tuple[str, Any, Any]:
        try:
            action = self._to_action(text)
        except ToolError as error:
            return f"error: {error}", 0.0, False
        observation, reward, terminated, truncated, _ = self._env.step(action)
        return self._to_text(observation), reward, bool(terminated or truncated)

    def close(self) -> None:
        self._env.close()
