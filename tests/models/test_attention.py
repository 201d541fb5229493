"""Attention backends: each equals the reference; windows, packed segments, encoders; the programs for TPUs and GPUs."""

import math
import os
import subprocess
import sys
from collections import Counter
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from scope_jax.models import splash
from scope_jax.models.attention import Attend, make_attend, resolve, visible_mask

ROOT = Path(__file__).parents[2]
SEGMENTS = ((1,) * 70 + (2,) * 50 + (3,) * 60 + (0,) * 20, (7,) * 200)  # T = 200: not a multiple of any block


def heads(rng, rows, length, num_heads, num_kv, head_dim):
    shapes = [(rows, length, n, head_dim) for n in (num_heads, num_kv, num_kv, num_heads)]
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


def make(backend, segments_BT, window, causal) -> Attend:
    if backend == "splash":  # the kernel itself in Pallas' interpreter
        return partial(splash.attend, segments_BT=segments_BT, window=window, causal=causal, interpret=True)
    return make_attend(backend, segments_BT, window, causal=causal)


@partial(jax.jit, static_argnums=(0, 2, 3))
def value_and_gradients(backend, segments_BT, window, causal, q, k, v, cotangent):
    out, pull = jax.vjp(make(backend, segments_BT, window, causal), q, k, v)
    return out, *pull(cotangent)


def assert_equal_but_for_rounding(ours, theirs):
    for name, a, b in zip(("out", "dq", "dk", "dv"), ours, theirs, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, atol=3e-6 * max(1.0, float(jnp.abs(b).max())), err_msg=name)


@pytest.mark.parametrize("backend", ["reference", "dot_product", "splash"])
def test_three_tokens_by_hand(backend):
    # One head, h = 1, so scores are q·k. q = (1, 1, 2), k = (0, ln 2, ln 3), v = (1, 3, 5).
    ln = math.log
    q, k, v = (jnp.array(x, jnp.float32).reshape(1, 3, 1, 1) for x in ([1, 1, 2], [0, ln(2), ln(3)], [1, 3, 5]))

    def seen(segments, window, causal):
        return jax.jit(make(backend, jnp.array([segments]), window, causal))(q, k, v)[0, :, 0, 0]

    # Token 0 sees itself: 1. Token 1: weights 1 and 2 of 3: (1 + 2·3) / 3 = 7/3.
    # Token 2: weights e^0, e^(2 ln 2), e^(2 ln 3) = 1, 4, 9 of 14: (1 + 12 + 45) / 14 = 58/14.
    np.testing.assert_allclose(seen([1, 1, 1], None, True), [1, 7 / 3, 58 / 14], atol=1e-6)
    # A window of 2: token 2 sees tokens 1 and 2 only, weights 4 and 9 of 13.
    np.testing.assert_allclose(seen([1, 1, 1], 2, True), [1, 7 / 3, 57 / 13], atol=1e-6)
    # Token 2 in a separate segment sees only itself.
    np.testing.assert_allclose(seen([1, 1, 2], None, True), [1, 7 / 3, 5], atol=1e-6)
    # An encoder: token 0 sees all three, weights 1, 2, 3 of 6: (1 + 6 + 15) / 6.
    np.testing.assert_allclose(seen([1, 1, 1], None, False), [22 / 6, 22 / 6, 58 / 14], atol=1e-6)


def test_mask_matches_its_definition():
    segments_BT = jnp.asarray(SEGMENTS, jnp.int32)[:1]
    for window, causal in ((None, True), (5, True), (None, False), (5, False)):
        mask = np.asarray(visible_mask(segments_BT, window, causal=causal))[0]
        for t, u in np.random.default_rng(0).integers(0, 200, (500, 2)).tolist() + [[t, t] for t in range(200)]:
            same = SEGMENTS[0][t] == SEGMENTS[0][u]
            near = window is None or (t - window < u < t + window)
            assert mask[t, u] == (same and near and (u <= t or not causal)), (t, u, window, causal)


@pytest.mark.parametrize("backend", ["dot_product", "splash"])
@pytest.mark.parametrize(
    ("window", "causal", "num_heads", "num_kv", "head_dim"),
    [
        (None, True, 4, 2, 16),
        (17, True, 4, 1, 12),
        (1, True, 2, 2, 8),
        (17, False, 4, 4, 16),
    ],
)
def test_backends_equal_the_reference(backend, window, causal, num_heads, num_kv, head_dim):
    arrays = heads(np.random.default_rng(0), 2, 200, num_heads, num_kv, head_dim)
    segments_BT = jnp.asarray(SEGMENTS, jnp.int32)
    ours = value_and_gradients(backend, segments_BT, window, causal, *arrays)
    theirs = value_and_gradients("reference", segments_BT, window, causal, *arrays)
    assert_equal_but_for_rounding(ours, theirs)


def test_splash_with_several_blocks_equals_the_reference():
    # T = 600 is two blocks of 384, one of which is outside of the window of later tokens.
    assert splash.blocks_of(600) == (384, 768)
    arrays = heads(np.random.default_rng(1), 1, 600, 2, 1, 8)
    segments_BT = jnp.asarray([[1] * 250 + [2] * 330 + [0] * 20], jnp.int32)
    ours = value_and_gradients("splash", segments_BT, 100, True, *arrays)
    assert_equal_but_for_rounding(ours, value_and_gradients("reference", segments_BT, 100, True, *arrays))


