"""R_s, and the parsers of rubrics and assessments, in linear time: malformed text is rejected as a whole."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from functools import cache

from scope_jax.games.score.harness import Harness
from scope_jax.games.score.records import Assessment, Constraints, Rubric
from scope_jax.text import parsing

RUBRIC_REASONS = (
    "prompt_too_long",
    "no_dimensions",  # no closed <dimensions>, or anything but <dim/> elements in it
    "dimension_count",  # not exactly k dimensions
    "unknown_dimension",
    "repeated_dimension",
    "base_dimension",  # the first is not the base, or has a weight
    "missing_dimension",  # one that the harness requires
    "weight",  # missing or out of bounds
    "scheduler",  # breaks a constraint of the scheduler that the card enforces
)
REPORT_REASONS = (
    "no_report",  # no closed, non-empty <answer>
    "assessment_too_long",  # the prompt exceeded its limit and was not sampled
    "assessment_malformed",
    "no_verification",
    "no_gap_analysis",
    "no_citations",
    "shallow",  # fewer searches than tau_s
)
INVALID = ("assessment_malformed", "no_verification", "no_gap_analysis", "no_citations")  # nothing that scores a report
SECTIONS = ("verification", "gap_analysis", "citations", "scores")
VERDICTS = ("supported", "unsupported", "unknown")  # of a citation
QUOTES = "\"'\u201c\u201d\u2018\u2019"
# An element of a rubric, without content.
_ELEMENT = re.compile(
    r"""\s*+<([a-z]++)((?:\s++[a-z]++\s*+=\s*+(?:"[^"]*+"|'[^']*+'))*+)\s*+(?:/>|>\s*+</\1\s*+>)""", re.IGNORECASE
)
_ATTRIBUTE = re.compile(r"""([a-z]++)\s*+=\s*+(?:"([^"]*+)"|'([^']*+)')""", re.IGNORECASE)
_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,3})(?:\.[0-9]{1,6})?")
_SECTION = re.compile(rf"<(/?)({'|'.join(SECTIONS)})\b[^<>]*+>", re.IGNORECASE)
_POINTS = re.compile(rf"({_NUMBER.pattern})(?:\s*+(?:/|out of)\s*+({_NUMBER.pattern}))?")
_PLACE = re.compile(r"[^0-9]{0,20}([0-9]{1,4})\W{0,5}")

Attributes = Mapping[str, str]


# ----------------------------------------------------------------------------------------------------------- equations
def report_reward(base: float, weights: Mapping[str, float], scores: Mapping[str, float]) -> float:
    """R_s = a · (1 + Σⱼ wⱼ sⱼ) (section 3.5); a is the score of the base dimension."""
    return base * (1.0 + sum(weight * scores[name] for name, weight in weights.items()))


def depth_wanted(harness: Harness, min_depth: int) -> int:
    """τ_s: the card's, or the harness's number of searches if that is larger."""
    process = harness.process_constraints
    return max(min_depth, process.min_number_of_tool_call, int(process.require_search))


# --------------------------------------------------------------------------------------------------------------- parts
def _elements(text: str, name: str) -> list[Attributes] | None:
    """The attributes of the elements `<name …/>` of which `text` consists; None if it holds anything else."""
    found, at = [], 0
    while element := _ELEMENT.match(text, at):
        pairs = [(key.lower(), double or single) for key, double, single in _ATTRIBUTE.findall(element[2])]
        if element[1].lower() != name or len({key for key, _ in pairs}) < len(pairs):
            return None
        found.append(dict(pairs))
        at = element.end()
    return None if text[at:].strip() else found


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def _name(text: str) -> str:
    """A dimension's name as the card has it: "Citation Effectiveness", "insight (weight 0.3)"."""
    return "_".join(re.split(r"[\s_-]+", html.unescape(text).partition("(")[0].strip().lower()))


# -------------------------------------------------------------------------------------------------------------- rubric
def rubric_of(text: str, harness: Harness, constraints: Constraints | None = None) -> tuple[Rubric | None, str]:
    """(the rubric in a reply's last <dimensions>, ""), or (None, the first rule that it breaks).

    The base dimension comes first and has no weight. Exactly k − 1 others follow, each from the pool and with a weight
    within bounds, including those that the harness requires. constraints: the scheduler's, if they are enforced.
    """
    block = parsing.last([text], "dimensions")
    items = None if block is None else _elements(parsing.without_comments(block), "dim")
    if not items or any("name" not in item or set(item) - {"name", "weight"} for item in items):
        return None, "no_dimensions"
    names = [_name(item["name"]) for item in items]
    weights = [_number(item["weight"]) if "weight" in item else None for item in items]
    limits, base = harness.dimension_constraints, harness.base
    constraints = constraints or Constraints((), (), ())
    checks = (
        ("dimension_count", len(names) != limits.k),
        ("unknown_dimension", not set(names) <= set(harness.pool)),
        ("repeated_dimension", len(set(names)) < len(names)),
        ("base_dimension", names[0] != base or "weight" in items[0]),
        ("missing_dimension", not set(limits.must_include) <= set(names)),
        ("weight", any(w is None or not limits.weight_min <= w <= limits.weight_max for w in weights[1:])),
        ("scheduler", bool(set(constraints.required) - set(names) or set(constraints.avoided) & set(names))),
    )
    if reason := next((reason for reason, broken in checks if broken), ""):
        return None, reason
    return Rubric(base, {name: w for name, w in zip(names[1:], weights[1:], strict=True) if w is not None}), ""


