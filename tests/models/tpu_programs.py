"""Compiles ahead of time for TPUs and checks the compiler's own figures (test_attention.py runs it).

    python tests/models/tpu_programs.py windows|whole|learner|decoding|tables|gpt_oss

The programs are not run. Prints the figures; an assertion fails if one is wrong.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from scope_jax.config import LearnerSection, LossCard, OptimizerSection
from scope_jax.learner.learner import Learner
from scope_jax.models.decoder.config import Experts
from scope_jax.models.decoder.kinds import layer_weights
from scope_jax.models.decoder.moe import FEW, FEW_BYTES, moe_layer
from scope_jax.models.decoder.pages import Ragged
from scope_jax.models.decoder.paging import Where, tables_in_smem
from scope_jax.models.files.families import from_hf
from scope_jax.models.kernels.attention import make_attend
from scope_jax.models.kernels.heads_tpu import norm_and_rotate
from scope_jax.models.kernels.moe_tpu import few_tokens, route_few
from scope_jax.models.kernels.rope import Rope
from scope_jax.plan.architectures import SHAPES
from scope_jax.plan.hardware import tpu_devices
from scope_jax.sharding.chips import LANES
from scope_jax.sharding.collectives import LOCAL
from scope_jax.sharding.mesh import MeshConfig, make_mesh

GIB = 2**30
T, HEADS, KV_HEADS, HEAD_DIM = 10240, 32, 8, 128  # Qwen3-8B at the length of the papers' longest rows
MODEL = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 1024,
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "intermediate_size": 512,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "max_position_embeddings": 1024,
    "hidden_act": "silu",
}


def kernels_in(compiled: Any) -> int:
    return compiled.as_text().count('custom_call_target="tpu_custom_call"')


def temporaries(topology: str, backend: str, window: int | None) -> tuple[float, int]:
    """(GiB of temporaries, kernels) of attention forward and backward at Qwen3-8B's shapes, packed rows."""
    place = SingleDeviceSharding(tpu_devices(topology)[0])

    def shape(*dims: int, dtype=jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(dims, dtype, sharding=place)

    def program(q, k, v, ends_BT, positions_BT, cotangent):
        return jax.vjp(make_attend(backend, ends_BT, positions_BT, window), q, k, v)[1](cotangent)

    q, kv = shape(1, T, HEADS, HEAD_DIM), shape(1, T, KV_HEADS, HEAD_DIM)
    numbers = shape(1, T, dtype=jnp.int32)
    compiled = jax.jit(program).lower(q, kv, kv, numbers, numbers, q).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    used, kernels = memory.temp_size_in_bytes / GIB, kernels_in(compiled)
    print(f"{topology} {backend}, window {window}: {used:.3f} GiB of temporaries, {kernels} kernels")
    return used, kernels


def windows() -> None:
    """Splash with OLMo-3's window. The scores of one pass would be 32 · 10240² · 4 B = 12.5 GiB.

    Queries, their gradient and the output are 80 MiB each, the kernel's normaliser (float32, one per lane) 160 MiB.
    """
    used, kernels = temporaries("v5e:2x2", "splash", 4096)
    assert used < 0.2
    assert kernels == 3, "forward, dq, dkv"


def whole() -> None:
    """Splash without window against XLA's own program."""
    used, kernels = temporaries("v5p:2x2x1", "splash", None)
    assert kernels == 3
    plain, kernels = temporaries("v5p:2x2x1", "dot_product", None)
    assert kernels == 0
    assert used < plain / 40


def learner() -> None:
    """The learner's whole step with attention = "auto", packed rows, on 4 chips as fsdp 2 x tensor 2."""
    mesh = make_mesh(MeshConfig(1, 2, 2), tpu_devices("v5e:2x2"))
    section = LearnerSection(buckets=(300,), micro_batch_rows=2)
    built = Learner(
        from_hf(MODEL), mesh, OptimizerSection(), section, param_dtype=jnp.float32, compute_dtype=jnp.bfloat16
    )
    assert built.attention == "splash"
    lowered = built.step_program(LossCard(), built.abstract_batch(300, 260)).lower()
    kernels = kernels_in(lowered.compile())
    print(f"learner step: {kernels} kernels")
    assert kernels >= 4, "forward, again for the backward pass, dq, dkv"


def kernels_on(topology: str, function: Any, *arguments: tuple[tuple[int, ...], Any]) -> int:
    """Kernels in a function of arrays of these shapes and dtypes, compiled for one chip."""
    mesh, everywhere = make_mesh(MeshConfig(1, 1, 1), tpu_devices(topology)[:1]), PartitionSpec()
    place = NamedSharding(mesh, everywhere)
    shapes = [jax.ShapeDtypeStruct(dims, dtype, sharding=place) for dims, dtype in arguments]
    mapped = jax.shard_map(function, mesh=mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)
    return kernels_in(jax.jit(mapped).lower(*shapes).compile())


def rotated(q: Any, k: Any, *scales_and_positions: Any) -> Any:
    *scales, positions = scales_and_positions
    return norm_and_rotate(q, k, tuple(scales), positions, Rope(1e6), HEAD_DIM, 1e-6)


def experts(x: Any, router: Any, *matrices: Any) -> Any:
    own = len(matrices[0])
    return few_tokens(x, route_few(x, router, jnp.int32(own), own, 8, True), *matrices)


def decoding() -> None:
    """The kernels of decoding at their largest sizes: the vector memory of every chip is enough."""
    for topology in ("v5e:2x2", "v5p:2x2x1", "v6e:2x2"):
        for width, ffn, dtype in ((2048, 768, jnp.bfloat16), (4096, 14336, jnp.bfloat16), (7168, 2048, jnp.float32)):
            tokens = min(FEW, FEW_BYTES // (width * jnp.dtype(dtype).itemsize) // LANES * LANES)
            matrices = [((4, width, ffn), dtype)] * 2 + [((4, ffn, width), dtype)]
            arguments = ((tokens, width), dtype), ((width, 128), dtype), *matrices
            assert kernels_on(topology, experts, *arguments) == 2
        for heads, kv_heads, tokens in ((4, 1, 256), (128, 8, 500)):
            flat = [((tokens, count * HEAD_DIM), jnp.bfloat16) for count in (heads, kv_heads)]
            scale = (HEAD_DIM,), jnp.bfloat16
            assert kernels_on(topology, rotated, *flat, scale, scale, ((tokens,), jnp.int32)) == 1
        print(f"{topology}: routing and experts of few tokens, norm and rotation")


def tables() -> None:
    """The compiler takes page tables up to the size that `tables_in_smem` allows, and hardly more."""
    sizes = [
        (120, 2048),
        (128, 2040),
        (256, 2048),
        (8, 32512),
        (8, 32640),
        (1008, 256),
        (1016, 256),
        (672, 384),
        (680, 384),
    ]
    for topology, some in (("v5e:2x2", sizes), ("v5p:2x2x1", sizes[:2]), ("v6e:2x2", sizes[:2])):
        mesh = Mesh(np.asarray(tpu_devices(topology)[:1]), ("x",))
        place = NamedSharding(mesh, PartitionSpec())

        def attend(layer: Any, q: Any, table: Any, start: Any, count: Any) -> Any:
            return Ragged().attend(layer, q, Where(table, start, count), None)

        for rows, columns in some:
            shapes = (4096, 64, 2, 128), (rows, 1, 4, 128), (rows, columns), (rows,), (rows,)
            dtypes = (jnp.bfloat16, jnp.bfloat16, jnp.int32, jnp.int32, jnp.int32)
            arguments = [jax.ShapeDtypeStruct(x, t, sharding=place) for x, t in zip(shapes, dtypes, strict=True)]
            mapped = jax.shard_map(
                attend, mesh=mesh, in_specs=(PartitionSpec(),) * 5, out_specs=PartitionSpec(), check_vma=False
            )
            try:
                jax.jit(mapped).lower(*arguments).compile()
                taken = True
            except jax.errors.JaxRuntimeError as error:
                if "smem" not in str(error):
                    raise
                taken = False
            print(topology, rows, columns, taken)
            assert taken == (tables_in_smem(rows, columns) <= (Ragged.table_bytes or 0))


def gpt_oss() -> None:
    """gpt-oss-20b's attention with sinks in splash, and its experts with biases in megablox, forward and backward."""
    model = from_hf(SHAPES["gpt-oss-20b"])
    mixer, feed = model.layers[0].attention, model.layers[0].feed
    assert isinstance(feed, Experts)
    length, dtype = 4096, jnp.bfloat16
    heads = [((1, length, count, mixer.head_dim), dtype) for count in (mixer.num_heads, *[mixer.num_kv_heads] * 2)]
    numbers = ((1, length), jnp.int32)

    def attend(window: int | None, ends_BT: Any, positions_BT: Any, *arrays: Any) -> Any:
        out, pull = jax.vjp(make_attend("splash", ends_BT, positions_BT, window), *arrays)
        return pull(out)

    for topology in ("v5e:2x2", "v5p:2x2x1", "v6e:2x2"):
        for window in (None, mixer.window):
            arguments = numbers, numbers, *heads, ((mixer.num_heads,), dtype)
            assert kernels_on(topology, partial(attend, window), *arguments) == 3
        print(f"{topology}: splash with sinks")

    declared = layer_weights(model, model.layers[0])
    names = [name for name in declared if "router" in name or "X" in name.rpartition("_")[2]]

    def layer(x: Any, *weights: Any) -> Any:
        out, pull = jax.vjp(lambda x, *w: moe_layer(feed, dict(zip(names, w, strict=True)), x, LOCAL), x, *weights)
        return pull(out)

    shapes = [(declared[name].shape, dtype) for name in names]
    kernels = kernels_on("v5p:2x2x1", layer, ((1, 2048, model.width), dtype), *shapes)
    print(f"experts: {kernels} kernels")
    assert kernels == 9, "three products forward, six backward"


if __name__ == "__main__":
    programs = {"windows": windows, "whole": whole, "learner": learner, "decoding": decoding, "tables": tables}
    (programs | {"gpt_oss": gpt_oss})[sys.argv[1]]()
