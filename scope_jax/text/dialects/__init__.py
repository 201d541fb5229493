"""How a model writes a search, and how results are shown to it: defined in small TOML files.

SCOPE's Table 11 has three dialects: an XML tag, a Hermes tool call, a function call. Each is a file in this folder; a
card selects one by name (`model.dialect`), or gives the path of its own TOML file.
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

JOINT = "\n---\n"  # between the results of several queries of one turn (verl)
_RULE = re.compile(r"^(?=---+$)", re.MULTILINE)  # a line that a result may have, too; one dash longer it is no joint
_LONGER_RULE = re.compile(r"^-(?=---+$)", re.MULTILINE)
_FOLDER = Path(__file__).parent
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class DialectError(ValueError):
    """A dialect that cannot be used: one sentence with its name or file and the remedy."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CallTable(_Table):
    """How a search is written.

    The closed pair of `tag` holds the payload: "text", the query itself; "json", an object with `name` and `arguments`,
    among which `argument` is the query; "expression", calls `name(argument="…")`, one or several. template: a search as
    the model should write it; {query} stands for the query, quoted where the payload wants it quoted.
    """

    tag: str
    payload: Literal["text", "json", "expression"]
    name: str | None = None
    argument: str | None = None
    template: str


class ResultsTable(_Table):
    """How results come back.

    tag: around their text. role: of the message they form where turns are joined by the chat template.
    template_wraps: the template itself writes the tag around a message of that role.
    """

    tag: str
    role: Literal["user", "tool", "environment"]
    template_wraps: bool = False


class WordsTable(_Table):
    """Phrases for prompts: what a search looks like, and where its results are to be found.

    Where the chat template declares the tool and says how calls are written, `call` needs no more than its name.
    """

    call: str
    results: str


class Dialect(_Table):
    """One way of searching; see the tables.

    tool: the JSON schema of the search, for chat templates that declare functions; None: prompts alone tell of it.
    """

    call: CallTable
    results: ResultsTable
    words: WordsTable
    tool: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _whole(self) -> Dialect:
        for key, tag in (("call.tag", self.call.tag), ("results.tag", self.results.tag)):
            if not _NAME.fullmatch(tag):
                raise ValueError(f"{key} is {tag!r}; use lower-case letters, digits and _, without < and >")
        if self.call.tag == self.results.tag:
            raise ValueError("call.tag and results.tag are the same; a result must not look like a search")
        named = self.call.name is not None and self.call.argument is not None
        if named != (self.call.payload != "text"):
            raise ValueError(
                'set both call.name and call.argument with the payloads "json" and "expression", neither with "text"'
            )
        if "{query}" not in self.call.template:
            raise ValueError("call.template lacks {query}")
        if self.tool is not None and not self._declares(self.tool):
            raise ValueError("tool must be the JSON schema of a function with the name call.name and its call.argument")
        return self

    def _declares(self, tool: Mapping[str, Any]) -> bool:
        """True if the schema is that of the call: a function, bare or under the key "function"."""
        match tool.get("function", tool):
            case {"name": name, "parameters": {"properties": {**properties}}}:
                return name == self.call.name and self.call.argument in properties
        return False

    @property
    def tools(self) -> tuple[Mapping[str, Any], ...]:
        """What is declared to a policy that may search."""
        return () if self.tool is None else (self.tool,)

    @property
    def open(self) -> str:
        """What a search begins with."""
        return f"<{self.call.tag}>"

    @property
    def close(self) -> str:
        """What a search ends with: a stop string of turns that may search."""
        return f"</{self.call.tag}>"

    @property
    def tags(self) -> tuple[str, str]:
        """Names of the tags that neither documents nor other roles may use."""
        return self.call.tag, self.results.tag

    def write(self, query: str) -> str:
        """A search for `query`, for prompts and demonstrations; the parser reads the query back from it.

        Raises ValueError if the payload is plain text and the query holds a tag of the call.
        """
        if self.call.payload == "text":
            if self.open in query or self.close in query:
                raise ValueError(f"the query {query!r} holds {self.open} or {self.close} and cannot be written as text")
        else:
            query = json.dumps(query, ensure_ascii=False).replace("<", "\\u003c")
        return self.call.template.replace("{query}", query)

    def observation(self, results: Sequence[str]) -> str:
        """What a policy reads after a search: the results inside their tag.

        A line of three or more dashes in a result gets one more, so that it does not look like the joint.
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
        """An answer to a turn as a message for the chat template.

        A text that begins with an `observation` has the results' role, everything else is the user's. Where the
        template writes the tag, the text goes without it.
        """
        block = self._block(text, 0)
        if block is None or block[0] != 0:
            return {"role": "user", "content": text}
        content = block[1] + text[block[2] :] if self.results.template_wraps else text
        return {"role": self.results.role, "content": content}

    def _block(self, text: str, place: int) -> tuple[int, str, int] | None:
        """(start, content, end) of the first closed pair of the results' tag from `place` on; None without one."""
        opening, closing = f"<{self.results.tag}>", f"</{self.results.tag}>"
        start = text.find(opening, place)
        end = text.find(closing, start) if start >= 0 else -1
        if end < 0:
            return None
        inside = text[start + len(opening) : end]
        return start, inside.removeprefix("\n").removesuffix("\n"), end + len(closing)


def names() -> list[str]:
    """The dialects that come with the package."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


@cache
def load(name: str) -> Dialect:
    """The dialect of that name, or of a TOML file. Raises DialectError."""
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