# --------------------------------------------------------------------------------------------------------- assessments
# What is read of an assessment are points and verdicts. They are attributes without a quotation mark in them, so they
# are looked for by name, and whatever else stands in an element or beside it is not read: a reason or a source may hold
# quotation marks. What is read must occur once, so that text quoted from a report cannot take its place.
@cache
def _attribute(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-]){name}\s*+=\s*+(?:[{QUOTES}]([^{QUOTES}<>]*+)[{QUOTES}]|([0-9./]++))", re.IGNORECASE)


def _only(text: str, name: str) -> str | None:
    """The value of the attribute `name` in `text`; None unless it occurs once."""
    found = _attribute(name).findall(text)
    found = [quoted.strip() for quoted, _ in found if quoted] or [bare.rstrip("/") for _, bare in found]
    return html.unescape(found[0]) if len(found) == 1 else None


@cache
def _tag(name: str) -> re.Pattern[str]:
    return re.compile(rf"<(/?){name}\b([^<>]*+)>", re.IGNORECASE)


def _pairs(text: str, name: str) -> list[tuple[str, str]]:
    """(attributes, content) of the closed elements `name`, each from the last opening tag before a closing one."""
    found, opened = [], None
    for tag in _tag(name).finditer(text):
        if not tag[1]:
            opened = tag
        elif opened is not None:
            found.append((opened[2], text[opened.end() : tag.start()]))
            opened = None
    return found


def _items(text: str, name: str) -> list[str]:
    """For each tag `<name …>` of `text` what follows the name, up to the next such tag."""
    return re.split(rf"<{name}\b", text, flags=re.IGNORECASE)[1:]


def assessments_of(text: str, count: int, rubric: Rubric, max_score: float) -> tuple[Assessment, ...] | None:
    """The assessments of reports 1 to `count` in a reply's last <report_evaluations>; None if any is malformed.

    Strict in what earns: each report occurs once, in order, contains each section at most once, and gives points from 0
    to `max_score` for exactly the dimensions of the rubric, each once. Tolerant in form: case, kinds of quotation
    marks, further attributes, comments, text between elements, elements closed in either way.
    """
    blocks = _pairs(parsing.without_comments(text), "report_evaluations")
    reports = _pairs(blocks[-1][1], "report") if blocks else []
    if len(reports) != count:
        return None
    found = []
    for number, (attributes, content) in enumerate(reports, 1):
        place = _PLACE.fullmatch(_only(attributes, "id") or "")
        assessment = _assessment(content, rubric, max_score) if place and int(place[1]) == number else None
        if assessment is None:
            return None
        found.append(assessment)
    return tuple(found)


def _assessment(text: str, rubric: Rubric, max_score: float) -> Assessment | None:
    parts = _sections(text)
    scores = None if parts is None else _scores(parts.get("scores", ""), rubric, max_score)
    if parts is None or scores is None:
        return None
    citations = _citations(parts["citations"]) if "citations" in parts else None
    return Assessment(scores, parts.get("verification", ""), parts.get("gap_analysis", ""), citations)


def _sections(text: str) -> dict[str, str] | None:
    """The content of each section; None if one occurs twice or is not closed. Tags inside a section are its text."""
    parts: dict[str, str] = {}
    name, begin = "", 0  # of the open section
    for tag in _SECTION.finditer(text):
        closing, this = bool(tag[1]), tag[2].lower()
        if name and closing and this == name:
            parts[name], name = text[begin : tag.start()].strip(), ""
        elif not name and not closing:
            if this in parts:
                return None
            parts[this] = ""
            name, begin = "" if tag[0].endswith("/>") else this, tag.end()
    return None if name else parts


def _scores(text: str, rubric: Rubric, max_score: float) -> dict[str, float] | None:
    """The points of each dimension of the rubric; None unless each has them once, and nothing else has."""
    items = [(_only(item, "dim"), _only(item, "value")) for item in _items(text, "score")]
    points = {_name(name or ""): _points(value or "", max_score) for name, value in items}
    if len(items) != len(points) or set(points) != set(rubric.dimensions):
        return None
    scores = {name: points[name] for name in rubric.dimensions}
    return {name: value for name, value in scores.items() if value is not None} if None not in scores.values() else None


def _points(text: str, max_score: float) -> float | None:
    """Points such as 7, 7.5, 7/10 or "7 out of 10"; None for anything else, above the maximum or of another one."""
    written = _POINTS.fullmatch(text.lower())
    if written is None or float(written[2] or max_score) != max_score or float(written[1]) > max_score:
        return None
    return float(written[1])


def _citations(text: str) -> dict[str, int]:
    """Number of citations by verdict; a malformed one, which only a metric would count, is left out."""
    given = [(_only(item, "verdict") or "").lower() for item in _items(text, "citation")]
    return {verdict: given.count(verdict) for verdict in VERDICTS}


def lacking(assessment: Assessment, depth: int, harness: Harness, min_depth: int) -> str:
    """The first requirement of the harness or the depth gate that an assessment does not meet, "" if it meets all."""
    process = harness.process_constraints
    checks: Sequence[tuple[str, bool]] = (
        ("no_verification", process.require_verification and not assessment.verification),
        ("no_gap_analysis", process.require_gap_analysis and not assessment.gap_analysis),
        ("no_citations", process.citation_cross_check and assessment.citations is None),
        ("shallow", depth < depth_wanted(harness, min_depth)),
    )
    return next((reason for reason, broken in checks if broken), "")
