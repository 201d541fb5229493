"""Episodes of a policy that may search: the response to a turn, and the searches and answers in an episode.

Everything that depends on how a model writes a search comes from its dialect. Thinking is ignored: searches and final
tags are looked for in the rest of a turn (`Turn.content`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from scope_jax.config import Config, FormatRule, RoleSection, one_of
from scope_jax.play.tool_calls import SEARCH, SEARCH_ARGUMENT, SEARCH_NAME, Tool
from scope_jax.play.tools import Agent, Tools
from scope_jax.play.turns import Cut, Respond
from scope_jax.retrieval.rows import is_text
from scope_jax.retrieval.search import EMPTY_QUERY, NOTHING_FOUND
from scope_jax.rollouts.types import Completion, Turn
from scope_jax.text import dialects, parsing
from scope_jax.text.dialects import Call, Dialect

Search = Callable[[Sequence[str]], list[str]]  # the result text of each query
UNFINISHED = ("length", "overflow")  # finish reasons of a turn that was cut off


class Searched(NamedTuple):
    """A search at text[start:end] and its query; the query is None if the search is malformed. closed: where the tags
    around it end."""

    query: str | None
    start: int
    end: int
    closed: int


def search_tool(search: Search) -> Tool:
    """The search as a tool."""
    return Tool(SEARCH_NAME, lambda query: search([query])[0], SEARCH, pure=True)


def declared(dialect: Dialect) -> tuple[Mapping[str, Any], ...]:
    """The tools that prompts of roles that search declare: none where the prompt itself describes the search."""
    return (SEARCH,) if dialect.declares else ()


def searches(text: str, dialect: Dialect) -> list[Searched]:
    """Every search of `text`, valid or malformed, in order.

    Malformed are calls that cannot be read or are of another function, and blank queries. What follows such a call
    inside the same tags is part of it.
    """
    found: list[Searched] = []
    foreign = -1  # where the tags end in which something is no search
    for call in dialect.read(text, (SEARCH,)):
        if call.closed == foreign:
            found[-1] = found[-1]._replace(end=call.end)
            continue
        query = _query(call, dialect)
        found.append(Searched(query.strip() if query and is_text(query) else None, call.start, call.end, call.closed))
        foreign = call.closed if query is None and (call.valid or call.name != SEARCH_NAME) else -1
    return [search if search.query else search._replace(query=None) for search in found]


def _query(call: Call, dialect: Dialect) -> str | None:
    """The query of a search; None for any other call. Other arguments are ignored, except in the format function."""
    query = call.arguments.get(SEARCH_ARGUMENT) if call.valid and call.name == SEARCH_NAME else None
    surplus = dialect.format == "function" and len(call.arguments) > 1
    return query if isinstance(query, str) and not surplus else None


def written_search(query: str, dialect: Dialect) -> str:
    """A search for `query`, for demonstrations."""
    return dialect.write(Call(SEARCH_NAME, {SEARCH_ARGUMENT: query}), (SEARCH,))


def queries_of(text: str, dialect: Dialect) -> list[str]:
    """The queries of all valid searches of a turn; a JSON list in a search counts as several (SSP's released code)."""
    return _all_queries(searches(text, dialect))


def _all_queries(found: Sequence[Searched]) -> list[str]:
    return [query for search in found if search.query is not None for query in parsing.several(search.query)]


def first_query(found: Sequence[Searched], text: str, finals: Sequence[str]) -> tuple[str, int] | None:
    """(query, end) of the first valid search among those of a turn, where only that one is run; `end` is after its
    closing tag (SCOPE's released code).

    None without a valid search, or if a closed tag of `finals` begins before it, even if the search is inside that tag.
    """
    for search in found:
        if search.query is not None:
            if any(0 <= _begin(text, final) < search.start for final in finals):
                return None
            return search.query, search.closed
    return None


def _begin(text: str, tag: str) -> int:
    """Start of the first closed `<tag>`; -1 without one."""
    end = text.find(f"</{tag}>")
    return text.rfind(f"<{tag}>", 0, end) if end >= 0 else -1


def responder(
    search: Search,
    dialect: Dialect,
    finals: Sequence[str],
    *,
    first_only: bool = False,
    end_token_ends: bool = True,
    malformed: str | None = None,
) -> Callable[[Sequence[Turn]], str | Cut | None]:
    """The responder of turns: the results of a turn's searches, in the dialect's format.

    It returns None, which ends the episode, after a closed tag of `finals`, without a search, and after a turn that was
    cut off. first_only: only the first search of a turn is run, if no final tag begins before it, and everything after
    it is dropped, however the turn ended. end_token_ends: an end token sampled by the policy ends the episode; needed
    for raw turns, where nothing can follow it. malformed: the response to a turn whose searches are all malformed
    (None: the episode ends).
    """

    def respond(turns: Sequence[Turn]) -> str | Cut | None:
        text, finish = turns[-1].content, turns[-1].finish
        found = searches(text, dialect)
        if first_only and (first := first_query(found, text, finals)):
            query, end = first
            return Cut(end, dialect.observation(search([query])))
        if finish in UNFINISHED or (end_token_ends and finish == "eos"):
            return None
        if any(parsing.first([text], final) is not None for final in finals):
            return None
        if queries := _all_queries(found):
            return dialect.observation(search(queries))
        return malformed if found and not any(one.query is not None for one in found) else None

    return respond


def stops_of(cfg: Config, final: str) -> tuple[str, ...]:
    """Strings that end a turn: the closing tags of a search and of `<final>`, which ends the episode."""
    return (*dialects.load(cfg.model.dialect).stops(SEARCH_NAME), f"</{final}>")


def responder_of(
    cfg: Config, search: Search, final: str, *, first_only: bool = False, malformed: str | None = None
) -> Respond:
    """The `responder` of the turns of an episode that ends with `<final>`, in the card's dialect."""
    ends = cfg.model.turns == "raw"
    dialect = dialects.load(cfg.model.dialect)
    return responder(search, dialect, (final,), first_only=first_only, end_token_ends=ends, malformed=malformed)


def agent(
    cfg: Config,
    tools: Tools,
    card: RoleSection,
    policy: str,
    final: str,
) -> Agent:
    """An agent that may search, with the limits of a role's table; its episodes end with `<final>`."""
    return Agent.of_role(card, policy, stop=stops_of(cfg, final), respond=responder_of(cfg, tools.search, final))


def contents(completion: Completion) -> list[str]:
    """The contents of the sampled turns (thinking replaced by spaces)."""
    return [turn.content for turn in completion.turns if turn.kind == "sampled"]


def reply_text(completion: Completion) -> str:
    """The completion's text without thinking; "" if the prompt was too long to be sampled."""
    return "".join(contents(completion))


def cut_off(completion: Completion) -> str:
    """The limit that cut the completion's last turn; "" if the policy ended it, or the responder."""
    return completion.finish_reason if completion.finish_reason in UNFINISHED else ""


def whole(turn: Turn) -> str:
    """A turn's text with its thinking; if the prompt opened the thinking, the opening tag is added."""
    return parsing.THOUGHT[0] + turn.text if turn.opened else turn.text


def written(completion: Completion) -> str:
    """The whole text of a single-turn episode, see `whole`."""
    return "".join(whole(turn) for turn in completion.turns)


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
    turns = [whole(turn) for turn in completion.turns if turn.kind == "sampled"]
    known = (*parsing.TAGS, *dialect.tags)
    allowed = [tag for tag in ("think", dialect.tag(SEARCH_NAME), final) if tag is not None]
    formed = all(parsing.well_formed(turn, allowed, known) for turn in turns)
    return formed and (rule != "think" or all(parsing.opens_with_thought(turn) for turn in turns))


def tokens_sampled(completion: Completion) -> int:
    """Number of sampled tokens."""
    return int(sum(bool(flag) for flag in completion.sampled_T))


def episode_stats(role: str, completions: Sequence[Completion], searches: Sequence[int]) -> dict[str, list[float]]:
    """Values by metric name for episodes with searches: number of searches, and `lengths`."""
    return {f"{role}/searches": [float(count) for count in searches], **lengths(role, completions)}


def lengths(role: str, completions: Sequence[Completion]) -> dict[str, list[float]]:
    """Values by metric name: sampled tokens, all tokens after the prompt, cut off by a limit, prompt too long."""
    sampled = [completion for completion in completions if completion.turns]
    return {
        f"{role}/response_tokens": [float(tokens_sampled(completion)) for completion in sampled],
        f"{role}/response_length": [float(len(completion.ids_T)) for completion in sampled],
        f"{role}/cut_off": [float(bool(cut_off(completion))) for completion in sampled],
        f"{role}/prompt_too_long": [float(not completion.turns) for completion in completions],
    }
