"""Serves a toolset of verifiers over stdio: `python -m scope_jax.environments.toolset_server MODULE:CLASS`.

The environment variable TOOLSET holds its config as JSON."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any


async def serve(name: str, config: str) -> None:
    """Serves until stdin ends."""
    from mcp.server.mcpserver import MCPServer
    from pydantic_config import BaseConfig  # pyright: ignore[reportMissingImports]
    from verifiers.v1.utils.generic import concrete_type  # pyright: ignore[reportMissingImports]
    from verifiers.v1.utils.loaders import plugged_fn  # pyright: ignore[reportMissingImports]

    kind: Any = plugged_fn(name)
    settings = concrete_type(kind, BaseConfig)
    assert settings is not None  # verifiers demands it of a toolset
    toolset = kind(settings.model_validate_json(config))
    await toolset.setup()
    server = MCPServer(toolset.server_name or kind.__name__)
    toolset.register(server)
    await server.run_stdio_async()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], os.environ["TOOLSET"]))
