"""The [absolute_zero] table, and the rules of the game: pure functions. A task is plain data: a program with a function
f, arguments and values of its calls as text (of an induction several), a message, and the step that it is from."""

import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from scope_jax.config import Config, LossCard, SamplingSection
from scope_jax.config.base import CardPath, Count, GameSection, Whole, prompts_of
from scope_jax.data.keys import drawn
from scope_jax.play import functions

Item = dict[str, Any]
Task = Literal["deduction", "abduction", "induction"]  # which asks for the output, an input, the program
SOUGHT = {"deduction": "output", "abduction": "input"}  # what the solver's answer is named
NEXT_TURN = "Assistant:"  # with which a base model goes on, as if it were asked again
BAD_FORM, SOLVER_REWARDS = -1.0, {None: -1.0, 0.0: -0.5, 1.0: 1.0}  # bad form, wrong, right
BANNED = ("logging", "random", "multiprocessing", "pebble", "subprocess", "threading", "datetime", "time", "calendar")
NAMES = ("hashlib", "hmac", "bcrypt", "os.sys", "os.path", "os.environ", "sys.exit")
_FORM = re.compile(r"<think>.*?</think>\s*+<answer>", re.DOTALL)
_DEFINED = re.compile(r"^[ \t]*+def\s++(\w+)\s*+\(", re.MULTILINE)
# What the release reads, by pattern; a later one counts if no earlier one is there. What is never closed matches all
# the rest of the text without a group, so that reading takes linear time.
_CODE = (r"```(?:python)?(.*?)```",)
_GIVEN = (r"```input(.*?)```", r"# Input:\s*+(.*?)(?=\n```|\Z)")
_MESSAGE = (r"```message(.*?)```", r"<message>(?:(.*?)</message>|.*)", r"# Message:\s*+(.*?)(?=\n```|\Z)")
_ANSWER = (
    r"```{0}(.*?)```",
    r"# {0}:\s*+(.*?)(?=\n```|\Z)",
    r"{0}\s*+\((?:([^)]*+)\)|.*)",
    r"<{0}>(.*?)(?:</{0}>|\Z)",
    r"the {0} is(.*?)\.?\Z",
)


class Options(GameSection):
    """In a step, `train.batch_size` tasks of each kind are proposed, and as many are solved."""

    prompts: CardPath = prompts_of("absolute_zero")
    """Folder with `propose_TASK.txt` and `solve_TASK.txt` for each task. Default: the package's."""
    tasks: tuple[Task, ...] = Field(default=("deduction", "abduction", "induction"), min_length=1, strict=False)
    """The kinds of tasks; `induction` needs another one, whose programs it is about."""
    train: Literal["both", "solver"] = "both"
    """The roles that are trained; with `solver` the proposer only writes tasks."""
    references: Whole = 6
    """Earlier tasks in a proposer's prompt; 0: none but the program of an induction."""
    inputs: int = Field(default=10, ge=2, le=100)
    """Inputs of an induction task; the first half is shown with its outputs, the rest is hidden."""
    estimates: Count = 8
    """Answers to each valid task that only estimate how often it is solved; they are not trained."""
    seeds: Count = 256
    """Tasks of each kind that the base writes before the first step, from the identity function."""
    buffer: Count = 16384
    """Most tasks of a kind that are remembered; the oldest are forgotten (released code: the newest)."""
    solve: Literal["updated", "earlier"] = "updated"
    """Problems come from the buffers with this step's tasks (paper), or as they were before (released code)."""
    banned: tuple[str, ...] = Field(default=(*BANNED, *NAMES), strict=False)
    """What a program may not import or use: modules, and names of modules, with all below them."""
    several_functions: bool = False
    """A program may define several functions: the one called `f` counts, without one the last; else only one."""
    extreme_reward: float = Field(default=0.0, ge=-1, le=1)
    """Reward of a valid task that is always or never solved (released code: -0.5)."""
    max_prompt_tokens: Count = 6144
    """Most tokens of a prompt; references that do not fit are left out."""
    sampling: SamplingSection = SamplingSection(max_tokens=8096, max_response_tokens=8096)
    """How proposals, estimates and answers are sampled."""
    loss: LossCard = LossCard(advantage="batch-zscore", aggregation="token-mean", kl="none", mini_batches=3)
    """The loss; advantages are of each role by itself (TRR++): `batch-zscore`, or `token-whiten` (released code)."""


