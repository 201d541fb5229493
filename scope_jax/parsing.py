"""Reading what a policy wrote, and making foreign text safe to show it.

A policy speaks in tags: `<think>`, `<search>`, `<question>`, `<answer>`; search results come back inside
`<information>` (Search-R1's protocol, used by SSP App. D). All extraction is by position and knows only closed pairs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence

TAGS = ("think", "search", "information", "question", "answer")
JOINT = "\n---\n"  # between the results of several queries of one turn (verl)

_TAG = re.compile(rf"<(/?)({'|'.join(TAGS)})>")
_FOREIGN_TAG = re.compile(
    r"<\s*(/?)\s*(think|search|information|question|answer|observation|original_evidence)\s*/?\s*>", re.IGNORECASE
)
_BAR_TOKEN = re.compile(r"<([|｜])([^<>|｜\n]{1,64})([|｜])>")
_WORD_TOKEN = re.compile(r"<(/?)(s|bos|eos|pad|unk|mask|start_of_turn|end_of_turn)>", re.IGNORECASE)
_INFORMATION = re.compile(r"<information>\n?(.*?)\n?</information>", re.DOTALL)
_ANSWER_LABEL = re.compile(r"\banswer\**\s*[:：]", re.IGNORECASE)


def spans(text: str, tag: str) -> list[str]:
    """Contents of the closed `<tag>…</tag>` pairs of `text` in order, stripped.

    A pair ends at the first closing tag and begins at the last opening tag before it, so that an opening tag which is
    never closed swallows nothing.
    """
    found, opened = [], None
    for match in re.finditer(rf"<(/?){tag}>", text):
        if not match.group(1):
            opened = match.end()
        elif opened is not None:
            found.append(text[opened : match.start()].strip())
            opened = None
    return found


def first(texts: Iterable[str], tag: str) -> str | None:
    """Content of the first closed pair in the first of `texts` that has one; None without any. May be empty."""
    for text in texts:
        if found := spans(text, tag):
            return found[0]
    return None


def last(texts: Sequence[str], tag: str) -> str | None:
    """Content of the last closed pair of the last of `texts` that has one; None without any. May be empty."""
    for text in reversed(texts):
        if found := spans(text, tag):
            return found[-1]
    return None


def searches(text: str) -> list[str]:
    """Every query of a turn: each closed `<search>`; a JSON list of strings inside one counts as several queries."""
    queries: list[str] = []
    for content in spans(text, "search"):
        queries.extend(query.strip() for query in _several(content))
    return [query for query in queries if query]


def _several(content: str) -> list[str]:
    if not content.startswith("["):
        return [content]
    try:
        value = json.loads(content)
    except ValueError:
        return [content]
    strings = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return value if strings else [content]


def well_formed(text: str, allowed: Sequence[str]) -> bool:
    """True if every tag of `text` is closed, none is inside another, and only tags of `allowed` occur."""
    opened: str | None = None
    for match in _TAG.finditer(text):
        closing, tag = bool(match.group(1)), match.group(2)
        if tag not in allowed or (opened != tag if closing else opened is not None):
            return False
        opened = None if closing else tag
    return opened is None


def opens_with_thought(text: str) -> bool:
    """True if a turn begins with a closed, non-empty `<think>`."""
    return text.lstrip().startswith("<think>") and bool(first([text], "think"))


def labelled_answer(text: str) -> str | None:
    """What follows the last `Answer:` of a reply, up to the end of its line; None without the label or the text."""
    labels = list(_ANSWER_LABEL.finditer(text))
    if not labels:
        return None
    rest = text[labels[-1].end() :].strip().strip("*").strip()
    return rest.splitlines()[0].strip().strip("*").strip() or None if rest else None


def observation(results: Sequence[str]) -> str:
    """The text a policy reads after a search: the results inside `<information>`, with line breaks around."""
    return f"\n<information>\n{JOINT.join(results)}\n</information>\n\n"


def results_of(text: str) -> list[str]:
    """The result texts inside an `observation`, in the order of the queries."""
    return [result for block in _INFORMATION.findall(text) for result in block.split(JOINT)]


def neutralise(text: str) -> str:
    """`text` with our own tags and look-alikes of special tokens in square brackets: `<search>` → `[search]`.

    A reader still sees what stood there; no parser here takes it for a tag. Idempotent.
    """
    while True:
        safe = _FOREIGN_TAG.sub(r"[\1\2]", text)
        safe = _BAR_TOKEN.sub(r"[\1\2\3]", safe)
        safe = _WORD_TOKEN.sub(r"[\1\2]", safe)
        if safe == text:
            return safe
        text = safe


def shorten(text: str, limit: int) -> str:
    """`text` in at most `limit` characters, cut after a whole word where there is one, and marked with …"""
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    if len(text) <= limit:
        return text
    head = text[: limit - 1]
    words, space, _ = head.rpartition(" ")
    return (words if space and words.strip() else head).rstrip() + "…"
