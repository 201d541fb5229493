"""`Game`: all that the training loop, exams, reports and the command line know of a game."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

from scope_jax.config import Config, JudgeSection, Section
from scope_jax.config.tables import DataSection
from scope_jax.data.rows import Row
from scope_jax.data.schemas import Kind
from scope_jax.data.sources import Source
from scope_jax.errors import UserError
from scope_jax.learner.types import Episode, Metrics, Update
from scope_jax.play import roles, samples
from scope_jax.play.checks import check_played
from scope_jax.play.exams import Exam, plain_exam
from scope_jax.play.roles import Role
from scope_jax.play.step import Memory, Played, Step
from scope_jax.play.tool_calls import Service, Tool
from scope_jax.play.tools import BASE, Tools

ACTOR = "actor"
FILES = tuple(kind for kind in get_args(Kind) if kind in DataSection.model_fields)  # keys of [data] named as their kind
Updates = tuple[Update, ...]


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
    """(model.dialect, model.turns) by architecture, and under "" for all others; empty: as its roles need them."""
    completed: Callable[[Config], Mapping[str, Any]] = lambda cfg: {}
    """Values of the game's table that go with those of the card, such as an instruction that goes with a grader."""


@dataclass(frozen=True)
class Examined:
    """What a look at the data has shown."""

    text: str
    """In words."""
    example: str = ""
    """A row, as lines below it."""
    doubtful: bool = False
    """Something may be wrong with it."""


def nothing_remembered(cfg: Config, memory: Memory, outcome: Any, number: int) -> tuple[Memory, Metrics]:
    """What a game without a memory remembers of a step."""
    return memory, {}


def no_tools(cfg: Config) -> tuple[Tool, ...]:
    """Those of a game that brings none."""
    return ()


