"""The interface of a game: the functions that the training loop and exams call."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from scope_jax.config import Config, JudgeSection, Section, parse_section
from scope_jax.data.sources import Source
from scope_jax.learner.types import Episode, Metrics, Update
from scope_jax.play.exams import Exam
from scope_jax.play.tools import Tools

Options = TypeVar("Options", bound=Section)
Memory = dict[str, Any]  # what is carried between steps: plain JSON data, saved with every checkpoint


@runtime_checkable
class System(Protocol):
    """The functions of every module in `scope_jax.systems` (no base class; modules are checked against it)."""

    def policies(self, cfg: Config) -> tuple[str, ...]:
        """Names of the trained policies; each has its own optimiser and starts from the base model unless the card
        sets another checkpoint."""
        ...

    def uses_base(self, cfg: Config) -> bool:
        """True if the game samples from the base model (a frozen judge), apart from its use as the KL reference."""
        ...

    def searches(self, cfg: Config) -> bool:
        """True if some role searches; the card needs a [retrieval] table if and only if this is True."""
        ...

    def judges(self, cfg: Config) -> Mapping[str, JudgeSection]:
        """The external models the game uses, by name."""
        ...

    def source(self, cfg: Config) -> Source | None:
        """The source of the data rows; None for a game without data."""
        ...

    def system_messages(self, cfg: Config) -> tuple[Path, ...]:
        """Files with system messages of its roles, if the card's prompt folder has any."""
        ...

    def check_prompts(self, cfg: Config) -> None:
        """Fills in every prompt of the card's game once; raises `templates.PromptError` with file and variable."""
        ...

    def start(self, cfg: Config) -> Memory:
        """Memory before the first step."""
        ...

    def finished(self, cfg: Config, memory: Memory, step: int) -> bool:
        """True if the game is finished after `step` steps (`train.steps` ends a run in any case)."""
        ...

    def total_steps(self, cfg: Config) -> int | None:
        """Number of steps of a complete run, None if it is not known in advance."""
        ...

    def iterations(self, cfg: Config, memory: Memory) -> int:
        """Number of completed iterations, 0 in a game without iterations."""
        ...

    def waits(self, cfg: Config, memory: Memory) -> bool:
        """True if the next step, as at the beginning of a stage, needs the weights after all updates before it, so that
        `train.one_step_off_policy` does not play it ahead."""
        ...

    def adopt(self, cfg: Config, memory: Memory, before: Config) -> Memory:
        """Converts the memory of a run with the card `before` for a run with `cfg` that continues from it."""
        ...

    def play(self, cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
        """One step of the game, on rows it gets from `tools`; pure in its arguments, returns a new `memory`.

        For the report: records of settings that change during a run (`play.settings`) among the episodes, and signs of
        collapse (`play.collapse`) among the metrics, prefixed by the role ("solver/identical_pairs").
        """
        ...

    def updates(self, cfg: Config) -> tuple[Update, ...]:
        """The learner updates of a step, in order; updates without trained episodes are skipped."""
        ...

    def exam(self, cfg: Config) -> Exam:
        """The exam of the game: prompts, parser and measures."""
        ...


def game_options(section: type[Options], cfg: Config) -> Options:
    """The card's [game] table, parsed as the `Section` that a game in a file declares for its options.

    Raises CardError with every offending key.
    """
    return parse_section(section, cfg.game, f"[game], the options of {cfg.system}")
