"""The search as a tool, and the searches and answers in an episode of a policy that may search.

Everything that depends on how a model writes a search comes from its dialect. Thinking is ignored: searches and final
tags are looked for in the rest of a turn (`Turn.content`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from scope_jax.config import Config, FormatRule, SamplingSection, one_of
from scope_jax.play.rollouts import Agent
from scope_jax.play.tool_calls import SEARCH, SEARCH_ARGUMENT, SEARCH_NAME, Tool
from scope_jax.play.tool_turns import UNFINISHED, read_calls
from scope_jax.retrieval.search import EMPTY_QUERY, NOTHING_FOUND
from scope_jax.rollouts.types import Completion
from scope_jax.text import dialects, parsing
from scope_jax.text.dialects import Call, Dialect
from scope_jax.text.strict_json import is_text

Search = Callable[[Sequence[str]], list[str]]  # the result text of each query
# Rules of reading: of several queries in one search all count, or it is one.
ALL = Agent("", SamplingSection(), malformed="end")
FIRST = replace(ALL, calls="first")


def search_tool(search: Search, dialect: Dialect, pure: bool = True) -> Tool:
    """The search as a tool. A JSON list in a search counts as several queries (SSP's released code). pure: equal
    queries have equal results."""
    return _tool(search, dialect.exact, pure)


def _tool(search: Search, strict: bool, pure: bool = True) -> Tool:
    def batch(calls: Sequence[Mapping[str, Any]]) -> list[str]:
        return search([arguments[SEARCH_ARGUMENT] for arguments in calls])

    return Tool(
        SEARCH_NAME, lambda query: search([query])[0], SEARCH, pure=pure, strict=strict, parts=_queries, batch=batch
    )


def _queries(arguments: Mapping[str, Any], several: bool) -> list[Mapping[str, Any]]:
    """The searches that one stands for; none if the query is blank, or no text."""
    query = arguments[SEARCH_ARGUMENT].strip()
    if not query or not is_text(query):
        return []
    return [{SEARCH_ARGUMENT: part} for part in (parsing.several(query) if several else [query])]


def declared(dialect: Dialect) -> tuple[Mapping[str, Any], ...]:
    """The tools that prompts of roles that search declare: none where the prompt itself describes the search."""
    return (SEARCH,) if dialect.declares else ()


def searches(text: str, dialect: Dialect) -> list[Call]:
    """Every search of `text`, valid or malformed, in order.

    Malformed are calls that cannot be read or are of another function, and blank queries. What follows such a call
    inside the same tags is part of it.
    """
    return read_calls(text, (reader(dialect),), dialect, FIRST)


def reader(dialect: Dialect) -> Tool:
    """The search tool, to read turns with: it finds nothing."""
    return _reader(dialect.exact)


@cache
def _reader(strict: bool) -> Tool:
    return _tool(lambda queries: [""] * len(queries), strict)


def written_search(query: str, dialect: Dialect) -> str:
    """A search for `query`, for demonstrations."""
    return dialect.write(Call(SEARCH_NAME, {SEARCH_ARGUMENT: query}), (SEARCH,))


def queries_of(text: str, dialect: Dialect) -> list[str]:
    """The queries of all valid searches of a turn; a JSON list in a search counts as several (SSP's released code)."""
    found = read_calls(text, (reader(dialect),), dialect, ALL)
    return [call.arguments[SEARCH_ARGUMENT] for call in found if call.valid]


def with_searches(agent: Agent, final: str) -> Agent:
    """The agent as one that may search: every search ends a turn and is run, `<final>` ends the episode, and so does a
    turn without a search."""
    return replace(agent, tools=(SEARCH_NAME,), finals=(final,), calls="stop", malformed="end")


def contents(completion: Completion) -> list[str]:
    """The contents of the sampled turns (thinking replaced by spaces)."""
    return [turn.content for turn in completion.turns if turn.kind == "sampled"]


def cut_off(completion: Completion) -> str:
    """The limit that cut the completion's last turn; "" if the policy ended it, or the responder."""
    return completion.finish_reason if completion.finish_reason in UNFINISHED else ""


def answered_contents(completion: Completion) -> list[str]:
    """The contents of the sampled turns that were answered: a turn that is not the last is followed by its results."""
    return [turn.content for turn in completion.turns[:-1] if turn.kind == "sampled"]


def queries_run(completion: Completion, dialect: Dialect) -> list[str]:
    """Queries that were answered."""
    return [query for text in answered_contents(completion) for query in queries_of(text, dialect)]


def searches_run(cfg: Config, completion: Completion) -> int:
    """Number of searches of an episode that were run, in the card's dialect."""
    return len(queries_run(completion, dialects.load(cfg.model.dialect)))


def results_read(completion: Completion, dialect: Dialect) -> list[str]:
    """Result texts that the policy read, one per query; searches that found nothing are left out."""
    results = [r for turn in completion.turns if turn.kind == "observation" for r in dialect.results_of(turn.text)]
    return [result.strip() for result in results if result.strip() not in ("", EMPTY_QUERY, NOTHING_FOUND)]


def keeps_format(completion: Completion, dialect: Dialect, final: str, rule: str) -> bool:
    """True if the last turn has a closed `<final>` and every turn satisfies `rule`.

    "well-formed": tags are closed and not nested, and only think, the dialect's search and `final` occur (tags inside
    thinking are ignored); "think": each turn also begins with thinking; "lenient": only the final tag is required.
    Raises ValueError for any other rule.
    """
    one_of("rule", rule, FormatRule)
    texts = contents(completion)
    if not texts or not parsing.spans(texts[-1], final):
        return False
    if rule == "lenient":
        return True
    turns = [turn.written for turn in completion.turns if turn.kind == "sampled"]
    known = (*parsing.TAGS, *dialect.tags)
    allowed = [tag for tag in ("think", dialect.tag(SEARCH_NAME), final) if tag is not None]
    formed = all(parsing.well_formed(turn, allowed, known) for turn in turns)
    return formed and (rule != "think" or all(parsing.opens_with_thought(turn) for turn in turns))


def tokens_sampled(completion: Completion) -> int:
    """Number of sampled tokens."""
    return int(sum(bool(flag) for flag in completion.sampled_T))


def lengths(role: str, completions: Sequence[Completion]) -> dict[str, list[float]]:
    """Values by metric name: sampled tokens, all tokens after the prompt, cut off by a limit, prompt too long."""
    sampled = [completion for completion in completions if completion.turns]
    return {
        f"{role}/response_tokens": [float(tokens_sampled(completion)) for completion in sampled],
        f"{role}/response_length": [float(len(completion.ids_T)) for completion in sampled],
        f"{role}/cut_off": [float(bool(cut_off(completion))) for completion in sampled],
        f"{role}/prompt_too_long": [float(not completion.turns) for completion in completions],
    }
