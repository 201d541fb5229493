"""Messages and functions in OpenAI's form, as `serve` and the endpoints of agent programs take and give them.

Unknown fields are refused unless `model_validate` is told to ignore them (`extra`).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FailFast, model_validator
from typing_extensions import TypeAliasType

from scope_jax.text.dialects import Call
from scope_jax.web.guard import Refusal

FIELDS = 1024  # of an object
EMPTY = ("tools", "functions", "tool_calls", "annotations")


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["text"]
    text: str


# Of a wrong list, one error and not one of every element. (A plain alias could not be part of a union: no hash.)
Parts = TypeAliasType("Parts", Annotated[list[Part], FailFast()])


class Called(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: str
    arguments: str
    parsed_arguments: Any = None  # of OpenAI's client, which sends its own replies back


class ChatToolCall(BaseModel):
    """A call of an earlier reply. index: of its stream."""

    model_config = ConfigDict(extra="forbid", strict=True)
    id: str
    type: Literal["function"]
    function: Called
    index: int | None = None


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Parts = ""
    name: str | None = None
    tool_calls: Annotated[list[ChatToolCall], FailFast()] = []
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: None = None

    def text(self) -> str:
        """The content."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class Function(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(BaseModel):
    """A function of the client."""

    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["function"]
    function: Function
    given: Mapping[str, Any]
    """The object as it was sent, for the chat template."""

    @model_validator(mode="before")
    @classmethod
    def _kept(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if "given" in value:
            raise ValueError("`given` is not a field of a tool")
        return {**value, "given": value}


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: Literal[False] = False  # vLLM's


def without_nulls(value: Any) -> Any:
    """Without the fields, at any depth, that clients write as null or as an empty list where they have nothing; schemas
    of functions stay as they are. Raises Refusal for an object of too many fields."""
    if isinstance(value, list):
        return [without_nulls(item) if isinstance(item, list | dict) else item for item in value]
    if len(value) > FIELDS:
        raise Refusal(f"The request has an object of {len(value)} fields; {FIELDS} are taken, no more.")
    kept = {name: own for name, own in value.items() if own is not None and (own != [] or name not in EMPTY)}
    return {
        name: without_nulls(own) if isinstance(own, list | dict) and name != "parameters" else own
        for name, own in kept.items()
    }


# -------------------------------------------------------------------------------------------------------------- replies
def tool_calls(calls: Sequence[Call]) -> list[dict[str, Any]]:
    """Calls with ids of their own."""
    return [
        {
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
        }
        for call in calls
    ]


def usage(prompt: int, sampled: int) -> dict[str, int]:
    """Numbers of tokens."""
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def event(data: Mapping[str, Any]) -> bytes:
    """A server-sent event."""
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
