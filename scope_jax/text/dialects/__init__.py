"""Dialects: how a model writes the calls of tools, and how it is shown their results.

A dialect is a format and two tags; names and arguments come from the JSON schemas of the tools. SCOPE's Table 11 has
three for its searches: an XML tag, a Hermes tool call and a function call; SCORE's is the XML tag with results in
another tag. Each is a file in this folder; a card selects one by name (`model.dialect`), or gives the path of its own
TOML file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from scope_jax.errors import UserError
from scope_jax.text import parsing, toml
from scope_jax.text.dialects import formats, gemma, harmony, mistral
from scope_jax.text.dialects.formats import Call, Format
from scope_jax.text.dialects.values import Malformed
from scope_jax.text.schemas import Schema, parameters_of
from scope_jax.text.validation import STEPS, budget

JOINT = "\n---\n"  # separates the results of several queries of one turn (verl)
_RULE = re.compile(r"^(?=---+$)", re.MULTILINE)  # such a line in a result is made one dash longer
_LONGER_RULE = re.compile(r"^-(?=---+$)", re.MULTILINE)
_FOLDER = Path(__file__).parent
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TAGS: Mapping[Format, str] = {"hermes": "tool_call", "qwen-coder": "tool_call", "function": "function_calls"}
# By format, text with which a prompt explains calls, where that is not the opening tag; xml: see `Dialect.described`.
_EXPLAINED: Mapping[Format, str] = {
    "llama": '"parameters"',
    "qwen-coder": "<function=",
    "harmony": "namespace functions",
    "gemma": "<|tool>declaration:",
    "mistral": "[AVAILABLE_TOOLS]",
    "xml": "written like this",
}
# Formats with a token for the beginning of a call.
_OPENINGS: Mapping[Format, str] = {"gemma": gemma.OPENING, "mistral": mistral.MARK}
# Formats whose calls chat templates have a place of their own for, see `Dialect.structured`.
_STRUCTURED = {"harmony": harmony, "gemma": gemma, "mistral": mistral}
_FORMER = {"text": "xml", "json": "hermes", "expression": "function"}  # payloads of earlier dialect files


class DialectError(UserError):
    """A dialect cannot be used; the message is one sentence with its name or file and the remedy."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CallTable(_Table):
    """tag: encloses calls in the formats hermes and function, in place of tool_call and function_calls."""

    tag: str


class ResultsTable(_Table):
    """How results are shown.

    tag: encloses their text. role: the role of their message if turns are joined by the chat template.
    template_wraps: the template itself marks messages of that role, so the tag is left out of them. each: every result
    of a turn is a message of its own, if the template has room for it.
    """

    tag: str
    role: Literal["user", "tool", "environment", "ipython"]
    template_wraps: bool = False
    each: bool = False


