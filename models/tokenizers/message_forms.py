"""The form in which a chat template takes thoughts and the arguments of calls.

Conversations have one form here: a thought in `reasoning_content`, or at the beginning of the content between <think>
and </think>; arguments as an object. Templates differ: some read a thought under another name, or only as a field, and
some write arguments as text. What a template does is found by rendering two short conversations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scope_jax.models.tokenizers.rendering import TemplateLimit

THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")
_INLINE = re.compile(r"\s*<think>(.*?)</think>\s*", re.DOTALL)
_ASK = {"role": "user", "content": "?"}
_THOUGHT, _ANSWER, _KEY, _VALUE = "zqthought", "zqanswer", "zqkey", "zqvalue"

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message]], str]  # raises ValueError if the template rejects the conversation


@dataclass(frozen=True)
class MessageForm:
    """What a template reads."""

    thought: str | None = None
    """The field with the thought of a message; None if it reads none."""
    inline: bool = True
    """A thought inside the content is shown like one in the field."""
    text_arguments: bool = False
    """The arguments of a call are text, not an object."""

    def adapted(self, message: Message) -> Message:
        """A message in this form; one of another role than the assistant's is returned as it is."""
        if message.get("role") != "assistant":
            return message
        changed = dict(message)
        if self.thought is not None:
            thought, answer = thought_and_answer(message)
            if thought is not None and (not self.inline or thought_field(message) is not None):
                for name in THOUGHT_FIELDS:
                    changed.pop(name, None)
                changed[self.thought] = thought
                changed["content"] = answer
        if self.text_arguments and message.get("tool_calls"):
            changed["tool_calls"] = [_with_text(call) for call in message["tool_calls"]]
        return changed


def thought_field(message: Message) -> str | None:
    """The name of the field that holds the thought of a message; None if none does."""
    return next((name for name in THOUGHT_FIELDS if isinstance(message.get(name), str) and message[name]), None)


def thought_and_answer(message: Message) -> tuple[str | None, Any]:
    """(thought, content without it) of an assistant's message: from its field, or from the beginning of its content;
    (None, content) if it has no thought."""
    content = message.get("content")
    if (name := thought_field(message)) is not None:
        return message[name], content
    if isinstance(content, str) and (inline := _INLINE.match(content)):
        return inline[1].strip("\n"), content[inline.end() :]
    return None, content


def form_of(render: Render) -> MessageForm:
    """The form that a template takes. Raises rendering.TemplateLimit."""
    field = next((name for name in THOUGHT_FIELDS if _shows_thought(render, {name: _THOUGHT})), None)
    inline = field is None or _rendered(render, {"content": f"<think>\n{_THOUGHT}\n</think>\n\n{_ANSWER}"}) == (
        _rendered(render, {"content": _ANSWER, field: _THOUGHT})
    )
    return MessageForm(field, inline, not _shows_call(render, False) and _shows_call(render, True))


def _shows_thought(render: Render, field: Mapping[str, str]) -> bool:
    text = _rendered(render, {"content": _ANSWER, **field})
    return _THOUGHT in text and _ANSWER in text


def _shows_call(render: Render, as_text: bool) -> bool:
    call = {"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {_KEY: _VALUE}}}
    text = _rendered(render, {"content": "", "tool_calls": [_with_text(call) if as_text else call]})
    return _KEY in text and _VALUE in text and f"{{'{_KEY}'" not in text  # not an object as Python shows it


def _rendered(render: Render, answer: Mapping[str, Any]) -> str:
    try:
        return render([_ASK, {"role": "assistant", **answer}])
    except TemplateLimit:
        raise
    except ValueError:
        return ""


def _with_text(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """A call whose arguments are JSON text."""
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), Mapping):
        return call
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}