def check(cfg: Config) -> None:
    """Raises ValueError for tasks that cannot be played."""
    tasks = cfg.options(Options).tasks
    if len({*tasks}) < len(tasks) or tasks == ("induction",):
        raise ValueError("absolute_zero.tasks needs deduction or abduction, and each task once; correct the list")


def identity(count: int) -> Item:
    """The task that the first ones are written after, with `count` calls."""
    values = [*map(str, range(count))]
    return {"program": "def f(a):\n    return a", "inputs": values, "outputs": values, "message": "", "step": 0}


def answer_of(reply: str, formal: bool = True) -> str | None:
    """What stands in the last <answer>, stripped; None for a reply that does not begin with thoughts and an answer.

    formal: whether that is asked for; else the answer may be anywhere, and without one it is "".
    """
    said = reply.partition(NEXT_TURN)[0].strip().strip("\"'") if formal else reply
    begin = _FORM.match(said)
    if formal and (begin is None or "</answer>" not in said[begin.end() :]):
        return None
    _, opening, rest = said.rpartition("<answer>")
    return rest.partition("</answer>")[0].strip() if opening else ""


def _read(text: str, patterns: Sequence[str]) -> list[str]:
    """All that the first pattern finds, stripped, or if it finds nothing the next one, whatever the case of letters."""
    for pattern in patterns:
        every = re.finditer(pattern, text, re.DOTALL | re.IGNORECASE)
        if found := [match[1].strip() for match in every if match[1] is not None]:
            return found
    return []


def function(program: str, several: bool) -> str:
    """The program with its function called f, see `Options.several_functions`; "" without a function that counts, and
    if it cannot be read."""
    names = _DEFINED.findall(program)
    if not names or (len(names) > 1 and not several) or functions.parsed(program) is None:
        return ""
    name = "f" if "f" in names else names[-1]
    return re.sub(rf"\b{name}(?=\s*+\()", "f", program)


def draft(task: str, reply: str, earlier: Sequence[Item], card: Options) -> Item | None:
    """The task of a proposal, without outputs; None if it breaks a rule. earlier: the tasks that were shown."""
    said = answer_of(reply) or ""
    if task == "induction":
        program, inputs, messages = (
            earlier[0]["program"],
            _read(said, _GIVEN[:1])[-card.inputs :],
            _read(said, _MESSAGE),
        )
        valid = len(inputs) == card.inputs and len(messages) > 0
    else:
        program, inputs, messages = "".join(_read(said, _CODE)[:1]), _read(said, _GIVEN)[:1], [""]
        program = function(program, card.several_functions)
        valid = program != "" and len(inputs) == 1
    if not valid or functions.banned(program, card.banned):
        return None
    return {"program": program, "inputs": inputs, "message": messages[0]}


def solution(task: str, reply: str, formal: bool = True) -> str | None:
    """The last block of the solver's answer, or what else names its value, or all of it unless a program is asked for.
    None: there is none, or the form is wrong. formal: as in `answer_of`."""
    said = answer_of(reply, formal)
    if said is None:
        return None
    if task == "induction":
        return _read(said, _CODE)[-1] if _read(said, _CODE) else None
    return (_read(said, [one.format(SOUGHT[task]) for one in _ANSWER]) or [said])[-1]


def hidden(item: Item, what: str) -> list[str]:
    """The inputs or outputs by which an answer is graded: the second half, or the only one."""
    return item[what][len(item[what]) // 2 :]


def run(task: str, item: Item, solution: str | None) -> tuple[str, Sequence[str]]:
    """The program and the inputs whose values say whether a solution is right; a deduction's is a value itself."""
    if solution is None or task == "deduction":
        return "", ()
    return (solution, hidden(item, "inputs")) if task == "induction" else (item["program"], [solution])


def proposer_reward(rate: float | None, card: Options) -> float:
    """1 − p for a task solved at the rate 0 < p < 1. rate: None for a proposal that is not valid."""
    return BAD_FORM if rate is None else 1.0 - rate if 0.0 < rate < 1.0 else card.extreme_reward


def chosen(buffer: Sequence[Item], count: int, step: int, rng: np.random.Generator) -> list[Item]:
    """`count` tasks to be solved, or all if there are fewer: those of a step first, the rest drawn from the others."""
    new = drawn([item for item in buffer if item["step"] == step], count, rng)
    return new + drawn([item for item in buffer if item["step"] != step], count - len(new), rng)
