"""Given conversations as rows to be trained on, with the tokens of the assistant's messages marked as sampled.

A message of the assistant is what the policy would write after the prompt before it: from the end of the generation
prompt to the token that ends the message. It is found by rendering the conversation up to the message, with the
generation prompt, and including the message; templates with `{% generation %}` are rendered alike.

* What the template writes around a message (headers, line breaks) is never trained; its end token is.
* A conversation is one row as long as the template only appends. Where it rewrites earlier turns (Qwen3 leaves out
  their thinking), the next message of the assistant is in a row of its own, with the prompt that the policy would get.
* If a template leaves out a part of the message itself (DeepSeek-R1: the thinking), the message is encoded as it is,
  and ends with the end token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scope_jax.errors import UserError
from scope_jax.learner.types import Datum
from scope_jax.models.tokenizer import Tokenizer


def trained_rows(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    first: int = 0,
    tools: Sequence[Mapping[str, Any]] | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[Datum, ...]:
    """The rows of a conversation; behaviour log-probs are 0. first: the assistant's messages before this number are
    part of the prompt. options: variables of the template. Raises ValueError if the template rejects it."""
    rows: list[tuple[list[int], list[bool]]] = []
    for place, message in enumerate(messages):
        if message["role"] != "assistant" or place < first:
            continue
        prompt, turn = _turn(tokenizer, messages[:place], message, tools, options or {})
        ids, sampled = rows[-1] if rows else ([], [])
        if rows and prompt[: len(ids)] == ids:
            sampled += [False] * (len(prompt) - len(ids))
            ids += prompt[len(ids) :]
        else:
            ids, sampled = list(prompt), [False] * len(prompt)
            rows.append((ids, sampled))
        ids += turn
        sampled += [True] * len(turn)
    return tuple(
        Datum(np.array(ids, np.int32), np.array(sampled, bool), np.zeros(len(ids), np.float32)) for ids, sampled in rows
    )


def _turn(
    tokenizer: Tokenizer,
    before: Sequence[Mapping[str, Any]],
    message: Mapping[str, Any],
    tools: Sequence[Mapping[str, Any]] | None,
    options: Mapping[str, Any],
) -> tuple[list[int], list[int]]:
    """(prompt, what the policy writes after it)."""
    if not before:
        raise UserError("a conversation begins with the assistant; begin with a message that it answers.")
    prompt = tokenizer.encode_chat(before, True, tools=tools, **options)
    whole = tokenizer.encode_chat([*before, message], False, tools=tools, **options)
    start, content = _common(prompt, whole), message["content"]
    shown = whole[_common(tokenizer.encode_chat(before, False, tools=tools, **options), whole) :]
    if _squeezed(content) not in _squeezed(tokenizer.decode(shown)):
        if message.get("tool_calls"):
            raise UserError("the chat template leaves out a part of a message with tool calls; choose another one.")
        whole = [*whole[:start], *tokenizer.encode(content), tokenizer.eos_id]
        start = max(start, _common(prompt, whole))
    ends = [place for place, id in enumerate(whole) if id in tokenizer.eos_ids and place >= start]
    return whole[:start], whole[start : ends[-1] + 1 if ends else len(whole)]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of ids with which both begin."""
    places = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(places) if a != b), min(len(one), len(other)))


def _squeezed(text: str) -> str:
    """Without white space, which templates trim and add."""
    return "".join(text.split())
