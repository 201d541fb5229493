"""Tools that a policy calls: a function with a JSON schema, its limits, and its state in one episode."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np


class ToolError(Exception):
    """Raised by a tool whose call fails: the policy reads `error: ` and its sentence."""


class ToolUnavailable(ToolError):
    """The tool's service does not work, whatever the call: if most calls of a step find it so, the run ends."""


@runtime_checkable
class Service(Protocol):
    """What a tool needs during a whole run, such as a pool of workers or a connection; several tools may share it."""

    def start(self) -> None:
        """Prepares and probes it, before the run starts; nothing if it is ready. Raises UserError with the remedy."""
        ...

    def close(self) -> None:
        """Ends it, with everything that it started."""
        ...


@dataclass(frozen=True, eq=False)
class Tool:
    """A function that a policy may call in its turns; `tool` makes one of an annotated function."""

    name: str
    """The name in calls."""
    run: Callable[..., str]
    """Takes the arguments of a call by name, and the state of the episode first if there is `open`; returns the text
    that the policy reads."""
    schema: Mapping[str, Any]
    """The JSON schema as chat templates and the OpenAI protocol have it: {"type": "function", "function": {"name": …,
    "description": …, "parameters": …}}."""
    open: Callable[[np.random.Generator], AbstractContextManager[Any]] | None = None
    """Opens the state of one episode at its first call; it is closed when the episode ends. The generator is seeded
    with the episode's name. None: calls share nothing."""
    seconds: float = 30.0
    """Most seconds of a call, from its start; a later result is dropped."""
    max_output_tokens: int = 2048
    """Most tokens of a result; a longer one is cut, with a mark."""
    pure: bool = False
    """Equal arguments give equal results, so that calls are shared, and not recorded."""
    service: Service | None = None
    """What must run for it; started before the run, closed after it."""
