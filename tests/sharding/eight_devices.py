"""Facts for test_eight_devices.py, on 8 fake CPU devices.

The forward pass and its gradients on several meshes, against one device; and a small program that tests the gradients
of the collectives.
"""

import math
import os
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tests.flags import fake_devices

os.environ["XLA_FLAGS"] = fake_devices(8)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from scope_jax.models.decoder import transformer
from scope_jax.models.decoder.config import Attention, Dense, Experts, Layer, ModelConfig, Parallel
from scope_jax.models.files import streaming
from scope_jax.models.files.weights import load_hf, save_hf
from scope_jax.models.kernels.rope import Rope
from scope_jax.sharding import collectives
from scope_jax.sharding.collectives import LOCAL, Shards
from scope_jax.sharding.mesh import AXES, FSDP, ROWS, MeshConfig, make_mesh
from scope_jax.sharding.reshard import reshard
from scope_jax.sharding.rules import DECODE, TRAIN
from scope_jax.sharding.spec import init_params, param_shardings, partition_specs
from tests.rows import ends
from tests.shapes import like, uniform

CFG = uniform(
    architecture="qwen3",
    vocab_size=64,
    num_layers=2,
    width=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=12,
    ffn_width=48,
    rope=Rope(10000.0),
    norm_eps=1e-6,
    tie_embeddings=True,
    qk_norm="head",
    qkv_bias=True,
    output_bias=True,
    max_positions=128,
)


# Norms after the layers and over the whole width of queries and keys, windows and two kinds of rope.
POST_NORM = like(
    CFG,
    architecture="olmo3",
    qk_norm="width",
    norm="post",
    layer_windows=(3, None),
    rope=Rope(10000.0, "yarn", 4.0, 64, attention_factor=1.1),
    sliding_rope=Rope(10000.0),
    tie_embeddings=False,
    qkv_bias=False,
    output_bias=False,
)


EXPERTS = like(CFG, architecture="qwen3_moe", num_experts=6, experts_per_token=2, norm_topk_prob=True, ffn_width=16)


# Gemma's: two kinds of heads, values that are keys, a dense layer beside experts, norms on both sides with an offset.
SLIDING = Attention(4, 2, 8, Rope(1e4), 3, "head", scale=1.0, v_norm=True)
FULL = Attention(4, 2, 16, Rope(1e6, "proportional", share=0.25), None, "head", scale=1.0, v_norm=True, values="keys")
BESIDE = Parallel(Dense(48, "gelu_tanh"), Experts(16, 6, 2, True, activation="gelu_tanh"))
GEMMA = ModelConfig(
    *(
        "gemma4_text",
        64,
        32,
        tuple(Layer(mixer, BESIDE, "both") for mixer in (SLIDING, FULL, SLIDING)),
        1e-6,
        True,
        128,
    ),
    norm_offset=1.0,
    embed_scale=32**0.5,
)
# As Gemma 4's E2B: vectors of each layer, layers that attend to the keys of earlier ones, one kv head for two devices.
ALONE = replace(FULL, num_kv_heads=1)
SHARED = (replace(SLIDING, source=0), replace(ALONE, source=1))
GEMMA_E = replace(
    GEMMA,
    layers=(
        *(Layer(mixer, Dense(48, "gelu_tanh"), "both", inputs=32) for mixer in (SLIDING, ALONE)),
        *(Layer(mixer, Dense(96, "gelu_tanh"), "both", inputs=32) for mixer in SHARED),
    ),
)


def make_batch() -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    segments_BT = np.repeat([[1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 0]], 8, axis=0)
    positions_BT = np.repeat([[0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1, 0]], 8, axis=0)
    ids_BT = rng.integers(0, CFG.vocab_size, (8, 12))
    weight_BTD = rng.normal(size=(8, 12, CFG.width)) * (segments_BT > 0)[..., None]
    weight_BTV = rng.normal(size=(8, 12, CFG.vocab_size)) * (segments_BT > 0)[..., None]
    arrays = {"ids": ids_BT, "positions": positions_BT, "ends": ends(segments_BT), "w_D": weight_BTD, "w_V": weight_BTV}
    return {name: jnp.asarray(x, jnp.float32 if x.dtype == float else jnp.int32) for name, x in arrays.items()}


def forward(cfg, params, batch, shards, remat):
    return transformer.hidden(
        cfg,
        params,
        batch["ids"],
        batch["positions"],
        batch["ends"],
        shards=shards,
        remat=remat,
        compute_dtype=jnp.float32,
    )


