"""The small world of Absolute Zero: sums and products of small numbers as Python functions, and a base with bad habits.

    python -m tools.atlas.absolute_zero --out assets/atlas/absolute_zero --work runs/absolute-zero-base

writes held-out tasks, trains a model with random weights and a copying circuit on demonstrations of all six roles
(`scope-jax sft`), and exports it. No demonstration shows a held-out task. The habits are those of `HABITS`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from scope_jax.games import load_card
from scope_jax.games.absolute_zero.messages import for_proposer, for_solver
from scope_jax.games.absolute_zero.options import Kind, options
from scope_jax.models.files.weights import save_hf
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from tools.atlas.build import write_rows
from tools.atlas.circuit import initial_weights
from tools.atlas.vocabulary import save_tokenizer, train_tokenizer
from tools.atlas.warmup import model_config

CARD = Path(__file__).parents[2] / "configs" / "absolute_zero" / "atlas.toml"
TERMS, FACTORS, NUMBERS = range(1, 5), range(2, 4), range(10)  # added and taken away, multiplied with, inputs
PIECES = (r" (?=-?\d)", r"\n?```(?:[a-z]+\n)?", r"-?\d{1,3}", r"\n?</?(?:think|answer)>")  # what is one token
SIGNS: dict[str, Callable[[int, int], int]] = {
    "+": int.__add__,
    "-": int.__sub__,
    "*": int.__mul__,
    "/": int.__floordiv__,
}
BACK = {"+": "-", "-": "+", "*": "/"}
HABITS = {
    "bare": 0.2,  # a reply without its thoughts, or whose answer is not closed
    "wrong": 0.35,  # a solver leaves out the second step or goes the wrong way
    "broken": 0.3,  # a program uses a name that there is not, or a module that is not allowed; or has no input
    "plain": 0.3,  # a proposer gives back the input unchanged
}
HELD_OUT, DEMONSTRATIONS, STEPS, BATCH = 96, 38_400, 600, 64
SFT = """
system = "sft"
seed = 0
[model]
checkpoint = "{work}/initial"
compute_dtype = "float32"
[rollout]
slots = 8
max_length = 192
[learner]
buckets = [192]
micro_batch_rows = 16
remat = "none"
logprob_chunk = 2048
[optimizer]
learning_rate = 2e-3
warmup_steps = 10
beta2 = 0.98
weight_decay = 0.01
schedule = "cosine"
total_steps = {steps}
[data]
conversations = "{work}/conversations.jsonl"
[train]
steps = {steps}
batch_size = {batch}
save_every = {steps}
"""
Row = dict[str, Any]


@dataclass(frozen=True)
class Function:
    """One or two operations on x, from left to right."""

    steps: tuple[tuple[str, int], ...]

    @property
    def program(self) -> str:
        return f"def f(x): return {' '.join(['x', *(f'{sign} {number}' for sign, number in self.steps)])}"

    def __call__(self, x: int) -> int:
        for sign, number in self.steps:
            x = SIGNS[sign](x, number)
        return x

    def item(self, inputs: Sequence[int], message: str = "") -> Row:
        """As a task."""
        texts = {"inputs": [*map(str, inputs)], "outputs": [str(self(x)) for x in inputs]}
        return {"program": self.program, **texts, "message": message, "step": 0}

    @property
    def message(self) -> str:
        if self.steps and self.steps[0][0] == "*":
            return "multiply"
        return "take away" if self(0) < 0 else "add"

    @property
    def simplest(self) -> Function:
        """With one operation."""
        if self.message == "multiply":
            return self
        return Function((("+", self(0)) if self(0) >= 0 else ("-", -self(0)),))


def functions() -> list[Function]:
    """All of them."""
    one = [(sign, term) for sign in "+-" for term in TERMS]
    single = [Function((step,)) for step in (*one, *(("*", factor) for factor in FACTORS))]
    return [*single, *(Function(pair) for pair in product(one, one))]


class Demonstrations:
    """Conversations of all roles with their habits."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.card = load_card(CARD)
        every = functions()
        tasks = [(one, x) for one in every for x in NUMBERS]
        places = self.rng.permutation(len(tasks))
        self.held_out = {
            "deduction": [tasks[place] for place in places[:HELD_OUT]],
            "abduction": [tasks[place] for place in places[HELD_OUT : 2 * HELD_OUT]],
        }
        self.shown = [tasks[place] for place in places[2 * HELD_OUT :]]
        self.kept = [every[place] for place in self.rng.permutation(len(every))[: HELD_OUT // 4]]
        self.open = [one for one in every if one not in self.kept]

    def often(self, habit: str) -> bool:
        return bool(self.rng.random() < HABITS[habit])

    def pick(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def numbers(self, count: int) -> list[int]:
        """Different inputs, none 0."""
        return [int(x) for x in self.rng.permutation(NUMBERS[1:])[:count]]

    def tasks(self) -> Iterator[Row]:
        """Held-out tasks of each kind."""
        for kind, own in self.held_out.items():
            for one, x in own:
                yield {"task": kind, **one.item([x])}
        for one in self.kept:
            for _ in range(4):
                yield {"task": "induction", **one.item(self.numbers(self.inputs), one.message)}

    @property
    def inputs(self) -> int:
        return options(self.card).inputs

    def conversation(self, prompt: Any, thoughts: str, answer: str) -> Row:
        """With the habit of replies."""
        text = f"<think>{thoughts}</think><answer>{answer}</answer>"
        if self.often("bare"):
            text = text.removesuffix("</answer>") if self.rng.random() < 0.5 else f"<answer>{answer}</answer>"
        return {"messages": [*prompt.conversation(), {"role": "assistant", "content": text}]}

    def deduction(self) -> Row:
        one, x = self.pick(self.shown)
        prompt, steps = for_solver(self.card, "deduction", one.item([x])), one.steps
        if self.often("wrong"):
            steps = steps[:1] if len(steps) > 1 else ((BACK[steps[0][0]] if steps[0][0] != "*" else "+", steps[0][1]),)
        thoughts, x = walk(x, steps)
        return self.conversation(prompt, thoughts, str(x))

    def abduction(self) -> Row:
        one, x = self.pick(self.shown)
        prompt = for_solver(self.card, "abduction", one.item([x]))
        steps = tuple((BACK[sign], number) for sign, number in reversed(one.steps))
        if self.often("wrong"):
            steps = steps[:1] if len(steps) > 1 else one.steps
        thoughts, x = walk(one(x), steps)
        return self.conversation(prompt, thoughts, str(x))

    def induction(self) -> Row:
        one = self.pick(self.open)
        item = one.item(self.numbers(self.inputs), one.message)
        ((sign, number),) = one.simplest.steps
        x, y = item["inputs"][0], item["outputs"][0]
        thoughts = {"*": f"{y} / {x} = {number}", "+": f"{y} - {x} = {number}", "-": f"{x} - {y} = {number}"}[sign]
        if self.often("wrong"):
            sign = self.pick([other for other in "+-*" if other != sign])
        answer = block("python", Function(((sign, number),)).program)
        return self.conversation(for_solver(self.card, "induction", item), thoughts, answer)

    def proposal(self, kind: Kind) -> Row:
        earlier = [one.item([x]) for one, x in (self.pick(self.shown) for _ in range(self.rng.integers(1, 3)))]
        one, x = self.pick(self.shown)
        program, given = one.program, block("input", str(x))
        if self.often("plain"):
            program = "def f(x): return x"
        elif self.often("broken"):
            which = int(self.rng.integers(3))
            program = [program.replace("x +", "y +").replace("x -", "y -"), f"import random\n{program}", program][which]
            given = "" if which == 2 else given
        return self.conversation(for_proposer(self.card, kind, earlier), "", block("python", program) + given)

    def inputs_and_message(self) -> Row:
        one = self.pick(self.open)
        prompt, values = for_proposer(self.card, "induction", [one.item([1])]), self.numbers(self.inputs)
        if self.often("plain"):
            values = [1] * len(values)
        blocks = [block("input", str(x)) for x in values]
        if self.often("broken"):
            blocks = blocks[: int(self.rng.integers(1, len(blocks)))]
        return self.conversation(prompt, "", "".join([*blocks, block("message", one.message)]))

    def rows(self, count: int) -> Iterator[Row]:
        """Demonstrations, in turns of every role; a solver has two turns, as it has more to learn."""
        roles = [self.deduction, self.abduction, self.induction] * 2 + [self.inputs_and_message]
        roles += [lambda: self.proposal("deduction"), lambda: self.proposal("abduction")]
        for place in range(count):
            yield roles[place % len(roles)]()


def walk(x: int, steps: Sequence[tuple[str, int]]) -> tuple[str, int]:
    """The steps one by one, and where they end."""
    lines = []
    for sign, number in steps:
        lines.append(f"{x} {sign} {number} = {(x := SIGNS[sign](x, number))}")
    return ", ".join(lines), x


def block(kind: str, text: str) -> str:
    return f"\n```{kind}\n{text}\n```"


def build(out: Path, work: Path, seed: int = 0) -> None:
    """Writes held-out tasks into `out`, demonstrations and an untrained model into `work`."""
    shown = Demonstrations(seed)
    out.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    held_out = [*shown.tasks()]
    for kind in ("deduction", "abduction", "induction"):
        write_rows(out / f"{kind}.jsonl", [row for row in held_out if row["task"] == kind])
    rows = [*shown.rows(DEMONSTRATIONS)]
    write_rows(work / "conversations.jsonl", rows)
    texts = [message["content"] for row in rows[:3000] for message in row["messages"]]
    numbers = [str(n) for n in range(-30, 60)] * 2
    save_tokenizer(train_tokenizer([*texts, *numbers, "user\n", "assistant\n"], [], PIECES), work / "tokenizer")
    model = model_config(Tokenizer.load(work / "tokenizer"))
    save_hf(work / "initial", model, initial_weights(model, seed), jnp.float32, work / "tokenizer")


def command(*words: str | Path) -> None:
    """Runs a command of scope-jax. Raises CalledProcessError if it fails."""
    subprocess.run([sys.executable, "-m", "scope_jax", *map(str, words)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("assets/atlas/absolute_zero"))
    parser.add_argument("--work", type=Path, default=Path("runs/absolute-zero-base"))
    given = parser.parse_args()
    build(given.out, given.work)
    (given.work / "sft.toml").write_text(
        SFT.format(work=given.work.resolve(), steps=STEPS, batch=BATCH), encoding="utf-8"
    )
    command("sft", given.work / "sft.toml", "--run", given.work / "sft")
    command("export", given.work / "sft", given.out / "base", "--dtype", "bfloat16")


if __name__ == "__main__":
    main()
