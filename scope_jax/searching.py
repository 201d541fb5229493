"""Episodes of a policy that may search: the answer to a turn, and what such an episode says, asked and read.

Everything that depends on how a model writes a search comes from its dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from retrieval.search import EMPTY_QUERY, NOTHING_FOUND
from rollouts.types import Completion, Turn
from scope_jax import parsing
from scope_jax.dialects import Dialect
from scope_jax.dialects.calls import calls


def queries_of(text: str, dialect: Dialect, *, first_only: bool = False) -> list[str]:
    """The queries a turn asks for: of all its valid searches, a JSON list inside one counting as several (SSP's
    released code), or of its first valid one alone, whose content is one query (SCOPE's).
    """
    valid = [call.query for call in calls(text, dialect) if call.query is not None]
    return valid[:1] if first_only else [query for content in valid for query in parsing.several(content)]


def responder(
    search: Callable[[Sequence[str]], list[str]],
    dialect: Dialect,
    finals: Sequence[str],
    *,
    first_only: bool = False,
    end_token_ends: bool = True,
    malformed: str | None = None,
) -> Callable[[Sequence[Turn]], str | None]:
    """What a turn gets: the results of its searches, in the dialect's words.

    None, the end of the episode, after a closed tag of `finals`, and without a search. first_only: only the first
    search of a turn is run, and what comes first counts: a final tag behind it does not end the episode.
    end_token_ends: an end token that the policy said itself ends the episode; right for raw turns, where nothing can
    follow it. malformed: what a turn reads whose searches are all malformed (None: the episode ends).
    """

    def respond(turns: Sequence[Turn]) -> str | None:
        text = turns[-1].text
        if end_token_ends and turns[-1].finish == "eos":
            return None
        if _ended(text, dialect, finals, first_only):
            return None
        if queries := queries_of(text, dialect, first_only=first_only):
            return dialect.observation(search(queries))
        begun = calls(text, dialect)
        return malformed if begun and not any(call.valid for call in begun) else None

    return respond


def _ended(text: str, dialect: Dialect, finals: Sequence[str], first_only: bool) -> bool:
    """True if a final tag ends the episode: any closed one, or with first_only one that begins before the search."""
    searches = [call.start for call in calls(text, dialect) if call.valid]
    head = text[: searches[0]] if first_only and searches else text
    return any(parsing.first([head], final) is not None for final in finals)


def said(completion: Completion) -> list[str]:
    """Texts of the policy's own turns."""
    return [turn.text for turn in completion.turns if turn.kind == "sampled"]


def queries_run(completion: Completion, dialect: Dialect, *, first_only: bool = False) -> list[str]:
    """Queries that were answered: those of every turn but the last."""
    answered = completion.turns[:-1]  # whatever comes after a turn of the policy is its observation
    return [
        query
        for turn in answered
        if turn.kind == "sampled"
        for query in queries_of(turn.text, dialect, first_only=first_only)
    ]


def results_read(completion: Completion, dialect: Dialect) -> list[str]:
    """Result texts that the policy got to read, one for each query; searches that found nothing are left out."""
    results = [r for turn in completion.turns if turn.kind == "observation" for r in dialect.results_of(turn.text)]
    return [result.strip() for result in results if result.strip() not in ("", EMPTY_QUERY, NOTHING_FOUND)]


def keeps_format(completion: Completion, dialect: Dialect, final: str, rule: str) -> bool:
    """True if the episode ends in `<final>` and every turn keeps to `rule`.

    "well-formed": tags closed, not nested, only think, the dialect's search and `final`; "think": each turn also begins
    with a thought; "lenient": nothing more than the final tag.
    """
    turns = said(completion)
    if not turns or not parsing.spans(turns[-1], final):
        return False
    if rule == "lenient":
        return True
    known = (*parsing.TAGS, *dialect.tags)
    formed = all(parsing.well_formed(turn, ("think", dialect.call.tag, final), known) for turn in turns)
    return formed and (rule != "think" or all(parsing.opens_with_thought(turn) for turn in turns))


def transcript(completion: Completion) -> list[dict[str, Any]]:
    """The turns for people: who wrote what."""
    return [{"kind": turn.kind, "text": turn.text} for turn in completion.turns]


def tokens_sampled(completion: Completion) -> int:
    """Number of tokens the policy chose."""
    return int(sum(bool(flag) for flag in completion.sampled_T))
