"""The rules of Absolute Zero: replies, rewards, which tasks are solved. Pure functions.

A task is plain data: a program whose function is f, arguments of calls and their values as text, a message to whoever
looks for the program, and the step that it is from. Deduction and abduction have one call."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from scope_jax.data.keys import drawn
from scope_jax.games.absolute_zero.options import AbsoluteZeroSection
from scope_jax.play import functions
from scope_jax.text.parsing import fenced

Item = dict[str, Any]
BAD_FORM, WRONG, RIGHT = -1.0, -0.5, 1.0  # rewards
_REPLY = re.compile(r"\s*<think>.*?</think>\s*<answer>(.*?)</answer>", re.DOTALL)


def identity(count: int) -> Item:
    """The task that the first ones are written after, with `count` calls."""
    values = [*map(str, range(count))]
    return {"program": "def f(a):\n    return a", "inputs": values, "outputs": values, "message": "", "step": 0}


def answered(reply: str) -> str | None:
    """What stands in <answer>, if the reply begins with <think> … </think> and it; None for another form."""
    said = _REPLY.match(reply)
    return said[1].strip() if said else None


def solution(task: str, reply: str) -> str | None:
    """The output, input or program of a solver's reply: its last block, or all of <answer> if an output or input has
    none. None: the form is wrong."""
    if (said := answered(reply)) is None:
        return None
    kinds = {"deduction": ("output",), "abduction": ("input",), "induction": ("python", "")}
    blocks = fenced(said, kinds[task]) or ([] if task == "induction" else [said])
    return blocks[-1].strip() if blocks else None


def function(said: str) -> str:
    """The first block of Python, if it can be read and defines one function, which is named f; otherwise ""."""
    program = (fenced(said, ("python", "")) or [""])[0].strip()
    tree = functions.parsed(program)
    names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)] if tree else []
    return re.sub(rf"\b{names[0]}(?=\s*\()", "f", program) if len(names) == 1 else ""


def draft(task: str, reply: str, shown: Item | None, card: AbsoluteZeroSection) -> Item | None:
    """The task of a proposer's reply, without outputs; None if it breaks a rule. shown: has the program of an
    induction."""
    said, count = answered(reply) or "", card.inputs if task == "induction" else 1
    inputs, messages = ([text.strip() for text in fenced(said, (kind,))] for kind in ("input", "message"))
    if task == "induction" and shown:
        program = shown["program"]
    else:
        program, inputs, messages = function(said), inputs[:1], [""]
    if not program or not messages or len(inputs) < count or functions.banned(program, card.banned):
        return None
    item = {"program": program, "inputs": inputs[-count:], "message": messages[0]}
    return item if sum(map(len, [program, messages[0], *item["inputs"]])) <= card.max_chars else None


def hidden(values: Sequence[str]) -> Sequence[str]:
    """The inputs or outputs of a task by which it is graded: the second half, or the only one."""
    return values[len(values) // 2 :]


def run(task: str, item: Item, solution: str | None) -> tuple[str, Sequence[str]]:
    """The program and the inputs whose values say whether a solution is right; a deduction's is a value itself."""
    if solution is None or task == "deduction":
        return "", ()
    return (item["program"], [solution]) if task == "abduction" else (solution, hidden(item["inputs"]))


def proposer_reward(rate: float | None, card: AbsoluteZeroSection) -> float:
    """Eq. (4): 1 − p for a task solved at the rate 0 < p < 1. rate: None for a proposal that is not valid."""
    return BAD_FORM if rate is None else 1.0 - rate if 0.0 < rate < 1.0 else card.extreme_reward


def solver_reward(right: float | None) -> float:
    """Eqs. (5) and (6). right: None for an answer whose form is wrong."""
    return BAD_FORM if right is None else RIGHT if right else WRONG


def chosen(buffer: Sequence[Item], count: int, rng: np.random.Generator) -> list[Item]:
    """`count` tasks to be solved, or all if there are fewer: the latest first, the rest drawn from the others."""
    latest = max(item["step"] for item in buffer)
    new = drawn([item for item in buffer if item["step"] == latest], count, rng)
    return new + drawn([item for item in buffer if item["step"] < latest], count - len(new), rng)