def local_loss(params, batch, cfg, shards, remat):
    """(loss, hidden states). The loss is smooth and depends on every hidden feature and, through a vocabulary-parallel
    log-sum-exp, every row of the table.
    """
    hidden_BTD = forward(cfg, params, batch, shards, remat)
    table = transformer.output_table(cfg, params, shards, jnp.float32)
    logits = shards.enter(hidden_BTD) @ table.T
    start = shards.index * table.shape[0]
    w_BTV = jax.lax.dynamic_slice_in_dim(batch["w_V"], start, table.shape[0], axis=2)
    top = shards.pmax(logits.max(-1))
    log_z = jnp.log(shards.psum(jnp.exp(logits - top[..., None]).sum(-1))) + top
    picked = shards.psum((w_BTV * logits).sum(-1))
    loss = jnp.sum(log_z * picked) + jnp.sum(hidden_BTD * batch["w_D"])
    return loss, hidden_BTD


def sharded(cfg, mesh, params, batch, remat):
    """(hidden states, loss, gradients) computed on a mesh."""
    shards = Shards.of(mesh)
    specs = partition_specs(transformer.declare(cfg), TRAIN)
    params = jax.device_put(params, param_shardings(transformer.declare(cfg), mesh, TRAIN))
    rows = P(ROWS)

    def step(params, batch):
        (loss, hidden), grads = jax.value_and_grad(local_loss, has_aux=True)(params, batch, cfg, shards, remat)
        return hidden, shards.sum_rows(loss), shards.sum_gradients(grads, specs)

    run = jax.shard_map(step, mesh=mesh, in_specs=(specs, rows), out_specs=(rows, P(), specs), check_vma=False)
    return jax.jit(run)(params, batch)


def relative(a, b) -> float:
    """Largest |a - b| over a tree, relative to each leaf's largest |b|."""
    ratios = jax.tree.map(lambda x, y: np.max(np.abs(np.asarray(x) - np.asarray(y))) / np.max(np.abs(y)), a, b)
    return float(max(jax.tree.leaves(ratios)))


def distance(a, b) -> float:
    """|a - b| over a whole tree, relative to |b|."""
    pairs = [(np.asarray(x), np.asarray(y)) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)]
    return float(np.sqrt(sum(np.sum((x - y) ** 2) for x, y in pairs) / sum(np.sum(y**2) for _, y in pairs)))


def whole(cfg, params, batch):
    """(hidden states, loss, gradients) computed on one device."""
    run = jax.jit(lambda p, b: jax.value_and_grad(local_loss, has_aux=True)(p, b, cfg, LOCAL, "none"))
    (loss, hidden), grads = run(params, batch)
    return hidden, loss, grads


def mesh_of(sizes: tuple[int, ...]) -> Mesh:
    """A mesh of sizes (data, fsdp, tensor), or of all axes with fsdp in two stages."""
    return make_mesh(MeshConfig(*sizes)) if len(sizes) == 3 else Mesh(np.array(jax.devices()).reshape(sizes), AXES)


def compare(cfg, sizes, params, batch, remat, expected) -> dict[str, float]:
    got = sharded(cfg, mesh_of(sizes), params, batch, remat)
    facts = {name: relative(g, e) for name, g, e in zip(("hidden", "loss", "grads"), got, expected, strict=True)}
    return facts | {"all_grads": distance(got[2], expected[2])}


def decode_rules(params, batch, expected_hidden) -> dict[str, float | bool]:
    """Plain jit over weights laid out by DECODE, published with reshard, against one device."""
    mesh = make_mesh(MeshConfig(2, 2, 2))
    shardings = param_shardings(transformer.declare(CFG), mesh, DECODE)
    train = jax.device_put(params, param_shardings(transformer.declare(CFG), mesh, TRAIN))
    published = reshard(train, shardings)
    again = reshard(published, shardings)
    rows = {name: jax.device_put(x, NamedSharding(mesh, P(ROWS))) for name, x in batch.items()}
    got = jax.jit(lambda p, b: forward(CFG, p, b, LOCAL, "none"))(published, rows)
    pointers = [
        {shard.data.unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards}
        for tree in (train, published, again)
    ]
    return {
        "hidden": relative(got, expected_hidden),
        "same_values": all(
            np.array_equal(a, b) for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(params), strict=True)
        ),
        "placed": all(a.sharding == b for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(shardings), strict=True)),
        "shared_buffers": bool(pointers[0] & pointers[1] or pointers[1] & pointers[2]),
    }


