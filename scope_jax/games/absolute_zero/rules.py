"""The [absolute_zero] table, and the rules of the game: pure functions. A task is plain data: a program with a function
f, arguments and values of its calls as text (of an induction several), a message, and the step that it is from."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from scope_jax.config import Config, LossCard, SamplingSection
from scope_jax.config.base import CardPath, Count, GameSection, Whole, prompts_of
from scope_jax.data.keys import drawn
from scope_jax.play import functions
from scope_jax.text.parsing import fenced, replied

Item = dict[str, Any]
Task = Literal["deduction", "abduction", "induction"]  # which asks for the output, an input, the program
KINDS = {"deduction": ("output",), "abduction": ("input",), "induction": ("python", "")}  # of the solver's block
MOST_CHARS = 4000  # of a task without its outputs
BAD_FORM, SOLVER_REWARDS = -1.0, {None: -1.0, 0.0: -0.5, 1.0: 1.0}  # bad form, wrong, right
BANNED = ("logging", "random", "multiprocessing", "pebble", "subprocess", "threading", "datetime", "time", "calendar")
NAMES = ("hashlib", "hmac", "bcrypt", "os.sys", "os.path", "os.environ", "sys.exit")


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


def draft(task: str, reply: str, earlier: Sequence[Item], card: Options) -> Item | None:
    """The task of a proposal, without outputs; None if it breaks a rule. earlier: the tasks that were shown."""
    said, count = replied(reply) or "", card.inputs if task == "induction" else 1
    inputs, messages = ([text.strip() for text in fenced(said, (kind,))] for kind in ("input", "message"))
    if task == "induction":
        program = earlier[0]["program"]
    else:
        program, inputs, messages = functions.only_one((fenced(said, ("python", "")) or [""])[0], "f"), inputs[:1], [""]
    if not program or not messages or len(inputs) < count or functions.banned(program, card.banned):
        return None
    item = {"program": program, "inputs": inputs[-count:], "message": messages[0]}
    return item if len("".join([program, messages[0], *item["inputs"]])) <= MOST_CHARS else None


def solution(task: str, reply: str) -> str | None:
    """The solver's last block, or all of <answer> unless a program is asked for. None: the form is wrong."""
    said = replied(reply)
    blocks = fenced(said or "", KINDS[task]) or ([] if said is None or task == "induction" else [said])
    return blocks[-1].strip() if blocks else None


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


def chosen(buffer: Sequence[Item], count: int, rng: np.random.Generator) -> list[Item]:
    """`count` tasks to be solved, or all if there are fewer: the latest first, the rest drawn from the others."""
    latest = max(item["step"] for item in buffer)
    new = drawn([item for item in buffer if item["step"] == latest], count, rng)
    return new + drawn([item for item in buffer if item["step"] < latest], count - len(new), rng)
