"""The rules of Absolute Zero, pure functions: how replies are read, what an answer is graded by, rewards."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scope_jax.environments import functions
from scope_jax.games.absolute_zero.options import AbsoluteZeroSection, Kind
from scope_jax.games.absolute_zero.state import Draft, SolverProblem, Task

SOUGHT = {"deduction": "output", "abduction": "input"}  # what the solver's answer is named
NEXT_TURN = "Assistant:"  # with which a base model goes on, as if it were asked again
BAD_FORM = -1.0  # reward of a proposal that is not valid, and of an answer in a bad form
_FORM = re.compile(r"<think>.*?</think>\s*+<answer>", re.DOTALL)
_DEFINED = re.compile(r"^[ \t]*+def\s++(\w+)\s*+\(", re.MULTILINE)
# What the release reads, by pattern; a later one counts if no earlier one is there. What is never closed matches all
# the rest of the text without a group, so that reading takes linear time.
_CODE = (r"```(?:python)?(.*?)```",)
_INPUT_FENCE = r"```input(.*?)```"
_INPUT = (_INPUT_FENCE, r"# Input:\s*+(.*?)(?=\n```|\Z)")
_MESSAGE = (r"```message(.*?)```", r"<message>(?:(.*?)</message>|.*)", r"# Message:\s*+(.*?)(?=\n```|\Z)")
_ANSWER = (
    r"```{0}(.*?)```",
    r"# {0}:\s*+(.*?)(?=\n```|\Z)",
    r"{0}\s*+\((?:([^)]*+)\)|.*)",
    r"<{0}>(.*?)(?:</{0}>|\Z)",
    r"the {0} is(.*?)\.?\Z",
)


# ------------------------------------------------------------------------------------------------------------- replies
def answer_of(reply: str, formal: bool = True) -> str | None:
    """What stands in the last <answer>, stripped; None for a reply that does not begin with thoughts and an answer.

    formal: whether that is asked for; else the answer may be anywhere, and without one it is "".
    """
    text = reply
    if formal:
        text = reply.partition(NEXT_TURN)[0].strip().strip("\"'")
        begin = _FORM.match(text)
        if begin is None or "</answer>" not in text[begin.end() :]:
            return None
    _, opening, rest = text.rpartition("<answer>")
    return rest.partition("</answer>")[0].strip() if opening else ""


def draft(kind: Kind, reply: str, references: Sequence[Task], card: AbsoluteZeroSection) -> Draft | None:
    """What a proposer's reply says of a task; None if it breaks a rule. references: the tasks that it was shown."""
    text = answer_of(reply) or ""
    if kind == "induction":
        proposed = _inputs_and_message(text, references[0]["program"], card.inputs)
    else:
        proposed = _program_and_input(text, card.several_functions)
    if proposed is None or functions.banned(proposed["program"], card.banned):
        return None
    return proposed


def _program_and_input(text: str, several: bool) -> Draft | None:
    code = _read(text, _CODE)
    inputs = _read(text, _INPUT)
    program = function(code[0], several) if code else ""
    if not program or not inputs:
        return None
    return Draft(program=program, inputs=inputs[:1], message="")


def _inputs_and_message(text: str, program: str, count: int) -> Draft | None:
    inputs = _read(text, (_INPUT_FENCE,))
    messages = _read(text, _MESSAGE)
    if len(inputs) < count or not messages:
        return None
    return Draft(program=program, inputs=inputs[-count:], message=messages[0])


def function(program: str, several: bool) -> str:
    """The program with its function called f, see `AbsoluteZeroSection.several_functions`; "" without a function that
    counts, and if it cannot be read."""
    names = _DEFINED.findall(program)
    if not names or (len(names) > 1 and not several) or functions.parsed(program) is None:
        return ""
    name = "f" if "f" in names else names[-1]
    return re.sub(rf"\b{name}(?=\s*+\()", "f", program)


def solution(kind: Kind, reply: str, formal: bool = True) -> str | None:
    """The last block of the solver's answer, or what else names its value, or all of it unless a program is asked for.
    None: there is none, or the form is wrong. formal: as in `answer_of`."""
    answer = answer_of(reply, formal)
    if answer is None:
        return None
    if kind == "induction":
        programs = _read(answer, _CODE)
        return programs[-1] if programs else None
    values = _read(answer, [pattern.format(SOUGHT[kind]) for pattern in _ANSWER])
    return values[-1] if values else answer


def _read(text: str, patterns: Sequence[str]) -> list[str]:
    """All that the first pattern finds, stripped, or if it finds nothing the next one, whatever the case of letters."""
    for pattern in patterns:
        matches = re.finditer(pattern, text, re.DOTALL | re.IGNORECASE)
        if contents := [match[1].strip() for match in matches if match[1] is not None]:
            return contents
    return []


# ------------------------------------------------------------------------------------------------------------- grading
def hidden(values: Sequence[str]) -> list[str]:
    """Of a task's inputs or outputs those by which an answer is graded: the second half, or the only one."""
    return list(values[len(values) // 2 :])


def run(problem: SolverProblem, solution: str | None) -> tuple[str, Sequence[str]]:
    """The program and the inputs whose values say whether a solution is right; a deduction's is a value itself."""
    if solution is None or problem.kind == "deduction":
        return "", ()
    if problem.kind == "induction":
        return solution, hidden(problem.task["inputs"])
    return problem.task["program"], (solution,)


# ------------------------------------------------------------------------------------------------------------- rewards
def proposer_reward(rate: float | None, card: AbsoluteZeroSection) -> float:
    """1 − p for a task solved at the rate 0 < p < 1. rate: None for a proposal that is not valid."""
    if rate is None:
        return BAD_FORM
    return 1.0 - rate if 0.0 < rate < 1.0 else card.extreme_reward


def solver_reward(grade: float | None) -> float:
    """1 for a right answer, −0.5 for a wrong one, −1 for none, or one in a bad form. grade: as in `ProgramAttempt`."""
    if grade is None:
        return BAD_FORM
    return 1.0 if grade else -0.5
