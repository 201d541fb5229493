"""Compiles the engine's programs for an H100 that is not here, under the flag for deterministic programs; prints how
many sorts each has, by name, as JSON. Run by test_writes.py."""

from __future__ import annotations

import json
import re

import jax.numpy as jnp

from scope_jax.models.decoder.paged_gpu import Triton
from scope_jax.models.kernels.rope import Rope
from scope_jax.plan.hardware import hardware
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.slots import EngineConfig
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from tests.shapes import uniform

CFG = uniform(
    architecture="qwen3",
    vocab_size=512,
    num_layers=2,
    width=128,
    num_heads=4,
    num_kv_heads=2,
    head_dim=64,
    ffn_width=256,
    rope=Rope(10000.0),
    norm_eps=1e-6,
    tie_embeddings=False,
    qk_norm="head",
    qkv_bias=False,
    output_bias=False,
    max_positions=1024,
)


def main() -> None:
    mesh = make_mesh(MeshConfig(1, 1, 1), hardware("1xH100").devices)
    sorts = {}
    for cascade, drafts in ((0, 0), (4, 0), (0, 3)):
        config = EngineConfig(
            slots=16,
            max_length=512,
            decode_steps=4,
            compute_dtype=jnp.bfloat16,
            prefill_tokens=128,
            cascade=cascade,
            draft_tokens=drafts,
        )
        for program in Engine(CFG, config, mesh, Triton()).programs():
            text = program.lower().compile().as_text()
            sorts[f"cascade {cascade}, drafts {drafts}: {program.name}"] = len(re.findall(r" sort\(", text))
    print(json.dumps(sorts))


if __name__ == "__main__":
    main()