class Dialect(_Table):
    """A dialect. format: of calls, see `formats`; the tables say what is particular to the dialect."""

    format: Format
    results: ResultsTable
    call: CallTable | None = None

    @model_validator(mode="after")
    def _whole(self) -> Dialect:
        if self.call is not None and self.format not in ("hermes", "function"):
            raise UserError(f"the format {self.format} has no tag of its own; remove [call]")
        for key, tag in (("call.tag", self._tag), ("results.tag", self.results.tag)):
            if tag is not None and not _NAME.fullmatch(tag):
                raise UserError(f"{key} is {tag!r}; use lower-case letters, digits and _, without < and >")
        if self._tag == self.results.tag:
            raise UserError("call.tag and results.tag are the same; a result must not look like a call")
        if self.results.each and not self.results.template_wraps:
            raise UserError("results.each needs results.template_wraps; set both, or neither")
        return self

    @property
    def _tag(self) -> str | None:
        return self.call.tag if self.call is not None else _TAGS.get(self.format)

    @property
    def declares(self) -> bool:
        """True if the chat template declares tools to the model; in the format xml the prompt has to."""
        return self.format != "xml"

    @property
    def structured(self) -> bool:
        """True if chat templates show a result only as that of a call, in the field `tool_calls` of the message before
        it; calls have special tokens, which text is never encoded as."""
        return self.format in _STRUCTURED

    @property
    def single(self) -> bool:
        """True if a turn has one call at most, which ends it."""
        return self.format in ("llama", "harmony")

    @property
    def exact(self) -> bool:
        """True if a search has no arguments besides the query; in the other formats they are left out."""
        return self.format == "function"

    @property
    def result_mark(self) -> str:
        """What a result begins with where it stands in the message of its call, behind it; "" where it is a message of
        its own."""
        return f"{gemma.RESULT}response:" if self.format == "gemma" else ""

    @property
    def explained(self) -> str:
        """What a prompt that explains calls has in it."""
        return _EXPLAINED.get(self.format, f"<{self._tag}>")

    def declared_in(self, prompt: str) -> bool:
        """True if a prompt with tools, of a chat template, seems to be in this dialect; not for llama, whose form every
        schema has."""
        return self.declares and self.format != "llama" and self.explained in prompt

    def tag(self, name: str) -> str | None:
        """The tag around the calls of a tool: in the format xml its name; None in the formats llama, harmony, gemma and
        mistral."""
        return name if self.format == "xml" else self._tag

    def stops(self, name: str) -> tuple[str, ...]:
        """Strings with which a call of a tool ends; none in the formats llama, harmony and mistral, whose calls end the
        turn."""
        if self.format == "gemma":
            return (gemma.CLOSING,)
        tag = self.tag(name)
        return () if tag is None else (f"</{tag}>",)

    @property
    def tags(self) -> tuple[str, ...]:
        """Names of the tags that neither documents nor other roles may use, besides the tools' in the format xml."""
        return tuple(tag for tag in (self._tag, self.results.tag) if tag is not None)

    def example(self, name: str, argument: str) -> str:
        """For prompts, what a call of a tool with one text argument looks like; only its name where the chat template
        says how it is written."""
        match self.format:
            case "xml":
                return f"<{name}> your {argument} </{name}>"
            case "function":  # OLMo-3's says where calls stand, and with a system message of the prompt's not even that
                return self.write(Call(name, {argument: f"your {argument}"}), ())
        return f"a call to the {name} function"

    @property
    def place(self) -> str:
        """For prompts, where results appear."""
        if self.format == "llama":
            return f"in a message of the role {self.results.role}"
        if self.structured:
            return "in a message of the function"
        return f"between <{self.results.tag}> and </{self.results.tag}>"

    def write(self, call: Call, tools: Sequence[Schema]) -> str:
        """A call as the model should write it; `read` recovers it. tools: JSON schemas, of which the formats without
        types take those of the arguments. Raises UserError for a call that the format cannot express."""
        parameters = parameters_of(tools).get(call.name, {})
        match self.format:
            case "xml":
                return formats.written_xml(call, parameters)
            case "llama":
                return formats.written_json(call, "parameters")
            case "harmony":
                return harmony.written(call)
            case "gemma":
                return gemma.written(call)
            case "mistral":
                return mistral.written(call)
            case "hermes":
                return f"<{self._tag}>{formats.written_json(call, 'arguments')}</{self._tag}>"
            case "function":
                return f"<{self._tag}>{formats.written_function(call)}</{self._tag}>"
            case "qwen-coder":
                return f"<{self._tag}>\n{formats.written_coder(call, parameters)}\n</{self._tag}>"

    def in_text(self, message: Mapping[str, Any], tools: Sequence[Schema]) -> str:
        """The content of a canonical message (`text.calls`) with its calls behind it, as `write` has them."""
        functions = [call["function"] for call in message.get("tool_calls", ())]
        written = [self.write(Call(one["name"], one["arguments"]), tools) for one in functions]
        return "\n".join(filter(None, [message["content"], *written]))

    @budget(STEPS)
    def read(self, text: str, tools: Sequence[Schema]) -> list[Call]:
        """Every call of a turn's text, valid or malformed, in order. Whether a tool takes the arguments is not checked.

        tools: their JSON schemas; in the format xml only their names are tags. A closing tag without an opening tag is
        ignored. Takes time linear in the text, and raises nothing.
        """
        functions = parameters_of(tools)
        if self.format == "llama":
            return formats.llama_calls(text)
        if self.structured:
            return _STRUCTURED[self.format].calls(text)
        found: list[Call] = []
        for pair in formats.pairs(text, [*functions] if self._tag is None else [self._tag]):
            if pair.closed:
                found += self._inside(pair, text[pair.inner : pair.inner_end], functions)
            else:
                name = pair.tag if self._tag is None else ""
                found.append(formats.malformed(f"</{pair.tag}> is missing", pair.start, pair.end, name))
        return found

    def settled(self, text: str, tools: Sequence[Schema]) -> int:
        """How much of a turn that goes on after `text` no call can begin in, whatever follows."""
        if self.format == "llama":
            return 0 if formats.may_be_llama_call(text) else len(text)
        if self.format == "harmony":
            return harmony.settled(text)
        if self.format in _OPENINGS:
            openings = [_OPENINGS[self.format]]
        else:
            openings = [f"<{tag}>" for tag in ([*parameters_of(tools)] if self._tag is None else [self._tag])]
        ends = [text[-n:] for n in range(1, min(max(map(len, openings), default=0), len(text) + 1))]
        begun = max((len(end) for end in ends if any(each.startswith(end) for each in openings)), default=0)
        return min((at for each in openings if (at := text.find(each)) >= 0), default=len(text) - begun)

    def shown(self, text: str, finished: bool = True) -> str:
        """What a user reads of a turn: in the format harmony what is meant for the user, else all of it. finished:
        False: more text follows, and the result only grows."""
        return harmony.shown(text, finished) if self.format == "harmony" else text

    def spoken(self, text: str, content: str, answered: Sequence[Call]) -> tuple[str, list[tuple[str, Any]]]:
        """A turn as chat templates take it back: what is said, and the names and arguments of the calls that are
        answered, if templates have a place of their own for calls. Where a turn has one call, nothing else is said.

        content: the text with thinking replaced by spaces. answered: calls of `read(content, …)`.
        """
        if not self.structured:
            return parsing.without_thought(text), []
        unread = _STRUCTURED[self.format].unread
        calls = [
            (call.name, dict(call.arguments) if call.valid else unread(text[call.start : call.end]))
            for call in answered
        ]
        if self.single:
            return "" if calls else self.shown(text), calls[-1:]
        return content[: answered[0].start if answered else None].strip(), calls

    def _inside(self, pair: formats.TagPair, content: str, functions: Mapping[str, Schema]) -> Iterator[Call]:
        """The calls of a closed pair: one, or any number in the format function."""
        calls = (
            formats.function_calls(content) if self.format == "function" else [self._single(pair, content, functions)]
        )
        for call in calls:
            start, end = (pair.start, pair.end) if len(calls) == 1 else (pair.inner + call.start, pair.inner + call.end)
            yield replace(call, start=start, end=end, closed=pair.end, opened=pair.start)

    def _single(self, pair: formats.TagPair, content: str, functions: Mapping[str, Schema]) -> Call:
        try:
            match self.format:
                case "xml":
                    return Call(pair.tag, formats.xml_arguments(pair.tag, content, functions[pair.tag]))
                case "qwen-coder":
                    return formats.coder_call(content, functions)
            return formats.json_call(content, "arguments")
        except Malformed as error:
            return formats.malformed(str(error), 0, 0, pair.tag if self.format == "xml" else "")

    def described(self, tools: Sequence[Schema]) -> str:
        """The tools and how to call them, for prompts in a format that chat templates do not declare."""
        shown = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        calls = "\n".join(formats.form_xml(name, parameters) for name, parameters in parameters_of(tools).items())
        return (
            f"You may call these functions, whose JSON schemas are:\n{shown}\n\nA call is written like this:\n{calls}"
            f"\n\nResults appear {self.place}."
        )

    def observations(self, results: Sequence[str]) -> str:
        """The observation after the calls of a turn: their results in order, each in a pair of tags if the dialect has
        `results.each`."""
        if not self.results.each:
            return self.observation(results)
        return "\n".join(self.observation([result]) for result in results)

    def observation(self, results: Sequence[str]) -> str:
        """The results of a turn inside one pair of their tag.

        A line of three or more dashes in a result gets one more dash, so that it cannot be taken for the separator.
        """
        inside = JOINT.join(_RULE.sub("-", result) for result in results)
        return f"<{self.results.tag}>\n{inside}\n</{self.results.tag}>"

    def results_of(self, text: str) -> list[str]:
        """The result texts of an `observation` somewhere in `text`, in the order of the queries."""
        found, block = [], self._block(text, 0)
        while block is not None:
            _, inside, end = block
            found += [_LONGER_RULE.sub("", result) for result in inside.split(JOINT)]
            block = self._block(text, end)
        return found

    def messages(self, text: str) -> list[Mapping[str, str]]:
        """A response to a turn as messages for the chat template.

        A text that begins with an `observation` gets the results' role, any other text the user role. If the template
        marks such messages, the tags are removed, and each of several observations is a message.
        """
        block = self._block(text, 0)
        if block is None or block[0] != 0:
            return [{"role": "user", "content": text}]
        if not self.results.template_wraps:
            return [{"role": self.results.role, "content": text}]
        found = [block]
        while text.startswith(f"\n<{self.results.tag}>\n", found[-1][2]) and (block := self._block(text, found[-1][2])):
            found.append(block)
        contents = [content for _, content, _ in found]
        contents[-1] += text[found[-1][2] :]
        return [{"role": self.results.role, "content": content} for content in contents]

    def _block(self, text: str, place: int) -> tuple[int, str, int] | None:
        """(start, content, end) of the first closed pair of the results' tag at or after `place`; None without one."""
        opening, closing = f"<{self.results.tag}>", f"</{self.results.tag}>"
        start = text.find(opening, place)
        end = text.find(closing, start) if start >= 0 else -1
        if end < 0:
            return None
        inside = text[start + len(opening) : end]
        return start, inside.removeprefix("\n").removesuffix("\n"), end + len(closing)


