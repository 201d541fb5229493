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
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

# For ahead-of-time TPU compilation: allow several processes to load libtpu, and do not look for a TPU slice.
os.environ |= {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost"}
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from models.config import from_hf
from scope_jax.config import LearnerSection, LossCard, OptimizerSection, load_card
from scope_jax.learner import batching
from scope_jax.learner.learner import Learner, Scores
from scope_jax.learner.types import Datum, Episode
from scope_jax.systems import SYSTEMS
from sharding.mesh import MeshConfig, make_mesh

GIB = 2**30
PROMPT, SAMPLED = 16384, 4096
WHOLE = 10**6  # a chunk that covers all sampled positions of a row
QWEN = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "max_position_embeddings": 32768,
    "hidden_act": "silu",
}
MODELS = {
    "small": QWEN
    | {"vocab_size": 152064, "num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512}
    | {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128},
    "qwen2.5-7b": QWEN
    | {"vocab_size": 152064, "num_hidden_layers": 28, "hidden_size": 3584, "intermediate_size": 18944}
    | {"num_attention_heads": 28, "num_key_value_heads": 4, "head_dim": 128},
    "qwen3-8b": QWEN
    | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
    | {"vocab_size": 151936, "num_hidden_layers": 36, "hidden_size": 4096, "intermediate_size": 12288}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
}
CARDS = {"qwen3-8b": "qwen3-8b", "qwen2.5-7b": "qwen2.5-7b", "qwen2.5-7b-instruct": "qwen2.5-7b"}  # a card's model


def abstract_batch(learner: Learner, rows: int, prompt: int = PROMPT, sampled: int = SAMPLED) -> Any:
    """Shapes and shardings of `rows` full rows."""
    sampled_T = np.arange(prompt + sampled) >= prompt
    datum = Datum(np.zeros(len(sampled_T), np.int32), sampled_T, np.zeros(len(sampled_T), np.float32))
    episodes = [Episode("responder", "actor", str(row), (datum,), 0.0, advantage=1.0) for row in range(rows)]
    batch = batching.pack(episodes, learner.section, learner.row_shards)
    return jax.tree.map(
        lambda x, spec: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(learner.mesh, spec)),
        batch,
        learner._batch_specs(batch),
        is_leaf=lambda x: isinstance(x, PartitionSpec),
    )


def mesh_of(topology: str) -> Mesh:
    """All chips of a topology along the axis fsdp."""
    devices = topologies.get_topology_desc(topology, platform="tpu").devices
    return make_mesh(MeshConfig(1, len(devices), 1), list(devices))


def of_card(path: str, topology: str) -> dict[str, float]:
    """GiB per chip of one optimiser step of a card, and the compilation time in seconds."""
    cfg, mesh = load_card(path), mesh_of(topology)
    (update,) = SYSTEMS[cfg.system].updates(cfg)
    learner = Learner(
        from_hf(MODELS[CARDS[Path(path).stem]]),
        mesh,
        cfg.optimizer,
        cfg.learner,
        param_dtype=jnp.dtype(cfg.model.param_dtype),
        compute_dtype=jnp.dtype(cfg.model.compute_dtype),
    )
    role = cfg.spice.reasoner if cfg.system == "spice" else cfg.spell.responder
    sampled = role.sampling.max_tokens
    prompt = cfg.learner.buckets[-1] - sampled
    batch = abstract_batch(learner, 2 * cfg.learner.micro_batch_rows, prompt, sampled)
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
    return compiled(learner, abstract_batch(learner, len(devices)), card)


def compiled(learner: Learner, batch: Any, card: LossCard) -> dict[str, float]:
    """GiB per chip of the learner's step on `batch`, and the compilation time in seconds."""
    state = learner.abstract_state(reference=False)
    start = time.monotonic()
    memory = learner._step.lower(state, batch, Scores(None, None), card=card).compile().memory_analysis()
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
    for name, chunk in (("chunked", LearnerSection().logprob_chunk), ("whole", WHOLE)):
        found[name] = measured(given.model, given.topology, chunk)
        print(name, found[name], file=sys.stderr, flush=True)
    print(json.dumps({"benchmark": "long_rows", "model": given.model, "topology": given.topology, "gib": found}))


if __name__ == "__main__":
    main()
