"""Episodes of a policy that may search: the answer to a turn, and what such an episode says, asked and read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from retrieval.search import EMPTY_QUERY, NOTHING_FOUND
from rollouts.types import Completion, Turn
from scope_jax import parsing


def responder(search: Callable[[Sequence[str]], list[str]], final: str) -> Callable[[Sequence[Turn]], str | None]:
    """What a turn gets: the results of all its searches.

    None, the end of the episode, after `<final>`, without a search, and where the policy ended its message itself.
    """

    def respond(turns: Sequence[Turn]) -> str | None:
        text = turns[-1].text
        if turns[-1].finish == "eos" or parsing.first([text], final) is not None:
            return None
        queries = parsing.searches(text)
        return parsing.observation(search(queries)) if queries else None

    return respond


def said(completion: Completion) -> list[str]:
    """Texts of the policy's own turns."""
    return [turn.text for turn in completion.turns if turn.kind == "sampled"]


def queries_run(completion: Completion) -> list[str]:
    """Queries that were answered: those of every turn but the last."""
    answered = completion.turns[:-1]  # whatever comes after a turn of the policy is its observation
    return [query for turn in answered if turn.kind == "sampled" for query in parsing.searches(turn.text)]


def results_read(completion: Completion) -> list[str]:
    """Result texts that the policy got to read, one for each query; searches that found nothing are left out."""
    results = [r for turn in completion.turns if turn.kind == "observation" for r in parsing.results_of(turn.text)]
    return [result.strip() for result in results if result.strip() not in ("", EMPTY_QUERY, NOTHING_FOUND)]


def keeps_format(completion: Completion, final: str, rule: str) -> bool:
    """True if the episode ends in `<final>` and every turn keeps to `rule`.

    "well-formed": tags closed, not nested, only think, search and `final`; "think": each turn also begins with a
    thought; "lenient": nothing more than the final tag.
    """
    turns = said(completion)
    if not turns or not parsing.spans(turns[-1], final):
        return False
    if rule == "lenient":
        return True
    formed = all(parsing.well_formed(turn, ("think", "search", final)) for turn in turns)
    return formed and (rule != "think" or all(parsing.opens_with_thought(turn) for turn in turns))


def transcript(completion: Completion) -> list[dict[str, Any]]:
    """The turns for people: who wrote what."""
    return [{"kind": turn.kind, "text": turn.text} for turn in completion.turns]


def tokens_sampled(completion: Completion) -> int:
    """Number of tokens the policy chose."""
    return int(sum(bool(flag) for flag in completion.sampled_T))
