"""Compiles an update ahead of time for a TPU topology or GPUs, prints its collectives (test_collectives.py starts it).

python tests/plan/collectives.py v5p:4x4x4|8xH100 dense|deep|moe|tied|vectors [CONTEXT ulysses|ring|auto [TENSOR]]

A tensor group has sequence parallelism.
"""

import json
import re
import sys
from typing import Any

import jax.numpy as jnp

from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.learner.learner import Learner
from scope_jax.models.files.families import from_hf
from scope_jax.plan import theory
from scope_jax.plan.hardware import hardware
from scope_jax.plan.hlo import Program
from scope_jax.sharding.mesh import MeshConfig, make_mesh

MODEL = {
    "vocab_size": 20_000,  # not divisible by the number of devices
    "num_hidden_layers": 4,
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 4096,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "max_position_embeddings": 1024,
    "hidden_act": "silu",
}
DENSE = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": False}
FAMILIES = {
    "dense": DENSE,
    "deep": DENSE | {"num_hidden_layers": 48, "hidden_size": 6144},  # each norm of all layers has 1.1 MiB
    "tied": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": True},
    "moe": {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "tie_word_embeddings": False,
        "num_experts": 64,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 512,
    },
    "vectors": {  # as Gemma 4's E2B: vectors of each layer, layers that read the keys of others
        "model_type": "gemma4_text",
        "num_hidden_layers": 5,
        "layer_types": ["sliding_attention"] * 2 + ["full_attention", "sliding_attention", "full_attention"],
        "num_kv_shared_layers": 2,
        "global_head_dim": 256,
        "sliding_window": 256,
        "hidden_size_per_layer_input": 128,
        "vocab_size_per_layer_input": 20_000,
    },
}


def main(topology: str, family: str, context: str = "1", how: Any = "auto", tensor: str = "1") -> None:
    devices = list(hardware(topology).devices)
    model = from_hf(MODEL | FAMILIES[family])
    group = int(context) * int(tensor)
    rows, length = len(devices) // group, 768 * group
    section = LearnerSection(
        buckets=(length,),
        micro_batch_rows=rows,
        logprob_chunk=512,
        remat="full",
        context_attention=how,
        sequence_parallel=int(tensor) > 1,
    )
    learner = Learner(
        model,
        make_mesh(MeshConfig(1, -1, int(tensor), int(context)), devices),
        OptimizerSection(learning_rate=1e-6, warmup_steps=1),
        section,
        param_dtype=jnp.float32,
        compute_dtype=jnp.bfloat16,
    )
    card = LossCard(kl="none", mini_batches=1)
    text = learner.step_program(card, learner.abstract_batch(length, micro_batches=1)).lower().compile().as_text()
    moved = Program(text).costs().collectives
    found = {kind: [round(one.count), one.largest / 2**20] for kind, one in moved.items()}
    closed = theory.step_collectives(
        model, learner.shards.fsdp, True, learner.context, learner.context_attention, learner.shards.sequence
    )
    square = re.findall(rf"\w+\[(?:\d+,)*{length},{length}\]", text)  # scores or a bias of every pair of tokens
    print(json.dumps({"found": found, "closed": closed, "square": square}))


if __name__ == "__main__":
    main(*sys.argv[1:])
