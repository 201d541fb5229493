"""Search dialects: how a model writes a search and how it is shown the results, defined in small TOML files.

SCOPE's Table 11 has three dialects: an XML tag, a Hermes tool call and a function call; SCORE's is the XML tag
with results in another tag. Each is a file in this folder; a card selects one by name (`model.dialect`), or gives the
path of its own TOML file.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from scope_jax.errors import UserError

JOINT = "\n---\n"  # separates the results of several queries of one turn (verl)
_RULE = re.compile(r"^(?=---+$)", re.MULTILINE)  # such a line in a result is made one dash longer
_LONGER_RULE = re.compile(r"^-(?=---+$)", re.MULTILINE)
_FOLDER = Path(__file__).parent
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class DialectError(UserError):
    """A dialect cannot be used; the message is one sentence with its name or file and the remedy."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CallTable(_Table):
    """How a search is written.

    The closed pair of `tag` contains the payload: "text", the query itself; "json", an object with `name` and
    `arguments`, where `argument` is the query; "expression", one or more calls `name(argument="…")`. template: a search
    as the model should write it; {query} stands for the query, quoted if the payload requires it.
    """

    tag: str
    payload: Literal["text", "json", "expression"]
    name: str | None = None
    argument: str | None = None
    template: str


class ResultsTable(_Table):
    """How results are shown.

    tag: encloses their text. role: the role of their message if turns are joined by the chat template.
    template_wraps: the template itself writes the tag around messages of that role.
    """

    tag: str
    role: Literal["user", "tool", "environment"]
    template_wraps: bool = False


class WordsTable(_Table):
    """Phrases for prompts: what a search looks like, and where its results appear.

    If the chat template declares the tool and its call syntax, `call` needs only the tool's name.
    """

    call: str
    results: str


class Dialect(_Table):
    """A search dialect; see the tables.

    tool: the JSON schema of the search, for chat templates that declare functions; None: only the prompts describe it.
    """

    call: CallTable
    results: ResultsTable
    words: WordsTable
    tool: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _whole(self) -> Dialect:
        for key, tag in (("call.tag", self.call.tag), ("results.tag", self.results.tag)):
            if not _NAME.fullmatch(tag):
                raise UserError(f"{key} is {tag!r}; use lower-case letters, digits and _, without < and >")
        if self.call.tag == self.results.tag:
            raise UserError("call.tag and results.tag are the same; a result must not look like a search")
        named = self.call.name is not None and self.call.argument is not None
        if named != (self.call.payload != "text"):
            raise UserError(
                'set both call.name and call.argument with the payloads "json" and "expression", neither with "text"'
            )
        if "{query}" not in self.call.template:
            raise UserError("call.template lacks {query}")
        if self.tool is not None and not self._declares(self.tool):
            raise UserError("tool must be the JSON schema of a function with the name call.name and its call.argument")
        return self

    def _declares(self, tool: Mapping[str, Any]) -> bool:
        """True if the schema, bare or under the key "function", declares the function of the call."""
        match tool.get("function", tool):
            case {"name": name, "parameters": {"properties": {**properties}}}:
                return name == self.call.name and self.call.argument in properties
        return False

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """The tools declared to a policy that may search."""
        return () if self.tool is None else (self.tool,)

    @property
    def open(self) -> str:
        """The opening tag of a search."""
        return f"<{self.call.tag}>"

    @property
    def close(self) -> str:
        """The closing tag of a search: a stop string of turns that may search."""
        return f"</{self.call.tag}>"

    @property
    def tags(self) -> tuple[str, str]:
        """Names of the tags that neither documents nor other roles may use."""
        return self.call.tag, self.results.tag

    def write(self, query: str) -> str:
        """A search for `query`, for prompts and demonstrations; the parser recovers the query from it.

        Raises ValueError if the payload is plain text and the query contains the call's tag.
        """
        if self.call.payload == "text":
            if self.open in query or self.close in query:
                raise UserError(f"the query {query!r} holds {self.open} or {self.close} and cannot be written as text")
        else:
            query = json.dumps(query, ensure_ascii=False).replace("<", "\\u003c")
        return self.call.template.replace("{query}", query)

    def observation(self, results: Sequence[str]) -> str:
        """The observation after a search: the results inside their tag.

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

    def message(self, text: str) -> Mapping[str, str]:
        """A response to a turn as a message for the chat template.

        A text that begins with an `observation` gets the results' role, any other text the user role. If the template
        writes the tag, it is removed from the text.
        """
        block = self._block(text, 0)
        if block is None or block[0] != 0:
            return {"role": "user", "content": text}
        content = block[1] + text[block[2] :] if self.results.template_wraps else text
        return {"role": self.results.role, "content": content}

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
            f"unknown search dialect {name}; choose one of {', '.join(names())}, or give the path of your own TOML file"
        )
    try:
        return Dialect.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DialectError(f"the dialect file {path} is not valid TOML: {error}") from None
    except ValidationError as error:
        item = error.errors()[0]
        key = ".".join(map(str, item["loc"]))
        reason = item["msg"].removeprefix("Value error, ")
        raise DialectError(f"the dialect file {path}: {f'`{key}`: ' if key else ''}{reason}") from None
