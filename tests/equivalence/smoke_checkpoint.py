"""Makes the checkpoint of configs/ssp/smoke-wikipedia.toml: a tiny random Qwen3 trained to write the tags.

    python tests/equivalence/smoke_checkpoint.py --out runs/smoke-base

A random model never writes a search. A minute of the project's own supervised training on one fixed episode per role
is enough for it to write the tags of a search, a question and an answer; the text in them is meaningless.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from scope_jax.config import LearnerSection, LossCard, OptimizerSection  # noqa: E402
from scope_jax.learner.learner import Learner  # noqa: E402
from scope_jax.learner.types import Datum, Episode  # noqa: E402
from scope_jax.models.files import weights  # noqa: E402
from scope_jax.models.tokenizers.tokenizer import Tokenizer  # noqa: E402
from scope_jax.sharding.mesh import MeshConfig, make_mesh  # noqa: E402
from scope_jax.text import templates  # noqa: E402

PROMPTS = ROOT / "scope_jax" / "games" / "ssp" / "prompts"
QUERIES = (
    "longest river of France",
    "capital city of Norway",
    "author of a famous novel",
    "moons of the planet Saturn",
)
SEARCH = "<think> I look this up. </think><search> {query} </search>"
OBSERVATION = '\n<information>\nDoc 1 (Title: "{query}")\nA text about the {query}.\n</information>\n\n'
LAST = {
    "proposer": "<think> That will do. </think><question> Which of the things named is the oldest one? </question>",
    "solver": "<think> Now I know. </think><answer> the {query} </answer>",
}
CARD = LossCard(objective="supervised", kl="none", aggregation="token-mean")


def random_qwen3(folder: Path, vocab_size: int) -> None:
    """A random float32 Qwen3 of two layers, written by transformers."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


def demonstration(tokenizer: Tokenizer, role: str, query: str, answer: str, searches: int) -> Episode:
    """One fixed episode: `searches` searches with an observation each, then the role's final output."""
    text = templates.fill(
        (PROMPTS / f"{role}.txt").read_text(encoding="utf-8"),
        dict.fromkeys(("example1", "example2", "example3"), "") | {"answer": answer, "n": searches, "question": query},
    )
    ids = tokenizer.encode_chat([{"role": "user", "content": text}], enable_thinking=False)
    written = [False] * len(ids)
    parts = [(SEARCH, True), (OBSERVATION, False)] * searches + [(LAST[role], True)]
    for part, sampled in parts:
        more = tokenizer.encode(part.format(query=query))
        ids += more
        written += [sampled] * len(more)
    row = Datum(np.asarray(ids, np.int32), np.asarray(written), np.zeros(len(ids), np.float32))
    return Episode(role=role, policy="actor", group=f"{role} {query} {searches}", datums=(row,), reward=0.0)


def make(data: Path, out: Path, steps: int) -> float:
    """Writes the folder `out`; returns the loss of the last step."""
    tokenizer = Tokenizer.load(data / "tokenizers" / "qwen")
    with tempfile.TemporaryDirectory() as scratch:
        random_qwen3(Path(scratch), -(-tokenizer.vocab_size // 128) * 128)
        model, params = weights.load_hf(scratch)
    section = LearnerSection(buckets=(1024,), micro_batch_rows=4, remat="none")
    optimizer = OptimizerSection(learning_rate=3e-3, warmup_steps=5, weight_decay=0.0)
    mesh = make_mesh(MeshConfig(1, 1, 1))
    learner = Learner(model, mesh, optimizer, section, param_dtype=jnp.float32, compute_dtype=jnp.float32)
    state = learner.init_state(params, reference=False)
    rows = [
        demonstration(tokenizer, role, query, answer, searches)
        for role in LAST
        for query, answer, searches in zip(QUERIES, ("Loire", "Oslo", "Tolstoy", "Titan"), (1, 2, 1, 1), strict=True)
    ]
    (batch,) = learner.pack(rows, CARD)
    loss = float("nan")
    for step in range(steps):
        state, metrics = learner.update(state, [batch], CARD)
        loss = metrics["loss"]
        if step % 20 == 19:
            print(f"step {step + 1}/{steps}: loss {loss:.3f}", flush=True)
    weights.save_hf(out, model, state.params, jnp.float32, tokenizer)
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the checkpoint of configs/ssp/smoke-wikipedia.toml.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=80)
    given = parser.parse_args()
    if "SCOPE_JAX_DATA" not in os.environ:
        parser.error("set SCOPE_JAX_DATA to the folder with corpus/, qa/ and tokenizers/")
    print(f"loss {make(Path(os.environ['SCOPE_JAX_DATA']), given.out, given.steps):.3f}, written to {given.out}")


if __name__ == "__main__":
    main()
