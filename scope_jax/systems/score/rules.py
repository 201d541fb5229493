"""R_s, and strict parsing of rubrics and assessments in linear time: malformed text is rejected as a whole."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from scope_jax.systems.score.harness import Harness
from scope_jax.systems.score.records import Assessment, Constraints, Rubric
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
SECTIONS = ("verification", "gap_analysis", "citations", "scores")
VERDICTS = ("supported", "unsupported", "unknown")  # of a citation
# An element without content; quotes end an attribute, so that <, > and / may stand in a reason.
_ELEMENT = re.compile(r'\s*+<([a-z]++)((?:\s++[a-z]++="[^"]*+")*+)\s*+/>')
_ATTRIBUTE = re.compile(r'([a-z]++)="([^"]*+)"')
_OPENING = re.compile(rf"\s*+<({'|'.join(SECTIONS)})>")
_REPORT = re.compile(r'\s*+<report\s++id="([0-9]{1,4})"\s*+>')
_NUMBER = re.compile(r"(?:0|[1-9][0-9]{0,3})(?:\.[0-9]{1,6})?")

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
        pairs = _ATTRIBUTE.findall(element[2])
        if element[1] != name or len({key for key, _ in pairs}) < len(pairs):
            return None
        found.append(dict(pairs))
        at = element.end()
    return None if text[at:].strip() else found


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


# -------------------------------------------------------------------------------------------------------------- rubric
def rubric_of(text: str, harness: Harness, constraints: Constraints | None = None) -> tuple[Rubric | None, str]:
    """(the rubric in a reply's last <dimensions>, ""), or (None, the first rule that it breaks).

    The base dimension comes first and has no weight. Exactly k − 1 others follow, each from the pool and with a weight
    within bounds, including those that the harness requires. constraints: the scheduler's, if they are enforced.
    """
    block = parsing.last([text], "dimensions")
    items = None if block is None else _elements(block, "dim")
    if not items or any("name" not in item or set(item) - {"name", "weight"} for item in items):
        return None, "no_dimensions"
    names = [item["name"] for item in items]
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
def assessments_of(text: str, count: int, rubric: Rubric, max_score: float) -> tuple[Assessment, ...] | None:
    """The assessments of reports 1 to `count` in a reply's last <report_evaluations>; None if any is malformed.

    Each report occurs once, in order, and contains each section at most once and nothing else; <scores> has exactly the
    dimensions of the rubric.
    """
    block = parsing.last([text], "report_evaluations")
    if block is None:
        return None
    *pieces, rest = block.split("</report>")
    if rest.strip() or len(pieces) != count:
        return None
    found = []
    for number, piece in enumerate(pieces, 1):
        opening = _REPORT.match(piece)
        if opening is None or int(opening[1]) != number:
            return None
        assessment = _assessment(piece[opening.end() :], rubric, max_score)
        if assessment is None:
            return None
        found.append(assessment)
    return tuple(found)


def _assessment(text: str, rubric: Rubric, max_score: float) -> Assessment | None:
    parts = _sections(text)
    if parts is None or "scores" not in parts:
        return None
    scores = _scores(parts["scores"], rubric, max_score)
    citations = _citations(parts["citations"]) if "citations" in parts else None
    if scores is None or ("citations" in parts and citations is None):
        return None
    return Assessment(scores, parts.get("verification", ""), parts.get("gap_analysis", ""), citations)


def _sections(text: str) -> dict[str, str] | None:
    """The contents of the sections of which `text` consists; None if it holds anything else, or one of them twice."""
    parts: dict[str, str] = {}
    at = 0
    while opening := _OPENING.match(text, at):
        name = opening[1]
        end = text.find(f"</{name}>", opening.end())
        if end < 0 or name in parts:
            return None
        parts[name] = text[opening.end() : end].strip()
        at = end + len(f"</{name}>")
    return None if text[at:].strip() else parts


def _scores(text: str, rubric: Rubric, max_score: float) -> dict[str, float] | None:
    items = _elements(text, "score")
    if items is None or any(not {"dim", "value"} <= set(item) <= {"dim", "value", "reason"} for item in items):
        return None
    values = {item["dim"]: _number(item["value"]) for item in items}
    if len(items) != len(values) or set(values) != set(rubric.dimensions):
        return None
    scores = {name: value for name, value in values.items() if value is not None and value <= max_score}
    return {name: scores[name] for name in rubric.dimensions} if len(scores) == len(values) else None


def _citations(text: str) -> dict[str, int] | None:
    """Number of citations by verdict, all zero without citations; None if malformed."""
    items = _elements(text, "citation")
    if items is None or any(set(item) != {"source", "verdict"} for item in items):
        return None
    given = [item["verdict"] for item in items]
    return {verdict: given.count(verdict) for verdict in VERDICTS} if set(given) <= set(VERDICTS) else None


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
