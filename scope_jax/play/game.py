"""`Game`: all that the training loop, exams, reports and the command line know of a game."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

from scope_jax.config import Config, JudgeSection, Section
from scope_jax.config.tables import DataSection
from scope_jax.data.schemas import Kind
from scope_jax.data.sources import Source
from scope_jax.errors import UserError
from scope_jax.learner.types import Episode, Metrics, Update
from scope_jax.play.exams import Exam
from scope_jax.play.tool_calls import Service, Tool
from scope_jax.play.tools import Tools

ACTOR = "actor"
FILES = tuple(kind for kind in get_args(Kind) if kind in DataSection.model_fields)  # keys of [data] named as their kind
Memory = dict[str, Any]  # what is carried between steps: plain JSON data, saved with every checkpoint
Play = Callable[[Config, Tools, Memory, int], tuple[list[Episode], Memory, Metrics]]


@dataclass(frozen=True)
class Panel:
    """One chart of a report."""

    title: str
    """Above the chart."""
    names: tuple[str, ...]
    """Metrics shown; a name that begins with a slash is a suffix."""
    share: bool
    """The values are in 0..1."""
    of_exams: bool = False
    """It shows evaluation metrics only, otherwise training metrics only."""
    log: bool = False
    """Logarithmic scale."""
    zero: bool = False
    """A step of the role that lacks the metric has 0."""


ACCURACY = Panel("Held-out accuracy", ("/accuracy",), True, of_exams=True)
REWARD = Panel("Mean reward", ("/reward",), False)
GRADIENT = Panel("Gradient norm before the clip", ("/grad_norm",), False, log=True)


@dataclass(frozen=True)
class Starter:
    """What `scope-jax new` writes into a card of the game beside the user's model and data."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Values of the game's table that differ from the defaults, so that a card works without further services."""
    conversations: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """(model.dialect, model.turns) by architecture, and under "" for all others; empty: the card's defaults."""


@dataclass(frozen=True, eq=False)
class Game:
    """A game, built-in or from a file.

    All functions are pure in their arguments; randomness comes from the seed and names (`data.keys.rng`).
    """

    name: str
    """Also the name of its table in the card."""
    options: type[Section]
    """That table."""
    play: Play
    """One step, on rows and completions from the tools: its episodes, a new memory, metrics.

    For the report: records of settings that change during a run (`play.settings`) among the episodes, and, in their
    text, why one was "rejected" ("": it was not). Signs of collapse are measured from the episodes (`play.collapse`).
    """
    updates: Callable[[Config], tuple[Update, ...]]
    """The learner updates of a step, in order; updates without trained episodes are skipped."""
    exam: Callable[[Config], Exam]
    """Prompts, parser and measures of its exams."""
    data: tuple[str, ...] = ()
    """The keys of [data] that it reads, the file of its rows first."""
    source: Callable[[Config], Source | None] | None = None
    """The source of the data rows, or of none, if that is not the file of the first key of `data`."""
    check: Callable[[Config], None] = lambda cfg: None
    """Raises ValueError, one sentence, for a card whose tables do not go together."""
    policies: Callable[[Config], tuple[str, ...]] = lambda cfg: (ACTOR,)
    """The trained policies; each has its own optimiser and starts from the base model unless the card sets another
    checkpoint."""
    uses_base: Callable[[Config], bool] = lambda cfg: False
    """True if it samples from the base model (a frozen judge), apart from its use as the KL reference."""
    tools: Callable[[Config], tuple[Tool, ...]] = lambda cfg: ()
    """What its agents may call by name. Called once for a run, which starts the services of its tools before anything
    is sampled, and closes them at its end. A game that searches has the tool "search" besides."""
    searches: bool = False
    """True if some role searches; the card needs a [retrieval] table if and only if this is True."""
    judges: Callable[[Config], Mapping[str, JudgeSection]] = lambda cfg: {}
    """The external models it uses, by name."""
    system_messages: Callable[[Config], tuple[Path, ...]] = lambda cfg: ()
    """Files with system messages of its roles, if the card's prompt folder has any."""
    check_prompts: Callable[[Config], None] = lambda cfg: None
    """Fills in every prompt once; raises `templates.PromptError` with file and variable."""
    start: Callable[[Config], Memory] = lambda cfg: {}
    """Memory before the first step."""
    finished: Callable[[Config, Memory, int], bool] = lambda cfg, memory, step: False
    """True if the game is finished after `step` steps (`train.steps` ends a run in any case)."""
    total_steps: Callable[[Config], int | None] = lambda cfg: cfg.train.steps
    """Number of steps of a complete run, None if it is not known in advance."""
    iterations: Callable[[Config, Memory], int] | None = None
    """Number of completed iterations, which end a run; None: a game without iterations, whose card sets train.steps."""
    waits: Callable[[Config, Memory], bool] = lambda cfg, memory: False
    """True if the next step, as at the beginning of a stage, needs the weights after all updates before it, so that
    `train.one_step_off_policy` does not play it ahead."""
    new_reference: Callable[[Config, Memory], str | None] = lambda cfg, memory: None
    """The policy whose weights become the reference of all losses before the next step, as at the beginning of a phase;
    None: the reference stays. A game with new references does not sample from the base, nor grade with it."""
    adopt: Callable[[Config, Memory, Config], Memory] = lambda cfg, memory, before: memory
    """(card, memory, its card) → the memory of another run, for a run with `card` that continues from it."""
    batch: str = ""
    """The keys that set the size of a step, if that is not train.batch_size."""
    resumable: tuple[str, ...] = ()
    """Options that may change when a run is resumed."""
    panels: tuple[Panel, ...] = (ACCURACY, REWARD, GRADIENT)
    """The charts of a run's report; the first shows the measure of its exams."""
    metrics: Callable[[Config], Iterable[str]] | None = None
    """The names of all metrics that a step may have, so that [[train.watch]] can be checked; None: any."""
    starter: Starter = Starter()
    """What `scope-jax new` writes."""
    title: str = ""
    """Its name in sentences; by default `name` in capital letters."""

    def __post_init__(self) -> None:
        if not self.title:
            object.__setattr__(self, "title", self.name.upper())
        if self.source is None and (not self.data or self.data[0] not in FILES):
            raise UserError(
                f"the game {self.name} needs a `source`, or one of {', '.join(FILES)} at the head of `data`."
            )

    def rows(self, cfg: Config) -> Source | None:
        """The source of the data rows; None for a card that needs none. Raises UserError if the card has no file."""
        if self.source is not None:
            return self.source(cfg)
        kind = cast(Kind, self.data[0])
        if (path := getattr(cfg.data, kind)) is None:
            raise UserError(f"data.{kind} is missing; {self.name} needs a file of {kind}.")
        return Source(path, kind, cfg.data)

    def iterations_done(self, cfg: Config, memory: Memory) -> int:
        """Number of completed iterations, 0 in a game without iterations."""
        return 0 if self.iterations is None else self.iterations(cfg, memory)


def services_of(tools: Iterable[Tool]) -> list[Service]:
    """What must run for these tools, each once."""
    return list(dict.fromkeys(tool.service for tool in tools if tool.service is not None))
