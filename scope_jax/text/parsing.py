"""Parses text written by a policy, and neutralises untrusted text before a policy reads it.

A policy writes tags: `<think>`, `<question>`, `<answer>` and those of its search dialect (`text.dialects`).
All extraction is by position and considers closed pairs only.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Sequence
from functools import cache

from scope_jax.rollouts.thoughts import THOUGHT, blanked, thoughts

ANALYSIS = ("<|channel|>analysis<|message|>", "<|end|>")  # the same in the format of gpt-oss
CHANNEL = ("<|channel>", "<channel|>")  # the same in the format of Gemma 4
SPEAKS, MODEL = "<|start|>assistant", "<|turn>model"  # with which their prompts end
TAGS = ("think", "search", "information", "question", "answer")

# Tags that have a meaning for one of our policies, judges or templates; untrusted text must not contain them.
FOREIGN = (
    *TAGS,
    "observation",
    "original_evidence",
    "task",
    "score",
    "scores",
    "rubric",
    "rubrics",
    "verdict",
    "tool",
    "tools",
    "tool_call",
    "tool_response",
    "functions",
    "function_calls",
    "function_results",
)
# Special tokens of other models in plain angle brackets; matched exactly, ignoring case.
_WORD_TOKENS = frozenset(
    slash + name
    for name in ("s", "bos", "eos", "pad", "unk", "mask", "start_of_turn", "end_of_turn")
    for slash in ("", "/")
)
# A tag (of any name; with attributes also one that is never closed), <|…|>, <|…> or <…|>. Linear time: every repetition
# is possessive and ends at the next <, or is bounded.
_MARK = re.compile(
    r"<(\s*+/?+\s*+(\w[\w.-]*+)(?:\s*+/?+\s*+(?=>)|\s++[\w:-]++\s*+=[^<>]*+)|[|｜][^|｜\n]{1,64}+[|｜](?=>)"
    r"|[|]\w{1,64}+(?=>)|\w{1,64}+[|](?=>))(>?)"
)
# Marks of Mistral's calls and results, which have square brackets already.
_BRACKETED = re.compile(r"\[(/?(?:TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS))\]")
_FENCE = re.compile(r"^[ \t]*+(`{3,}+|~{3,}+)([^\n`]*+)$", re.MULTILINE)
# a line of a list of options: "A. foo", "(b) bar", "**C**: baz", or a letter alone
_OPTION_LINE = re.compile(r"\W*+([A-Za-z])[*_]*+(?:([.)\]:]|\s++[-–—]\s)|\W*+$)")
_ANSWER_LABEL = re.compile(r"\banswer\**\s*[:：]", re.IGNORECASE)
# A box, also one of which only the command was written; an escaped brace is no brace.
_BOX = re.compile(r"(\\(?:boxed|fbox)\s*+(?:\{|\Z))|\\.|([{}])", re.DOTALL)


def spans(text: str, tag: str) -> list[str]:
    """Contents of the closed `<tag>…</tag>` pairs of `text` in order, stripped.

    A pair ends at the first closing tag and begins at the last opening tag before it, so that an unclosed opening tag
    does not absorb other text.
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
    """Content of the first closed pair in the first of `texts` that has one; None if none has. May be empty."""
    for text in texts:
        if found := spans(text, tag):
            return found[0]
    return None


def last(texts: Sequence[str], tag: str) -> str | None:
    """Content of the last closed pair of the last of `texts` that has one; None if none has. May be empty."""
    for text in reversed(texts):
        if found := spans(text, tag):
            return found[-1]
    return None


def several(query: str) -> list[str]:
    """The queries of one search: a JSON list of strings counts as several; blank ones are left out."""
    return [part.strip() for part in _listed(query) if part.strip()]


def _listed(content: str) -> list[str]:
    if not content.startswith("["):
        return [content]
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return [content]
    strings = isinstance(value, list) and all(isinstance(item, str) for item in value)
    return value if strings else [content]


def well_formed(text: str, allowed: Sequence[str], known: Sequence[str] = TAGS) -> bool:
    """True if every tag of `text` is closed, none is inside another, and only tags of `allowed` occur.

    Tags that are neither allowed nor `known` are plain text, and so is everything inside <think>.
    """
    opened: str | None = None
    for match in _tag(tuple({*known, *allowed})).finditer(text):
        closing, tag = bool(match.group(1)), match.group(2)
        if opened == "think" and match[0] != THOUGHT[1]:
            continue
        if tag not in allowed or (opened != tag if closing else opened is not None):
            return False
        opened = None if closing else tag
    return opened is None


@cache
def _tag(tags: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"<(/?)({'|'.join(tags)})>")


def marks_of(prompt_end: str) -> tuple[str, str]:
    """The marks of thinking in a turn after a prompt with this end."""
    end = prompt_end.rstrip()
    return ANALYSIS if end.endswith(SPEAKS) else CHANNEL if end.endswith((MODEL, CHANNEL[1])) else THOUGHT


def without_thinking(text: str, opened: bool = False) -> str:
    """`text` with thinking, whichever its marks, replaced by spaces, so that all other characters keep their positions.

    opened: the prompt has already opened the thinking. Unclosed thinking extends to the end of the text.
    """
    for marks in (ANALYSIS, CHANNEL):
        if marks[0] in text:
            text = blanked(text, thoughts(text, marks))
    return blanked(text, thoughts(text, THOUGHT, opened))


