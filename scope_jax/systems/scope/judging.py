"""What the judge is asked, and its replies read strictly (App. F, H): gates, rubrics, verdicts.

A reply in a wrong form is asked for once more, with a nudge, then counted: it is no verdict, and none is guessed.
Equal questions of one call are asked once.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from retrieval.exchange import shown
from scope_jax.config import AskSection, Config, JudgeSection
from scope_jax.learner.types import Reply
from scope_jax.play import searching
from scope_jax.play.judge_client import JudgeError
from scope_jax.play.tools import BASE, Prompt, Tools
from scope_jax.systems.scope import instructions
from scope_jax.systems.scope.records import Criterion
from scope_jax.text import parsing
from scope_jax.text.messages import Messages

Read = TypeVar("Read")

_DEAF_AFTER = 8  # so many questions to an endpoint, and not one reply to be read: it is no judge
_RUBRIC = re.compile(r"<rubric(\s[^<>]*+)?+>")
_PRIORITY = re.compile(r"""(?<!\S)priority\s*+=\s*+(?:"([^"]*)"|'([^']*)'|([^\s"']+))""")
_ENTITY = re.compile(r"&(?:[a-zA-Z]{1,31}|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});")
_FENCES = ("```", "```json", "```xml")


@dataclass(frozen=True)
class Replies(Generic[Read]):
    """What was read from the reply to each question, in order (None: nothing), and how often the judge was asked."""

    read: list[Read | None]
    given: list[tuple[Reply, ...]]  # to each question: what the judge said, the second time too if it was asked twice
    asked: int = 0  # different questions
    retried: int = 0  # asked again, since the first reply could not be read
    malformed: int = 0  # of which nothing was read in the end
    refused: int = 0  # of these, the ones that an endpoint did not take


# ------------------------------------------------------------------------------------------------------------- parsers
def score_of(reply: str) -> bool | None:
    """True for <score>1</score>, False for 0, by the first score outside of thoughts; None for anything else."""
    return {"0": False, "1": True}.get(parsing.first([parsing.spoken(reply)], "score") or "")


def rubric_of(reply: str, weights: Mapping[str, float], fewest: int, most: int) -> tuple[Criterion, ...] | None:
    """The criteria of a reply, as <rubrics> or as JSON; None unless every one is whole and their number is allowed.

    XML: nothing but <rubric> elements and comments in <rubrics>. JSON: a list of {"criterion", "priority"}, or an
    object that holds it as "rubrics". weights: w_k by priority; where they differ, another priority or none makes the
    reply unreadable. A rubric whose weights are all 0 could grade nothing and is none.
    """
    text = _unfenced(parsing.spoken(reply).strip())
    pairs = _json_pairs(text) if text[:1] in ("{", "[") else _xml_pairs(text)
    if pairs is None or not fewest <= len(pairs) <= most:
        return None
    made = []
    for priority, criterion in pairs:
        weight = _weight(priority, weights)
        if weight is None or not criterion or not parsing.is_text(priority + criterion):
            return None
        made.append(Criterion(criterion, weight, priority))
    return tuple(made) if sum(item.weight for item in made) > 0 else None


def _weight(priority: str, weights: Mapping[str, float]) -> float | None:
    """w_k of a priority. One that is not among `weights` weighs as all do, where all weigh the same; else None."""
    values = set(weights.values())
    return weights.get(priority, values.pop() if len(values) == 1 else None)


def _unfenced(text: str) -> str:
    """What stands between the lines of a Markdown fence, where `text` is one; else `text`."""
    head, _, body = text.partition("\n")
    return body.removesuffix("\n```").strip() if head.rstrip() in _FENCES and body.endswith("\n```") else text


def _xml_pairs(text: str) -> list[tuple[str, str]] | None:
    """(priority, criterion) of each <rubric>, priority "" where it has none; None unless they are whole."""
    block = parsing.first([text], "rubrics")
    if block is None:
        return None
    *items, rest = _without_comments(block).split("</rubric>")
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


