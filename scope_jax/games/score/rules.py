"""The rules of SCORE: rewards, conclusions and their consistency, the parsers of rubrics and assessments.

All parsers take linear time, and reject malformed text as a whole.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from scope_jax.config import one_of
from scope_jax.games.score.meta_harness import Harness
from scope_jax.games.score.options import ConclusionRule, Idf
from scope_jax.games.score.state import Assessment, Constraints, Rubric
from scope_jax.text import parsing

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import TfidfVectorizer

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
INVALID = {"assessment_malformed", "no_verification", "no_gap_analysis", "no_citations"}  # nothing that scores a report
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
_LABEL = re.compile(r"[^0-9]{0,20}([0-9]{1,4})\W{0,5}")
CONCLUDING = {"conclusion", "conclusions", "summary", "summary and conclusion", "key findings", "in conclusion"}
SOURCES = {"sources", "references", "bibliography", "citations", "works cited"}
_NUMBERED = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3})*[.)]?\s+")
_LONGEST = 100  # characters of a heading


# -------------------------------------------------------------------------------------------------------------- rewards
def report_reward(base: float, weights: Mapping[str, float], scores: Mapping[str, float]) -> float:
    """R_s = a · (1 + Σⱼ wⱼ sⱼ) (section 3.5); a is the score of the base dimension."""
    return base * (1.0 + sum(weight * scores[name] for name, weight in weights.items()))


# ---------------------------------------------------------------------------------------------------------- consistency
def conclusion_of(report: str, rule: str) -> str | None:
    """The conclusion of a report; None if it is empty.

    rule "section": the text under the last heading that announces a conclusion, up to the next heading; without such a
    heading, the last paragraph before a list of sources. "report": the whole report. Raises ValueError for other rules.
    """
    one_of("rule", rule, ConclusionRule)
    if rule == "report":
        return report.strip() or None
    lines = report.split("\n")
    headings = [_heading(line) for line in lines]
    begins = [i for i, (words, _) in enumerate(headings) if words in CONCLUDING]
    if begins:
        begin = begins[-1]
        end = next((i for i in range(begin + 1, len(lines)) if headings[i][0] is not None), len(lines))
        if text := "\n".join([headings[begin][1], *lines[begin + 1 : end]]).strip():
            return text
    sources = [i for i, (words, _) in enumerate(headings) if words in SOURCES]
    body = lines[: sources[-1]] if sources else lines
    paragraphs = re.split(r"\n(?:[ \t\r]*+\n)++", "\n".join(body).strip())
    return paragraphs[-1].strip() or None


def _heading(line: str) -> tuple[str | None, str]:
    """(the words of a heading in lower case, the text after it on its line); (None, "") if the line is no heading.

    A heading is a Markdown heading (`## 3. Conclusion`), a line in bold, or one of the words above before a colon.
    """
    bare = line.strip()
    if not bare or (len(bare) > _LONGEST and ":" not in bare[:_LONGEST]):
        return None, ""
    label, colon, rest = bare.partition(":")
    if colon and (words := _words(label)) in CONCLUDING | SOURCES:
        return words, rest.strip(" *_")
    marked = bare.startswith("#") or (bare.startswith("**") and bare.endswith("**") and len(bare) > 4)
    words = _words(bare)
    return (words, "") if marked or words in CONCLUDING | SOURCES else (None, "")


def _words(text: str) -> str:
    text = text[:_LONGEST].strip(" \t\r#*_:.")
    return _NUMBERED.sub("", text, count=1).strip(" *_").lower()


def consistency(conclusions: Sequence[Sequence[str | None]], idf: str) -> list[float]:
    """C_i of each query: the mean cosine of all pairs of its conclusions as TF-IDF vectors.

    The pairs of a conclusion that is missing, or has no word of two letters, count 0. idf: inverse document frequencies
    are fitted on the conclusions of a query ("query") or of all ("batch"). Raises ValueError for any other `idf`, and
    for a query with fewer than two conclusions.
    """
    one_of("idf", idf, Idf)
    if any(len(group) < 2 for group in conclusions):
        raise ValueError("consistency needs at least two reports of a query")
    words = _vectorizer().build_analyzer()
    groups = [[text if text and words(text) else None for text in group] for group in conclusions]
    shared = _fitted([text for group in groups for text in group]) if idf == "batch" else None
    return [_mean_cosine(group, shared or _fitted(group)) for group in groups]


def _fitted(texts: Sequence[str | None]) -> TfidfVectorizer | None:
    present = [text for text in texts if text is not None]
    return _vectorizer().fit(present) if present else None


def _vectorizer() -> TfidfVectorizer:
    from sklearn.feature_extraction.text import TfidfVectorizer  # seconds, which only this game needs

    return TfidfVectorizer()


def _mean_cosine(group: Sequence[str | None], vectors: TfidfVectorizer | None) -> float:
    present = [text for text in group if text is not None]
    if vectors is None or len(present) < 2:
        return 0.0
    rows = vectors.transform(present)  # unit vectors
    cosines = np.asarray((rows @ rows.T).todense())
    pairs = len(group) * (len(group) - 1) / 2
    return float(np.clip(np.triu(cosines, k=1), 0.0, 1.0).sum() / pairs)


# ------------------------------------------------------------------------------------------------------------- elements
def _elements(text: str, name: str) -> list[dict[str, str]] | None:
    """The attributes of the elements `<name …/>` of which `text` consists; None if it holds anything else."""
    elements, at = [], 0
    while element := _ELEMENT.match(text, at):
        pairs = [(key.lower(), double or single) for key, double, single in _ATTRIBUTE.findall(element[2])]
        if element[1].lower() != name or len({key for key, _ in pairs}) < len(pairs):
            return None
        elements.append(dict(pairs))
        at = element.end()
    return None if text[at:].strip() else elements


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
    constraints = constraints or Constraints()
    checks = (
        ("dimension_count", len(names) != limits.k),
        ("unknown_dimension", not set(names) <= set(harness.dimension_pool)),
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
    matches = _attribute(name).findall(text)
    values = [quoted.strip() for quoted, _ in matches if quoted] or [bare.rstrip("/") for _, bare in matches]
    return html.unescape(values[0]) if len(values) == 1 else None


@cache
def _tag(name: str) -> re.Pattern[str]:
    return re.compile(rf"<(/?){name}\b([^<>]*+)>", re.IGNORECASE)


def _pairs(text: str, name: str) -> list[tuple[str, str]]:
    """(attributes, content) of the closed elements `name`, each from the last opening tag before a closing one."""
    pairs, opened = [], None
    for tag in _tag(name).finditer(text):
        if not tag[1]:
            opened = tag
        elif opened is not None:
            pairs.append((opened[2], text[opened.end() : tag.start()]))
            opened = None
    return pairs


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
    assessments = []
    for number, (attributes, content) in enumerate(reports, 1):
        label = _LABEL.fullmatch(_only(attributes, "id") or "")
        assessment = _assessment(content, rubric, max_score) if label and int(label[1]) == number else None
        if assessment is None:
            return None
        assessments.append(assessment)
    return tuple(assessments)


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
    scores: dict[str, float] = {}
    for item in _items(text, "score"):
        name, points = _name(_only(item, "dim") or ""), _points(_only(item, "value") or "", max_score)
        if points is None or name in scores:
            return None
        scores[name] = points
    return {name: scores[name] for name in rubric.dimensions} if set(scores) == set(rubric.dimensions) else None


def _points(text: str, max_score: float) -> float | None:
    """Points such as 7, 7.5, 7/10 or "7 out of 10"; None for anything else, above the maximum or of another one."""
    points = _POINTS.fullmatch(text.lower())
    if points is None or float(points[2] or max_score) != max_score or float(points[1]) > max_score:
        return None
    return float(points[1])


def _citations(text: str) -> dict[str, int]:
    """Number of citations by verdict; a malformed one, which only a metric would count, is left out."""
    verdicts = [(_only(item, "verdict") or "").lower() for item in _items(text, "citation")]
    return {verdict: verdicts.count(verdict) for verdict in VERDICTS}


def required_searches(harness: Harness, min_depth: int) -> int:
    """τ_s: the card's, or the harness's number of searches if that is larger."""
    process = harness.process_constraints
    return max(min_depth, process.min_number_of_tool_call, int(process.require_search))


def unmet(assessment: Assessment, depth: int, harness: Harness, min_depth: int) -> str:
    """The first requirement of the harness or the depth gate that an assessment does not meet, "" if it meets all."""
    process = harness.process_constraints
    checks = (
        ("no_verification", process.require_verification and not assessment.verification),
        ("no_gap_analysis", process.require_gap_analysis and not assessment.gap_analysis),
        ("no_citations", process.citation_cross_check and assessment.citations is None),
        ("shallow", depth < required_searches(harness, min_depth)),
    )
    return next((reason for reason, broken in checks if broken), "")
