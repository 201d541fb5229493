"""Memory of a training row of 16,384 + 4,096 tokens: the learner's step, compiled ahead of time for TPUs that need
not be present.

    python benchmarks/long_rows.py [--model small] [--topology v5p:2x2x1]
    python benchmarks/long_rows.py --card configs/spice/qwen3-8b.toml --topology v5p:2x2x2

SPELL trains rows of at most 16,384 prompt tokens and 4,096 sampled tokens. Each chip has one such row, and the weights
are sharded over all chips (fsdp). Nothing is executed: the numbers come from XLA's memory analysis, in GiB per chip,
with chunked log-probs (`learner.logprob_chunk`) and with the logits of all sampled positions at once. Arguments are
weights, optimiser moments and batch.

With --card, the step is that of a card: its longest rows with as many sampled tokens as a role may write, two
micro-batches, and its optimiser, loss, dtypes and rematerialisation. Prints one JSON line.

GiB per chip on top of weights, moments and batch, one row on each of 4 chips of v5p:

    model                                         chunked   all logits at once
    2 layers, width 256, vocabulary 152,064       0.29      3.68
    Qwen2.5-7B (arguments: 21.3)                  27.5      27.8

On 8 chips, two micro-batches of one row per chip, arguments included: configs/spell/qwen2.5-7b.toml 33.8 (arguments
10.6), configs/spice/qwen3-8b.toml with rows of 8,192 + 4,096 tokens 33.2 (11.5).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scope_jax.games.spell.options import SpellSection
from scope_jax.games.spice.options import SpiceSection
from scope_jax.plan.hardware import ABSENT, GIB, tpu_devices

os.environ |= ABSENT

import jax.numpy as jnp
from jax.sharding import Mesh

from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.games import GAMES, load_card
from scope_jax.learner.batching import CHUNK
from scope_jax.learner.learner import Learner
from scope_jax.models.files.families import from_hf
from scope_jax.plan.architectures import QWEN3_8B, QWEN25, QWEN25_7B, model_of
from scope_jax.sharding.mesh import MeshConfig, make_mesh

PROMPT, SAMPLED = 16384, 4096
WHOLE = 10**6  # a chunk that covers all sampled positions of a row
SMALL = {"vocab_size": 152064, "num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512, "head_dim": 128}
MODELS = {
    "small": QWEN25 | SMALL | {"num_attention_heads": 2, "num_key_value_heads": 1},
    "qwen2.5-7b": QWEN25_7B,
    "qwen3-8b": QWEN3_8B,
}


def mesh_of(topology: str) -> Mesh:
    """All chips of a topology along the axis fsdp."""
    devices = tpu_devices(topology)
    return make_mesh(MeshConfig(1, len(devices), 1), devices)


def of_card(path: str, topology: str) -> dict[str, float]:
    """GiB per chip of one optimiser step of a card, and the compilation time in seconds."""
    cfg, mesh = load_card(path), mesh_of(topology)
    (update,) = GAMES[cfg.system].updates(cfg)
    learner = Learner(
        model_of(cfg.model.checkpoint, None)[0],
        mesh,
        cfg.optimizer,
        cfg.learner,
        param_dtype=jnp.dtype(cfg.model.param_dtype),
        compute_dtype=jnp.dtype(cfg.model.compute_dtype),
    )
    role = cfg.options(SpiceSection).reasoner if cfg.system == "spice" else cfg.options(SpellSection).responder
    sampled = role.sampling.max_tokens
    prompt = cfg.learner.buckets[-1] - sampled
    batch = learner.abstract_batch(prompt + sampled, sampled)
    return compiled(learner, batch, update.card) | {"prompt": prompt, "sampled": sampled}


def measured(model: str, topology: str, chunk: int) -> dict[str, float]:
    """GiB per chip of one optimiser step, and the compilation time in seconds."""
    mesh = mesh_of(topology)
    devices = mesh.devices.flat
    section = LearnerSection(buckets=(PROMPT + SAMPLED,), micro_batch_rows=len(devices), logprob_chunk=chunk)
    learner = Learner(
        from_hf(MODELS[model]), mesh, OptimizerSection(), section, param_dtype=jnp.float32, compute_dtype=jnp.bfloat16
    )
    card = LossCard(advantage="group-zscore", aggregation="token-mean", kl="none")
    return compiled(learner, learner.abstract_batch(PROMPT + SAMPLED, SAMPLED, micro_batches=1), card)


def compiled(learner: Learner, batch: Any, card: LossCard) -> dict[str, float]:
    """GiB per chip of the learner's step on `batch`, and the compilation time in seconds."""
    start = time.monotonic()
    memory = learner.step_program(card, batch).lower().compile().memory_analysis()
    assert memory is not None
    return {
        "temporaries": round(memory.temp_size_in_bytes / GIB, 2),
        "arguments": round(memory.argument_size_in_bytes / GIB, 2),
        "peak": round(memory.peak_memory_in_bytes / GIB, 2),
        "compile_seconds": round(time.monotonic() - start, 1),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", choices=MODELS, default="small")
    options.add_argument("--topology", default="v5p:2x2x1")
    options.add_argument("--card", help="a card of SPICE or SPELL, whose model is one of the known ones")
    given = options.parse_args()
    if given.card:
        found = of_card(given.card, given.topology)
        print(json.dumps({"benchmark": "long_rows", "card": given.card, "topology": given.topology, "gib": found}))
        return
    found = {}
    for name, chunk in (("chunked", CHUNK), ("whole", WHOLE)):
        found[name] = measured(given.model, given.topology, chunk)
        print(name, found[name], file=sys.stderr, flush=True)
    print(json.dumps({"benchmark": "long_rows", "model": given.model, "topology": given.topology, "gib": found}))


if __name__ == "__main__":
    main()
