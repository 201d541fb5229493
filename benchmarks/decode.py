"""Decoding over a paged cache on TPUs that need not be present: memory, copies and an estimate of the time per token.

    python benchmarks/decode.py [--layers 36] [--topology v5p:2x2x2] [--requests 256] [--length 16384]

The engine's decode program for Qwen3-8B's shapes in bfloat16, tensor parallelism over all chips, is compiled ahead of
time. Nothing is executed. Reported per chip: arguments (weights, cache), temporaries, bytes of the arguments that the
program updates in place, the largest copy in it, kernels, and seconds to compile. The estimate is for one token of
every request: XLA's own `estimated_cycles` of everything but the attention kernel (and but top-k and top-p), and the
kernel's reads of keys and values of full requests at 80 % of the memory bandwidth (an assumption). Collectives count as
far as XLA estimates them. The roofline is the time to read weights and
cache once. Prints one JSON line.
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

# For ahead-of-time TPU compilation: allow several processes to load libtpu, and do not look for a TPU slice.
os.environ |= {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost"}
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

from models import transformer
from models.config import ModelConfig, from_hf
from models.pages import PAGE, Ragged
from rollouts.paged import PagedEngine
from rollouts.slots import ROWS, EngineConfig
from sharding.mesh import MeshConfig, make_mesh
from sharding.rules import DECODE
from sharding.spec import abstract_params, param_shardings

GIB = 2**30
BANDWIDTH = {"v5p": 2765e9, "v5e": 819e9, "v6e": 1640e9}  # bytes per second and chip, published
CLOCK = {"v5p": 1.75e9, "v5e": 1.5e9, "v6e": 1.75e9}  # cycles per second
KERNEL = 0.8  # share of the bandwidth that the attention kernel is assumed to reach
NEVER = 2**50  # estimated cycles above this are the compiler's mark for "unknown"
QWEN3_8B = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151936,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "max_position_embeddings": 40960,
    "hidden_act": "silu",
}


def abstract_weights(engine: PagedEngine) -> Any:
    """Shapes and shardings of the engine's weights, one tree per layer."""
    declared = transformer.declare(engine.model)
    shapes, placed = abstract_params(declared), param_shardings(declared, engine.mesh, DECODE)

    def leaf(shape: tuple[int, ...], spec: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, engine.config.compute_dtype, sharding=NamedSharding(engine.mesh, spec))

    whole = {
        name: jax.tree.map(lambda x, s: leaf(x.shape, s.spec), shapes[name], placed[name])
        for name in shapes
        if name != "layers"
    }
    layer = jax.tree.map(lambda x, s: leaf(x.shape[1:], PartitionSpec(*s.spec[1:])), shapes["layers"], placed["layers"])
    return {**whole, "layers": tuple(layer for _ in range(engine.model.num_layers))}


def engine_on(topology: str, model: ModelConfig, requests: int, length: int, pages: int | None = None) -> PagedEngine:
    """The engine on a topology, tensor parallelism over as many chips as there are kv heads, at most all."""
    devices = list(topologies.get_topology_desc(topology, platform="tpu").devices)
    tensor = math.gcd(len(devices), model.num_kv_heads)
    config = EngineConfig(requests, length, (length,), 1, 16, jnp.bfloat16, prefill_tokens=1024, pages=pages)
    return PagedEngine(model, config, make_mesh(MeshConfig(-1, 1, tensor), devices), Ragged())


def compiled_decode(engine: PagedEngine) -> Any:
    """The decode program, compiled."""
    state = jax.eval_shape(engine._init)
    state = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, engine.state_sharding)
    rows = NamedSharding(engine.mesh, PartitionSpec(ROWS))
    shape = (engine.config.slots, len(engine.windows), engine.columns)
    table = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=rows)
    patience = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(engine.mesh, PartitionSpec()))
    return engine._generate.lower(abstract_weights(engine), state, table, patience).compile()


def largest_copy(text: str) -> int:
    """Bytes of the largest result of a copy in a compiled program."""
    sizes = {"f32": 4, "s32": 4, "u32": 4, "bf16": 2, "pred": 1}
    largest = 0
    for kind, dims in re.findall(r"= \(?(\w+)\[([\d,]*)\]\S* copy(?:-start)?\(", text):
        largest = max(largest, sizes.get(kind, 4) * math.prod(int(d) for d in dims.split(",") if d))
    return largest


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


def measured(engine: PagedEngine, topology: str) -> dict[str, Any]:
    start = time.monotonic()
    program = compiled_decode(engine)
    seconds = time.monotonic() - start
    memory, text = program.memory_analysis(), program.as_text()
    chip = topology.split(":")[0]
    model, shards = engine.model, engine.mesh.shape["tensor"]
    token = 2 * model.num_layers * (model.num_kv_heads // shards) * model.head_dim * 2
    cache = token * engine.config.max_length * engine.slots
    weights = sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(abstract_weights(engine))
    )
    other = cycles(text, engine.config.decode_steps) / CLOCK[chip]
    roofline = (cache + weights) / BANDWIDTH[chip]
    estimate = other + cache / (KERNEL * BANDWIDTH[chip])
    return {
        "arguments_gib": round(memory.argument_size_in_bytes / GIB, 2),
        "temporaries_gib": round(memory.temp_size_in_bytes / GIB, 3),
        "in_place_gib": round(memory.alias_size_in_bytes / GIB, 2),
        "largest_copy_mib": round(largest_copy(text) / 2**20, 1),
        "kernels": text.count('custom_call_target="tpu_custom_call"'),
        "without_attention_ms": round(1e3 * other, 2),
        "estimate_ms": round(1e3 * estimate, 2),
        "roofline_ms": round(1e3 * roofline, 2),
        "compile_seconds": round(seconds, 1),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--layers", type=int, default=36)
    options.add_argument("--topology", default="v5p:2x2x2")
    options.add_argument("--requests", type=int, default=256)
    options.add_argument("--length", type=int, default=16384, help=f"tokens of a request, in pages of {PAGE}")
    given = options.parse_args()
    model = from_hf(QWEN3_8B | {"num_hidden_layers": given.layers})
    engine = engine_on(given.topology, model, given.requests, given.length)
    print(json.dumps({"benchmark": "decode", **vars(given), **measured(engine, given.topology)}))


if __name__ == "__main__":
    main()
