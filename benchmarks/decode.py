"""Decoding over a paged cache on devices that need not be present: memory, copies and an estimate of the time.

    python benchmarks/decode.py [--model qwen3-8b] [--topology v5p:2x2x2] [--requests 256] [--length 16384]
    python benchmarks/decode.py --topology 8xH100 --pages 43690            # needs jax[cuda12], no GPU

The engine's decode program for the shapes of Qwen3-8B or Qwen3-30B-A3B in bfloat16 is compiled ahead of time: tensor
parallelism over as many chips as there are kv heads, row shards over the rest, whole experts over all. Nothing is
executed. Reported per chip: arguments (weights, cache), temporaries, bytes of the arguments that the program updates in
place, the largest copy in it, kernels, and seconds to compile. The estimate is for one token of every request: XLA's
own `estimated_cycles` of everything but the kernels (and but top-k and top-p), and the kernels' reads of the keys and
values of full requests, and of all experts, at 80 % of the memory bandwidth (an assumption). Collectives count as far
as XLA estimates them. The roofline is the time to read weights and cache once. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scope_jax.plan.hardware import ABSENT, hardware

os.environ |= ABSENT

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from models.config import ModelConfig, from_hf
from models.pages import PAGE
from rollouts.paged import PagedEngine
from rollouts.slots import EngineConfig
from scope_jax.plan.hlo import KERNEL as CALL
from scope_jax.plan.hlo import Program
from scope_jax.run.engines import attention_over_pages
from sharding.mesh import MeshConfig, make_mesh

GIB = 2**30
KERNEL = 0.8  # share of the bandwidth that the attention kernel is assumed to reach
NEVER = 2**50  # estimated cycles above this are the compiler's mark for "unknown"
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
    topology: str, model: ModelConfig, requests: int, length: int, pages: int | None = None, cascade: int = 0
) -> PagedEngine:
    """The engine on a topology, tensor parallelism over as many chips as there are kv heads, at most all."""
    on = hardware(topology)
    if not on.compiles:
        raise SystemExit(f"nothing compiles for {topology} here; pip install 'jax[cuda12]' (no GPU is needed).")
    devices = list(on.devices)
    tensor = math.gcd(len(devices), model.num_kv_heads)
    config = EngineConfig(
        *(requests, length, (length,), 1, 16, jnp.bfloat16), prefill_tokens=1024, pages=pages, cascade=cascade
    )
    how = attention_over_pages(on.platform, model.head_dim)
    return PagedEngine(model, config, make_mesh(MeshConfig(-1, 1, tensor), devices), how)


def compiled_decode(engine: PagedEngine) -> Any:
    """The decode program, compiled."""
    patience = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(engine.mesh, PartitionSpec()))
    return engine._generate.lower(*engine.abstract_arguments(), patience).compile()


def cycles(text: str, steps: int) -> float:
    """Estimated cycles per token: those of the decode loop's body, and of the rest of the program once in `steps`.

    Neither the attention kernels, which have no estimate, nor the branch that only top-k and top-p take.
    """
    total: dict[str, int] = {}
    name = ""
    for line in text.splitlines():
        if line.endswith("{") and not line.startswith(" "):
            name = line.removeprefix("ENTRY ").split()[0].lstrip("%")
            total[name] = 0
        found = re.search(r'"estimated_cycles":"(\d+)"', line)
        if found and int(found[1]) < NEVER:
            total[name] += int(found[1])
    bodies = re.findall(r" while\(.*?body=%([\w.-]+)", text[text.index("\nENTRY") :])
    entry = re.findall(r"\nENTRY %([\w.-]+)", text)[0]
    return sum(total[body] for body in bodies) + total[entry] / steps


def bytes_of(tree: Any) -> int:
    """Bytes of the arrays of a tree on one chip."""
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def measured(engine: PagedEngine, topology: str) -> dict[str, Any]:
    start = time.monotonic()
    program = compiled_decode(engine)
    seconds = time.monotonic() - start
    memory, text = program.memory_analysis(), program.as_text()
    chip = hardware(topology).chip
    model, shards = engine.model, engine.mesh.shape["tensor"]
    token = 2 * model.num_layers * (model.num_kv_heads // shards) * model.head_dim * 2
    cache = token * min(engine.config.max_length * engine.slots, (engine.pages - 1) * PAGE)
    tree = engine.abstract_arguments()[0]
    weights = bytes_of(tree)
    experts = bytes_of(
        [layer[name] for layer in tree["layers"] for name in layer if "X" in name and "router" not in name]
    )
    estimate = {}
    if chip.clock is not None and chip.bandwidth is not None:
        other = cycles(text, engine.config.decode_steps) / chip.clock
        total = other + (cache + experts) / (KERNEL * chip.bandwidth)
        estimate = {"without_kernels_ms": round(1e3 * other, 2), "estimate_ms": round(1e3 * total, 2)}
    return {
        "arguments_gib": round(memory.argument_size_in_bytes / GIB, 2),
        "temporaries_gib": round(memory.temp_size_in_bytes / GIB, 3),
        "in_place_gib": round(memory.alias_size_in_bytes / GIB, 2),
        "largest_copy_mib": round(Program(text).largest_copy() / 2**20, 1),
        "kernels": len(CALL.findall(text)),
        "weights_gib": round(weights / GIB, 2),
        "cache_gib": round(cache / GIB, 2),
        **estimate,
        "roofline_ms": round(1e3 * (cache + weights) / chip.bandwidth, 2),
        "compile_seconds": round(seconds, 1),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", choices=MODELS, default="qwen3-8b")
    options.add_argument("--layers", type=int, help="instead of the model's own number")
    options.add_argument("--topology", default="v5p:2x2x2")
    options.add_argument("--requests", type=int, default=256)
    options.add_argument("--length", type=int, default=16384, help=f"tokens of a request, in pages of {PAGE}")
    options.add_argument("--cascade", type=int, default=0, help="slots of a group that attend together, on GPUs")
    options.add_argument("--pages", type=int, help=f"of a row shard, of {PAGE} tokens; without it all requests fit")
    given = options.parse_args()
    shapes = MODELS[given.model]
    model = from_hf(shapes if given.layers is None else shapes | {"num_hidden_layers": given.layers})
    engine = engine_on(given.topology, model, given.requests, given.length, given.pages, given.cascade)
    print(json.dumps({"benchmark": "decode", **vars(given), **measured(engine, given.topology)}))


if __name__ == "__main__":
    main()
