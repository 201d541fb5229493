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
    """The shape every module of `scope_jax.systems` has (no base class: modules are checked against it)."""

    def policies(self, cfg: Config) -> tuple[str, ...]:
        """Names of the trained policies; each has an optimiser of its own, and begins as the base if the card does not
        say otherwise."""
        ...

    def uses_base(self, cfg: Config) -> bool:
        """True if the base itself plays in the game (a frozen judge), beside being the reference of a KL term."""
        ...

    def searches(self, cfg: Config) -> bool:
        """True if some role searches: then, and only then, the card has a [retrieval] table."""
        ...

    def judges(self, cfg: Config) -> Mapping[str, JudgeSection]:
        """The outside models the game asks, by name."""
        ...

    def source(self, cfg: Config) -> Source | None:
        """Where the rows of data come from; None for a game that is played without any."""
        ...

    def system_messages(self, cfg: Config) -> tuple[Path, ...]:
        """Files with the system messages of its roles, where the card's folder of prompts has them."""
        ...

    def start(self, cfg: Config) -> Memory:
        """Memory before the first step."""
        ...

    def finished(self, cfg: Config, memory: Memory, step: int) -> bool:
        """True if nothing is left to do after `step` steps (`train.steps` ends a run in any case)."""
        ...

    def total_steps(self, cfg: Config) -> int | None:
        """Number of steps of a whole run, None if only the game itself will show."""
        ...

    def iterations(self, cfg: Config, memory: Memory) -> int:
        """Number of iterations that are over, 0 in a game that has none."""
        ...

    def adopt(self, cfg: Config, memory: Memory, before: Config) -> Memory:
        """The memory of a run under the card `before`, for one under `cfg` that goes on from there."""
        ...

    def play(self, cfg: Config, tools: Tools, memory: Memory, step: int) -> tuple[list[Episode], Memory, Metrics]:
        """One step of the game, on the rows it asks `tools` for; pure in its arguments, `memory` is returned anew."""
        ...

    def updates(self, cfg: Config) -> tuple[Update, ...]:
        """The learner updates a step may have, in order; one without trained episodes is left out."""
        ...

    def exam(self, cfg: Config) -> Exam:
        """How the game is examined."""
        ...


def game_options(section: type[Options], cfg: Config) -> Options:
    """The card's [game] table as the options of a game of one's own, a `Section` that its file declares.

    Raises CardError that names every offending key.
    """
    return parse_section(section, cfg.game, f"[game], the options of {cfg.system}")
