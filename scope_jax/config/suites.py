"""Exam suites: one benchmark per file of `configs/exams`, and the figures that the papers report for them.

A suite is an evaluation set with its own prompt, independent of a card. `load_suite` returns it in the form in which a
paper used it: the keys of `[papers.NAME]` replace those above them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from scope_jax.config.base import HOME, CardError, Count, Section, Temperature, Whole
from scope_jax.config.exams import EvalSet, Measure
from scope_jax.config.loading import parse_section
from scope_jax.config.tables import TopP
from scope_jax.text import toml

FIGURES = HOME / "configs" / "exams" / "papers"  # one file per paper, by the name of its game
SUITES = HOME / "configs" / "exams"
Form = Literal["short", "math", "choice", "open", "document"]  # the prompt, and where the answer is in the reply
Stop = tuple[Annotated[str, Field(min_length=1)], ...]


class ProtocolSection(Section):
    """What a paper does differently from the keys above; None: the same."""

    limit: Count | None = None
    """Size of a random subset of the rows."""
    samples: Count | None = None
    """Answers per question."""
    temperature: Temperature | None = None
    """Temperature of the answers."""
    top_p: TopP | None = None
    """Nucleus sampling."""
    top_k: Whole | None = None
    """Most probable tokens."""
    max_tokens: Count | None = None
    """Sampled tokens of one turn."""
    prompt_tokens: Count | None = None
    """Most tokens of a prompt with a document."""
    stop: Stop | None = Field(default=None, strict=False)
    """Strings that end a reply."""
    measures: tuple[Measure, ...] | None = Field(default=None, strict=False)
    """What the answers are measured by."""


class SuiteCard(EvalSet):
    """One benchmark: its rows, prompt, sampling and measures; the first measure is the one in tables."""

    measures: tuple[Measure, ...] = Field(default=(), strict=False)
    """What the answers are measured by."""
    form: Form
    r"""The prompt, and where the answer is: `short`, in the last `<answer>`; `math`, in the last `\boxed{}` or
    `\fbox{}`; `choice`, the letter in the last box, after "Answer:", or in the last line; `open`, the whole reply;
    `document`, after the last "Answer:", else in the last box (docs/evaluation.md#who-answers-how)."""
    games: tuple[str, ...] = Field(default=(), strict=False)
    """Games whose own prompt, turns and searches answer it; every other model gets the prompt of the form."""
    prompt_tokens: Count | None = None
    """Form `document`: most tokens of a prompt; the middle of a longer text is cut out."""
    stop: Stop = Field(default=(), strict=False)
    """Strings that end a reply and are no part of it: what follows is another conversation, of a model that writes no
    end."""
    papers: dict[str, ProtocolSection] = {}
    """A table for each paper, by the name of its game: `limit`, `samples`, `temperature`, `top_p`, `top_k`,
    `max_tokens`, `prompt_tokens`, `stop`, `measures`, where it differs."""

    @model_validator(mode="after")
    def _complete(self) -> SuiteCard:
        if not self.measures:
            raise ValueError("measures is empty; name at least one, the first is the one in tables")
        if self.prompt_tokens is not None and self.form != "document":
            raise ValueError('prompt_tokens cuts texts of the form "document"; remove it')
        return self


class Heading(Section):
    """A column of a paper's table: its title, and the suites whose mean it is (none: not measured here)."""

    title: str
    """Title of the column."""
    exams: tuple[str, ...] = Field(default=(), strict=False)
    """Suites whose mean it is; none: not measured here."""
    measure: str | None = None
    """The measure; default: the first one of the suites."""


class FiguresTable(Section):
    """A table of a paper in per cent: a row for each model; the last column may be the mean of the others."""

    name: str
    """Its name in the paper, e.g. `Table 2`."""
    about: str
    """What it shows, in a sentence."""
    columns: tuple[Heading, ...] = Field(strict=False)
    """Its columns."""
    mean: str | None = None
    """Title of the last column, the mean of the others; default: there is none."""
    rows: dict[str, tuple[float, ...]]
    """Figures of each model, in per cent, by its name."""

    @model_validator(mode="before")
    @classmethod
    def _rows_are_tuples(cls, table: Any) -> Any:
        if isinstance(table, dict) and isinstance(table.get("rows"), dict):
            rows = {name: tuple(map(float, row)) for name, row in table["rows"].items()}
            return table | {"rows": rows}
        return table

    @model_validator(mode="after")
    def _rows_fit(self) -> FiguresTable:
        width = len(self.columns) + (self.mean is not None)
        for name, row in self.rows.items():
            if len(row) != width:
                raise ValueError(f"the row {name!r} of {self.name} has {len(row)} figures, not {width}")
        return self


class Figures(Section):
    """The tables of a paper that its suites are compared with."""

    tables: tuple[FiguresTable, ...] = Field(strict=False)
    """The tables."""


def suite_names(folder: Path = SUITES) -> tuple[str, ...]:
    """The names of all suites, in alphabetical order."""
    return tuple(sorted(path.stem for path in folder.glob("*.toml")))


def papers() -> tuple[str, ...]:
    """The names of all papers whose figures are here."""
    return tuple(sorted(path.stem for path in FIGURES.glob("*.toml")))


def load_suite(name: str, paper: str | None = None, folder: Path = SUITES) -> SuiteCard:
    """A suite, as `paper` used it; None: as its file says without the tables of papers.

    Raises CardError for an unknown name, an invalid file, or a paper that does not use the suite.
    """
    path = folder / f"{name}.toml"
    if name not in suite_names(folder):
        raise CardError(f"there is no exam {name!r}; give one of {', '.join(suite_names(folder))}.")
    suite = parse_section(SuiteCard, _read(path) | {"name": name}, str(path))
    if paper is None:
        return suite
    if paper not in suite.papers:
        raise CardError(f"{path}: the paper {paper} does not use the exam {name}; it is used by {_listed(suite)}.")
    changes = {key: value for key, value in vars(suite.papers[paper]).items() if value is not None}
    return parse_section(SuiteCard, suite.model_dump(exclude_unset=True) | changes, str(path))


def suites_of(paper: str, folder: Path = SUITES) -> tuple[SuiteCard, ...]:
    """All suites of a paper, as it used them."""
    names = [name for name in suite_names(folder) if paper in load_suite(name, folder=folder).papers]
    return tuple(load_suite(name, paper, folder) for name in names)


def load_figures(paper: str, folder: Path = FIGURES) -> Figures:
    """The tables of a paper."""
    path = folder / f"{paper}.toml"
    return parse_section(Figures, _read(path), str(path))


def _listed(suite: SuiteCard) -> str:
    return ", ".join(suite.papers) or "none of them"


def _read(path: Path) -> dict[str, Any]:
    try:
        return toml.tables(path)
    except FileNotFoundError:
        raise CardError(f"{path} does not exist; check the name.") from None
    except ValueError as error:
        raise CardError(f"{path}: {error}.") from None
