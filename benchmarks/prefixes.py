"""FLOPs of published cards' updates with what episodes begin with in every row, and in a row once.

    python -m benchmarks.prefixes [--groups 32] [--shards 8] [--compile]

Nothing is trained: groups of random tokens, as many answers as the card samples, are packed as the learner packs them
(the card's buckets, packing and rows of a micro-batch; model shapes from `plan.architectures`), and the forward FLOPs
of the layers are those of `learner.prefixes.Work`, padding included; a backward pass multiplies both sides alike.
Lengths are assumed: log-normal between the bounds in CASES, which are within the cards' own. "tokens" are those that go
through the model without padding. Prints a Markdown table: a row for each role with splash, which skips what no token
sees, and without skipping (GPU).

With --compile the learner packs the episodes for so many simulated devices, XLA compiles each card's optimiser step for
the batch, and FLOPs are those of all matrix products in the program (of every layer, attention without skipping,
recomputation and the backward pass, logits), times the micro-batches: another table. It takes about a minute per row.

FLOPs without sharing over those with it, compiled (and by arithmetic with splash): SPELL's responder 7.95 (7.53) and
verifier 2.50 (2.49), SPICE's challenger 3.15 (2.85) and reasoner 1.10 (1.10), the solvers of SSP 1.14 (1.14), SCORE
1.49 (1.64) and SCOPE 1.29 (1.28).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.games import load_card
from scope_jax.learner import batching
from scope_jax.learner.learner import Learner
from scope_jax.learner.prefixes import Node, RowWork, alone, cheapest, rows_of
from scope_jax.learner.types import Datum, Episode
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.plan.architectures import public
from scope_jax.plan.hlo import Program
from scope_jax.sharding.mesh import MeshConfig, make_mesh


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
    buckets, work = sorted(bucket for bucket in section.buckets if bucket >= longest), RowWork(model, sparse)

    def places(rows: int, width: int) -> int:
        count, size = batching.micro_batches(section, shards, rows, -(-width // buckets[0]))
        return count * size * shards

    def of(rows: Sequence[Node], width: int) -> tuple[float, int]:
        return work.flops(rows, places(len(rows), width), width), sum(row.size for row in rows)

    apart = of(rows_of(alone(pieces), buckets[0]), buckets[0])
    shared = of(*cheapest(pieces, buckets, places, work))
    return apart[0], shared[0], apart[1], shared[1]


def compiled(section: LearnerSection, model: ModelConfig, made: Sequence[Episode], shards: int, share: str) -> float:
    """FLOPs of an optimiser step on all devices, by the compiler."""
    changed: dict[str, Any] = {"share_prefixes": share, "attention": "reference", "remat": "full"}
    if section.micro_batch_rows == "auto":
        changed["micro_batch_rows"] = 8  # as on accelerators
    section, card = section.model_copy(update=changed), LossCard(kl="none")
    mesh = make_mesh(MeshConfig(1, shards, 1), jax.devices()[:shards])
    learner = Learner(model, mesh, OptimizerSection(), section, param_dtype=jnp.float32, compute_dtype=jnp.bfloat16)
    (batch,) = learner.pack(made, card)
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), batch)
    costs = Program(learner.step_program(card, abstract).lower().compile().as_text()).costs()
    assert costs.unknown == 1, costs  # the loop over micro-batches
    return costs.flops * shards * int(batch.micro_batches)


def print_compiled(groups: int, shards: int) -> None:
    print("| card, role | PFLOP apart | shared | fewer FLOPs, compiled | by the model of the work |")
    print("|---|---|---|---|---|", flush=True)
    for case in CASES:
        section, model, made = parts(case, groups)
        apart, shared = (compiled(section, model, made, shards, share) for share in ("never", "auto"))
        before, after, *_ = packed(section, model, made, shards, sparse=False)
        row = f"{apart / 1e15:,.1f} | {shared / 1e15:,.1f} | {apart / shared:.2f} × | {before / after:.2f} ×"
        print(f"| {case.card} {case.role} | {row} |", flush=True)


def parts(case: Case, groups: int) -> tuple[LearnerSection, ModelConfig, list[Episode]]:
    """The card's learner and model, and episodes of the role."""
    cfg = load_card(f"configs/{case.card}.toml", [])
    model = public(cfg.model.checkpoint or "")
    assert model is not None
    return cfg.learner, model, episodes(case, groups)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=32, help="in an optimiser step")
    parser.add_argument("--shards", type=int, default=8, help="devices that the rows are divided over")
    parser.add_argument("--compile", action="store_true", help="FLOPs by the compiler instead")
    args = parser.parse_args()
    if args.compile:
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={args.shards}"
        return print_compiled(args.groups, args.shards)
    print("| card, role | answers | prompt | answer | tokens, M | fewer FLOPs, splash | without skipping |")
    print("|---|---|---|---|---|---|---|")
    for case in CASES:
        section, model, made = parts(case, args.groups)
        both = [packed(section, model, made, args.shards, sparse) for sparse in (True, False)]
        tokens = f"{both[0][2] / 1e6:.2f} → {both[0][3] / 1e6:.2f}"
        times = " | ".join(f"{apart / shared:.2f} ×" for apart, shared, *_ in both)
        spans = " | ".join(f"{low:,}–{high:,}" for low, high in (case.prompt, case.answer))
        print(f"| {case.card} {case.role} | {case.samples} | {spans} | {tokens} | {times} |")


if __name__ == "__main__":
    main()
