"""Consistency of reports: conclusions, and C(Γ), the mean pairwise TF-IDF cosine (section 3.5, App. F.1)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from scope_jax.config import one_of
from scope_jax.games.score.options import ConclusionRule, Idf

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import TfidfVectorizer

CONCLUDING = {"conclusion", "conclusions", "summary", "summary and conclusion", "key findings", "in conclusion"}
SOURCES = {"sources", "references", "bibliography", "citations", "works cited"}
_NUMBERED = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3})*[.)]?\s+")
_LONGEST = 100  # characters of a heading


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
    begins = [place for place, (words, _) in enumerate(headings) if words in CONCLUDING]
    if begins:
        begin = begins[-1]
        end = next((i for i in range(begin + 1, len(lines)) if headings[i][0] is not None), len(lines))
        if text := "\n".join([headings[begin][1], *lines[begin + 1 : end]]).strip():
            return text
    sources = [place for place, (words, _) in enumerate(headings) if words in SOURCES]
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


def pairwise(conclusions: Sequence[Sequence[str | None]], idf: str) -> list[float]:
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