@dataclass(frozen=True, eq=False)
class Game:
    """A game, built-in or from a file.

    All functions are pure in their arguments; randomness comes from the seed and names (`data.keys.rng`).
    """

    name: str
    """Also the name of its table in the card."""
    options: type[Section]
    """That table."""
    roles: Callable[[Config], tuple[Role, ...]]
    """Who speaks and who learns under a card; the order of those that learn is that of policies and updates."""
    play: Callable[[Step[Any]], Played]
    """One step, on rows and samples from the step: its episodes, and what happened, for `remember`.

    For the report: values of settings that change during a run, and, in the text of an episode, why it was "rejected"
    ("": it was not). Signs of collapse are measured from the episodes (`play.collapse`).
    """
    remember: Callable[[Config, Memory, Any, int], tuple[Memory, Metrics]] = nothing_remembered
    """(card, memory, outcome of a step, its number from 0) → the memory after it, and metrics that describe that."""
    ahead: Callable[[Config, Memory, int], Memory | None] | None = None
    """(card, memory after a step, number) → what the step reads that follows so many steps later, if those between are
    not over yet (`train.max_staleness`): the memory, with what is known of it by then, such as a position in the rows,
    as of that step; None: it waits for the steps between. No function: steps of the game do not overlap, unless it
    remembers nothing."""
    start: Callable[[Config], Memory] = lambda cfg: {}
    """Memory before the first step."""
    arrange: Callable[[Config, Updates], Updates] = lambda cfg, updates: updates
    """The learner updates of a step, from one for each role that learns: a game that merges, repeats or reorders them
    does it here. Updates without trained episodes are skipped."""
    exam: Callable[[Config], Exam] | None = None
    """How it answers exams; None: its first role answers plain questions (`exams.plain_exam`)."""
    data: tuple[str, ...] = ()
    """The keys of [data] that it reads, the file of its rows first."""
    source: Callable[[Config], Source | None] | None = None
    """The source of the data rows, if that is not the file of the first key of `data`."""
    check: Callable[[Config], None] = lambda cfg: None
    """Raises ValueError, one sentence, for a card whose tables do not go together."""
    completed: Callable[[Config], Config] = lambda cfg: cfg
    """A card as it is read, with what follows from the rest of it, such as an evaluation set that it does not name; of
    a completed card the card itself."""
    examine: Callable[[Config, Sequence[Row]], Examined] | None = None
    """Looks at rows of its data, or of an evaluation set, before a run begins. Raises UserError if nothing can be
    learned from them, as when no reply could be right."""
    tools: Callable[[Config], tuple[Tool, ...]] = no_tools
    """What its agents may call by name. Called once for a run, which starts the services of its tools before anything
    is sampled, and closes them at its end. A game that searches has the tool "search" besides: that of the card's
    [retrieval], or one of its own."""
    iterations: Callable[[Config, Memory], int] | None = None
    """Number of completed iterations; the run ends with the number that the key `iterations` of the game's table has,
    which may change when a run is resumed. None: a game without iterations, whose card sets train.steps."""
    total_steps: Callable[[Config], int | None] = lambda cfg: cfg.train.steps
    """Number of steps of a complete run, None if it is not known in advance."""
    waits: Callable[[Config, Memory], bool] = lambda cfg, memory: False
    """True if the next step, as at the beginning of a stage, needs the weights after all updates before it, so that
    `train.one_step_off_policy` does not play it ahead."""
    new_reference: Callable[[Config, Memory], str | None] = lambda cfg, memory: None
    """The policy whose weights become the reference of all losses before the next step, as at the beginning of a phase;
    None: the reference stays. A game with new references does not sample from the base, nor grade with it."""
    adopt: Callable[[Config, Memory, Config], Memory] = lambda cfg, memory, before: memory
    """(card, memory, its card) → the memory of another run, for a run with `card` that continues from it."""
    batch: tuple[str, ...] = ()
    """The keys that set the size of a step, if that is not train.batch_size."""
    panels: tuple[Panel, ...] = (ACCURACY, REWARD, GRADIENT)
    """The charts of a run's report; the first shows the measure of its exams."""
    starter: Starter = Starter()
    """What `scope-jax new` writes."""
    title: str = ""
    """Its name in sentences; by default `name` in capital letters."""

    def __post_init__(self) -> None:
        if not self.title:
            object.__setattr__(self, "title", self.name.upper())
        if self.source is None and self.data and self.data[0] not in FILES:
            raise UserError(
                f"the game {self.name} needs a `source`, or one of {', '.join(FILES)} at the head of `data`."
            )

    @property
    def overlaps(self) -> bool:
        """Whether its steps may overlap."""
        return self.ahead is not None or self.remember is nothing_remembered

    def memory_ahead(self, cfg: Config, memory: Memory, steps: int) -> Memory | None:
        """As `ahead`."""
        return memory if self.ahead is None or not steps else self.ahead(cfg, memory, steps)

    def policies(self, cfg: Config) -> tuple[str, ...]:
        """The trained policies; each has its own optimiser and starts from the base model unless the card sets another
        checkpoint."""
        return roles.policies(self.roles(cfg))

    def uses_base(self, cfg: Config) -> bool:
        """True if it samples from the base model (a frozen judge), apart from its use as the KL reference."""
        return roles.sample_base(self.roles(cfg))

    def sampled(self, cfg: Config) -> tuple[str, ...]:
        """The models that a step samples with, by name."""
        return (*self.policies(cfg), *((BASE,) if self.uses_base(cfg) else ()))

    def judges(self, cfg: Config) -> dict[str, JudgeSection]:
        """The external models it uses, by the names of their roles."""
        return roles.external_models(self.roles(cfg))

    def searches(self, cfg: Config) -> bool:
        """True if some role searches: in the card's [retrieval], unless the game brings a tool of this name."""
        return any(role.may_search for role in self.roles(cfg))

    def updates(self, cfg: Config) -> Updates:
        """The learner updates of a step, in order."""
        return self.arrange(cfg, roles.updates(self.roles(cfg)))

    def system_messages(self, cfg: Config) -> tuple[Path, ...]:
        """Files with system messages of its roles, if the card's prompt folder has any."""
        prompts = [prompt for role in self.roles(cfg) for prompt in role.prompts]
        return tuple(dict.fromkeys(file for prompt in prompts for file in prompt.system_file(cfg)))

    def check_prompts(self, cfg: Config) -> None:
        """Reads every prompt of its roles; raises `templates.PromptError` with file and variable."""
        for role in self.roles(cfg):
            for prompt in role.prompts:
                prompt.check(cfg)

    def exam_of(self, cfg: Config) -> Exam:
        """How it answers exams."""
        if self.exam is not None:
            return self.exam(cfg)
        if (first := self.roles(cfg)[0]).external is not None:
            raise UserError(
                f"the game {self.name} has no `exam`, and an external model speaks its first role, {first.name!r}; "
                "give exam=…, or list the role that answers questions first."
            )
        return plain_exam(first)

    def rows(self, cfg: Config) -> Source | None:
        """The source of the data rows; None for a card that needs none. Raises UserError if the card has no file."""
        if self.source is not None:
            return self.source(cfg)
        if not self.data:
            return None
        kind = cast(Kind, self.data[0])
        if (path := getattr(cfg.data, kind)) is None:
            raise UserError(f"data.{kind} is missing; {self.name} needs a file of {kind}.")
        return Source(path, kind, cfg.data)

    def iterations_done(self, cfg: Config, memory: Memory) -> int:
        """Number of completed iterations, 0 in a game without iterations."""
        return 0 if self.iterations is None else self.iterations(cfg, memory)

    def finished(self, cfg: Config, memory: Memory) -> bool:
        """True if all iterations are completed (`train.steps` ends a run in any case)."""
        return self.iterations is not None and self.iterations(cfg, memory) >= getattr(cfg, self.name).iterations

    def over(self, cfg: Config, memory: Memory, step: int) -> bool:
        """True if the card or the game ends a run after `step` steps."""
        return (cfg.train.steps is not None and step >= cfg.train.steps) or self.finished(cfg, memory)


