"""FLOPs of published cards' updates with what episodes begin with in every row, and in a row once.

    python -m benchmarks.prefixes [--groups 32] [--shards 8]

Nothing is trained: groups of random tokens, as many answers as the card samples, are packed as the learner packs them
(the card's buckets, packing and rows of a micro-batch; model shapes from `plan.architectures`), and the forward FLOPs
of the layers are those of `learner.prefixes.Work`, padding included; a backward pass multiplies both sides alike.
Lengths are assumed: log-normal between the bounds in CASES, which are within the cards' own. "tokens" are those that go
through the model without padding. Prints a Markdown table: a row for each role with splash, which skips what no token
sees, and without skipping (GPU).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scope_jax.config import LearnerSection
from scope_jax.games import load_card
from scope_jax.learner import batching
from scope_jax.learner.prefixes import Node, Work, alone, cheapest, rows_of
from scope_jax.learner.types import Datum, Episode
from scope_jax.models.config import ModelConfig
from scope_jax.plan.architectures import public


@dataclass(frozen=True)
class Case:
    """A role of a card: answers to a prompt, and the assumed lengths of prompts and answers in tokens."""

    card: str
    role: str
    samples: int
    prompt: tuple[int, int]
    answer: tuple[int, int]


CASES = (
    Case("spell/qwen2.5-7b-instruct", "responder", 8, (10_000, 16_000), (150, 1500)),
    Case("spell/qwen2.5-7b-instruct", "verifier", 8, (250, 700), (50, 400)),
    Case("spice/qwen3-4b", "challenger", 8, (5000, 7000), (500, 4000)),
    Case("spice/qwen3-4b", "reasoner", 8, (100, 400), (300, 3000)),
    Case("ssp/qwen2.5-7b", "solver", 5, (400, 700), (800, 6000)),
    Case("score/qwen2.5-7b", "solver", 8, (1000, 7000), (800, 4000)),
    Case("scope/qwen3-8b", "solver", 8, (600, 2000), (500, 6000)),
)


def lengths(rng: np.random.Generator, bounds: tuple[int, int], count: int) -> np.ndarray:
    """Log-normal, of which the bounds are two standard deviations apart from the middle on either side."""
    low, high = np.log(bounds)
    return np.exp(rng.normal((low + high) / 2, (high - low) / 4, count).clip(low, high)).astype(int)


def episodes(case: Case, groups: int) -> list[Episode]:
    rng, made = np.random.default_rng(0), []
    for group, size in enumerate(lengths(rng, case.prompt, groups)):
        prompt = rng.integers(0, 1000, size)
        for answer in lengths(rng, case.answer, case.samples):
            ids = np.concatenate([prompt, rng.integers(0, 1000, answer)]).astype(np.int32)
            datum = Datum(ids, np.arange(len(ids)) >= size, np.zeros(len(ids), np.float32))
            made.append(Episode(case.role, "actor", str(group), (datum,), 0.0, advantage=1.0))
    return made


def packed(
    section: LearnerSection, model: ModelConfig, made: Sequence[Episode], shards: int, sparse: bool
) -> tuple[float, float, int, int]:
    """(FLOPs apart, FLOPs shared, tokens apart, tokens shared)."""
    pieces = batching.pieces_of(made, max(section.buckets), True, None)
    longest = max(len(piece.datum.ids_T) for piece in pieces)
    buckets, work = [bucket for bucket in section.buckets if bucket >= longest], Work(model, sparse)

    def places(rows: int) -> int:
        count, size = batching.micro_batches(section, shards, rows)
        return count * size * shards

    def of(rows: Sequence[Node], width: int) -> tuple[float, int]:
        return work.flops(rows, places(len(rows)), width), sum(row.size for row in rows)

    apart = of(rows_of(alone(pieces), min(buckets)), min(buckets))
    shared = of(*cheapest(pieces, buckets, places, work))
    return apart[0], shared[0], apart[1], shared[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=32, help="in an optimiser step")
    parser.add_argument("--shards", type=int, default=8, help="devices that the rows are divided over")
    args = parser.parse_args()
    print("| card, role | answers | prompt | answer | tokens, M | fewer FLOPs, splash | without skipping |")
    print("|---|---|---|---|---|---|---|")
    for case in CASES:
        cfg = load_card(f"configs/{case.card}.toml", [])
        model = public(cfg.model.checkpoint or "")
        assert model is not None
        made = episodes(case, args.groups)
        both = [packed(cfg.learner, model, made, args.shards, sparse) for sparse in (True, False)]
        tokens = f"{both[0][2] / 1e6:.2f} → {both[0][3] / 1e6:.2f}"
        times = " | ".join(f"{apart / shared:.2f} ×" for apart, shared, *_ in both)
        spans = " | ".join(f"{low:,}–{high:,}" for low, high in (case.prompt, case.answer))
        print(f"| {case.card} {case.role} | {case.samples} | {spans} | {tokens} | {times} |")


if __name__ == "__main__":
    main()
