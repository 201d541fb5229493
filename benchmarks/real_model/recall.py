"""What a card's retrieval allows: the share of exam questions whose answer stands in what one search finds.

    python -m benchmarks.real_model.recall CARD EXAM [--passages N …]

The question itself is the query, as a solver's first search mostly is. Passages are as long as the card has them, and
cut to its `max_tokens` together; N: of how many, by default the card's `top_k`. Prints the shares with their errors.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from scope_jax.config import Config
from scope_jax.data.rows import read
from scope_jax.errors import UserError
from scope_jax.games import load_card
from scope_jax.grading.words import contains
from scope_jax.models.tokenizers.tokenizer import Tokenizer
from scope_jax.run.indexing import lookup_of, search_of
from scope_jax.sharding.mesh import MeshConfig, make_mesh


def recall(cfg: Config, exam: Path) -> tuple[float, int]:
    """(the share of rows whose answer is found, rows)."""
    lookup = lookup_of(cfg, exam.parent, make_mesh(MeshConfig(1, 1, 1)), None, None)
    search = search_of(cfg, Tokenizer.load(cfg.model.tokenizer or cfg.model.checkpoint), lookup)
    if search is None:
        raise UserError("the card has no [retrieval]; give one that searches.")
    rows = [row for _, row in read(str(exam))]
    results = search.results([row["question"] for row in rows])
    found = [
        any(contains(result.text, answer) for answer in row["answers"])
        for row, result in zip(rows, results, strict=True)
    ]
    return sum(found) / len(found), len(found)


def main() -> None:
    """Prints a line for each number of passages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("card")
    parser.add_argument("exam", type=Path)
    parser.add_argument("--passages", type=int, nargs="+")
    given = parser.parse_args()
    for count in given.passages or [None]:
        sets, which = ([], "the card's") if count is None else ([f"retrieval.top_k={count}"], str(count))
        share, rows = recall(load_card(given.card, sets), given.exam)
        error = math.sqrt(share * (1 - share) / rows)
        print(f"{which} passages: {100 * share:.1f} ± {100 * error:.1f} % of {rows} rows", flush=True)


if __name__ == "__main__":
    main()