def without_comments(text: str) -> str:
    """`text` without its closed XML comments."""
    kept, place = [], 0
    while (start := text.find("<!--", place)) >= 0 and (end := text.find("-->", start)) >= 0:
        kept.append(text[place:start])
        place = end + len("-->")
    return "".join([*kept, text[place:]])


def fenced(text: str, languages: Sequence[str]) -> list[str]:
    """The contents of the closed Markdown code fences of `text` in these languages, in lower case; "" for none."""
    found, opened, language, start = [], "", "", 0
    for mark in _FENCE.finditer(text):
        if not opened:
            opened, language, start = mark[1], mark[2].strip().lower(), mark.end()
        elif mark[1].startswith(opened) and not mark[2].strip():
            if language in languages:
                found.append(text[start : mark.start()])
            opened = ""
    return found


def opens_with_thought(text: str) -> bool:
    """True if a turn begins with closed thinking that is not empty."""
    begin, end = next((marks for marks in (ANALYSIS, CHANNEL) if marks[0] in text), THOUGHT)
    head, opening, rest = text.partition(begin)
    inside, closing, _ = rest.partition(end)
    return bool(opening and closing and inside.strip() and not head.strip())


def finished_lines(text: str) -> str:
    """`text` up to its last line break: of a reply that was cut, the lines that it finished."""
    return text[: text.rfind("\n") + 1]


def labelled_answer(text: str) -> str | None:
    """The text after the last `Answer:` of a reply, up to the end of its line (`with_options_below`); None without the
    label or the text."""
    labels = deque(_ANSWER_LABEL.finditer(text), maxlen=1)
    if not labels:
        return None
    rest = text[labels[-1].end() :].strip().strip("*").strip()
    return with_options_below(rest).strip().strip("*").strip() or None if rest else None


def with_options_below(text: str) -> str:
    """The first line of `text`; if it begins a list of options (A, B, …), also the lines that go on with it.

    Options below one another are one answer, as they are in one line: it chooses none of them.
    """
    lines = text.splitlines(keepends=True)
    end, last = 1, "".join(lines[:1])
    for place, line in enumerate(lines[1:], start=2):
        if line.strip() and not _goes_on(last, line):
            break
        end, last = (place, line) if line.strip() else (end, last)
    return "".join(lines[:end])


def with_options_above(text: str) -> str:
    """The last line of `text` that is not blank; if it ends a list of options, also the lines of that list."""
    lines = text.rstrip().splitlines(keepends=True)
    start, first = len(lines) - 1, "".join(lines[-1:])
    for place in range(len(lines) - 2, -1, -1):
        line = lines[place]
        if line.strip() and not _goes_on(line, first):
            break
        start, first = (place, line) if line.strip() else (start, first)
    return "".join(lines[max(start, 0) :])


def _goes_on(line: str, following: str) -> bool:
    """True if two lines are neighbours in a list: their letters follow each other, with or without text behind them."""
    one, other = _OPTION_LINE.match(line), _OPTION_LINE.match(following)
    if one is None or other is None or (one[2] is None) != (other[2] is None):
        return False
    return ord(other[1]) == ord(one[1]) + 1


def boxed(text: str) -> str | None:
    """Content of the last `\\boxed{…}` or `\\fbox{…}` of `text`, stripped; of nested ones the innermost.

    None if there is none, or if it is empty or never closed: then an earlier box is not the answer. Braces inside must
    be paired.
    """
    opened: list[int | None] = []  # start of the content of each open brace, None for a brace that is not a box
    found: tuple[int, int] | None = None
    last = -1  # start of the content of the last box
    for match in _BOX.finditer(text):
        if match[1]:
            last = match.end()
            opened.append(last)
        elif match[2] == "{":
            opened.append(None)
        elif match[2] and opened:
            start = opened.pop()
            if start is not None and (found is None or found[0] < start):
                found = start, match.start()
    return text[slice(*found)].strip() or None if found and found[0] == last else None


def without_thought(text: str) -> str:
    """The part of a turn that a thinking-trimming chat template keeps: everything after the last `</think>` (or, of
    Gemma 4, `<channel|>`), or the whole text without one.

    Works whether or not the template opens the thinking in the prompt.
    """
    for _, end in (THOUGHT, CHANNEL):
        text = text.rpartition(end)[2].lstrip("\n")
    return text


def neutralise(text: str, also: Sequence[str] = ()) -> str:
    """`text` with reserved tags and look-alikes of special tokens put in square brackets: `<search>` → `[search]`,
    those of Mistral in round ones.

    also: names of further tags, such as those of a custom dialect. Tags with attributes are included. The text stays
    readable and keeps its length, but no parser here finds a tag in it. Idempotent; takes time linear in the text.
    """
    names = {*FOREIGN, *also}

    seen: dict[str, str] = {}  # cache, since texts repeat the same tags

    def bracketed(mark: re.Match[str]) -> str:
        if (known := seen.get(mark[0])) is not None:
            return known
        inside, name, end = mark.groups()
        safe = mark[0]
        if name is None:
            inside = inside.replace("<", "[").replace(">", "]")
        if name is None or name.lower() in names or inside.lower() in _WORD_TOKENS:
            safe = f"[{inside}]" if end else f"[{inside}"
        seen[mark[0]] = safe
        return safe

    return _BRACKETED.sub(r"(\1)", _MARK.sub(bracketed, text))


def shorten(text: str, limit: int) -> str:
    """`text` in at most `limit` characters, cut after a whole word if possible, and marked with …"""
    if limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}")
    if len(text) <= limit:
        return text
    head = text[: limit - 1]
    words, space, _ = head.rpartition(" ")
    return (words if space and words.strip() else head).rstrip() + "…"
