"""Attention over parts of rows equals that over the mask, whatever the rows hold; cuDNN's kernels are those of
`cudnn_in_xla`."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.models.kernels.attention import make_attend
from scope_jax.models.kernels.masks import visible_mask
from scope_jax.models.kernels.packed import Packing
from scope_jax.multihost.runtime import gpus_of
from tests.models.cudnn_in_xla import in_place_of_cudnn
from tests.rows import laid_out

# Rows of 60 tokens: one text, a shorter one, none; texts one after another; a group with a common prompt beside texts,
# one whose answers fork again, the second of its prompt's texts at once.
SINGLE = [[(60, [])], [(41, [])], []]
SEVERAL = [[(20, []), (2, []), (31, [])], [(60, [])], [(9, []), (9, []), (9, []), (9, [])]]
GROUPS = [
    [(12, [(7, []), (11, []), (5, [])]), (2, [(9, []), (8, [])])],
    [(30, []), (20, [])],
    [(3, [(50, []), (1, [])])],
]
FORKED = [
    [(10, [(8, [(9, []), (1, []), (6, [])]), (12, [])]), (8, [])],
    [(5, [(4, [(6, []), (7, [])])])],
    [(1, [(2, [])])],
]
KINDS = {
    "single": (SINGLE, Packing(1, 0)),
    "several": (SEVERAL, Packing(4, 0)),
    "several in a larger program": (SEVERAL, Packing(16, 2)),
    "groups": (GROUPS, Packing(16, 1)),
    "forked": (FORKED, Packing(16, 2)),
}
HEADS = {"grouped": (4, 2, 16), "one for all": (3, 1, 8), "each its own": (2, 2, 8)}


@partial(jax.jit, static_argnums=(0, 1, 2))
def attended(backend, window, packing, ends_BT, positions_BT, q, k, v, ct, *sinks):
    """Result and gradients; of padding, which nobody reads, 0."""
    real_BT = (ends_BT > jnp.arange(ends_BT.shape[1]) + 1) | (positions_BT > 0)
    attend = (
        partial(exact, ends_BT) if backend == "exact" else make_attend(backend, ends_BT, positions_BT, window, packing)
    )
    out, pull = jax.vjp(attend, q, k, v, *sinks)
    real = real_BT[..., None, None]
    return jnp.where(real, out, 0), *pull(jnp.where(real, ct, 0))


def exact(ends_BT, q, k, v, sinks_H=None):
    """Attention over the mask in the dtype of its arguments (the reference's sums are float32)."""
    rows, length, num_heads, head_dim = q.shape
    k, v = (jnp.repeat(x, num_heads // k.shape[2], axis=2) for x in (k, v))
    scores = jnp.einsum("BTHh,BUHh->BHTU", q, k) / np.sqrt(head_dim)
    scores = jnp.where(visible_mask(ends_BT)[:, None], scores, -jnp.inf)
    if sinks_H is not None:
        scores = jnp.concatenate([scores, jnp.broadcast_to(sinks_H[:, None, None], (rows, num_heads, length, 1))], -1)
    return jnp.einsum("BHTU,BUHh->BTHh", jax.nn.softmax(scores)[..., :length], v)


def arrays_of(rows, heads, dtype, sinks):
    ends_BT, positions_BT = (jnp.stack(x) for x in zip(*(laid_out(texts, 60) for texts in rows), strict=True))
    num_heads, num_kv, head_dim = heads
    rng = np.random.default_rng(0)
    shapes = [(len(rows), 60, n, head_dim) for n in (num_heads, num_kv, num_kv, num_heads)]
    arrays = [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]
    return ends_BT, positions_BT, *arrays, *([jnp.asarray([-40.0, 3.0, 0.3, -1.2][:num_heads], dtype)] if sinks else [])


def deviation(kind, heads, dtype, window=None, sinks=False, wanted="reference"):
    """The largest difference from the reference, by the largest value."""
    rows, packing = KINDS[kind]
    arrays = arrays_of(rows, HEADS[heads], dtype, sinks)
    ours, theirs = (attended(backend, window, packing, *arrays) for backend in ("cudnn", wanted))
    return max(float(jnp.abs(a - b).max() / jnp.abs(b).max()) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    "heads", ["grouped", *(pytest.param(name, marks=pytest.mark.slow) for name in list(HEADS)[1:])]
)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_every_kind_equal_the_reference(kind, heads, monkeypatch):
    in_place_of_cudnn(monkeypatch)
    assert deviation(kind, heads, jnp.float32) < 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_in_double_precision(kind, sinks, monkeypatch):
    in_place_of_cudnn(monkeypatch)
    with jax.enable_x64(True):
        assert deviation(kind, "grouped", jnp.float64, sinks=sinks, wanted="exact") < 1e-10


@pytest.mark.parametrize(("kind", "window"), [("single", 7), ("several", 7), ("several", 1), ("groups", 7)])
def test_windows(kind, window, monkeypatch):
    """Of groups the mask decides: a window reaches from an answer into its prompt."""
    in_place_of_cudnn(monkeypatch)
    if kind == "groups":
        monkeypatch.setattr("scope_jax.models.kernels.attention.attend_parts", None)
    assert deviation(kind, "grouped", jnp.float32, window=window) < 1e-6


@pytest.mark.parametrize("kind", ["single", "groups"])
def test_sinks(kind, monkeypatch):
    in_place_of_cudnn(monkeypatch)
    assert deviation(kind, "grouped", jnp.float32, sinks=True) < 1e-6


def calls(packing, head_dim=128, capability=(9, 0), sinks=False) -> list[str]:
    """cuDNN's calls in the program for a GPU, in order, with the number of operands of each."""

    def program(ends_BT, positions_BT, q, k, v, *sinks_H):
        def summed(*arrays):
            return make_attend("cudnn", ends_BT, positions_BT, None, packing)(*arrays).astype(jnp.float32).sum()

        return jax.grad(summed, (0, 1, 2))(q, k, v, *sinks_H)

    numbers = jax.ShapeDtypeStruct((2, 256), jnp.int32)
    q, kv = (jax.ShapeDtypeStruct((2, 256, n, head_dim), jnp.bfloat16) for n in (8, 2))
    arrays = (numbers, numbers, q, kv, kv, *([jax.ShapeDtypeStruct((8,), jnp.bfloat16)] * sinks))
    with gpus_of(capability):
        text = jax.jit(program).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()
    lines = [line.split("custom_call @")[1] for line in text.splitlines() if "custom_call @__cudnn" in line]
    return [f"{line.split('(')[0].strip()} {line.partition('(')[2].partition(')')[0].count('%')}" for line in lines]


FORWARD, BACKWARD, MASK = "__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward", "__cudnn$fmhaScaleBiasSoftmax"


def test_calls_of_gpu_programs(monkeypatch):
    """One call for a row of one text, one more for each level of shared beginnings, and the same backward: of queries,
    keys and values, and their lengths and starts; no mask."""
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91002)
    assert calls(Packing(1, 0)) == [f"{FORWARD} 3", f"{BACKWARD} 6"]
    assert calls(Packing(1, 0), sinks=True) == [f"{FORWARD} 3", f"{BACKWARD} 6"]
    assert calls(Packing(4, 0)) == [f"{FORWARD} 7", f"{BACKWARD} 10"]
    assert calls(Packing(16, 2)) == [f"{FORWARD} 7"] * 3 + [f"{BACKWARD} 10"] * 3
    assert calls(Packing(1, 0), head_dim=256) == [f"{FORWARD} 3", f"{BACKWARD} 6"]
    # Before Hopper rows of several parts have a mask; rows of more texts than any size have one everywhere.
    assert calls(Packing(1, 0), capability=(8, 0)) == [f"{FORWARD} 3", f"{BACKWARD} 6"]
    for found in (calls(Packing(4, 0), capability=(8, 0)), calls(None)):
        assert {name.split()[0] for name in found} == {MASK, f"{MASK}Backward"}
