"""The programs that a process compiles: how many, and where they are kept for later processes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax

COMPILE = "/jax/core/compile/backend_compile_duration"  # a program was compiled, or loaded from the cache
LOADED = "/jax/compilation_cache/cache_hits"  # it was loaded
BEGUN = "/jax/compilation_cache/compile_requests_use_cache"  # it is looked for in the cache, and then compiled
EVERYTHING = ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "jax_persistent_cache_min_compile_time_secs", 0.0)


@dataclass
class Programs:
    """Programs since `programs` was first called."""

    asked: int = 0  # compiled or loaded
    loaded: int = 0  # from the persistent cache
    begun: int = 0  # of those that may be in the cache

    @property
    def compiled(self) -> int:
        return self.asked - self.loaded

    @property
    def compiling(self) -> bool:
        """Whether one is being compiled or loaded; False without a cache, which alone tells when it begins."""
        return self.begun > self.asked

    def _duration(self, event: str, duration_secs: float, **_: Any) -> None:
        self.asked += event == COMPILE

    def _event(self, event: str, **_: Any) -> None:
        self.loaded += event == LOADED
        self.begun += event == BEGUN


@cache
def programs() -> Programs:
    """The counter of this process; it counts from its first use on."""
    counter = Programs()
    jax.monitoring.register_event_duration_secs_listener(counter._duration)
    jax.monitoring.register_event_listener(counter._event)
    return counter


def keep_programs(folder: str) -> None:
    """Keeps compiled programs in this folder, all of them, for later processes; to be called before the first one.

    JAX's own variables win: JAX_COMPILATION_CACHE_DIR, JAX_ENABLE_COMPILATION_CACHE and
    JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS.
    """
    current = jax.config.values
    if current["jax_compilation_cache_dir"] is not None or not current["jax_enable_compilation_cache"]:
        return
    variable, name, value = EVERYTHING
    if variable not in os.environ:
        jax.config.update(name, value)
    jax.config.update("jax_compilation_cache_dir", str(Path(folder).absolute()))