def _without_comments(text: str) -> str:
    """`text` without its closed XML comments."""
    kept, place = [], 0
    while (start := text.find("<!--", place)) >= 0 and (end := text.find("-->", start)) >= 0:
        kept.append(text[place:start])
        place = end + len("-->")
    return "".join([*kept, text[place:]])


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
    """How a job ("gates", "rubric_writer" or "grader") is done."""
    return {"gates": cfg.scope.gates, "rubric_writer": cfg.scope.rubric_writer, "grader": cfg.scope.grader}[job]


def endpoints(cfg: Config, jobs: Sequence[str]) -> dict[str, JudgeSection]:
    """The outside models that do some of these jobs, by job; the base does the others."""
    cards = {job: card_of(cfg, job) for job in jobs}
    return {
        job: JudgeSection(**card.endpoint.model_dump(), temperature=card.temperature, max_tokens=card.max_tokens)
        for job, card in cards.items()
        if card.endpoint is not None
    }


def ask(
    cfg: Config, tools: Tools, job: str, questions: Sequence[str], read: Callable[[str], Read | None], nudge: str
) -> Replies[Read]:
    """What `read` makes of the judge's reply to each question, each different one asked once.

    Raises JudgeError when an endpoint replies to many questions and none of the replies can be read.
    """
    different = list(dict.fromkeys(questions))
    given: list[tuple[Reply, ...]] = [(reply,) for reply in _replies(cfg, tools, job, different, "")]
    found = [read(only.text) for (only,) in given]
    again = [place for place, value in enumerate(found) if value is None and not given[place][0].refused]
    nudged = [f"{different[place]}\n\n{nudge}" for place in again]
    for place, reply in zip(again, _replies(cfg, tools, job, nudged, " again"), strict=True):
        found[place] = read(reply.text)
        given[place] = (*given[place], reply)
    lost = sum(value is None for value in found)
    endpoint = card_of(cfg, job).endpoint
    if endpoint is not None and len(found) >= _DEAF_AFTER and lost == len(found):
        raise JudgeError(
            f"none of {lost} replies of the {job} at {shown(endpoint.url)} could be read; "
            f"use a model that follows the prompt, or raise scope.{job}.max_tokens."
        )
    places = {question: place for place, question in enumerate(different)}
    return Replies(
        read=[found[places[question]] for question in questions],
        given=[given[places[question]] for question in questions],
        asked=len(different),
        retried=len(again),
        malformed=lost,
        refused=sum(bool(replies[-1].refused) for replies in given),
    )


def _replies(cfg: Config, tools: Tools, job: str, questions: Sequence[str], suffix: str) -> list[Reply]:
    """Raw replies, by the frozen base in one batch of the engine, or by the job's endpoint."""
    if not questions:
        return []
    card = card_of(cfg, job)
    if card.endpoint is not None:
        return tools.judge(questions, by=job, temperature=card.temperature, max_tokens=card.max_tokens)
    asked = [Messages(question) for question in questions]
    prompts = [Prompt(tools.encode_prompt(said), f"{place}{suffix}", said) for place, said in enumerate(asked)]
    groups = tools.generate(
        job,
        prompts,
        1,
        policy=BASE,
        temperature=card.temperature,
        max_tokens=card.max_tokens,
    )
    return [Reply(searching.written(group[0])) for group in groups]


def scores(cfg: Config, tools: Tools, job: str, questions: Sequence[str]) -> Replies[bool]:
    """Verdicts 0 | 1 of the gates or of the grader."""
    if not questions:
        return Replies([], [])
    return ask(cfg, tools, job, questions, score_of, instructions.nudge(cfg, "score"))


def rubrics(cfg: Config, tools: Tools, questions: Sequence[str]) -> Replies[tuple[Criterion, ...]]:
    """Rubrics as the writer gives them."""
    if not questions:
        return Replies([], [])
    card = cfg.scope

    def read(reply: str) -> tuple[Criterion, ...] | None:
        return rubric_of(reply, card.rubric_weights, card.min_rubrics, card.max_rubrics)

    return ask(cfg, tools, "rubric_writer", questions, read, instructions.nudge(cfg, "rubrics"))
