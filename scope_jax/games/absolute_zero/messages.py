"""The prompts of Absolute Zero's roles, a file for each kind of task, filled in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from scope_jax.config import Config
from scope_jax.games.absolute_zero.options import Kind, options
from scope_jax.games.absolute_zero.state import Task
from scope_jax.play.prompting import Prompt, fences
from scope_jax.text.messages import Messages

PROPOSER: dict[Kind, Prompt] = {
    "deduction": Prompt("propose_deduction", ("references", "banned"), ("references",)),
    "abduction": Prompt("propose_abduction", ("references", "banned"), ("references",)),
    "induction": Prompt("propose_induction", ("program", "count"), ("program",)),
}
SOLVER: dict[Kind, Prompt] = {kind: Prompt(f"solve_{kind}", ("task",)) for kind in get_args(Kind)}


def for_proposer(cfg: Config, kind: Kind, references: Sequence[Task]) -> Messages:
    """Prompt to write a task unlike earlier ones, or an induction about the program of the only one."""
    if kind == "induction":
        program = fences(cfg, python=references[0]["program"])
        return PROPOSER[kind].messages(cfg, program=program, count=str(options(cfg).inputs))
    texts = [
        fences(cfg, python=task["program"], input=task["inputs"][0], output=task["outputs"][0]) for task in references
    ]
    return PROPOSER[kind].messages(cfg, references="\n\n".join(texts), banned=", ".join(options(cfg).banned))


def for_solver(cfg: Config, kind: Kind, task: Task) -> Messages:
    """Prompt to find the output, an input or the program."""
    if kind == "deduction":
        text = fences(cfg, python=task["program"], input=task["inputs"][0])
    elif kind == "abduction":
        text = fences(cfg, python=task["program"], output=task["outputs"][0])
    else:
        calls = list(zip(task["inputs"], task["outputs"], strict=True))
        shown = [fences(cfg, input=given, output=value) for given, value in calls[: len(calls) // 2]]
        text = "\n".join([*shown, fences(cfg, message=task["message"])])
    return SOLVER[kind].messages(cfg, task=text)
