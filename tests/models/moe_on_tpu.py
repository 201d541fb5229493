"""Compiles an MoE layer, forward and backward, ahead of time for TPU v5p on a machine without a TPU, and prints one
JSON object: FLOPs including the kernels', number of kernels, memory, scatters of rows (test_moe.py starts it).
"""

import json
import os
import re

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["TPU_SKIP_MDS_QUERY"] = "1"
os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from scope_jax.models.decoder.config import Experts
from scope_jax.models.decoder.moe import moe_layer
from scope_jax.models.files.families import from_hf
from scope_jax.sharding.collectives import LOCAL

TOKENS, D, F, X, K = 2048, 2048, 768, 128, 8  # the experts of Qwen3-30B-A3B

CFG = from_hf(
    {
        "architectures": ["Qwen3MoeForCausalLM"],
        "vocab_size": 256,
        "num_hidden_layers": 1,
        "hidden_size": D,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "moe_intermediate_size": F,
        "num_experts": X,
        "num_experts_per_tok": K,
        "norm_topk_prob": True,
        "rope_theta": 1e6,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 4096,
    }
)


def main() -> None:
    topology = topologies.get_topology_desc(platform="tpu", topology_name="v5p:2x2x1")
    place = SingleDeviceSharding(topology.devices[0])

    def abstract(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=place)

    w = {
        "router_DX": abstract(D, X),
        "gate_XDF": abstract(X, D, F),
        "up_XDF": abstract(X, D, F),
        "down_XFD": abstract(X, F, D),
    }

    feed = CFG.layers[0].feed
    assert isinstance(feed, Experts)

    def step(w, x, ct):
        out, pull = jax.vjp(lambda w, x: moe_layer(feed, w, x, LOCAL), w, x)
        return out, pull(ct)

    x = abstract(1, TOKENS, D)
    lowered = jax.jit(step).trace(w, x, x).lower(lowering_platforms=("tpu",))
    compiled = lowered.compile()
    text = compiled.as_text() or ""
    cost = compiled.cost_analysis() or {}
    memory = compiled.memory_analysis()
    scatters = re.findall(r"= (\w+\[[\d,]*\])\S* scatter\(", text)  # small ones build the kernels' group tables
    print(
        json.dumps(
            {
                "forward": 2 * TOKENS * K * 3 * D * F,
                "flops": cost.get("flops"),
                "kernels": len(re.findall(r'custom_call_target="tpu_custom_call"', text)),
                "temporary": memory.temp_size_in_bytes if memory else None,
                "wide_scatters": [shape for shape in scatters if shape.count(",") and "f" in shape.split("[")[0]],
            }
        )
    )


main()
