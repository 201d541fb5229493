"""An OpenEnv server for the tests: echoes three messages. `python openenv_server.py PORT_FILE`."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app  # pyright: ignore[reportMissingImports]
from openenv.core.env_server.interfaces import Environment  # pyright: ignore[reportMissingImports]
from openenv.core.env_server.types import Action, Observation, State  # pyright: ignore[reportMissingImports]


class Say(Action):
    message: str


class Heard(Observation):
    text: str = ""


class Echo(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Heard:
        self.count = 0
        return Heard(text=f"ready {seed}", done=False)

    def step(self, action: Say, timeout_s: float | None = None, **_: Any) -> Heard:
        if action.message == "?":
            raise ValueError("no echo of that")
        self.count += 1
        return Heard(text=action.message, reward=float(len(action.message)), done=self.count == 3)

    @property
    def state(self) -> State:
        return State(episode_id="", step_count=self.count)


if __name__ == "__main__":
    sock = socket.create_server(("127.0.0.1", 0))
    Path(sys.argv[1]).write_text(str(sock.getsockname()[1]))
    app = create_fastapi_app(Echo, Say, Heard, max_concurrent_envs=8)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run([sock])
