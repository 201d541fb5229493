"""Rows of supervised and preference data, in the forms of published data sets.

Conversations are lists of messages (`text.conversations` says in which forms), or a prompt and its answer, also with
Alpaca's `instruction`, `input` and `history`; preferences are those of TRL, LLaMA-Factory (ShareGPT) and OpenAI.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scope_jax.retrieval.rows import DataError, Row, kind_of, optional, required, text_of
from scope_jax.text import conversations as canonical
from scope_jax.text.conversations import ConversationError, Message

Columns = Mapping[str, str]
Tools = list[dict[str, Any]] | None

MESSAGES = ("messages", "conversations", "conversation")
PROMPT, COMPLETION = ("prompt", "question", "instruction"), ("completion", "response", "answer", "output")
CHOSEN, REJECTED = ("chosen", "preferred_output"), ("rejected", "non_preferred_output")
SYSTEM, TOOLS = ("system",), ("tools", "functions")


def conversations(row: Row, where: str, columns: Columns) -> Row:
    """{"messages": […], "first": n, "tools": […] or None}: the assistant's messages from number n on are trained,
    unless they have the weight 0.

    The row has `messages`, or `prompt` and `completion`, texts or messages, of which the completion alone is trained.
    Raises DataError.
    """
    try:
        return _conversation(row, where, columns)
    except ConversationError as error:
        raise DataError(f"{where}: {error}") from None


def preferences(row: Row, where: str, columns: Columns) -> Row:
    """{"chosen": a conversation, "rejected": a conversation}, each as in `conversations`, with the same prompt.

    The row has `prompt` (or messages, or OpenAI's `input`), `chosen` and `rejected`, texts or messages; `chosen` and
    `rejected` may also be whole conversations, which begin alike. Raises DataError.
    """
    try:
        return _preference(row, where, columns)
    except ConversationError as error:
        raise DataError(f"{where}: {error}") from None


def _conversation(row: Row, where: str, columns: Columns) -> Row:
    tools = _tools(row, where, columns)
    column, listed = optional(row, where, "messages", MESSAGES, columns)
    if listed is not None:
        messages = _with_system(row, where, columns, canonical.messages(listed, column, tools))
        return _checked(messages, 0, where, column, tools)
    if optional(row, where, "prompt", PROMPT, columns)[1] is None:
        required(row, where, "messages", MESSAGES, columns)  # raises the error that names the columns
    prompt = _prompt(row, where, columns, tools)
    column, completion = required(row, where, "completion", COMPLETION, columns)
    answer = _answer(completion, where, column, tools)
    return _checked([*prompt, *answer], len(prompt), where, column, tools)


def _preference(row: Row, where: str, columns: Columns) -> Row:
    if isinstance(asked := row.get("input"), Mapping) and "messages" in asked:  # OpenAI's form
        row = {**row, **asked}
    tools = _tools(row, where, columns)
    if gap := next((name for name in (*CHOSEN, *REJECTED) if name in row and row[name] is None), None):
        raise DataError(f"{where}: `{gap}` is null; fill it, or remove the row.")
    better, chosen = required(row, where, "chosen", CHOSEN, columns)
    worse, rejected = required(row, where, "rejected", REJECTED, columns)
    answers = [_answer(chosen, where, better, tools), _answer(rejected, where, worse, tools)]
    if all(answer[0]["role"] != "assistant" for answer in answers):  # whole conversations
        prompt = _common(*answers)
        answers = [answer[len(prompt) :] for answer in answers]
        if not prompt or any(answer and answer[0]["role"] != "assistant" for answer in answers):
            raise DataError(
                f"{where}: `{better}` and `{worse}` answer different prompts; a preference has two answers to one."
            )
    elif any(answer[0]["role"] != "assistant" for answer in answers):
        raise DataError(f"{where}: one of `{better}` and `{worse}` begins with a prompt; write both with it, or none.")
    else:
        prompt = _prompt(row, where, columns, tools)
    if answers[0] == answers[1]:
        raise DataError(f"{where}: `{better}` and `{worse}` are the same; remove the row.")
    return {
        "chosen": _checked([*prompt, *answers[0]], len(prompt), where, better, tools),
        "rejected": _checked([*prompt, *answers[1]], len(prompt), where, worse, tools),
    }


def _common(one: list[Message], other: list[Message]) -> list[Message]:
    """The messages with which both begin."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return one[:count]


def _prompt(row: Row, where: str, columns: Columns, tools: Tools) -> list[Message]:
    column, prompt = optional(row, where, "prompt", PROMPT, columns)
    if prompt is None:
        column, prompt = optional(row, where, "messages", MESSAGES, columns)
    if prompt is None:
        required(row, where, "prompt", PROMPT, columns)  # raises the error that names the columns
    if isinstance(prompt, list):
        return _with_system(row, where, columns, canonical.messages(prompt, column, tools))
    asked = text_of(prompt, where, column)
    if column == "instruction" and row.get("input"):  # Alpaca's
        asked = f"{asked}\n\n{text_of(row['input'], where, 'input')}"
    turns = [*_history(row, where), {"role": "user", "content": asked}]
    return _with_system(row, where, columns, canonical.messages(turns, column))


def _history(row: Row, where: str) -> list[Message]:
    """The earlier turns of Alpaca's form: pairs of a question and its answer."""
    history = row.get("history") or []
    if not isinstance(history, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in history):
        raise DataError(f"{where}: `history` holds {kind_of(history)}, not pairs of texts; write [[question, answer]].")
    return [
        {"role": role, "content": text_of(text, where, "history")}
        for pair in history
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]


def _with_system(row: Row, where: str, columns: Columns, messages: list[Message]) -> list[Message]:
    """The messages behind the row's system message. Raises DataError if they have another one."""
    column, system = optional(row, where, "system", SYSTEM, columns)
    if system in (None, ""):
        return messages
    text = text_of(system, where, column)
    if messages[0]["role"] == "system":
        if messages[0]["content"] != text:
            raise DataError(f"{where}: `{column}` is one system message, and the first message another; keep one.")
        return messages
    return [{"role": "system", "content": text}, *messages]


def _tools(row: Row, where: str, columns: Columns) -> Tools:
    column, tools = optional(row, where, "tools", TOOLS, columns)
    return canonical.tools(tools, column)


def _answer(value: Any, where: str, column: str, tools: Tools) -> list[Message]:
    """A text as a message of the assistant, or the message or messages."""
    if isinstance(value, Mapping):
        value = [value]
    if isinstance(value, list):
        return canonical.messages(value, column, tools)
    return canonical.messages([{"role": "assistant", "content": text_of(value, where, column)}], column)


def _checked(messages: list[Message], first: int, where: str, column: str, tools: Tools) -> Row:
    """Raises DataError unless something is asked before the assistant speaks, and it speaks last and is trained."""
    spoken = [message for message in messages[first:] if message["role"] == "assistant"]
    trained = [message for message in spoken if message.get("weight") != 0]
    if messages[0]["role"] == "assistant" and (first == 0 and messages[0].get("weight") != 0):
        raise DataError(
            f"{where}: `{column}` begins with the assistant; begin with a message that it answers, or give it weight 0."
        )
    if messages[-1]["role"] != "assistant" or first >= len(messages):
        raise DataError(f"{where}: `{column}` does not end with a message of the assistant, which is to be trained.")
    if not trained:
        raise DataError(f"{where}: no message of `{column}` is trained; give one the weight 1, or remove the row.")
    if empty := [one for one in trained if not (one["content"].strip() or one.get("tool_calls"))]:
        which = "the last message" if empty[-1] is messages[-1] else "a message of the assistant"
        raise DataError(f"{where}: {which} of `{column}` is empty; fill it or remove the row.")
    return {"messages": messages, "first": first, "tools": tools}
