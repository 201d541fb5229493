"""Fills in prompt files: untrusted text is neutralised, the search is described in the model's dialect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache

from scope_jax.config import Config
from scope_jax.play.tool_calls import SEARCH, SEARCH_ARGUMENT, SEARCH_NAME
from scope_jax.text import dialects, parsing, templates
from scope_jax.text.messages import Messages


def shown(cfg: Config, text: str, own: tuple[str, ...] = ()) -> str:
    """`text` with all reserved tags in square brackets, so that quoted text cannot search, answer or score.

    own: tags of a game's prompts and replies in addition to those of all games.
    """
    return _neutral(text, (*dialects.load(cfg.model.dialect).tags, *own))


def fences(cfg: Config, **contents: str) -> str:
    """Fenced blocks of Markdown by language, `shown`, one below the other."""
    return "\n".join(f"```{language}\n{shown(cfg, text)}\n```" for language, text in contents.items())


@lru_cache(maxsize=4096)  # a document or an answer is shown several times in a step, and may be long
def _neutral(text: str, tags: tuple[str, ...]) -> str:
    return parsing.neutralise(text, tags)


def search_syntax(cfg: Config) -> dict[str, str]:
    """The variables {search} and {results}: what a search looks like, and where its results appear."""
    dialect = dialects.load(cfg.model.dialect)
    return {"search": dialect.example(SEARCH_NAME, SEARCH_ARGUMENT), "results": dialect.place}


@cache  # a step fills the grader's prompt many thousand times
def _template(folder: str, name: str, known: tuple[str, ...], required: tuple[str, ...]) -> str:
    return templates.load(folder, name, known=known, required=required)


def filled(folder: str, name: str, values: Mapping[str, object], required: tuple[str, ...] = ()) -> str:
    """The prompt `name`.txt of a folder with its variables filled in; raises PromptError."""
    return templates.fill(_template(folder, name, tuple(values), required), values)


@lru_cache(maxsize=64)
def _messages(folder: str, role: str, known: tuple[str, ...], required: tuple[str, ...]) -> Messages:
    return templates.load_messages(folder, role, known=known, required=required, tools=None)


def for_role(folder: str, role: str, values: Mapping[str, object], required: tuple[str, ...]) -> Messages:
    """The messages of a role that does not search, filled in: prompt, and system message if the folder has one.

    Raises PromptError.
    """
    return templates.fill_messages(_messages(folder, role, tuple(values), required), values)


def searcher_template(cfg: Config, folder: str, role: str, known: Sequence[str], required: Sequence[str]) -> Messages:
    """The message templates of a role that may search: prompt, system message if the folder has one, search tool.

    They may use {search} and {results} in addition to `known`. Raises PromptError.
    """
    known = (*known, *search_syntax(cfg))
    tools = (SEARCH,) if dialects.load(cfg.model.dialect).declares else ()
    return templates.load_messages(folder, role, known=known, required=required, tools=tools)


def for_searcher(
    cfg: Config, folder: str, role: str, values: Mapping[str, object], required: Sequence[str]
) -> Messages:
    """`searcher_template`, filled in."""
    template = searcher_template(cfg, folder, role, tuple(values), required)
    return templates.fill_messages(template, {**values, **search_syntax(cfg)})
