"""Functions of the client: their schemas in a prompt, the calls of a reply, and earlier calls with their results.

The dialect of the card (`model.dialect`) says how all of them are written. The client runs the functions; here nothing
is called.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby, takewhile
from typing import Any

from scope_jax.errors import UserError
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.play import tool_turns
from scope_jax.play.tool_calls import Tool, clients_tools
from scope_jax.play.turns import SHORT, Joiner
from scope_jax.rollouts.thoughts import Marks
from scope_jax.serving.assemble import Served
from scope_jax.serving.protocol import ApiError, ChatBody, Message
from scope_jax.text import conversations, dialects, parsing, turns
from scope_jax.text.calls import ConversationError, message_of
from scope_jax.text.dialects import Call, Dialect, harmony
from scope_jax.text.schemas import Schema

PROBE = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": "Probes.",  # gpt-oss's template fails without
        "parameters": {"type": "object", "properties": {"text": {"type": "string", "description": "Any."}}},
    },
}
LOOK_BACK = 16  # tokens of a prompt's end that may open the thinking


@dataclass(frozen=True)
class Functions:
    """The functions of a request."""

    schemas: tuple[Schema, ...]
    """As the client wrote them."""
    tools: tuple[Tool, ...]
    """The same without patterns, with which calls are read."""
    dialect: Dialect
    """How calls are written."""
    single: bool
    """A reply has one call at most."""

    @property
    def stops(self) -> tuple[str, ...]:
        """The strings with which calls end."""
        return tool_turns.stops(self.tools, self.dialect)


def functions_of(model: Served, body: ChatBody) -> Functions | None:
    """The functions of a request; None if it has none. Raises ApiError for one that has no usable name or schema."""
    if not body.tools:
        return None
    schemas = tuple(tool.given for tool in body.tools)
    try:
        tools = clients_tools(schemas)
    except UserError as error:
        raise ApiError(f"`tools`: {error!s}", param="tools") from None
    return Functions(schemas, tools, dialects.load(model.cfg.model.dialect), body.parallel_tool_calls is False)


# -------------------------------------------------------------------------------------------------------------- prompts
def prompt(
    model: Served,
    messages: Sequence[Mapping[str, Any]],
    known: Functions | None,
    offered: bool,
    options: Mapping[str, Any],
) -> list[int]:
    """Ids of a canonical conversation with functions, or with earlier calls. known: the functions of the request.
    offered: they may be called. options: variables of the template.

    The names of special tokens in what the client sends are characters, and so are tags of dialects in schemas and
    results. Raises ApiError if the template does not show the functions in full; UserError if it rejects the
    conversation.
    """
    schemas = known.schemas if known and offered else ()
    readable = [tool.schema for tool in known.tools] if known else []
    shown = json.dumps(readable if offered else [])
    try:
        form = _form(model.tokenizer, model.cfg.model.dialect, json.dumps(dict(options), sort_keys=True), shown)
    except UserError as error:
        raise ApiError(f"`tools`: {error!s}", param="tools") from None
    dialect = form.joiner.dialect
    rendered, declared = form.joiner.declared(_rendered(messages, form, readable), schemas or None)
    return model.tokenizer.encode_chat(
        rendered,
        tools=declared,
        forbid=[tag for name in (*parsing.FOREIGN, *dialect.tags) for tag in (f"<{name}>", f"</{name}>")],
        trusted={"assistant", "system", "user"} - {dialect.results.role},
        **options,
    )


@dataclass(frozen=True)
class _Form:
    """How the template shows functions, calls and results."""

    joiner: Joiner
    """Made, it shows that template and dialect have room for all of them."""

    @cached_property
    def writes_calls(self) -> bool:
        """True if the template writes `tool_calls` of messages as the dialect has them."""
        tokenizer = self.joiner.tokenizer
        ask = SHORT.conversation()
        call = Call("probe", {"text": "a b"})
        said = message_of([(call.name, dict(call.arguments))])
        given: dict[str, Any] = {"tools": [PROBE], **self.joiner.options}
        try:
            before = tokenizer.encode_chat(ask, True, **given)
            whole = tokenizer.encode_chat([*ask, said], False, **given)
        except ValueError:
            return False
        pairs = enumerate(zip(before, whole, strict=False))
        start = next((place for place, (one, other) in pairs if one != other), min(len(before), len(whole)))
        end = next((place for place in range(start, len(whole)) if whole[place] in tokenizer.eos_ids), len(whole))
        written = tokenizer.decode(whole[start:end])
        return self.joiner.dialect.declares and self.joiner.dialect.read(written, [PROBE]) == [call]


@lru_cache(maxsize=64)
def _form(tokenizer: Tokenizer, dialect: str, options: str, tools: str) -> _Form:
    """Agents ask again and again with the same functions. options, tools: as JSON."""
    known = tuple(json.loads(tools))
    return _Form(Joiner("chat-trimmed", tokenizer, dialects.load(dialect), json.loads(options), known))


def conversation(messages: Sequence[Message]) -> list[Mapping[str, Any]]:
    """The canonical messages of a request (`text.conversations`). Raises ApiError for calls and results that do not
    belong together."""
    for place, message in enumerate(messages):
        following = takewhile(lambda later: later.role == "tool", messages[place + 1 :])
        answered = [later.tool_call_id for later in following]
        left = [call.id for call in message.tool_calls if None not in answered and call.id not in answered]
        if message.role == "assistant" and left:
            raise ApiError(
                f"`messages.{place}.tool_calls`: the call {left[0][:40]!r} has no result; a message of the role "
                "tool with its id must follow.",
                param="messages",
            )
    try:
        given = [message.model_dump(exclude_unset=True) for message in messages]
        return [*conversations.messages(given, "messages")]
    except ConversationError as error:
        raise ApiError(str(error), param="messages") from None


def _rendered(messages: Sequence[Mapping[str, Any]], form: _Form, schemas: Sequence[Schema]) -> list[Mapping[str, Any]]:
    """Canonical messages for the chat template, earlier calls and their results in the dialect's form. schemas: of the
    calls, as far as they are known."""
    rendered: list[Mapping[str, Any]] = []
    called: Sequence[Mapping[str, Any]] = ()
    for _, alike in groupby(messages, lambda message: message["role"] == "tool"):
        group = list(alike)
        if called and group[0]["role"] == "tool":
            rendered += _answers(group, form.joiner)
        else:
            rendered += [_said(message, form, schemas) for message in group]
        called = group[-1].get("tool_calls", ())
    return rendered


def _answers(results: Sequence[Mapping[str, Any]], joiner: Joiner) -> list[Mapping[str, Any]]:
    """The messages with the results of a turn."""
    answers = _results([result["content"] for result in results], joiner)
    if not joiner.dialect.structured:
        return answers
    pairs = zip(answers, results, strict=False)
    return [{**one, "name": result["name"], "tool_call_id": result["tool_call_id"]} for one, result in pairs]


def _said(message: Mapping[str, Any], form: _Form, schemas: Sequence[Schema]) -> Mapping[str, Any]:
    """A message, its calls as such if the template writes them like the dialect, or as text."""
    if not message.get("tool_calls") or form.writes_calls:
        return message
    bare = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**bare, "content": form.joiner.dialect.in_text(message, schemas)}


def _results(results: Sequence[str], joiner: Joiner) -> list[Mapping[str, Any]]:
    """The messages with the results of a turn, as they are."""
    dialect, tag = joiner.dialect, joiner.dialect.results.tag
    groups = [[result] for result in results] if joiner.each else [results]
    if dialect.results.template_wraps:
        contents = [
            group[0]
            if len(group) == 1
            else dialect.observation(group).removeprefix(f"<{tag}>\n").removesuffix(f"\n</{tag}>")
            for group in groups
        ]
    else:
        contents = [dialect.observation(group) for group in groups]
    return [{"role": dialect.results.role, "content": content} for content in contents]


# -------------------------------------------------------------------------------------------------------------- replies
class ReplyReader:
    """Parts the text of a reply into content and calls (`turns.delivered`), as it arrives.

    The content has the model's thinking, unless the reply is in channels. Calls inside thinking are none, as in
    training.
    """

    def __init__(self, functions: Functions | None, thought: Marks | None, opened: bool, channels: bool) -> None:
        """functions: None if it calls nothing. thought: the marks of thinking, None if it counts as any text. opened:
        the prompt has opened it. channels: the reply has channels (`dialects.harmony`), of which the client gets what a
        user reads."""
        self._functions = functions
        self._schemas = [tool.schema for tool in functions.tools] if functions else []
        self._thought, self._opened, self._channels = thought, opened, channels
        self._text = ""
        self._shown = 0

    def feed(self, text: str) -> str:
        """The content that more text adds: what may belong to a call is kept back."""
        self._text += text
        settled = len(self._text)
        if self._functions is not None:
            settled = self._functions.dialect.settled(self._visible(), self._schemas)
        return self._show(self._text[:settled].rstrip(), finished=False)

    def finish(self) -> tuple[str, list[Call]]:
        """(the rest of the content, the calls), when no more text comes. It may take a third of a second."""
        if self._functions is None:
            return self._show(self._text, finished=True), []
        dialect = self._functions.dialect
        found = turns.read(self._visible(), dialect, self._schemas, turns.checks_of(self._schemas))
        content, calls = turns.delivered(self._text, found, self._functions.single or dialect.single)
        return self._show(content, finished=True), calls

    def _show(self, content: str, finished: bool) -> str:
        """What `content`, which begins with all that was shown, adds."""
        if self._channels:
            content = harmony.shown(content, finished)
        new, self._shown = content[self._shown :], max(self._shown, len(content))
        return new

    def _visible(self) -> str:
        return turns.visible(self._text, self._thought, self._opened)


def marks(model: Served, prompt: Sequence[int]) -> tuple[str, str]:
    """The marks of thinking in a reply to this prompt."""
    return parsing.marks_of(model.tokenizer.decode(prompt[-LOOK_BACK:]))


def reader(
    model: Served, functions: Functions | None, prompt: Sequence[int], channels: bool = False
) -> ReplyReader | None:
    """The reader of a reply to this prompt; None if it is the client's as it is."""
    if functions is None and not channels:
        return None
    thought = marks(model, prompt)
    opened = model.tokenizer.decode(prompt[-LOOK_BACK:]).rstrip().endswith(thought[0])
    return ReplyReader(functions, None if model.cfg.model.tags_in_thinking else thought, opened, channels)
