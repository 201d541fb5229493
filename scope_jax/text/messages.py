"""A prompt before tokenization: the system message, the user message, and the declared tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Messages:
    """The start of a conversation, to be rendered by the model's chat template.

    system: None leaves it to the template, which may have a default; "" is an empty message. tools: JSON schemas of
    the functions that are declared to the model.
    """

    user: str
    system: str | None = None
    tools: tuple[Mapping[str, Any], ...] = ()

    def conversation(self) -> list[Mapping[str, str]]:
        """The messages for a chat template."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": self.user}]

    def declared(self) -> list[Mapping[str, Any]] | None:
        """The tools for a chat template: None instead of an empty list, as templates expect."""
        return list(self.tools) or None

    @property
    def text(self) -> str:
        """All messages as one readable text."""
        return self.user if self.system is None else f"{self.system}\n\n{self.user}"
