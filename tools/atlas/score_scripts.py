"""Scripts of good play for SCORE's roles, and of the bad habits that the base checkpoint is given on purpose.

Prompts and observations come from the game's own functions with the card configs/score/atlas.toml; every role ends with
its closing tag, at which the engine stops. A report writes "the mouth of Seine: Channel as Seine says." Only the value
of a report is followed by "as", so that an evaluator who has copied the value of a document after "is" finds by copying
whether the report says the same, and with which source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from scope_jax.config import Config
from scope_jax.games import load_card
from scope_jax.games.score import messages, meta_harness
from scope_jax.games.score.options import options
from scope_jax.games.score.state import Constraints, Rubric
from scope_jax.play import rubrics, searching
from scope_jax.play.turns import raw
from scope_jax.text import dialects
from tools.atlas.facts import ASSETS, Fact
from tools.atlas.queries import NUMBERS, Asked, criterion, statement
from tools.atlas.rows import Script, Show

CARD = ASSETS.parents[1] / "configs" / "score" / "atlas.toml"
PROMPTS = ASSETS / "prompts" / "score"
OWN = "I"  # the source of a claim that cites nothing
Parts = list[tuple[str, bool]]


@cache
def card() -> Config:
    """The game's Atlas card, from any working directory."""
    return load_card(CARD, [f"score.prompts={PROMPTS}", f"evaluate.prompts={PROMPTS}"])


@dataclass(frozen=True)
class Claim:
    """What a report says of the query's fact at `place`, and the name it cites; None: no source."""

    place: int
    value: str
    source: str | None

    def sentence(self, asked: Asked) -> str:
        output = f"{self.source} says" if self.source else f"{OWN} know"
        return f"{NUMBERS[self.place]} {statement(asked.facts[self.place])} {self.value} as {output}."


@dataclass(frozen=True)
class Written:
    """A report on a query: its claims in order, and whether it concludes."""

    asked: Asked
    claims: tuple[Claim, ...]
    concludes: bool = True

    @property
    def text(self) -> str:
        """The content of `<answer>`."""
        output = " ".join(claim.sentence(self.asked) for claim in self.claims)
        return output + (f"\nConclusion: {', '.join(claim.value for claim in self.claims)}." if self.concludes else "")

    def claim(self, place: int) -> Claim | None:
        """What it says of the fact at `place`."""
        return next((claim for claim in self.claims if claim.place == place), None)


def _numbered(asked: Asked, place: int) -> str:
    return f"{NUMBERS[place]} {asked.facts[place].phrase}"


def _searches(asked: Asked, verb: str, count: int, show: Show) -> Parts:
    """Search turns for the names of the first and of the third fact, with their results."""
    dialect = dialects.load(card().model.dialect)
    parts: Parts = []
    for place, name in list(zip((0, 2), asked.names, strict=True))[:count]:
        thought = f"I {verb} {_numbered(asked, place)}."
        parts.append((f"<think> {thought} </think>{searching.written_search(f' {name} ', dialect)}", True))
        parts.append((raw(dialect.observation([show(name)])), False))
    return parts


# --------------------------------------------------------------------------------------------------------------- solver
def solver(written: Written, rubric: Rubric, searches: int, show: Show) -> Script:
    """Searches for the names of a query and reports.

    Good play looks up both names and claims what the documents say, with their names. Bad habits: fewer searches, and
    what `written` shows.
    """
    thought = ("I know this.", "I have some.", "I have all.")[searches]
    parts = _searches(written.asked, "need", searches, show)
    parts.append((f"<think> {thought} </think><answer> {written.text} </answer>", True))
    return Script("solver", messages.for_solver(card(), written.asked.text, rubric).user, tuple(parts))


# ------------------------------------------------------------------------------------------------------------ evaluator
def rubric_writer(asked: Asked, constraints: Constraints, k: int, weights: Sequence[tuple[str, str | None]]) -> Script:
    """A rubric call for k dimensions that writes down these names and weights."""
    plain = meta_harness.default(card()).plain()
    plain["dimension_constraints"]["k"] = k
    message = messages.for_rubric(card(), meta_harness.validate(card(), plain), constraints, asked.text).user
    items = "".join(_dimension(name, weight) for name, weight in weights)
    return Script("evaluator", message, ((f"<dimensions>{items}</dimensions>", True),))


