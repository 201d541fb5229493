"""The formats of calls: how the calls inside a pair of tags, or in a whole turn, are written and read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from scope_jax.errors import UserError
from scope_jax.text.dialects import values
from scope_jax.text.dialects.values import Malformed, json_of
from scope_jax.text.parsing import shorten
from scope_jax.text.schemas import Schema, accepts, arguments_of, only_text

Format = Literal["xml", "hermes", "llama", "function", "qwen-coder", "harmony", "gemma", "mistral"]
LONGEST = 300  # characters of a sentence for the policy
PYTHON = "<|python_tag|>"  # Llama's special token before a call

_CALLED = re.compile(r'\{\s*+"name"\s*+:')
_NAME = re.compile(r"\s*+([^\W\d][\w.-]*+)\s*+\(\s*+")
_CALL_END = re.compile(r"\s*+[;,]?+\s*+")
_FUNCTION = re.compile(r"\s*+<function=([^<>\n]++)>")
_PARAMETER = re.compile(r"\s*+<parameter=([^<>\n]++)>\n?+")
_CODER = r"</?tool_call>|<function=|</function>|<parameter=|</parameter>"


@dataclass(frozen=True)
class Call:
    """A call of a tool, as written in a turn or to be written. Equality ignores its places."""

    name: str
    """Of the tool; "" if a malformed call does not say it."""
    arguments: Mapping[str, Any]
    """JSON values by name."""
    error: str = ""
    """Why it is malformed, as a sentence for the policy; "" if it is not."""
    start: int = field(default=0, compare=False)
    """Where it begins in the text of the turn."""
    end: int = field(default=0, compare=False)
    """Where it ends."""
    closed: int = field(default=0, compare=False)
    """Where the pair of tags around it ends; of calls without one, its end."""
    opened: int = field(default=0, compare=False)
    """Where the pair begins; of calls without one, its start."""

    @property
    def valid(self) -> bool:
        return not self.error


def malformed(reason: str, start: int, end: int, name: str = "") -> Call:
    """A call that cannot be read. reason: the end of a sentence."""
    subject = f"the call of {name}" if name else "a call"
    return Call(name, {}, shorten(f"error: {subject} cannot be read: {reason}", LONGEST), start, end, end, start)


class TagPair(NamedTuple):
    """A pair of tags: text[start:end], with its content at text[inner:inner_end]; `closed` is False for a tag without
    its closing one."""

    tag: str
    start: int
    inner: int
    inner_end: int
    end: int
    closed: bool


def pairs(text: str, tags: Sequence[str]) -> Iterator[TagPair]:
    """The pairs of these tags, in order. A pair ends at the first closing tag and begins at the last opening tag of its
    kind before it; other tags inside are its content. An unclosed tag reaches to the next opening tag, or to the end of
    the text."""
    marks = list(re.finditer(f"<(/?)({'|'.join(map(re.escape, tags))})>", text)) if tags else []
    following: dict[str, int] = {}  # by tag: the next mark of it
    after: list[int | None] = [None] * len(marks)
    opening = [len(text)] * len(marks)  # where the next opening tag of any kind begins
    for index in reversed(range(len(marks))):
        after[index] = following.get(marks[index][2])
        following[marks[index][2]] = index
        if index + 1 < len(marks):
            opening[index] = opening[index + 1] if marks[index + 1][1] else marks[index + 1].start()
    index = 0
    while index < len(marks):
        mark, partner = marks[index], after[index]
        index += 1
        if mark[1]:
            continue
        if partner is not None and marks[partner][1]:
            other = marks[partner]
            yield TagPair(mark[2], mark.start(), mark.end(), other.start(), other.end(), True)
            index = partner + 1
        else:
            end = opening[index - 1]
            yield TagPair(mark[2], mark.start(), mark.end(), end, end, False)


def escaped(text: str, tags: str) -> str:
    """`text` with the < of these tags (a pattern) as &lt;, so that it holds none; reversed by `unescaped`."""
    text = re.sub(rf"&(?=(?:amp;)*+lt;(?:{_rest(tags)}))", "&amp;", text)
    return re.sub(rf"<(?={_rest(tags)})", "&lt;", text)


def unescaped(text: str, tags: str) -> str:
    """The text that `escaped` was given."""
    text = re.sub(rf"&lt;(?={_rest(tags)})", "<", text)
    return re.sub(rf"&amp;(?=(?:amp;)*+lt;(?:{_rest(tags)}))", "&", text)


def _rest(tags: str) -> str:
    return "|".join(tag.removeprefix("<") for tag in tags.split("|"))


# --------------------------------------------------------------------------------------------------------- JSON objects
def json_call(text: str, arguments: str) -> Call:
    """The call of a JSON object with "name" and `arguments`. Raises Malformed."""
    value = values.from_json(text, around=2)
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise Malformed(f'an object with "name" and "{arguments}" is needed')
    if not isinstance(value.get(arguments), dict):
        raise Malformed(f'"{arguments}" must be an object')
    return Call(value["name"], value[arguments])


def written_json(call: Call, arguments: str) -> str:
    """{"name": …, arguments: {…}}"""
    return f'{{"name": {json_of(call.name)}, "{arguments}": {json_of(dict(call.arguments))}}}'


def llama_calls(text: str) -> list[Call]:
    """The call that a whole turn is: an object with "name" and "parameters", after <|python_tag|> or not.

    Any other object is an answer; a turn that begins like a call and is none is a malformed one.
    """
    start = values.skip(text, 0)
    tagged = text.startswith(PYTHON, start)
    inside = text[start + len(PYTHON) * tagged :].strip()
    if not tagged and not inside.startswith("{"):
        return []
    end = len(text.rstrip())
    try:
        call = json_call(inside, "parameters")
    except Malformed as error:
        return [malformed(str(error), start, end)] if tagged or _CALLED.match(inside) else []
    return [replace(call, start=start, end=end, closed=end, opened=start)]


def may_be_llama_call(text: str) -> bool:
    """False if no turn that begins with `text` is a call."""
    begins = text.lstrip()[: len(PYTHON)]
    return begins.startswith("{") or PYTHON.startswith(begins)


# ------------------------------------------------------------------------------------------------------- function calls
def function_calls(text: str) -> list[Call]:
    """name(key=literal, …), one after the other, by lines or commas; what is none makes the rest malformed."""
    found: list[Call] = []
    at = 0
    while at < len(text) or not found:
        name = _NAME.match(text, at)
        try:
            if name is None:
                raise Malformed("name(argument=value) is needed")
            arguments, end = _arguments(text, name.end())
        except Malformed as error:
            return [*found, malformed(str(error), at, len(text), name[1] if name else "")]
        end = _CALL_END.match(text, end).end()  # type: ignore[union-attr]
        call = Call(name[1], arguments, "", at, end, end)
        try:
            values.check_characters(text[at:end], arguments)
        except Malformed as error:
            call = malformed(str(error), at, end, name[1])
        found.append(call)
        at = end
    return found


def _arguments(text: str, at: int) -> tuple[dict[str, Any], int]:
    arguments: dict[str, Any] = {}

    def read(place: int) -> int:
        name, value, end = values.key_and_value(text, place, "=", 0, values.argument_name)
        values.put(arguments, name, value)
        return end

    return arguments, values.items(text, at, ")", read)


def written_function(call: Call) -> str:
    """name(key=literal, …)"""
    pairs = ", ".join(f"{values.name_of(name)}={json_of(value)}" for name, value in call.arguments.items())
    return f"{call.name}({pairs})"


# ----------------------------------------------------------------------------------------------------------- Qwen-Coder
def coder_call(text: str, functions: Mapping[str, Schema]) -> Call:
    """The call of <function=name> with a <parameter=key> for each argument. Raises Malformed.

    The format has no types: JSON of another type that the argument's schema takes is this value, and any other text is
    itself, as is text in quotes where the argument may be text.
    """
    function = _FUNCTION.match(text)
    if function is None:
        raise Malformed("<function=name> is needed")
    name, at = function[1], function.end()
    parameters = functions.get(name, {})
    known = arguments_of(parameters)
    arguments: dict[str, Any] = {}
    while parameter := _PARAMETER.match(text, at):
        end = text.find("</parameter>", parameter.end())
        if end < 0:
            raise Malformed(f"<parameter={parameter[1]}> is not closed")
        content = text[parameter.end() : end].removesuffix("\n")
        if "<parameter=" in content:
            raise Malformed(f"<parameter={parameter[1]}> is not closed")
        content = unescaped(content, _CODER)
        values.put(arguments, parameter[1], _typed(content, parameter[1], known, parameters))
        at = end + len("</parameter>")
    if text[at:].strip() != "</function>":
        raise Malformed("after its parameters only </function> may follow")
    return Call(name, arguments)


def _typed(content: str, argument: str, known: Mapping[str, Schema], parameters: Schema) -> Any:
    if argument not in known or only_text(known[argument]):
        return content
    try:
        value = values.from_json(content)
    except Malformed:
        return content
    if not accepts(content, argument, parameters):
        return value
    return value if not isinstance(value, str) and accepts(value, argument, parameters) else content


def written_coder(call: Call, parameters: Schema) -> str:
    """<function=name> with a <parameter=key> for each argument, on lines of their own.

    Raises UserError for names with < or >, and for an argument that is not text but should be.
    """
    known = arguments_of(parameters)
    lines = [f"<function={_bare(call.name)}>"]
    for name, value in call.arguments.items():
        text = name not in known or only_text(known[name])
        if isinstance(value, str) and (text or accepts(value, name, parameters)):
            content = escaped(value, _CODER)
        elif text:
            raise UserError(f"{call.name}: the argument {name!r} is text in this format, not {value!r}.")
        else:
            content = json_of(value)
        lines += [f"<parameter={_bare(name)}>", content, "</parameter>"]
    return "\n".join([*lines, "</function>"])


def _bare(name: str) -> str:
    if not name or re.search(r"[<>\n]", name):
        raise UserError(f"The name {name!r} cannot be written in the format qwen-coder; rename it.")
    return name


# ------------------------------------------------------------------------------------------------------------------ XML
def text_argument(parameters: Schema) -> str | None:
    """The name of a function's argument if it takes one, and this is text."""
    known = arguments_of(parameters)
    (name, argument) = next(iter(known.items()), ("", {}))
    return name if len(known) == 1 and only_text(argument) else None


