"""Decoding over pages on devices that need not be present: memory, copies and an estimate of the time.

    python benchmarks/decode.py [--model qwen3-8b] [--topology v5p:2x2x2] [--requests 256] [--length 16384]
    python benchmarks/decode.py --topology 8xH100 --pages 43690            # needs jax[cuda12] or jax[cuda13], no GPU

The engine's decode program for the shapes of Qwen3-8B or Qwen3-30B-A3B in bfloat16 is compiled ahead of time: tensor
groups of as many chips as there are kv heads (or `--tensor`), row shards over the rest, whole experts over all. Nothing
is executed. Reported per chip: arguments (weights, cache), temporaries, bytes of the arguments that the program updates
in place, the largest copy in it, kernels, seconds to compile, and the estimate of `scope-jax plan` for one token of
every request, all at full length, or of as many as the pages hold (docs/plans.md). Prints one JSON line.

256 requests of up to 16,384 tokens, per device; estimate and roofline (weights and cache read once) in ms a token:

    model, devices                 tensor   weights   cache      temporaries   kernels   estimate   roofline
    Qwen3-8B, v5p:2x2x2            8        74.2 GiB together    0.12 GiB      72        42.0       28.7
    Qwen3-8B, v5p:2x2x2            4                                                     39.6       29.4
    Qwen3-30B-A3B, v5p:2x2x4       4        4.1 GiB   24.0 GiB   0.06 GiB      192       20.9       10.9
    Qwen3-30B-A3B, v5p:2x2x4       1                                                     20.1       11.6
    Qwen3-8B, 8xH100 (170 full)    8        1.9 GiB   48 GiB     0.04 GiB      36        22.5       16.0

The cache is updated in place everywhere; the largest copies are 18.6 MiB (logits), 9.3 MiB and none.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scope_jax.plan.hardware import ABSENT, hardware

os.environ |= ABSENT

import jax.numpy as jnp

from scope_jax.models.decoder.backends import attention_over_pages
from scope_jax.models.decoder.config import ModelConfig
from scope_jax.models.decoder.kinds import has_sinks, head_dim, kv_heads
from scope_jax.models.decoder.paging import PAGE
from scope_jax.models.files.families import from_hf
from scope_jax.plan.estimates import known, pace
from scope_jax.plan.programs import compiled
from scope_jax.rollouts.engine import Engine
from scope_jax.rollouts.slots import EngineConfig
from scope_jax.sharding.mesh import MeshConfig, make_mesh
from scope_jax.sharding.program import device_bytes

GIB = 2**30
QWEN3 = {
    "vocab_size": 151936,
    "num_attention_heads": 32,
    "head_dim": 128,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "max_position_embeddings": 40960,
    "hidden_act": "silu",
}
MODELS = {
    "qwen3-8b": QWEN3
    | {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "intermediate_size": 12288,
    },
    "qwen3-30b-a3b": QWEN3
    | {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "hidden_size": 2048,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "moe_intermediate_size": 768,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
}


def engine_on(
    topology: str,
    model: ModelConfig,
    requests: int,
    length: int,
    pages: int | None = None,
    cascade: int = 0,
    tensor: int | None = None,
) -> Engine:
    """The engine on a topology, with tensor groups of so many chips; None: of as many as there are kv heads, at most
    all."""
    on = hardware(topology)
    if not on.compiles:
        raise SystemExit(f"nothing compiles for {topology} here; pip install 'jax[cuda13]' (no GPU is needed).")
    devices = list(on.devices)
    tensor = math.gcd(len(devices), kv_heads(model)) if tensor is None else tensor
    sizes = requests, length, 16
    config = EngineConfig(*sizes, jnp.bfloat16, prefill_tokens=1024, pages=pages, cascade=cascade)
    how = attention_over_pages(on.platform, head_dim(model), has_sinks(model))
    return Engine(model, config, make_mesh(MeshConfig(-1, 1, tensor), devices), how)


def measured(engine: Engine, topology: str) -> dict[str, Any]:
    on = hardware(topology)
    decode = compiled(next(one for one in engine.programs() if one.kind == "decode"), on.platform)
    if decode.refused:
        raise SystemExit(f"{topology}: decoding needs {decode.peak / GIB:.1f} GiB on each device, which do not fit.")
    cache = device_bytes(engine.abstract_state().cache)
    times = vars(pace(engine, on, cache, engine.config.max_length)) if known(on) else {}
    return {
        "arguments_gib": round(decode.arguments / GIB, 2),
        "temporaries_gib": round(decode.temporaries / GIB, 3),
        "in_place_gib": round(decode.in_place / GIB, 2),
        "largest_copy_mib": round(decode.largest_copy / 2**20, 1),
        "kernels": decode.kernels,
        "weights_gib": round(device_bytes(engine.abstract_weights()) / GIB, 2),
        "cache_gib": round(cache / GIB, 2),
        **{name: round(value, 2) for name, value in times.items()},
        "compile_seconds": round(decode.seconds, 1),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", choices=MODELS, default="qwen3-8b")
    options.add_argument("--layers", type=int, help="instead of the model's own number")
    options.add_argument("--topology", default="v5p:2x2x2")
    options.add_argument("--requests", type=int, default=256)
    options.add_argument("--length", type=int, default=16384, help=f"tokens of a request, in pages of {PAGE}")
    options.add_argument("--cascade", type=int, default=0, help="slots of a group that attend together, on GPUs")
    options.add_argument("--tensor", type=int, help="chips of a tensor group; without it as many as there are kv heads")
    options.add_argument("--pages", type=int, help=f"of a row shard, of {PAGE} tokens; without it all requests fit")
    given = options.parse_args()
    shapes = MODELS[given.model]
    model = from_hf(shapes if given.layers is None else shapes | {"num_hidden_layers": given.layers})
    sizes = given.requests, given.length, given.pages, given.cascade, given.tensor
    engine = engine_on(given.topology, model, *sizes)
    print(json.dumps({"benchmark": "decode", **vars(given), **measured(engine, given.topology)}))


if __name__ == "__main__":
    main()
