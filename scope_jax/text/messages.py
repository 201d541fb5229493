"""A prompt before tokenization: the system message, the user message, and the declared tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Messages:
    """The start of a conversation, to be rendered by the model's chat template.

    system: None leaves it to the template, which may have a default; "" is an empty message. tools: JSON schemas of
    the functions that are declared to the model; None: those of the agent that reads it. before: messages, {"role": …,
    "content": …}, between the system message and the user's last one, such as the turns so far, or demonstrations.
    role: of the last message, if that is not the user's.
    """

    user: str
    system: str | None = None
    tools: tuple[Mapping[str, Any], ...] | None = field(default=None, hash=False)  # mappings have no hash
    before: tuple[Mapping[str, str], ...] = field(default=(), hash=False)
    role: str = "user"

    def conversation(self) -> list[Mapping[str, str]]:
        """The messages for a chat template."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *self.before, {"role": self.role, "content": self.user}]

    def declared(self) -> list[Mapping[str, Any]] | None:
        """The tools for a chat template: None instead of an empty list, as templates expect."""
        return list(self.tools or ()) or None

    def declaring(self, tools: Sequence[Mapping[str, Any]]) -> Messages:
        """These messages, with the tools of the agent that reads them unless they say themselves what they declare."""
        return self if self.tools is not None else replace(self, tools=tuple(tools))

    @property
    def text(self) -> str:
        """All messages as one readable text."""
        texts = [message["content"] for message in self.before]
        return "\n\n".join([*([] if self.system is None else [self.system]), *texts, self.user])
