"""Rows of supervised and preference data, in the forms of published data sets.

Conversations are lists of messages (`text.conversations` says in which forms), or a prompt and its answer, also with
Alpaca's `instruction`, `input` and `history`; preferences are those of TRL, LLaMA-Factory (ShareGPT) and OpenAI.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scope_jax.data.rows import DataError, Row, optional, required, text_of
from scope_jax.text import conversations as canonical
from scope_jax.text.calls import ConversationError, Message
from scope_jax.text.dialects.values import Malformed, from_json
from scope_jax.text.strict_json import kind_of

Columns = Mapping[str, str]
Tools = list[dict[str, Any]] | None

MESSAGES = ("messages", "conversations", "conversation")
PROMPT, COMPLETION = ("prompt", "question", "instruction"), ("completion", "response", "answer", "output")
CHOSEN, REJECTED = ("chosen", "preferred_output"), ("rejected", "non_preferred_output")
SYSTEM, TOOLS = ("system",), ("tools", "functions")
MASKS = ("weight", "sample_weight", "loss_weight", "loss_mask", "mask", "train_on_turn")  # of rows: read nowhere


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
    if unread := next((name for name in MASKS if row.get(name) not in (None, 1, "", [])), None):
        raise DataError(f"{where}: `{unread}` of a row is not read; give messages a `weight`, or remove it.")
    tools = _tools(row, where, columns)
    column, listed = optional(row, where, "messages", MESSAGES, columns)
    if listed is not None:
        messages = with_system(row, where, columns, canonical.messages(listed, column, tools))
        return _checked(messages, 0, where, column, tools)
    if optional(row, where, "prompt", PROMPT, columns)[1] is None:
        required(row, where, "messages", MESSAGES, columns)  # raises the error that names the columns
    prompt = _prompt(row, where, columns)
    column, completion = required(row, where, "completion", COMPLETION, columns)
    return _answered(row, where, columns, prompt, _answer(completion, where, column), column, tools)


def _preference(row: Row, where: str, columns: Columns) -> Row:
    if isinstance(asked := row.get("input"), Mapping) and "messages" in asked:  # OpenAI's form
        row = {**row, **asked}
    tools = _tools(row, where, columns)
    if gap := next((name for name in (*CHOSEN, *REJECTED) if name in row and row[name] is None), None):
        raise DataError(f"{where}: `{gap}` is null; fill it, or remove the row.")
    better, chosen = required(row, where, "chosen", CHOSEN, columns)
    worse, rejected = required(row, where, "rejected", REJECTED, columns)
    given = [_answer(chosen, where, better), _answer(rejected, where, worse)]
    answers = [canonical.messages(one, column, tools) for one, column in zip(given, (better, worse), strict=True)]
    whole = [answer[0]["role"] not in ("assistant", "tool") for answer in answers]
    if all(whole):
        return _whole_preference(row, where, columns, answers, (better, worse), tools)
    if any(whole):
        raise DataError(f"{where}: one of `{better}` and `{worse}` begins with a prompt; write both with it, or none.")
    prompt = _prompt(row, where, columns)
    pair = [
        _answered(row, where, columns, prompt, one, column, tools)
        for one, column in zip(given, (better, worse), strict=True)
    ]
    if canonical.same(pair[0]["messages"], pair[1]["messages"]):
        raise DataError(f"{where}: `{better}` and `{worse}` are the same; remove the row.")
    return {"chosen": pair[0], "rejected": pair[1]}


def _whole_preference(
    row: Row,
    where: str,
    columns: Columns,
    conversations: list[list[Message]],
    names: tuple[str, str],
    tools: Tools,
) -> Row:
    """A preference of two whole conversations, which begin alike; what the row has of a prompt besides must be it."""
    better, worse = names
    if canonical.same(*conversations):
        raise DataError(f"{where}: `{better}` and `{worse}` are the same; remove the row.")
    count = _common(*conversations)
    prompt = conversations[0][:count]
    if not prompt or any(one[count:] and one[count]["role"] != "assistant" for one in conversations):
        raise DataError(
            f"{where}: `{better}` and `{worse}` answer different prompts; a preference has two answers to one."
        )
    if row.get("history"):
        raise DataError(f"{where}: `history` is not read beside whole conversations; write it into them.")
    column, besides = optional(row, where, "prompt", PROMPT, columns)
    question = [] if besides is None else canonical.messages(asked(besides, where, column), column)
    tail = prompt[-len(question) :] if len(question) <= 1 else prompt
    if question and not canonical.same(_trimmed(question), _trimmed(tail)):
        raise DataError(f"{where}: `{column}` is not the prompt with which `{better}` and `{worse}` begin; remove it.")
    shown = with_system(row, where, columns, prompt)
    pair = [
        _checked([*shown, *one[count:]], len(shown), where, column, tools)
        for one, column in zip(conversations, names, strict=True)
    ]
    return {"chosen": pair[0], "rejected": pair[1]}


def _common(one: list[Message], other: list[Message]) -> int:
    """With how many messages both begin."""
    count = 0
    while count < min(len(one), len(other)) and canonical.same(one[count : count + 1], other[count : count + 1]):
        count += 1
    return count


def _trimmed(messages: list[Message]) -> list[Message]:
    return [{**message, "content": message["content"].strip()} for message in messages]


def _answered(
    row: Row,
    where: str,
    columns: Columns,
    prompt: list[Any],
    answer: list[Any],
    column: str,
    tools: Tools,
) -> Row:
    """The conversation of a prompt and its answer, of which the answer is trained."""
    messages = canonical.messages([*prompt, *answer], column, tools)
    shown = with_system(row, where, columns, messages)
    return _checked(shown, len(prompt) + len(shown) - len(messages), where, column, tools)


def _prompt(row: Row, where: str, columns: Columns) -> list[Any]:
    """The messages of a prompt, as they are."""
    column, prompt = optional(row, where, "prompt", PROMPT, columns)
    if prompt is None:
        column, prompt = optional(row, where, "messages", MESSAGES, columns)
    if prompt is None:
        required(row, where, "prompt", PROMPT, columns)  # raises the error that names the columns
    messages = asked(prompt, where, column)
    if column == "instruction" and row.get("input"):  # Alpaca's
        question = f"{text_of(prompt, where, column)}\n\n{text_of(row['input'], where, 'input')}"
        messages = [{"role": "user", "content": question}]
    return [*_history(row, where), *messages]


def asked(prompt: Any, where: str, column: str) -> list[Any]:
    """A prompt that is a text, or messages."""
    listed = _messages_of(prompt)
    return listed if listed is not None else [{"role": "user", "content": text_of(prompt, where, column)}]


def _answer(value: Any, where: str, column: str) -> list[Any]:
    """An answer that is a text, a message or messages."""
    listed = _messages_of(value)
    return listed if listed is not None else [{"role": "assistant", "content": text_of(value, where, column)}]


def _messages_of(value: Any) -> list[Any] | None:
    """The messages that a value is, or of which it is the JSON text; None for any other text."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            parsed = from_json(value, around=8)
        except Malformed:
            return None
        listed = [parsed] if isinstance(parsed, Mapping) else parsed
        said = isinstance(listed, list) and bool(listed) and all(isinstance(one, Mapping) for one in listed)
        return listed if said and all("role" in one or "from" in one for one in listed) else None
    if isinstance(value, Mapping):
        return [value]
    return value if isinstance(value, list) else None


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


def with_system(row: Row, where: str, columns: Columns, messages: list[Message]) -> list[Message]:
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