def names() -> list[str]:
    """Names of the built-in dialects."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


@cache
def load(name: str) -> Dialect:
    """The dialect of that name, or from a TOML file. Raises DialectError."""
    path = Path(name) if name.endswith(".toml") else _FOLDER / f"{name}.toml"
    if not path.is_file():
        raise DialectError(
            f"unknown dialect {name}; choose one of {', '.join(names())}, or give the path of your own TOML file"
        )
    try:
        table = toml.tables(path)
    except ValueError as error:
        raise DialectError(f"the dialect file {path}: {error}") from None
    try:
        _check_keys(table, path)
        return Dialect.model_validate(table)
    except ValidationError as error:
        item = error.errors()[0]
        key = ".".join(map(str, item["loc"]))
        reason = item["msg"].removeprefix("Value error, ")
        raise DialectError(f"the dialect file {path}: {f'`{key}`: ' if key else ''}{reason}") from None


def _check_keys(table: Mapping[str, Any], path: Path) -> None:
    """Raises DialectError for keys of earlier versions, in which a dialect was of one function of one argument."""
    call = table.get("call")
    former = [
        f"call.{key}" for key in ("payload", "name", "argument", "template") if isinstance(call, dict) and key in call
    ]
    former += [key for key in ("words", "tool") if key in table]
    if former:
        payload = call.get("payload") if isinstance(call, dict) else None
        kind = _FORMER.get(payload, "hermes") if isinstance(payload, str) else "hermes"
        rest = "remove [call]" if kind == "xml" else "of [call] keep only `tag`"
        raise DialectError(
            f"the dialect file {path}: `{former[0]}` is no key any more, as names and arguments come from the tools; "
            f'write format = "{kind}" as its first line, {rest}, keep [results], and remove [words] and [tool] '
            "(docs/tools.md#dialects)"
        )