def xml_arguments(name: str, text: str, parameters: Schema) -> dict[str, Any]:
    """The arguments inside <name>: the text of the only one, or a JSON object. Raises Malformed."""
    if (single := text_argument(parameters)) is not None:
        return {single: unescaped(text, _tags(name))}
    if not arguments_of(parameters) and not text.strip():
        return {}
    value = values.from_json(text, around=1)
    if not isinstance(value, dict):
        raise Malformed(f"between <{name}> and </{name}> a JSON object with its arguments is needed")
    return value


def written_xml(call: Call, parameters: Schema) -> str:
    """<name>text</name>, or with a JSON object inside. Raises UserError for an argument that should be text."""
    content = json_of(dict(call.arguments))
    if (single := text_argument(parameters)) is not None:
        if [*call.arguments] != [single] or not isinstance(call.arguments[single], str):
            raise UserError(f"{call.name} takes only the text {single}, not {content[:100]}.")
        content = escaped(call.arguments[single], _tags(call.name))
    return f"<{call.name}>{content}</{call.name}>"


def form_xml(name: str, parameters: Schema) -> str:
    """What a call looks like, for prompts."""
    if (single := text_argument(parameters)) is not None:
        return f"<{name}>{single}</{name}>"
    fields = ", ".join(f"{json_of(argument)}: …" for argument in arguments_of(parameters))
    return f"<{name}>{{{fields}}}</{name}>"


def _tags(name: str) -> str:
    return f"<{re.escape(name)}>|</{re.escape(name)}>"
