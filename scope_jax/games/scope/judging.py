"""Requests to SCOPE's judge and strict parsing of its replies (App. F, H): gates and rubrics; grading: `play.rubrics`.

Each job is done by the base model or by an endpoint of its own.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from scope_jax.config import AskSection, Config
from scope_jax.games.scope import instructions
from scope_jax.games.scope.options import options
from scope_jax.play.asking import Judge, Replies
from scope_jax.play.rubrics import Criterion, score_of
from scope_jax.play.tools import Tools
from scope_jax.retrieval.rows import is_text
from scope_jax.text import parsing

_RUBRIC = re.compile(r"<rubric(\s[^<>]*+)?+>")
_PRIORITY = re.compile(r"""(?<!\S)priority\s*+=\s*+(?:"([^"]*)"|'([^']*)'|([^\s"']+))""")
_ENTITY = re.compile(r"&(?:[a-zA-Z]{1,31}|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});")
_FENCES = ("```", "```json", "```xml")


# ------------------------------------------------------------------------------------------------------------- parsers
def rubric_of(reply: str, weights: Mapping[str, float], fewest: int, most: int) -> tuple[Criterion, ...] | None:
    """The criteria of a reply, in <rubrics> or as JSON; None unless each one is complete and their number is allowed.

    XML: <rubrics> with only <rubric> elements and comments. JSON: a list of {"criterion", "priority"}, or an object
    that holds such a list as "rubrics", by itself or in a code fence with any text around it. weights: w_k by priority;
    if they differ, a missing or unknown priority makes the reply invalid. A rubric whose weights are all 0 cannot grade
    anything and is rejected.
    """
    text = _unfenced(parsing.without_thinking(reply).strip())
    pairs = _json_pairs(text) if text[:1] in ("{", "[") else _xml_pairs(text)
    if pairs is None:
        pairs = next(filter(None, map(_json_pairs, parsing.fenced(text, ("", "json")))), None)
    if pairs is None or not fewest <= len(pairs) <= most:
        return None
    made = []
    for priority, criterion in pairs:
        weight = _weight(priority, weights)
        if weight is None or not criterion or not is_text(priority + criterion):
            return None
        made.append(Criterion(criterion, weight, priority))
    return tuple(made) if sum(item.weight for item in made) > 0 else None


def _weight(priority: str, weights: Mapping[str, float]) -> float | None:
    """w_k of a priority. An unknown priority gets the common weight if all weights are equal; otherwise None."""
    values = set(weights.values())
    return weights.get(priority, values.pop() if len(values) == 1 else None)


def _unfenced(text: str) -> str:
    """The content of a Markdown code fence if `text` is one; otherwise `text`."""
    head, _, body = text.partition("\n")
    return body.removesuffix("\n```").strip() if head.rstrip() in _FENCES and body.endswith("\n```") else text


def _xml_pairs(text: str) -> list[tuple[str, str]] | None:
    """(priority, criterion) of each <rubric>, with priority "" if it has none; None if any element is incomplete."""
    block = parsing.first([text], "rubrics")
    if block is None:
        return None
    *items, rest = parsing.without_comments(block).split("</rubric>")
    pairs = []
    for item in items:
        item = item.strip()
        opening = _RUBRIC.match(item)
        if opening is None or _RUBRIC.search(item, opening.end()):
            return None
        given = _PRIORITY.search(opening[1] or "")
        priority = next((value for value in given.groups() if value is not None), "") if given else ""
        criterion = _ENTITY.sub(lambda entity: html.unescape(entity[0]), item[opening.end() :])
        pairs.append((priority.strip(), " ".join(criterion.split())))
    return None if rest.strip() else pairs


def _json_pairs(text: str) -> list[tuple[str, str]] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    items: Any = value.get("rubrics") if isinstance(value, dict) else value
    if not isinstance(items, list):
        return None
    pairs = []
    for item in items:
        if not isinstance(item, dict):
            return None
        criterion, priority = item.get("criterion"), item.get("priority", "")
        if not isinstance(criterion, str) or not isinstance(priority, str):
            return None
        pairs.append((priority, " ".join(criterion.split())))
    return pairs


# -------------------------------------------------------------------------------------------------------------- asking
JOBS = ("gates", "rubric_writer", "grader")


def card_of(cfg: Config, job: str) -> AskSection:
    """The card's table for a job ("gates", "rubric_writer" or "grader")."""
    return {
        "gates": options(cfg).gates,
        "rubric_writer": options(cfg).rubric_writer,
        "grader": options(cfg).grader,
    }[job]


def judge_of(cfg: Config, job: str) -> Judge:
    """The judge for a job."""
    return Judge(job, f"scope.{job}", card_of(cfg, job))


def scores(cfg: Config, tools: Tools, job: str, questions: Sequence[str]) -> Replies[bool]:
    """The gates' verdicts, 0 or 1."""
    return judge_of(cfg, job).ask(tools, questions, score_of, instructions.nudge(cfg, "score") if questions else "")


def rubrics(cfg: Config, tools: Tools, questions: Sequence[str]) -> Replies[tuple[Criterion, ...]]:
    """The rubric writer's rubrics."""
    card = options(cfg)

    def read(reply: str) -> tuple[Criterion, ...] | None:
        return rubric_of(reply, card.rubric_weights, card.min_rubrics, card.max_rubrics)

    nudge = instructions.nudge(cfg, "rubrics") if questions else ""
    return judge_of(cfg, "rubric_writer").ask(tools, questions, read, nudge)
