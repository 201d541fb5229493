"""The position of a SCOPE run: iteration, stage, step within the stage. Plain data, part of the memory.

challenger ──► tasks ──► solver ──► next iteration          curated prompts: solver only
"""

from __future__ import annotations

from typing import Any

from scope_jax.config import Config
from scope_jax.data.keys import rng
from scope_jax.games.scope.options import options
from scope_jax.play.game import Memory


def first(cfg: Config) -> Memory:
    """Before the first step. drawn: rows of the stream used; measured: the solver's mean scores in this iteration."""
    return {"drawn": 0, **_opened(cfg, 1)}


def _opened(cfg: Config, iteration: int) -> dict[str, Any]:
    if options(cfg).mode == "curated":
        stage = "solver"
    else:
        stage = "tasks" if challenger_frozen(cfg, iteration) else "challenger"
    return {"iteration": iteration, "stage": stage, "place": 0, "tasks": [], "measured": []}


def challenger_frozen(cfg: Config, iteration: int) -> bool:
    """True if the challenger is not trained in this iteration (iterations count from 1)."""
    after = options(cfg).freeze_challenger_after
    return after is not None and iteration > after


def adopted(cfg: Config, memory: Memory, before: Config) -> Memory:
    """Converts the memory of a run with card `before` for a run with `cfg`: an iteration that has not begun is set up
    again by `cfg`; one in progress continues in its stage, unless that is already complete under `cfg`."""
    iteration = memory["iteration"]
    opened = _opened(before, iteration)
    not_begun = all(memory[key] == value for key, value in opened.items())
    return memory | _opened(cfg, iteration) if not_begun else _moved_on(cfg, memory)


def rows_needed(cfg: Config, memory: Memory) -> int:
    """Number of data rows that the next step uses."""
    card = options(cfg)
    if memory["stage"] == "solver":
        return card.solver_batch if card.mode == "curated" else 0
    return card.challenger_batch if memory["stage"] == "challenger" else card.generation_batch


def advance(cfg: Config, memory: Memory, *, drawn: int, tasks: list[Any], measured: list[float]) -> Memory:
    """The memory after a step that used `drawn` rows, added `tasks` and measured the solver's mean scores."""
    after = memory | {
        "drawn": memory["drawn"] + drawn,
        "place": memory["place"] + 1,
        "tasks": memory["tasks"] + tasks,
        "measured": memory["measured"] + measured,
    }
    return _moved_on(cfg, after)


def _moved_on(cfg: Config, memory: Memory) -> Memory:
    """The memory at the start of the next stage, if the current one is complete.

    Task generation ends when the target or the maximum number of batches is reached. If it has found no task, the
    iteration ends without solver steps.
    """
    card, place = options(cfg), memory["place"]
    match memory["stage"]:
        case "challenger":
            return memory | {"stage": "tasks", "place": 0} if place >= card.steps_per_iteration else memory
        case "tasks":
            memory = memory | {"tasks": memory["tasks"][: card.target_tasks]}
            if len(memory["tasks"]) < card.target_tasks and place < card.max_batches:
                return memory
            if memory["tasks"]:
                return memory | {"stage": "solver", "place": 0}
        case _:
            if place < card.steps_per_iteration:
                return memory
    return memory | _opened(cfg, memory["iteration"] + 1)


def sampled_tasks(cfg: Config, memory: Memory) -> list[Any]:
    """(q, 𝒢) ~ 𝒯: the tasks of this solver step, drawn without replacement until all have been used.

    A step has `solver_batch` tasks, or all tasks if there are fewer.
    """
    tasks = memory["tasks"]
    size = min(options(cfg).solver_batch, len(tasks))
    chosen = []
    for position in range(memory["place"] * size, (memory["place"] + 1) * size):
        epoch, place = divmod(position, len(tasks))
        order = rng("scope tasks", cfg.seed, memory["iteration"], epoch).permutation(len(tasks))
        chosen.append(tasks[order[place]])
    return chosen
