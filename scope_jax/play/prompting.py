"""Fills in prompt files: untrusted text is neutralised, the search is described in the model's dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path

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


@dataclass(frozen=True)
class Prompt:
    """A prompt file of a role: `<name>.txt` in the card's prompt folder, perhaps with `<name>.system.txt` beside it."""

    name: str
    """Of the file."""
    variables: tuple[str, ...] = ()
    """What it may show."""
    required: tuple[str, ...] | None = None
    """What it must show; None: all of them."""
    searches: bool = False
    """The role may search: {search} and {results} are variables too, and the search is declared as a tool."""
    system: bool = True
    """A system message may stand beside it."""
    system_of: str = ""
    """Whose system message that is, `<system_of>.system.txt` without variables, where several prompts of a role share
    one; "": its own."""
    lines_of: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Variables that show a line of another file of the folder, with the name of that file."""

    def template(self, cfg: Config) -> Messages:
        """The messages before they are filled in. Raises PromptError for a missing or invalid file."""
        required = self.variables if self.required is None else self.required
        folder = folder_of(cfg)
        if self.searches:
            known = (*self.variables, *search_syntax(cfg))
            tools = (SEARCH,) if dialects.load(cfg.model.dialect).declares else ()
            return templates.load_messages(folder, self.name, known=known, required=required, tools=tools)
        user = _template(folder, self.name, self.variables, required)
        of_system = () if self.system_of else self.variables
        system = [_template(folder, file.stem, of_system, ()) for file in self.system_file(cfg)]
        return Messages(user, system[0] if system else None)

    def messages(self, cfg: Config, **values: object) -> Messages:
        """The messages with these values of the variables. Raises PromptError."""
        syntax = search_syntax(cfg) if self.searches else {}
        return templates.fill_messages(self.template(cfg), {**values, **syntax})

    def text(self, cfg: Config, **values: object) -> str:
        """The user message alone, filled in. Raises PromptError."""
        return self.messages(cfg, **values).user

    def lines(self, cfg: Config, variable: str) -> list[str]:
        """The lines of the file that a variable shows one of. Raises PromptError."""
        text = templates.load(folder_of(cfg), self.lines_of[variable], known=(), required=())
        return [line.strip() for line in text.splitlines() if line.strip()]

    def check(self, cfg: Config) -> None:
        """Reads all its files. Raises PromptError with file and variable."""
        shown = templates.variables(self.template(cfg).user)
        for variable in self.lines_of:
            if variable in shown:
                self.lines(cfg, variable)

    def system_file(self, cfg: Config) -> tuple[Path, ...]:
        """The file of its system message, if there is one."""
        return templates.system_files(folder_of(cfg), [self.system_of or self.name]) if self.system else ()


def folder_of(cfg: Config) -> str:
    """The prompt folder of the card's game, its key `prompts`."""
    return getattr(cfg, cfg.game_table).prompts