def test_a_long_row_is_computed_in_larger_blocks():
    # T = 2,100 is more than 16 blocks of 128: the reference takes 256 queries at a time.
    arrays = heads(np.random.default_rng(3), 1, 2100, 1, 1, 4)
    segments_BT = jnp.asarray([[1] * 900 + [2] * 1100 + [0] * 100], jnp.int32)
    for window in (None, 300):
        ours = value_and_gradients("reference", segments_BT, window, True, *arrays)
        assert_equal_but_for_rounding(ours, value_and_gradients("dot_product", segments_BT, window, True, *arrays))
    program = str(jax.make_jaxpr(make("reference", segments_BT, None, True))(*arrays[:3]))
    assert "256,2048]" in program and "2100,2100" not in program


def test_blocks_are_multiples_of_the_lanes_and_waste_less_than_one_lane_each():
    for length in (1, 128, 129, 512, 513, 1000, 10240, 12288):
        block, padded = splash.blocks_of(length)
        assert block % splash.LANES == 0 and block <= splash.BLOCK and padded % block == 0
        assert 0 <= padded - length < splash.LANES * padded // block
    assert splash.blocks_of(10240) == (512, 10240)


def test_bfloat16_stays_bfloat16_and_near_the_reference():
    arrays = [x.astype(jnp.bfloat16) for x in heads(np.random.default_rng(2), 1, 130, 4, 2, 16)]
    segments_BT = jnp.ones((1, 130), jnp.int32)
    exact = make("reference", segments_BT, None, True)(*(x.astype(jnp.float32) for x in arrays[:3]))
    for backend in ("reference", "dot_product", "splash"):
        out = jax.jit(make(backend, segments_BT, None, True))(*arrays[:3])
        assert out.dtype == jnp.bfloat16
        np.testing.assert_allclose(out.astype(jnp.float32), exact, atol=0.03)  # 8 bits of mantissa, values up to 4


def test_auto_selects_by_platform_and_dtype():
    assert resolve("auto", "cpu", jnp.bfloat16) == "reference"
    assert resolve("auto", "tpu", jnp.bfloat16) == "splash"
    assert resolve("auto", "gpu", jnp.bfloat16) == "cudnn"
    assert resolve("auto", "gpu", jnp.float32) == "dot_product"
    assert resolve("dot_product", "cpu", jnp.float16) == "dot_product"
    assert resolve("reference", "tpu", jnp.float32) == "reference"


def test_unsupported_backends_give_one_clear_error():
    with pytest.raises(ValueError, match="TPU kernel but the devices are cpu"):
        resolve("splash", "cpu", jnp.float32)
    with pytest.raises(ValueError, match="'flash'; it must be"):
        resolve("flash", "cpu", jnp.float32)
    with pytest.raises(ValueError, match="window is 0"):
        make_attend("reference", jnp.ones((1, 2), jnp.int32), 0)
    with pytest.raises(ValueError, match="'flash' is not one of"):
        make_attend("flash", jnp.ones((1, 2), jnp.int32))


def test_gpu_programs_call_cudnn_kernels(monkeypatch):
    """The program for CUDA, lowered without a GPU, calls cuDNN forward and backward, without repeating keys for GQA."""
    # JAX looks for an installed cuDNN during tracing; its version does not affect the program.
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91002)

    def program(q, k, v, segments_BT, cotangent):
        return jax.vjp(make_attend("cudnn", segments_BT, 100), q, k, v)[1](cotangent)

    q, kv = (jax.ShapeDtypeStruct((2, 512, n, 128), jnp.bfloat16) for n in (8, 2))
    segments_BT = jax.ShapeDtypeStruct((2, 512), jnp.int32)
    text = jax.jit(program).trace(q, kv, kv, segments_BT, q).lower(lowering_platforms=("cuda",)).as_text()
    calls = [line for line in text.splitlines() if "custom_call @" in line]
    names = Counter(line.split("@")[1].split("(")[0] for line in calls)
    # Four blocks of 128 queries, nothing computed twice.
    assert names == {"__cudnn$fmhaScaleBiasSoftmax": 4, "__cudnn$fmhaScaleBiasSoftmaxBackward": 4}
    for line in calls:
        operands = line[line.rindex(" : (") :].split(" -> ")[0]
        reached = 128 if "tensor<2x128x2x128xbf16>" in operands else 256  # the window of 100 needs one block more
        assert operands.count(f"tensor<2x{reached}x2x128xbf16>") == 2  # keys and values, 2 heads
        assert f"tensor<2x1x128x{reached}xbf16>" in operands  # the mask, one for all heads
    assert "512x512" not in text  # neither scores nor a mask of the whole row


@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs libtpu to compile for TPUs that are not there")
@pytest.mark.parametrize(
    "name",
    ["learner", *(pytest.param(name, marks=pytest.mark.slow) for name in ("windows", "whole", "decoding", "tables"))],
)
def test_programs_compile_for_tpus_ahead_of_time(name):
    """Runs tpu_programs.py in a separate process: libtpu and this process's CPU devices need different settings."""
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_COMPILATION_CACHE": "false",  # cached programs cannot be loaded without the device
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # two pytest workers may compile at the same time
        "TPU_SKIP_MDS_QUERY": "1",  # these three keep libtpu from looking for a TPU slice
        "TPU_ACCELERATOR_TYPE": "v5litepod-1",
        "TPU_WORKER_HOSTNAMES": "localhost",
    }
    command = [sys.executable, str(Path(__file__).with_name("tpu_programs.py")), name]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
