"""Prompts with the answers by which replies are graded, in the forms of published data sets and other trainers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from scope_jax.data.conversations import asked, with_system
from scope_jax.data.rows import DataError, Row, optional, required
from scope_jax.text import conversations as canonical
from scope_jax.text.calls import ConversationError

PROMPT = ("prompt", "messages", "question", "problem", "query", "instruction")
ANSWER = ("answers", "golden_answers", "answer", "ground_truth", "reference_answer", "solution")
NESTED = "reward_model"  # veRL's


def problems(row: Row, where: str, columns: Mapping[str, str]) -> Row:
    """{"messages": […], "question": the last one's text, "answers": [texts], "prompt", "answer": as they are,
    "columns": all other columns, "where"}.

    A list of texts is a list of right answers; any other value that is no text is one answer, as JSON. A row may have
    none, [], for functions that need none. Raises DataError.
    """
    name, prompt = required(row, where, "prompt", PROMPT, columns)
    try:
        messages = with_system(row, where, {}, canonical.messages(asked(prompt, where, name), name))
    except ConversationError as error:
        raise DataError(f"{where}: {error}") from None
    if messages[-1]["role"] == "assistant":
        raise DataError(
            f"{where}: `{name}` ends with a message of the assistant, which is to be sampled; end with what it answers."
        )
    column, answer = optional(row, where, "answers", ANSWER, columns)
    if answer is None and "answers" not in columns and isinstance(row.get(NESTED), dict):
        answer = _nested(row[NESTED])
    return {
        "messages": messages,
        "question": messages[-1]["content"],
        "answers": _texts(answer),
        "prompt": prompt,
        "answer": answer,
        "columns": {key: value for key, value in row.items() if key not in (name, column)},
        "where": where,
    }


def _nested(reward_model: Mapping[str, Any]) -> Any:
    """The answer in a column of veRL's, also as Search-R1 writes it."""
    truth = reward_model.get("ground_truth")
    return truth["target"] if isinstance(truth, dict) and set(truth) == {"target"} else truth


def _texts(answer: Any) -> list[str]:
    several = isinstance(answer, list) and all(isinstance(one, str) for one in answer)
    texts = [one if isinstance(one, str) else _json(one) for one in (answer if several else [answer])]
    return [] if answer is None else list(dict.fromkeys(text for text in texts if text.strip()))


def _json(value: Any) -> str:
    """A value as JSON; of a column type that JSON does not have, such as a date, its text."""
    return json.dumps(value, ensure_ascii=False, default=str)
