"""The games of examples/ on models of half a million parameters: their base, and their results over seeds.

    python -m benchmarks.open_games --out runs/open-games --seeds 0 1 2 3 4

writes data and rows of both games with bad habits, trains a base on them (`scope-jax sft examples/base.toml`), and then
every other card of examples/ with every seed (`benchmarks.seeds`). Without --seeds it ends after the base. The habits:

* every other solver answers without running code, with a random number;
* of those that run code, every other one runs another operation;
* players of Kuhn poker draw legal actions, as if they had not seen their card.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from benchmarks.seeds.__main__ import main as train_seeds
from scope_jax.config import SandboxSection
from scope_jax.environments.python_tool import python_tool
from scope_jax.models.files.weights import save_hf
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.text import dialects
from scope_jax.text.dialects.formats import Call
from tools.atlas.circuit import initial_weights
from tools.atlas.vocabulary import save_tokenizer, train_tokenizer
from tools.atlas.warmup import model_config

EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.append(str(EXAMPLES))

kuhn_rules, python_solver = map(import_module, ("kuhn_rules", "python_solver"))

KUHN = ("eval/situations/won", "eval/situations/exploitable")
METRICS = {
    "python_solver": ("eval/held_out/accuracy", "eval/held_out/ran", "solver/reward"),
    "kuhn_poker": KUHN,
    "kuhn_two_policies": KUHN,
    "kuhn_adapters": KUHN,
}
SIGNS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
SHOWN, DEALT, TRAINED, HELD_OUT = 4000, 600, 2000, 128  # solver's answers, hands; questions for training and exam
LAYERS = 2
TOKENS = (r"</?python>", r"\\boxed\{")
Row = dict[str, Any]
Expression = tuple[int, str, int]


def expressions(rng: np.random.Generator) -> list[Expression]:
    """All sums, differences and products of two numbers from 10 to 99, in random order."""
    every = [(a, sign, b) for a in range(10, 100) for sign in SIGNS for b in range(10, 100)]
    return [every[place] for place in rng.permutation(len(every))]


def question(a: int, sign: str, b: int) -> Row:
    return {"question": f"Compute\n({a}{sign}{b})", "answers": [str(SIGNS[sign](a, b))]}


def solved(expression: Expression, schema: Mapping[str, Any], rng: np.random.Generator) -> Row:
    """A conversation with the habits of the solver."""
    a, sign, b = expression
    asked = {"role": "user", "content": python_solver.prompt(question(*expression)).user}
    if rng.random() < 1 / 2:
        turns = [("assistant", f"\\boxed{{{rng.integers(10, 9999)}}}")]
    else:
        chosen = sign if rng.random() < 1 / 2 else str(rng.choice([other for other in SIGNS if other != sign]))
        result, dialect = str(SIGNS[chosen](a, b)), dialects.load("xml")
        call = dialect.write(Call("python", {"code": f"({a}{chosen}{b})"}), [schema])
        turns = [("assistant", call), ("user", dialect.observation([result])), ("assistant", f"\\boxed{{{result}}}")]
    return {"messages": [asked, *({"role": role, "content": text} for role, text in turns)], "tools": [schema]}


def dealt(rng: np.random.Generator) -> Iterator[Row]:
    """The conversations of both players of a hand in which legal actions are drawn."""
    cards = kuhn_rules.DEALS[rng.integers(len(kuhn_rules.DEALS))]
    moves: tuple[str, ...] = ()
    rows: dict[int, list[Mapping[str, str]]] = {}
    while moves in kuhn_rules.LEGAL:
        player, action = len(moves) % 2, str(rng.choice(kuhn_rules.LEGAL[moves]))
        read = kuhn_rules.situation(cards[player], moves).conversation()
        rows[player] = [*read, {"role": "assistant", "content": f"\\boxed{{{action}}}"}]
        moves = (*moves, action)
    for messages in rows.values():
        yield {"messages": messages}


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def build(out: Path, seed: int = 0) -> None:
    """Writes data, conversations, and a model with random weights that can copy (`tools.atlas.circuit`)."""
    rng = np.random.default_rng(seed)
    every = expressions(rng)
    held_out, trained, shown = np.split(np.arange(len(every)), [HELD_OUT, HELD_OUT + TRAINED])
    out.mkdir(parents=True, exist_ok=True)
    write(out / "expressions.jsonl", (question(*every[place]) for place in trained))
    write(out / "expressions_held_out.jsonl", (question(*every[place]) for place in held_out))
    places = [(card, moves) for card in "JQK" for moves in kuhn_rules.LEGAL]
    write(out / "situations.jsonl", ({"card": card, "moves": [*moves]} for card, moves in places))
    schema = python_tool(SandboxSection()).schema
    rows = [solved(every[place], schema, rng) for place in shown[:SHOWN]]
    rows += [row for _ in range(DEALT) for row in dealt(rng)]
    rows = [rows[place] for place in rng.permutation(len(rows))]
    write(out / "conversations.jsonl", rows)
    texts = [message["content"] for row in rows for message in row["messages"]]
    described = dialects.load("xml").described([schema])
    save_tokenizer(train_tokenizer([*texts, described, described], [], TOKENS), out / "tokenizer")
    tokenizer = Tokenizer.load(out / "tokenizer")
    model = model_config(tokenizer)
    model = replace(model, layers=(model.layers * LAYERS)[:LAYERS])
    save_hf(out / "initial", model, initial_weights(model, seed), jnp.float32, out / "tokenizer")


def command(*words: str | Path) -> None:
    """Runs a command of scope-jax. Raises CalledProcessError if it fails."""
    subprocess.run([sys.executable, "-m", "scope_jax", *words], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/open-games"))
    parser.add_argument("--seeds", nargs="+", type=int, default=[])
    parser.add_argument("--cards", nargs="+", default=[*METRICS], choices=[*METRICS])
    given = parser.parse_args()
    if not (given.out / "initial").is_dir():
        build(given.out)
    if not (given.out / "base").is_dir():
        command("sft", EXAMPLES / "base.toml", "--run", given.out / "sft")
        command("export", given.out / "sft", given.out / "base", "--dtype", "float32")
    for name in given.cards if given.seeds else ():
        words = [str(EXAMPLES / f"{name}.toml"), "--seeds", *map(str, given.seeds), "--out", str(given.out / "seeds")]
        if failed := train_seeds([*words, "--metrics", *METRICS[name]]):
            return failed
    return 0


if __name__ == "__main__":
    sys.exit(main())
