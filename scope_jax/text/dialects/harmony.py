"""Harmony, the format of gpt-oss: a turn is one or more messages, each in a channel.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…            (then <|return|>)
    <|channel|>commentary to=functions.search <|constrain|>json<|message|>{"query": "…"}            (then <|call|>)

The turn begins behind `<|start|>assistant`, which the prompt has. Thinking is in the channel analysis, the answer in
final. A message with a recipient is a call: its content is a JSON object of the arguments. A turn has one call at most,
which ends it. The recipient may also stand before the channel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from scope_jax.errors import UserError
from scope_jax.text.dialects import values
from scope_jax.text.dialects.formats import Call, malformed
from scope_jax.text.dialects.values import Malformed, json_of

START, CHANNEL, MESSAGE, CALL = "<|start|>", "<|channel|>", "<|message|>", "<|call|>"
SHOWN = ("final", "commentary")  # channels that the user reads
TOOLS = "functions."  # how recipients begin that are tools
_END = re.compile(r"<\|(?:end|call|return)\|>|(?=<\|start\|>)")
_RECIPIENT = re.compile(r"(?:^|\s)to=([^\s<]++)")
_CHANNEL = re.compile(r"<\|channel\|>\s*+(\w++)")
_BEGUN = re.compile(r"<(?:\|\w*+\|?+)?+\Z")  # what may become a mark
_NAME = re.compile(r"[^\s<]+")


class HarmonyMessage(NamedTuple):
    """A message text[start:end] with its content at text[inner:inner_end]. recipient, channel: "" for none."""

    channel: str
    recipient: str
    start: int
    inner: int
    inner_end: int
    end: int


def messages(text: str) -> Iterator[HarmonyMessage]:
    """The messages of a turn whose header is complete, in order; the last one may be cut off. In linear time."""
    at = 0
    while (mark := text.find(MESSAGE, at)) >= 0:
        begun = text.rfind(START, at, mark)
        header = text[at if begun < 0 else begun : mark]
        start = mark - len(header.lstrip())
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        inner = mark + len(MESSAGE)
        end = _END.search(text, inner)
        ends = (end.start(), end.end()) if end else (len(text), len(text))
        yield HarmonyMessage(channel[1] if channel else "", recipient[1] if recipient else "", start, inner, *ends)
        at = ends[1]


def calls(text: str) -> list[Call]:
    """The messages with a recipient, valid calls or malformed ones."""
    found = []
    for one in messages(text):
        if not one.recipient:
            continue
        name = one.recipient.removeprefix(TOOLS)
        try:
            arguments = values.arguments(text[one.inner : one.inner_end])
            found.append(Call(name, arguments, "", one.start, one.end, one.end, one.start))
        except Malformed as error:
            found.append(malformed(str(error), one.start, one.end, name))
    return found


def settled(text: str) -> int:
    """How much of a turn that goes on after `text` no call can begin in: up to a call, or the header of a message."""
    found = [*messages(text)]
    called = [one.start for one in found if one.recipient]
    return min([*called, *(one.end for one in found[-1:])], default=0)


def unread(written: str) -> str:
    """What templates get as the arguments of a malformed call: its whole message."""
    return written


def written(call: Call) -> str:
    """A call as the model writes it. Raises UserError for a name that is no recipient."""
    if not _NAME.fullmatch(call.name):
        raise UserError(f"The name {call.name!r} cannot be written in the format harmony; rename it.")
    header = f"{CHANNEL}commentary to={TOOLS}{call.name} <|constrain|>json"
    return f"{header}{MESSAGE}{json_of(dict(call.arguments))}{CALL}"


def shown(text: str, finished: bool = True) -> str:
    """What a user reads of a turn: the contents of final messages and of comments that are no calls.

    finished: False: more text follows, and what may become a mark is left out, so that the result only grows. A text
    without any mark of the format is shown as it is.
    """
    parts = []
    for one in messages(text):
        if one.channel in SHOWN and not one.recipient:
            parts.append(text[one.inner : one.inner_end])
            if one.end == len(text) and not finished:
                parts[-1] = _BEGUN.sub("", parts[-1])
    if finished and not parts and CHANNEL not in text and MESSAGE not in text:
        return text
    return "\n".join(parts)