def services_of(tools: Iterable[Tool]) -> list[Service]:
    """What must run for these tools, each once."""
    return list(dict.fromkeys(tool.service for tool in tools if tool.service is not None))


# ------------------------------------------------------------------------------------------------------------- a step
def step_of(game: Game, cfg: Config, tools: Tools, memory: Memory, number: int) -> Step[Any]:
    """The step after `number` steps, before it is played."""
    return Step(cfg, getattr(cfg, game.name), {role.name: role for role in game.roles(cfg)}, tools, memory, number)


def play_step(
    game: Game, cfg: Config, tools: Tools, memory: Memory, number: int
) -> tuple[list[Episode], Memory, Metrics]:
    """(episodes, memory, metrics) of the step after `number` steps; `memory` is not modified. Raises as `check_played`
    does."""
    episodes, outcome, metrics = rollouts_of_step(game, cfg, tools, memory, number)
    after, of_memory = game.remember(cfg, memory, outcome, number)
    return episodes, after, with_values({**metrics, **of_memory})


def with_values(metrics: Mapping[str, Any]) -> Metrics:
    """Metrics without those that a step has no value for."""
    return {name: value for name, value in metrics.items() if value is not None}


def rollouts_of_step(
    game: Game, cfg: Config, tools: Tools, memory: Memory, number: int
) -> tuple[list[Episode], Any, dict[str, Any]]:
    """(episodes, outcome, metrics) of the step after `number` steps, before it is remembered. A metric that is None has
    no value. Raises as `check_played` does."""
    step = step_of(game, cfg, tools, memory, number)
    played = game.play(step)
    check_played(game.name, played)
    metrics: dict[str, Any] = {
        **samples.metrics(cfg, step.ledger.samples, played.episodes, step.roles.values()),
        **step.ledger.counts,
        **played.metrics,
    }
    episodes = [*played.episodes, *(setting.episode for setting in played.settings)]
    return episodes, played.outcome, metrics
