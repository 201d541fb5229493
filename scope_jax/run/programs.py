"""The programs that a process compiles: how many, and where they are kept for later processes."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jax

from scope_jax.run import host_memory

COMPILE = "/jax/core/compile/backend_compile_duration"  # of a program that is compiled, or loaded from the cache
LOADED = "/jax/compilation_cache/cache_hits"  # it was loaded
EVERYTHING = ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "jax_persistent_cache_min_compile_time_secs", 0.0)
LARGE = 1.0  # seconds after which a program has left memory behind that is worth giving back


@dataclass
class Programs:
    """Programs since `programs` was first called."""

    asked: int = 0  # compiled or loaded
    loaded: int = 0  # from the persistent cache
    seconds: float = 0.0  # spent on them, in all threads together
    finished: Counter[str] = field(default_factory=Counter)  # those asked for, by the name of their function
    _now: dict[int, tuple[str, float]] = field(default_factory=dict)  # by thread: name of what is compiled, since when
    _needed: dict[str, Counter[str]] = field(default_factory=dict)  # by purpose and name, as `need` was told

    @property
    def compiled(self) -> int:
        return self.asked - self.loaded

    def need(self, purpose: str, most: Mapping[str, int]) -> None:
        """A purpose, such as "sampling", needs at most so many more programs of functions with these names."""
        self._needed.setdefault(purpose, Counter()).update(most)

    def text(self) -> str:
        """What is being compiled or loaded, and for how long: "compiling program 2 of at most 9 for sampling: 12 s", or
        its number among all if its purpose is not known; "" if there is none. May be called in any thread."""
        now = [*self._now.values()]
        if not now:
            return ""
        name, since = now[0]
        number = f"{self.asked + 1}"
        for purpose, most in self._needed.items():
            if name in most:
                begun = sum(min(self.finished[each], count) for each, count in most.items())
                number = f"{min(begun + 1, most.total())} of at most {most.total()} for {purpose}"
        return f"compiling program {number}: {time.monotonic() - since:.0f} s"

    def _begin(self, event: str, value: float | int, fun_name: str | int = "", **_: Any) -> None:
        if event == COMPILE:
            self._now[threading.get_ident()] = _plain(fun_name), time.monotonic()

    def _duration(self, event: str, duration_secs: float, fun_name: str | int = "", **_: Any) -> None:
        if event != COMPILE:
            return
        self.asked += 1
        self.seconds += duration_secs
        self.finished[_plain(fun_name)] += 1
        self._now.pop(threading.get_ident(), None)
        if duration_secs > LARGE:
            host_memory.give_back()

    def _event(self, event: str, **_: Any) -> None:
        self.loaded += event == LOADED


def _plain(name: str | int) -> str:
    """The name of a function in the name of its program, "jit(_step)"."""
    return str(name).removeprefix("jit(").removesuffix(")")


@cache
def programs() -> Programs:
    """The counter of this process; it counts from its first use on."""
    counter = Programs()
    jax.monitoring.register_scalar_listener(counter._begin)
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
