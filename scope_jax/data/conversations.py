"""Rows of supervised and preference data: conversations, as lists of messages, in the forms of published data sets.

A message is {"role", "content"} with whatever else the chat template reads, such as "tool_calls"; ShareGPT's {"from",
"value"} is understood, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scope_jax.retrieval.rows import DataError, Row, is_text, kind_of, optional, required, text_of

Message = dict[str, Any]
Columns = Mapping[str, str]

MESSAGES = ("messages", "conversations", "conversation")
PROMPT, COMPLETION = ("prompt", "question", "instruction"), ("completion", "response", "answer", "output")
CHOSEN, REJECTED = ("chosen",), ("rejected",)
SYSTEM, TOOLS = ("system",), ("tools",)
ROLES = {"human": "user", "gpt": "assistant"}  # ShareGPT's names


def conversations(row: Row, where: str, columns: Columns) -> Row:
    """{"messages": […], "first": n, "tools": […] or None}: the assistant's messages from number n on are trained.

    The row has `messages`, or `prompt` and `completion`, texts or messages, of which the completion alone is trained.
    """
    tools = _tools(row, where, columns)
    column, listed = optional(row, where, "messages", MESSAGES, columns)
    if listed is not None:
        messages = _system(row, where, columns) + _messages(listed, where, column)
        return _checked(messages, 0, where, column) | {"tools": tools}
    if optional(row, where, "prompt", PROMPT, columns)[1] is None:
        required(row, where, "messages", MESSAGES, columns)  # raises the error that names the columns
    prompt = _prompt(row, where, columns)
    column, completion = required(row, where, "completion", COMPLETION, columns)
    messages = [*prompt, *_as_messages(completion, "assistant", where, column)]
    return _checked(messages, len(prompt), where, column) | {"tools": tools}


def preferences(row: Row, where: str, columns: Columns) -> Row:
    """{"chosen": a conversation, "rejected": a conversation}, each as in `conversations`, with the same prompt.

    The row has `prompt`, `chosen` and `rejected`, texts or messages; `chosen` and `rejected` may also be whole
    conversations, which begin alike.
    """
    tools = _tools(row, where, columns)
    (better, chosen), (worse, rejected) = (
        required(row, where, name, known, columns) for name, known in (("chosen", CHOSEN), ("rejected", REJECTED))
    )
    answers = [_as_messages(chosen, "assistant", where, better), _as_messages(rejected, "assistant", where, worse)]
    if all(answer[0]["role"] != "assistant" for answer in answers):  # whole conversations
        common = 0
        while common < min(map(len, answers)) and answers[0][common] == answers[1][common]:
            common += 1
        prompt, answers = answers[0][:common], [answer[common:] for answer in answers]
    else:
        prompt = _prompt(row, where, columns)
    if answers[0] == answers[1]:
        raise DataError(f"{where}: `{better}` and `{worse}` are the same; remove the row.")
    pair = zip(("chosen", "rejected"), answers, (better, worse), strict=True)
    return {
        name: _checked([*prompt, *answer], len(prompt), where, column) | {"tools": tools}
        for name, answer, column in pair
    }


def _prompt(row: Row, where: str, columns: Columns) -> list[Message]:
    column, prompt = required(row, where, "prompt", PROMPT, columns)
    return _system(row, where, columns) + _as_messages(prompt, "user", where, column)


def _system(row: Row, where: str, columns: Columns) -> list[Message]:
    column, system = optional(row, where, "system", SYSTEM, columns)
    return [] if system in (None, "") else [{"role": "system", "content": text_of(system, where, column)}]


def _tools(row: Row, where: str, columns: Columns) -> list[Any] | None:
    column, tools = optional(row, where, "tools", TOOLS, columns)
    if tools is None:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise DataError(f"{where}: `{column}` holds {kind_of(tools)}, not the schemas of functions; write a list.")
    return tools


def _as_messages(value: Any, role: str, where: str, column: str) -> list[Message]:
    """A text as one message of this role, or the messages."""
    if isinstance(value, list):
        return _messages(value, where, column)
    return [{"role": role, "content": text_of(value, where, column)}]


def _messages(listed: Any, where: str, column: str) -> list[Message]:
    if not isinstance(listed, list):
        raise DataError(f"{where}: `{column}` holds {kind_of(listed)}, not messages; write a list of objects.")
    if not listed:
        raise DataError(f"{where}: `{column}` is empty; fill it or remove the row.")
    return [_message(one, where, f"{column}[{place}]") for place, one in enumerate(listed)]


def _message(given: Any, where: str, column: str) -> Message:
    if not isinstance(given, dict):
        raise DataError(f"{where}: `{column}` holds {kind_of(given)}, not a message; write an object.")
    message = {key: value for key, value in given.items() if value is not None}  # Parquet files have null for a gap
    if "role" not in message and "from" in message and "value" in message:
        message["role"], message["content"] = message.pop("from"), message.pop("value")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise DataError(f"{where}: `{column}` has no role; write an object with role and content.")
    message["role"] = ROLES.get(role, role)
    content = message.setdefault("content", "") if message.get("tool_calls") else message.get("content")
    if not isinstance(content, str):
        raise DataError(f"{where}: `{column}.content` holds {kind_of(content)}, not text; write a string.")
    if not is_text(content):
        raise DataError(f"{where}: `{column}.content` holds half of a surrogate pair; fix or remove the row.")
    return message


def _checked(messages: list[Message], first: int, where: str, column: str) -> Row:
    """Raises DataError unless something is asked before the assistant speaks, and it speaks last."""
    if messages[0]["role"] == "assistant":
        raise DataError(f"{where}: `{column}` begins with the assistant; begin with a message that it answers.")
    if messages[-1]["role"] != "assistant" or first >= len(messages):
        raise DataError(f"{where}: `{column}` does not end with a message of the assistant, which is to be trained.")
    last = messages[-1]
    if not last["content"].strip() and not last.get("tool_calls"):
        raise DataError(f"{where}: the last message of `{column}` is empty; fill it or remove the row.")
    return {"messages": messages, "first": first}