# Devices of the first mesh, its sizes under TRAIN, and those of the second, on other devices, under DECODE.
SENT = {
    "4_to_4": (4, MeshConfig(1, 4, 1), MeshConfig(1, 2, 2)),
    "6_to_2": (6, MeshConfig(3, 1, 2), MeshConfig(1, 1, 2)),
    "2_to_6": (2, MeshConfig(1, 2, 1), MeshConfig(3, 1, 2)),
    "1_to_2": (1, MeshConfig(1, 1, 1), MeshConfig(1, 1, 2)),
}


def sent(params, first: int, train: MeshConfig, decode: MeshConfig) -> bool:
    """Whether weights under TRAIN on some devices, sent with reshard to others under DECODE, arrive as they are."""
    devices, declared = jax.devices(), transformer.declare(CFG)
    placed = param_shardings(declared, make_mesh(train, devices[:first]), TRAIN)
    source = jax.device_put(jax.tree.map(jnp.copy, params), placed)
    others = make_mesh(decode, devices[first : first + math.prod((decode.data, decode.fsdp, decode.tensor))])
    target = param_shardings(declared, others, DECODE)
    with jax.transfer_guard_device_to_host("disallow_explicit"):
        copy = jax.block_until_ready(reshard(source, target, jnp.bfloat16))
    kept = jax.tree.map(lambda x: np.asarray(x.astype(jnp.bfloat16)), params)
    jax.tree.map(lambda x: x.delete(), source)
    return jax.tree.all(jax.tree.map(lambda x, y, s: np.array_equal(x, y) and x.sharding == s, copy, kept, target))


def loaded_shards(params) -> dict[str, bool]:
    """A Hugging Face folder read directly into shards, with either table of rules."""
    mesh = make_mesh(MeshConfig(1, 4, 2))
    facts = {}
    with tempfile.TemporaryDirectory() as folder:
        save_hf(folder, CFG, params, jnp.float32, None)
        for name, rules in (("train", TRAIN), ("decode", DECODE)):
            loaded = load_hf(folder, mesh, rules)[1]
            wanted = param_shardings(transformer.declare(CFG), mesh, rules)
            same = jax.tree.map(lambda x, y, s: np.array_equal(x, y) and x.sharding == s, loaded, params, wanted)
            facts[name] = jax.tree.all(same)
    return facts


def expert_shards() -> dict[str, bool]:
    """A folder with experts, [L, X, D, F], three of six on a device, in and out in blocks smaller than an expert."""
    mesh = make_mesh(MeshConfig(2, 2, 2))
    params = random_params(EXPERTS)
    with tempfile.TemporaryDirectory() as scratch:
        whole, again = Path(scratch) / "whole", Path(scratch) / "again"
        save_hf(whole, EXPERTS, params, jnp.float32, None)
        loaded = load_hf(whole, mesh, TRAIN)[1]
        save_hf(again, EXPERTS, loaded, jnp.float32, None)
        wanted = param_shardings(transformer.declare(EXPERTS), mesh, TRAIN)
        same = jax.tree.map(lambda x, y, s: np.array_equal(x, y) and x.sharding == s, loaded, params, wanted)
        files = [(folder / "model.safetensors").read_bytes() for folder in (whole, again)]
        return {"loaded": jax.tree.all(same), "saved": files[0] == files[1]}


def gradient_pair() -> dict[str, list[float]]:
    """d/dx and d/dw of (Σ_t w_t x)² / 2 with w = 1, 2, 3, 4 over a tensor group of 4 and x = 2."""
    mesh = make_mesh(MeshConfig(2, 1, 4))
    shards = Shards.of(mesh)

    def loss(x, w):
        total = shards.psum(w * shards.enter(x))  # (1 + 2 + 3 + 4) x on every device
        return jnp.sum(total**2) / 2

    run = jax.shard_map(
        jax.grad(loss, argnums=(0, 1)),
        mesh=mesh,
        in_specs=(P(), P("tensor")),
        out_specs=(P(), P("tensor")),
        check_vma=False,
    )
    x, w = run(jnp.array([2.0]), jnp.array([1.0, 2.0, 3.0, 4.0]))
    return {"x": x.tolist(), "w": w.tolist()}


