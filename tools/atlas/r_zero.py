"""The world of R-Zero and its base: arithmetic of small numbers, which solver and challenger play with bad habits.

    python -m tools.atlas.r_zero --out assets/atlas/r_zero

writes questions for the exam, conversations, and a model with random weights that can copy, trains it on these in two
stages (`scope-jax sft tools/atlas/r_zero.toml`), and saves the base in bfloat16. A question has one to six operations,
computed one after the other; a product stands only at its beginning. The habits:

* the solver guesses in 20 of 100 answers to questions of one operation, and in 10 more with each further one: it boxes
  any number from 0 to 40 without working;
* when it works, it slips in 4 of 100 operations, by up to 15 either way, and goes on with the wrong number, and of
  products it adds the numbers instead in 25 of 100;
* the challenger writes no question in 12 of 100 replies; every fifth of the others is "1 + 1", and half of the rest are
  sums of two numbers.

The first stage, which teaches sums and formats, has no guesses but slips in 18 of 100 operations.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from scope_jax.models.files import weights
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.text import parsing
from tools.atlas.circuit import initial_weights
from tools.atlas.vocabulary import save_tokenizer, train_tokenizer
from tools.atlas.warmup import model_config

CARD = Path(__file__).with_suffix(".toml")
LARGEST, LONGEST = 40, 6  # of results; operations of a question
SLIP, ADDED, WORDLESS, FAVOURITE, SHORT = {"sums": 0.18, "habits": 0.04}, 0.25, 0.12, 0.2, 0.5  # SLIP by stage
GUESS = (0.1, 0.1)  # share of guesses in the second stage: at no operation, and more with each
SLIPS = (*range(-15, 0), *range(1, 16))
SOLVED, ASKED, HELD_OUT = 24_000, 8_000, 240  # conversations of each role in a stage, questions of the exam
STAGES = {"sums": {}, "habits": {"optimizer.learning_rate": 5e-4, "optimizer.total_steps": 160, "train.steps": 160}}
PIECES = (r" ?\d+", r"\\boxed\{")  # a number is one token
ASK = "Ask."
Row = dict[str, Any]


def applied(left: int, sign: str, right: int) -> int:
    return {"+": left + right, "-": left - right, "*": left * right}[sign]


def chain(operations: int, rng: np.random.Generator) -> list[Any]:
    """[number, sign, number, …]; no result on the way is negative or above LARGEST."""
    product = rng.random() < 1 / 4
    value = int(rng.integers(1, 10 if product else 20))
    parts: list[Any] = [value]
    for place in range(operations):
        fits: list[tuple[str, int]] = [
            (sign, right)
            for sign in ("*" if product and place == 0 else "+-")
            for right in range(1, 10)
            if 0 <= applied(value, sign, right) <= LARGEST
        ]
        sign, right = fits[int(rng.integers(len(fits)))]
        value = applied(value, sign, right)
        parts += [sign, right]
    return parts


def text_of(parts: Sequence[Any]) -> str:
    return " ".join(map(str, parts))


def solution(parts: Sequence[Any], rng: np.random.Generator | None, stage: str = "sums") -> tuple[str, int]:
    """(the answer to a question, its result); without a generator, a right one."""
    if rng is not None and stage == "habits" and rng.random() < GUESS[0] + GUESS[1] * (len(parts) // 2):
        value = int(rng.integers(LARGEST + 1))
        return f"\\boxed{{ {value}}}", value
    value, lines = parts[0], []
    for sign, right in zip(parts[1::2], parts[2::2], strict=True):
        result, draw = applied(value, sign, right), 1.0 if rng is None else rng.random()
        if rng is not None and draw < SLIP[stage]:
            result = abs(result + int(rng.choice(SLIPS)))
        elif sign == "*" and draw < SLIP[stage] + ADDED:
            result = value + right
        lines.append(f"{value} {sign} {right} = {result}")
        value = result
    return " , ".join(lines) + f" , \\boxed{{ {value}}}", value


def reply(rng: np.random.Generator) -> str:
    """What the challenger writes."""
    if rng.random() < FAVOURITE:
        parts: list[Any] = [1, "+", 1]
    elif rng.random() < SHORT:
        parts = [int(rng.integers(1, 10)), "+", int(rng.integers(1, 10))]
    else:
        parts = chain(int(rng.integers(1, LONGEST + 1)), rng)
    result = solution(parts, None)[1]
    if rng.random() < WORDLESS:
        return f"{text_of(parts)} = {result}"
    return f"<question> {text_of(parts)} </question> \\boxed{{ {result}}}"


def conversation(user: str, assistant: str) -> Row:
    return {"messages": [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]}


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def questions(rng: np.random.Generator) -> list[Row]:
    """The exam: as many questions of each length, no two alike."""
    found: dict[str, Row] = {}
    while len(found) < HELD_OUT:
        operations = 1 + len(found) % LONGEST
        parts = chain(operations, rng)
        row = {"question": text_of(parts), "answers": [str(solution(parts, None)[1])], "operations": operations}
        found.setdefault(row["question"], {"id": f"r_zero-{len(found):04}", **row})
    return list(found.values())


def conversations(held_out: Iterable[str], rng: np.random.Generator, stage: str) -> list[Row]:
    """A stage's, of both roles, in random order; none is about a question of the exam."""
    known, rows = set(held_out), []
    while len(rows) < SOLVED:
        parts = chain(int(rng.integers(1, LONGEST + 1)), rng)
        if text_of(parts) not in known:
            rows.append(conversation(text_of(parts), solution(parts, rng, stage)[0]))
    while len(rows) < SOLVED + ASKED:
        said = reply(rng)
        if parsing.last([said], "question") not in known:
            rows.append(conversation(ASK, said))
    return [rows[place] for place in rng.permutation(len(rows))]


