"""A given message of the assistant as what a policy would write after the prompt before it.

The prompt is the one that a rollout has with the same history; the reply is what the template adds to it for the
message. Renderings in which every string is marked show whether the reply has the whole message and nothing else.

* A template may change the history once a message follows (gpt-oss leaves out earlier thoughts): then the reply begins
  behind the last header of the assistant.
* A prompt may open a thought that the template leaves out of the message (DeepSeek-R1): then the thought, or an empty
  one, is written and closed behind the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from scope_jax.errors import UserError
from scope_jax.models.tokenizers.chat import ChatTemplate, MaskedChat, Stretch
from scope_jax.models.tokenizers.message_forms import THOUGHT_FIELDS, thought_and_answer
from scope_jax.models.tokenizers.rendering import TemplateLimit

MOST_HEADERS = 8  # of the messages that a reply consists of
CLOSING = "\n</think>\n\n"  # ends a thought that the prompt opened
_TAGS = re.compile(r"(</?think>)")
_OPENED = re.compile(r"<think>\s*\Z")
_CLOSED = re.compile(r"<think>\s*</think>\s*\Z")

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]] | None


class NotShown(UserError):
    """A chat template leaves out a part of a conversation, or shows it elsewhere; the message says which."""


@dataclass(frozen=True)
class GivenReply:
    """A prompt and what the policy writes after it."""

    prompt: list[Stretch]
    """Up to where the policy begins to write."""
    said: list[Stretch]
    """What it writes, up to the end of the message's last string."""
    reply: list[Stretch]
    """All that the template writes from the prompt on: `said`, the end of the message, and what it writes behind."""
    following: Callable[[], list[Stretch]]
    """What the template writes behind `reply` if another message follows; empty where that is not known."""


def given_reply(
    chat: ChatTemplate,
    before: Sequence[Message],
    message: Message,
    tools: Tools,
    forbid: Collection[str],
    trusted: Collection[str],
    options: Mapping[str, Any],
) -> GivenReply:
    """The assistant's `message` after the messages before it; the other arguments as in Tokenizer.encode_chat.

    Raises NotShown unless the reply has the whole message, and the prompt all tools, calls and messages of others;
    UserError if the template rejects the conversation.
    """
    masked = MaskedChat(chat, [*before, message], tools, forbid, trusted, options)
    *history, answer = masked.messages
    thought, content = thought_and_answer(answer)
    views = _Views(masked, history, answer)
    try:
        said, reply = _found(views, _ways_of(thought))
    except TemplateLimit:
        raise
    except UserError:
        if thought is not None and _CLOSED.search(views.prompt):
            raise NotShown(
                "The message has a thought, which the prompt has closed before it; let prompts leave it open "
                "(chat_template_kwargs, such as enable_thinking), or take the thought out"
            ) from None
        if _OPENED.search(views.prompt) is None:
            raise
        bare = {name: value for name, value in answer.items() if name not in THOUGHT_FIELDS} | {"content": content}
        written = f"{thought or ''}{CLOSING}"
        said, reply = (written + text for text in _found(replace(views, answer=bare), [_behind_opened]))
    return GivenReply(
        prompt=chat.split(views.prompt, masked),
        said=chat.split(said, masked),
        reply=chat.split(reply, masked),
        following=lambda: chat.split(_following(views), masked),
    )


# ---------------------------------------------------------------------------------------------- where a reply begins
@dataclass(frozen=True)
class _Views:
    """A conversation rendered up to its last message, and with it; each when it is needed."""

    masked: MaskedChat
    history: Sequence[Message]
    answer: Message
    tools: Tools = None
    """Instead of the conversation's."""

    @cached_property
    def before(self) -> str:
        """Up to the last message."""
        return self.masked.render(self.history, False, self.tools)

    @cached_property
    def prompt(self) -> str:
        """The same with the generation prompt."""
        return self.masked.render(self.history, True, self.tools)

    @cached_property
    def whole(self) -> str:
        """With the last message."""
        return self.masked.render([*self.history, self.answer], False, self.tools)

    def added(self, head: str) -> str | None:
        """What `whole` adds to a head; None if it does not begin with it."""
        return self.whole.removeprefix(head) if self.whole.startswith(head) else None


Way = Callable[[_Views], str | None]  # the reply in two renderings; None where it is not to be had this way


def _ways_of(thought: str | None) -> list[Way]:
    """The ways to find the reply that a message with this thought is, the most certain one first."""
    # Some prompts have an empty thought that messages have not.
    closed: list[Way] = [_behind_closed] if thought is None else []
    return [_behind_prompt, *closed, *(partial(_behind_header, count) for count in range(1, MOST_HEADERS + 1))]


def _behind_prompt(views: _Views) -> str | None:
    return views.added(views.prompt)


def _behind_closed(views: _Views) -> str | None:
    return views.added(_CLOSED.sub("", views.prompt))


def _behind_opened(views: _Views) -> str | None:
    return views.added(_OPENED.sub("", views.prompt))


def _behind_header(count: int, views: _Views) -> str | None:
    """What follows the assistant's header, of so many from the end on."""
    header = views.prompt.removeprefix(views.before) if views.prompt.startswith(views.before) else ""
    parts = views.whole.rsplit(header, count) if header else []
    return header.join(parts[1:]) if len(parts) > count else None


