"""Given conversations as rows to be trained on, with the tokens of the assistant's messages marked as sampled.

A message of the assistant is what the policy would write after the prompt that a rollout has with the same history:
from the end of the generation prompt to the token that ends the message (`models.tokenizers.replies`).

* What the template writes around a message (headers, line breaks) is never trained; its end token is.
* A conversation is one row as long as each prompt continues the row before it. Where a template rewrites earlier turns
  (Qwen3 leaves out their thinking), the next message of the assistant is in a row of its own, with its prompt.
* A message that the template does not show as a whole is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from scope_jax.errors import UserError
from scope_jax.learner.types import Datum
from scope_jax.models.tokenizers.tokenizer import TRUSTED, Tokenizer
from scope_jax.play.turns import PROMPT_TRUSTED, Joiner
from scope_jax.text import conversations

REMEDY = "change the row, or set model.chat_template to a template that shows it"


def given_rows(
    joiner: Joiner,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    first: int = 0,
    tools: Sequence[Mapping[str, Any]] | None = None,
) -> tuple[Datum, ...]:
    """`trained_rows` behind prompts as rollouts have them. Tools are declared by the chat template, as are calls; where
    it knows none, and calls are text, they are described in a system message as the dialect has it."""
    declared = conversations.tools(tools, "tools")
    shown = conversations.messages([*messages], "messages", declared)
    called = any(message.get("tool_calls") for message in shown)
    added = 0
    if declared is not None and not called and not joiner.template_declares(declared):
        described, declared = joiner.declared(shown, declared)
        added = len(described) - len(shown)
        shown = described
    options, forbid = joiner.options, joiner.forbidden
    return trained_rows(tokenizer, shown, first + added, declared, options, forbid, PROMPT_TRUSTED, added)


def trained_rows(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    first: int = 0,
    tools: Sequence[Mapping[str, Any]] | None = None,
    options: Mapping[str, Any] | None = None,
    forbid: Collection[str] = (),
    trusted: Collection[str] = TRUSTED,
    added: int = 0,
) -> tuple[Datum, ...]:
    """The rows of a conversation in any form of `text.conversations`; behaviour log-probs are 0.

    first: the assistant's messages before this number are part of the prompt, as are those of weight 0. tools: JSON
    schemas that the template declares. options: variables of the template. forbid, trusted: of Tokenizer.encode_chat.
    added: how many of the first messages the data does not have, whose numbers errors leave out.
    Raises UserError if the conversation is not understood, or the template rejects it or leaves out a part.
    """
    declared = conversations.tools(tools, "tools")
    known = conversations.messages([*messages], "messages", declared)
    shown = [{key: value for key, value in message.items() if key != "weight"} for message in known]
    rows: list[tuple[list[int], list[bool]]] = []
    for place, message in enumerate(known):
        if message["role"] != "assistant" or place < first or message.get("weight") == 0:
            continue
        if place == 0:
            raise UserError("A conversation begins with the assistant; begin with a message that it answers.")
        try:
            prompt, reply = tokenizer.reply(
                shown[:place], shown[place], tools=declared, forbid=forbid, trusted=trusted, **(options or {})
            )
        except UserError as error:
            sentence = str(error).rstrip(".")
            raise UserError(f"messages[{place - added}]: {sentence[:1].lower()}{sentence[1:]}; {REMEDY}.") from None
        ids, sampled = rows[-1] if rows else ([], [])
        if not rows or prompt[: len(ids)] != ids:
            ids, sampled = [], []
            rows.append((ids, sampled))
        sampled += [False] * (len(prompt) - len(ids)) + [True] * len(reply)
        ids += prompt[len(ids) :] + reply
    return tuple(
        Datum(np.array(ids, np.int32), np.array(sampled, bool), np.zeros(len(ids), np.float32)) for ids, sampled in rows
    )
