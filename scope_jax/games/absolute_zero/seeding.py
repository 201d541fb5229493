"""The initial seeding: from the identity function alone, the base fills the buffers of all kinds of tasks."""

from __future__ import annotations

from scope_jax.errors import UserError
from scope_jax.games.absolute_zero import roles, state
from scope_jax.games.absolute_zero.options import AbsoluteZeroSection, Kind
from scope_jax.games.absolute_zero.state import Buffers, Task
from scope_jax.play.step import Step

BATCHES = 200  # most batches of proposals for a kind


def first_buffers(step: Step[AbsoluteZeroSection]) -> Buffers:
    """Buffers with `seeds` different tasks of each kind. Raises UserError if the base writes too few valid ones."""
    buffers: dict[str, list[Task]] = {
        kind: [state.identity(step.card.inputs if kind == "induction" else 1)] for kind in step.card.tasks
    }
    for kind in step.card.tasks:
        if kind != "induction":
            buffers[kind] = _seeds(step, kind, buffers)
    if "induction" in step.card.tasks:  # it is about the programs of the others
        buffers["induction"] = _seeds(step, "induction", buffers)
    return buffers


def _seeds(step: Step[AbsoluteZeroSection], kind: Kind, buffers: Buffers) -> list[Task]:
    """The buffer of a kind once it is full; every batch is shown the tasks of those before."""
    tasks = list(buffers[kind])
    for batch in range(BATCHES):
        key = f"seeding {kind} {batch}"
        proposals = roles.propose(step, (kind,), {**buffers, kind: tasks}, number=0, key=key, label="seeding")
        proposals = roles.validate(step, proposals, number=0)
        valid = roles.tasks_to_remember(step, kind, proposals)
        tasks = state.without_repetition([*tasks, *valid])[: step.card.seeds]
        if len(tasks) == step.card.seeds:
            return tasks
    raise UserError(
        f"the base wrote {len(tasks)} valid tasks of {kind} in {BATCHES} batches; lower absolute_zero.seeds, "
        f"{step.card.seeds}, or take a base that can write them."
    )