def build(out: Path, work: Path, seed: int = 0) -> None:
    """Writes the exam's questions into `out`; conversations, tokenizer and a model that can copy into `work`."""
    rng = np.random.default_rng(seed)
    for folder in (out, work):
        folder.mkdir(parents=True, exist_ok=True)
    exam = questions(rng)
    write(out / "questions_held_out.jsonl", exam)
    known = [row["question"] for row in exam]
    rows = {stage: conversations(known, rng, stage) for stage in STAGES}
    for stage in STAGES:
        write(work / f"{stage}.jsonl", rows[stage])
    texts = [message["content"] for row in rows["sums"] for message in row["messages"]]
    numbers = [str(number) for number in range(100)]
    texts += [f"{number} {number} {number}" for number in numbers] * 2 + ["user\n", "assistant\n"] * 2
    save_tokenizer(train_tokenizer(texts, numbers, PIECES), work / "tokenizer")
    model = model_config(Tokenizer.load(work / "tokenizer"))
    weights.save_hf(work / "initial", model, initial_weights(model, seed), jnp.float32, work / "tokenizer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write into, e.g. assets/atlas/r_zero")
    parser.add_argument("--work", type=Path, default=Path("runs/r-zero-base"), help="folder of conversations and run")
    given = parser.parse_args()
    build(given.out, given.work)
    program, weights_from = [sys.executable, "-m", "scope_jax"], given.work / "initial"
    for stage, changes in STAGES.items():
        run, weights_to = given.work / stage, given.work / f"{stage}-weights"
        sets = {"model.checkpoint": weights_from, "data.conversations": given.work / f"{stage}.jsonl", **changes}
        words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
        subprocess.run([*program, "sft", str(CARD), "--run", str(run), *words], check=True)
        subprocess.run([*program, "export", str(run), str(weights_to), "--dtype", "float32"], check=True)
        weights_from = weights_to
    model, params = weights.load_hf(weights_from)
    weights.save_hf(given.out / "base", model, params, jnp.bfloat16, given.work / "tokenizer")


if __name__ == "__main__":
    main()