def staged_gather() -> bool:
    """Two fsdp axes below tensor: the staged gather puts rows back in the order the spec cut them."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("fx", "fy", "tensor"))
    shards = Shards(fsdp=("fx", "fy"), tensor="tensor", data=())
    spec = P(("tensor", "fx", "fy"), None)
    w = jnp.arange(16.0).reshape(16, 1)
    gathered = jax.shard_map(
        lambda w: shards.gather(w, spec, jnp.float32),
        mesh=mesh,
        in_specs=spec,
        out_specs=P("tensor", None),
        check_vma=False,
    )(w)
    return bool(jnp.array_equal(gathered, w))


def gathered_gradient() -> list[float]:
    """d/dw of Σ_d c_d · w over 8 devices whose bfloat16 cotangents c are 1 and, seven times, 1/256, which bfloat16
    cannot add to 1."""
    mesh = make_mesh(MeshConfig(1, 8, 1))
    shards = Shards.of(mesh)

    def loss(w, c):
        return jnp.sum(shards.gather(w, P(FSDP), jnp.bfloat16) * c)

    run = jax.shard_map(jax.grad(loss), mesh=mesh, in_specs=(P(FSDP), P(FSDP)), out_specs=P(FSDP), check_vma=False)
    c = jnp.asarray([1.0, *[1 / 256] * 7], jnp.bfloat16)
    return run(jnp.ones(8), c).tolist()


def refusals(params, batch) -> dict[str, str]:
    """The errors for models that do not fit a mesh."""
    said = {}
    for name, action in {
        "heads": lambda: sharded(CFG, make_mesh(MeshConfig(1, 1, 8)), params, batch, "none"),
        "mesh": lambda: make_mesh(MeshConfig(1, 3, -1)),
        "rows": lambda: param_shardings(
            transformer.declare(CFG),
            Mesh(np.array(jax.devices()[:5]).reshape(1, 5, 1, 1, 1), AXES),
            TRAIN,
        ),
    }.items():
        try:
            action()
        except ValueError as error:
            said[name] = str(error)
    return said


def random_params(cfg):
    params = init_params(transformer.declare(cfg), jax.random.key(0))
    # Biases and norms start at 0 and 1; other values reveal a wrong sum.
    return jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(1), x.shape), params)


@cache
def one_device(cfg):
    """(weights, what one device computes)."""
    params = random_params(cfg)
    return params, whole(cfg, params, make_batch())


def of_mesh(cfg, sizes, remat) -> dict[str, float]:
    """A family on one mesh."""
    params, expected = one_device(cfg)
    smallest = float(min(np.max(np.abs(g)) for g in jax.tree.leaves(expected[2])))
    return {**compare(cfg, sizes, params, make_batch(), remat, expected), "smallest_gradient": smallest}


MESHES = {
    "fsdp4_tensor2": (CFG, (1, 4, 2), "full"),
    "data2_fsdp2_tensor2": (CFG, (2, 2, 2), "none"),
    "fsdp4x2": (CFG, (1, 4, 2, 1, 1), "full"),
    "fsdp2x2_tensor2": (CFG, (1, 2, 2, 1, 2), "full"),
    "post_norm": (POST_NORM, (2, 2, 2), "full"),
    "experts": (EXPERTS, (2, 2, 2), "full"),
    "gemma": (GEMMA, (2, 2, 2), "full"),
    "gemma_e": (GEMMA_E, (2, 2, 2), "full"),
}
OTHERS = {
    "decode": lambda: decode_rules(one_device(CFG)[0], make_batch(), one_device(CFG)[1][0]),
    "loaded": lambda: loaded_shards(one_device(CFG)[0]),
    "expert_shards": expert_shards,
    "pair": gradient_pair,
    "staged": staged_gather,
    "gathered_gradient": gathered_gradient,
    "refusals": lambda: refusals(one_device(CFG)[0], make_batch()),
}


def main(name: str) -> Any:
    """The facts of this name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collectives, "ALL_REDUCE", 128)  # bytes: gradients of both layers' norms are summed in two parts
        patch.setattr(streaming, "BLOCK_BYTES", 1024 if name == "expert_shards" else streaming.BLOCK_BYTES)
        if name in SENT:
            return sent(one_device(CFG)[0], *SENT[name])
        return of_mesh(*MESHES[name]) if name in MESHES else OTHERS[name]()
