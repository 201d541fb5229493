"""The card of a run, <run>/config.toml, as it is written: resolved, with every default. A run folder is tied to it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tomlkit

from scope_jax.config import Config, base
from scope_jax.games import find

# Keys that may differ between two processes of one run: they control duration and frequency, not what is computed.
FREE = (
    "train.steps",
    "train.watch",
    "train.save_every",
    "train.keep",
    "train.keep_iterations",
    "train.compilation_cache",
    "train.stall_timeout",
    "train.stall_action",
    "train.stop_grace",
    "train.spool",
    "evaluate.every",
    "sandbox.isolation",
    "sandbox.endpoint",
    "sandbox.workers",
    "sandbox.retries",
    "sandbox.retry_delay",
    "log",
    "launch",
    "serve",
)
# The address of an external model or search server and the request settings may differ, too, but not the model.
PLACES = ("judge", "retrieval", "endpoint")  # tables with these names, at any level
SHOWN = 60  # characters of a value in a sentence
ASKING = ("url", "api_key_env", "timeout", "retries", "retry_delay", "concurrency")


def flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested tables by their keys joined with dots; an empty table is a value."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _movable(cfg: Config, relative: Callable[[Path], bool]) -> dict[str, Any]:
    """The config as plain data that stays true when `base.HOME` is moved: without prompts of games that are the
    defaults, and with those paths inside it relative to it for which `relative` holds."""

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: moved(item) for key, item in value.items()}
        if isinstance(value, list):
            return [moved(item) for item in value]
        inside = isinstance(value, str) and value.startswith(f"{base.HOME}/") and relative(Path(value))
        return value.removeprefix(f"{base.HOME}/") if inside else value

    table = moved(cfg.model_dump(mode="json"))
    options = getattr(cfg, cfg.game_table)
    if "prompts" in type(options).model_fields and not options.changed("prompts"):
        del table[cfg.game_table]["prompts"]
    return table


def _tied(cfg: Config) -> dict[str, Any]:
    """The keys of the config that must not change within a run, with their values."""
    flat = flattened(_movable(cfg, lambda path: True))
    return {key: value for key, value in flat.items() if not is_free(cfg, key)}


def is_free(cfg: Config, key: str) -> bool:
    """True for a key of a card that may differ between two processes of one run."""
    repeats = find(cfg.system).iterations is not None  # their number ends a run, and may be raised
    free = (*FREE, *((f"{cfg.game_table}.iterations",) if repeats else ()))
    *_, table, name = ("", *key.split("."))
    asking = table in PLACES and name in ASKING
    return asking or any(key == name or key.startswith(name + ".") for name in free)


def fingerprint(cfg: Config) -> str:
    """16 hex digits that are equal for two configs if and only if one may continue the other's run."""
    return hashlib.sha256(json.dumps(_tied(cfg), sort_keys=True).encode()).hexdigest()[:16]


def differing(a: Config, b: Config) -> list[str]:
    """Keys whose values prevent `b` from continuing a run of `a`."""
    left, right = _tied(a), _tied(b)
    return sorted(key for key in left.keys() | right.keys() if left.get(key) != right.get(key))


def differences(a: Config, b: Config) -> str:
    """The same with their values, for a sentence: "seed (0, now 1)"."""
    left, right = _tied(a), _tied(b)
    return ", ".join(f"{key} ({_shown(left.get(key))}, now {_shown(right.get(key))})" for key in differing(a, b))


def _shown(value: Any) -> str:
    text = "none" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _with_values(value: Any) -> Any:
    """The value without the keys that have none, which TOML cannot say."""
    if isinstance(value, Mapping):
        return {key: _with_values(item) for key, item in value.items() if item is not None}
    return [_with_values(item) for item in value] if isinstance(value, list) else value


def as_toml(table: Mapping[str, Any]) -> str:
    """Plain data as a card; keys without a value are left out."""
    return tomlkit.dumps(_with_values(table))


def to_toml(cfg: Config) -> str:
    """The config as a card that may be read with another checkout."""
    return as_toml(_movable(cfg, Path.exists))