def _found(plain: _Views, ways: Sequence[Way]) -> tuple[str, str]:
    """(`said`, `reply`) of an answer by the first way that shows all of the answer and nothing else."""
    masked = plain.masked
    marks = _Marks(masked.masker.visible)
    tools = None if masked.tools is None else [marks.tool(tool) for tool in masked.tools]
    earlier = [marks.message(message) for message in plain.history]
    marked = _Views(masked, earlier, marks.message(plain.answer), tools)
    problem = marks.left_out(marked.prompt, marks.required - marks.last)
    if problem is None:
        problem = "writes the assistant's message elsewhere than behind its generation prompt"
        for way in ways:
            shown, reply = way(marked), way(plain)
            if shown is None or reply is None:
                continue
            problem = marks.left_out(shown, marks.last)
            if problem is None and marks.in_text(shown) <= marks.last:
                return _without_end(reply, marks.tail(shown)), reply
    raise NotShown(f"The chat template {problem or 'changes the history once a message follows'}")


def _without_end(reply: str, end: str) -> str:
    return reply.removesuffix(end) if reply.endswith(end) else ""


def _following(views: _Views) -> str:
    """What the template writes behind an answer if the results of its calls or another question follow."""
    calls = views.answer.get("tool_calls") or []
    results = [
        {"role": "tool", "content": "?", "name": call["function"]["name"], "tool_call_id": call.get("id", "")}
        for call in calls
    ]
    later = results or [{"role": "user", "content": "?"}]
    try:
        longer = views.masked.render([*views.history, views.answer, *later], False)
    except TemplateLimit:
        raise
    except UserError:
        return ""
    return longer.removeprefix(views.whole) if longer.startswith(views.whole) else ""


# --------------------------------------------------------------------------------------------------------------- marks
@dataclass
class _Marks:
    """Marks around the strings of a conversation, by which it is seen where a rendering shows them."""

    sign: str
    """A character that no text has."""
    names: list[str] = field(default_factory=list)
    """What each mark stands for."""
    required: set[int] = field(default_factory=set)
    """Those of tools, calls and the messages of others, which a prompt must show."""
    last: set[int] = field(default_factory=set)
    """Those of the message that was marked last."""

    def tool(self, tool: Mapping[str, Any]) -> Mapping[str, Any]:
        """A tool whose name is marked."""
        function = tool.get("function", tool)
        named = {**function, "name": self._text(function["name"], f"the tool {function['name']}")}
        self.required = set(range(len(self.names)))
        return {**tool, "function": named} if "function" in tool else named

    def message(self, message: Message) -> Message:
        """A message whose content, thought and calls are marked."""
        first, role = len(self.names), message["role"]
        fields = {"content": f"the content of a message of the {role}"}
        fields |= dict.fromkeys(THOUGHT_FIELDS, f"the thought of a message of the {role}")
        marked = {
            key: self._text(value, fields[key]) if key in fields and isinstance(value, str) else value
            for key, value in message.items()
        }
        calls = len(self.names)
        if message.get("tool_calls"):
            marked["tool_calls"] = [self._call(call) for call in message["tool_calls"]]
        self.last = set(range(first, len(self.names)))
        # A template may leave out what the assistant said and thought before, but not its calls.
        self.required |= set(range(calls if role == "assistant" else first, len(self.names)))
        return marked

    def left_out(self, text: str, wanted: Collection[int]) -> str | None:
        """What a rendering lacks of these marks, as part of a sentence; None if it has all."""
        missing = sorted(set(wanted) - self.in_text(text))
        return f"leaves out {self.names[missing[0]]}" if missing else None

    def in_text(self, text: str) -> set[int]:
        """The marks whose strings begin in a text."""
        return {int(number) for number in re.findall(f"{self.sign}([0-9]+)a{self.sign}", text)}

    def tail(self, text: str) -> str:
        """What follows the last marked string; all of a text without one."""
        ends = [found.end() for found in re.finditer(f"{self.sign}[0-9]+z{self.sign}", text)]
        return text[ends[-1] :] if ends else text

    def _call(self, call: Mapping[str, Any]) -> Mapping[str, Any]:
        function = call["function"]
        name = f"a call of {function['name']}"
        return {**call, "function": {key: self._value(value, name) for key, value in function.items()}}

    def _value(self, value: Any, name: str) -> Any:
        if isinstance(value, str):
            return self._text(value, name)
        if isinstance(value, Mapping):
            return {self._text(key, name): self._value(item, name) for key, item in value.items()}
        return [self._value(item, name) for item in value] if isinstance(value, list) else value

    def _text(self, text: str, name: str) -> str:
        """A text with marks; the tags of a thought stay at the edges, where templates look for them."""
        parts = _TAGS.split(text)
        return "".join(self._mark(part, name) if part.strip() and not _TAGS.fullmatch(part) else part for part in parts)

    def _mark(self, text: str, name: str) -> str:
        number = len(self.names)
        self.names.append(name)
        return f"{self.sign}{number}a{self.sign}{text}{self.sign}{number}z{self.sign}"
