"""The settings that a game changed during a run (`play.settings`), as the rows of a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]  # a line of episodes.jsonl


@dataclass(frozen=True)
class SettingRow:
    """A value in force from after `at` steps on, or an attempt to replace it that failed.

    by: who set it. changes: the differences from the value before, one a line; () of the first value. problem: why
    there is no new value, "" if there is one. value: the value in force, as indented JSON.
    """

    at: int
    by: str
    changes: tuple[str, ...]
    problem: str
    value: str


class Settings:
    """Collects the rows of every setting while the records of a run pass."""

    def __init__(self) -> None:
        self.rows: dict[str, list[SettingRow]] = {}  # by name of the setting
        self._values: dict[str, Any] = {}

    def collect(self, records: Iterable[Record]) -> Iterator[Record]:
        """All records unchanged; those of settings are collected on the way."""
        for record in records:
            if "setting" in record["text"]:
                self._add(record["text"])
            yield record

    def _add(self, text: Mapping[str, Any]) -> None:
        """A row for every attempt, and for a value in force that no attempt explains: the first of a run."""
        name, value = text["setting"], text["value"]
        before = self._values.get(name)
        if "problem" not in text and value == before:
            return
        rows = self.rows.setdefault(name, [])
        changes = () if before is None else tuple(differences(before, value))
        at, problem = text.get("at", text["since"]), text.get("problem", "")
        rows.append(SettingRow(at, text["by"], changes, problem, json.dumps(value, indent=1, ensure_ascii=False)))
        self._values[name] = value


def differences(before: Any, after: Any, key: str = "") -> list[str]:
    """One line, "key: old → new", for every value of nested tables that differs; keys are joined by dots."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        found = []
        for name in dict.fromkeys((*before, *after)):
            found += differences(before.get(name), after.get(name), f"{key}.{name}" if key else name)
        return found
    return [] if before == after else [f"{key}: {_shown(before)} → {_shown(after)}"]


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "none"
    return value or '""' if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