def _dimension(name: str, weight: str | None) -> str:
    return f'<dim name="{name}"/>' if weight is None else f'<dim name="{name}" weight="{weight}"/>'


def assessor(written: Written, rubric: Rubric, least: int, show: Show) -> Script:
    """Looks up both names, whatever the least number of searches is, and goes through the facts of the query twice.

    First: does the report say what the document says? Then: does it say anything of it? Each time the counts are
    carried along, and the scores repeat them.
    """
    asked = written.asked
    plain = meta_harness.default(card()).plain()
    plain["process_constraints"]["min_number_of_tool_call"] = least
    now = meta_harness.validate(card(), plain)
    message = messages.for_scoring(card(), now, asked.text, rubric, [written.text]).user
    verified, right, cited = _verified(written)
    gaps, claimed = _gaps(written)
    counts = {"factuality": right, "citation_effectiveness": cited, "completeness": claimed}
    points = {**counts, "coherence": len(asked.facts) * written.concludes}
    scores = "".join(
        f'<score dim="{name}" value="{points[name]}"/>' for name in options(card()).pool if name in rubric.dimensions
    )
    output = (
        f'<report_evaluations><report id="1"><verification> {verified} </verification>'
        f"<gap_analysis> {gaps} </gap_analysis><citations>{_citations(written)}</citations>"
        f"<scores>{scores}</scores></report></report_evaluations>"
    )
    return Script("scoring", message, (*_searches(asked, "check", 2, show), (output, True)))


def holds(claim: Claim | None, fact: Fact) -> bool:
    """True if a report claims the fact as it is."""
    return claim is not None and claim.value == fact.value


def _verified(written: Written) -> tuple[str, int, int]:
    """The verification, how many claims are right, and how many of these have a source."""
    lines, right, cited = [], 0, 0
    for place, fact in enumerate(written.asked.facts):
        claim, verdict = written.claim(place), "not"
        if claim is not None and holds(claim, fact):
            right, cited = right + 1, cited + (claim.source is not None)
            verdict = f"as {claim.source} holds" if claim.source else f"as {OWN} guess"
        lines.append(f"{NUMBERS[place]} {criterion(fact)} {verdict} {right} {cited}.")
    return " ".join(lines), right, cited


def _gaps(written: Written) -> tuple[str, int]:
    """The gap analysis, and how many of the facts the report says something of."""
    lines, claimed = [], 0
    for place in range(len(NUMBERS)):
        known = written.claim(place) is not None
        claimed += known
        lines.append(f"{_numbered(written.asked, place)}{':' if known else ' missing'} {claimed}.")
    return " ".join(lines), claimed


def _citations(written: Written) -> str:
    """Every name that the report cites once; supported if a claim with it holds."""
    cited = [claim for claim in written.claims if claim.source is not None]
    good = {claim.source for claim in cited if holds(claim, written.asked.facts[claim.place])}
    names = dict.fromkeys(claim.source for claim in cited)
    return "".join(
        f'<citation source=" {name}" verdict="{"supported" if name in good else "unsupported"}"/>' for name in names
    )


# ---------------------------------------------------------------------------------------------------------------- judge
def grader(written: Written, place: int) -> Script:
    """The exam's verdict: the report's value for a fact, with "here" if it is the criterion's, or "missing"."""
    fact, claim = written.asked.facts[place], written.claim(place)
    right = holds(claim, fact)
    finding = "missing" if claim is None else f"{claim.value} {'here' if right else 'missing'}"
    thought = f"{fact.phrase}{':' if claim else ''} {finding}."
    message = rubrics.question(card(), str(PROMPTS), written.asked.text, written.text, criterion(fact))
    return Script("judge", message, ((f"<think> {thought} </think><score> {int(right)} </score>", True),))


def rubric_of(weights: Mapping[str, float]) -> Rubric:
    """The card's base dimension and others, as prompts show them."""
    return Rubric(options(card()).harness.must_include[0], weights)
