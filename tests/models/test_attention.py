"""Attention backends: each equals the reference; windows, packed rows, common prompts; programs for accelerators."""

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

from scope_jax.models.kernels import splash
from scope_jax.models.kernels.attention import (
    Attend,
    attend_both_ways,
    attention,
    make_attend,
    resolve,
)
from scope_jax.models.kernels.masks import live_blocks, visible_mask
from tests.rows import laid_out

ROOT = Path(__file__).parents[2]
# T = 200: not a multiple of any block. Two groups with a common prompt, one of them with answers that fork again, and
# padding; a text alone; texts one after another.
GROUPS = [(60, [(20, []), (9, [(15, []), (1, []), (6, [])]), (12, [])]), (1, [(30, []), (17, [])])]
ROWS = [laid_out(texts, 200) for texts in (GROUPS, [(200, [])], [(70, []), (50, []), (60, [])])]


def stacked(rows) -> tuple[jax.Array, jax.Array]:
    """(ends, positions), [B, T] each."""
    ends, positions = (jnp.stack(arrays) for arrays in zip(*rows, strict=True))
    return ends, positions


def heads(rng, rows, length, num_heads, num_kv, head_dim):
    shapes = [(rows, length, n, head_dim) for n in (num_heads, num_kv, num_kv, num_heads)]
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


def make(backend, rows, window) -> Attend:
    return over(backend, *stacked(rows), window)


def over(backend, ends_BT, positions_BT, window) -> Attend:
    if backend == "splash":  # the kernels themselves in Pallas' interpreter
        return splash.make_attend(ends_BT, positions_BT, window, interpret=True)
    return make_attend(backend, ends_BT, positions_BT, window)


def value_and_gradients(backend, rows, window, *arrays):
    return with_gradients(backend, window, *stacked(rows), *arrays)


@partial(jax.jit, static_argnums=(0, 1))
def with_gradients(backend, window, ends_BT, positions_BT, q, k, v, cotangent, *sinks):
    """Attention and its gradients; one program for rows of a shape."""
    out, pull = jax.vjp(over(backend, ends_BT, positions_BT, window), q, k, v, *sinks)
    return out, *pull(cotangent)


def assert_equal_but_for_rounding(ours, theirs):
    for name, a, b in zip(("out", "dq", "dk", "dv", "dsinks")[: len(ours)], ours, theirs, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, atol=3e-6 * max(1.0, float(jnp.abs(b).max())), err_msg=name)


@pytest.mark.parametrize("backend", ["reference", "dot_product", pytest.param("splash", marks=pytest.mark.slow)])
def test_three_tokens_by_hand(backend):
    # One head, h = 1, so scores are q·k. q = (1, 1, 2), k = (0, ln 2, ln 3), v = (1, 3, 5).
    ln = math.log
    q, k, v = (jnp.array(x, jnp.float32).reshape(1, 3, 1, 1) for x in ([1, 1, 2], [0, ln(2), ln(3)], [1, 3, 5]))

    def seen(texts, window):
        return jax.jit(make(backend, [laid_out(texts, 3)], window))(q, k, v)[0, :, 0, 0]

    # Token 0 sees itself: 1. Token 1: weights 1 and 2 of 3: (1 + 2·3) / 3 = 7/3.
    # Token 2: weights e^0, e^(2 ln 2), e^(2 ln 3) = 1, 4, 9 of 14: (1 + 12 + 45) / 14 = 58/14.
    np.testing.assert_allclose(seen([(3, [])], None), [1, 7 / 3, 58 / 14], atol=1e-6)
    # A window of 2: token 2 sees tokens 1 and 2 only, weights 4 and 9 of 13.
    np.testing.assert_allclose(seen([(3, [])], 2), [1, 7 / 3, 57 / 13], atol=1e-6)
    # Token 2 in a separate text sees only itself.
    np.testing.assert_allclose(seen([(2, []), (1, [])], None), [1, 7 / 3, 5], atol=1e-6)
    # Tokens 1 and 2 both continue token 0, so token 2 sees 0 and itself, weights 1 and 9 of 10; with a window of 2,
    # too, since it is the second token of its text.
    for window in (None, 2):
        np.testing.assert_allclose(seen([(1, [(1, []), (1, [])])], window), [1, 7 / 3, 46 / 10], atol=1e-6)
    # A sink of ln 3 is 3 more in every sum: 1 of 4, 1 + 2·3 of 6, 58 of 17; with the window 57 of 16.
    sinks = jnp.array([ln(3)], jnp.float32)
    for window, last in ((None, 58 / 17), (2, 57 / 16)):
        found = jax.jit(make(backend, [laid_out([(3, [])], 3)], window))(q, k, v, sinks)[0, :, 0, 0]
        np.testing.assert_allclose(found, [1 / 4, 7 / 6, last], atol=1e-6)


def test_encoders_see_the_whole_text():
    ln = math.log
    q, k, v = (jnp.array(x, jnp.float32).reshape(1, 3, 1, 1) for x in ([1, 1, 2], [0, ln(2), ln(3)], [1, 3, 5]))
    # Token 0 sees all three, weights 1, 2, 3 of 6: (1 + 6 + 15) / 6; in a text of two tokens weights 1, 2 of 3.
    np.testing.assert_allclose(attend_both_ways(jnp.array([3]))(q, k, v)[0, :2, 0, 0], [22 / 6, 22 / 6], atol=1e-6)
    np.testing.assert_allclose(attend_both_ways(jnp.array([2]))(q, k, v)[0, :2, 0, 0], [7 / 3, 7 / 3], atol=1e-6)
    arrays = heads(np.random.default_rng(0), 2, 300, 4, 2, 16)[:3]
    lengths_B = jnp.array([300, 170])
    blocks = jax.jit(attend_both_ways(lengths_B))(arrays[0], arrays[1], arrays[2])
    mask_BTT = jnp.broadcast_to(jnp.arange(300) < lengths_B[:, None, None], (2, 300, 300))
    for row, length in enumerate((300, 170)):
        whole = attention(arrays[0], arrays[1], arrays[2], mask_BTT)[row, :length]
        np.testing.assert_allclose(blocks[row, :length], whole, atol=1e-6)


@pytest.mark.parametrize("window", [None, 1, 5, 17])
def test_mask_and_live_blocks_match_their_definition(window):
    """Along the texts themselves: a token sees those that it continues."""
    masks = np.asarray(visible_mask(*stacked(ROWS), window))
    for (behind, positions), mask in zip(ROWS, masks, strict=True):
        for t in range(200):
            path = [u for u in range(t + 1) if behind[u] > t]
            assert positions[path].tolist() == list(range(len(path)))  # the text of token t from its first token on
            seen = path if window is None else path[-window:]
            assert np.flatnonzero(mask[t]).tolist() == seen
    live = live_blocks(*stacked(ROWS), window, 40, 10)
    np.testing.assert_array_equal(live, masks.reshape(len(ROWS), 5, 40, 20, 10).any((2, 4)))


@pytest.mark.parametrize("backend", ["dot_product", "splash"])
@pytest.mark.parametrize(
    ("window", "num_heads", "num_kv", "head_dim"), [(None, 4, 2, 16), (17, 4, 1, 12), (1, 2, 2, 8)]
)
def test_backends_equal_the_reference(backend, window, num_heads, num_kv, head_dim):
    arrays = heads(np.random.default_rng(0), len(ROWS), 200, num_heads, num_kv, head_dim)
    ours = value_and_gradients(backend, ROWS, window, *arrays)
    assert_equal_but_for_rounding(ours, value_and_gradients("reference", ROWS, window, *arrays))


def sinks_of(heads):
    """One far below the scores, one above all of them, the others among them."""
    return jnp.asarray([-40.0, 9.0, 0.3, -1.2][:heads], jnp.float32)


@pytest.mark.parametrize("backend", ["dot_product", "splash"])
@pytest.mark.parametrize(("window", "num_kv"), [(None, 2), (17, 1)])
def test_sinks_and_their_gradients(backend, window, num_kv):
    arrays = [*heads(np.random.default_rng(0), len(ROWS), 200, 4, num_kv, 16), sinks_of(4)]
    ours = value_and_gradients(backend, ROWS, window, *arrays)
    wanted = value_and_gradients("reference", ROWS, window, *arrays)
    assert_equal_but_for_rounding(ours, wanted)
    assert np.abs(wanted[-1])[2:].min() > 1
    # A sink far below all scores changes nothing, one far above takes all of the attention.
    plain = value_and_gradients("reference", ROWS, window, *arrays[:4])
    np.testing.assert_allclose(ours[0][:, :, 0], plain[0][:, :, 0], atol=2e-6)


GROUP = [(400, [(300, []), (200, [(90, []), (110, [])]), (130, [])]), (100, [])]


@pytest.mark.parametrize(
    ("texts", "width", "window"),
    [
        ([(250, []), (330, [])], 600, 100),
        pytest.param(GROUP, 1500, 100, marks=pytest.mark.slow),
        pytest.param([(250, []), (330, [])], 600, None, marks=pytest.mark.slow),
        pytest.param(GROUP, 1500, None, marks=pytest.mark.slow),
    ],
)
def test_splash_with_several_blocks_equals_the_reference(texts, width, window):
    # T = 600 is two blocks of 384; T = 1,500 is three of 512. Of the groups some blocks see others that are not near.
    assert splash.blocks_of(600) == (384, 768)
    assert splash.blocks_of(1500) == (512, 1536)
    arrays = [*heads(np.random.default_rng(1), 1, width, 2, 1, 8), sinks_of(2)]
    rows = [laid_out(texts, width)]
    ours = value_and_gradients("splash", rows, window, *arrays)
    assert_equal_but_for_rounding(ours, value_and_gradients("reference", rows, window, *arrays))


def test_splash_computes_no_block_that_nobody_sees():
    """Keys and values that nobody of a block of queries sees may be infinite: a score of them would be NaN."""
    rows = [laid_out([(512, [(512, []), (512, [])])], 1536)]
    q, k, v, _ = heads(np.random.default_rng(2), 1, 1536, 1, 1, 8)
    spoiled = (x.at[:, 512:1024].set(jnp.inf) for x in (k, v))
    out, wanted = (make("splash", rows, None)(q, *arrays)[:, 1024:] for arrays in ((k, v), spoiled))
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.slow
def test_a_long_row_is_computed_in_larger_blocks():
    # T = 2,100 is more than 16 blocks of 128: the reference takes 256 queries at a time. With the window the first
    # row needs the nearest keys only; answers of the second see the end of their prompt, far back in the row.
    alone = laid_out([(900, []), (1100, [])], 2100)
    group = laid_out([(600, [(500, []), (480, []), (430, [])])], 2100)
    arrays = heads(np.random.default_rng(3), 1, 2100, 1, 1, 4)
    arrays.append(jnp.asarray([0.5], jnp.float32))
    for row, window in ((alone, None), (alone, 300), (group, None), (group, 300)):
        ours = value_and_gradients("reference", [row], window, *arrays)
        assert_equal_but_for_rounding(ours, value_and_gradients("dot_product", [row], window, *arrays))
    program = str(jax.make_jaxpr(make("reference", [alone], None))(*arrays[:3]))
    assert "256,2048]" in program and "2100,2100" not in program


def test_blocks_are_multiples_of_the_lanes_and_waste_less_than_one_lane_each():
    for length in (1, 128, 129, 512, 513, 1000, 10240, 12288):
        block, padded = splash.blocks_of(length)
        assert block % splash.LANES == 0 and block <= splash.BLOCK and padded % block == 0
        assert 0 <= padded - length < splash.LANES * padded // block
    assert splash.blocks_of(10240) == (512, 10240)


def test_bfloat16_stays_bfloat16_and_near_the_reference():
    arrays = [x.astype(jnp.bfloat16) for x in heads(np.random.default_rng(2), 1, 130, 4, 2, 16)]
    rows = [laid_out([(130, [])], 130)]
    exact = make("reference", rows, None)(*(x.astype(jnp.float32) for x in arrays[:3]))
    for backend in ("reference", "dot_product", "splash"):
        out = jax.jit(make(backend, rows, None))(*arrays[:3])
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
        make_attend("reference", *stacked(ROWS), 0)
    with pytest.raises(ValueError, match="'flash' is not one of"):
        make_attend("flash", *stacked(ROWS))


def test_gpu_programs_call_cudnn_kernels(monkeypatch):
    """The program for CUDA, lowered without a GPU, calls cuDNN forward and backward, without repeating keys for GQA."""
    # JAX looks for an installed cuDNN during tracing; its version does not affect the program.
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91002)

    def program(q, k, v, ends_BT, positions_BT, cotangent):
        return jax.vjp(make_attend("cudnn", ends_BT, positions_BT, 100), q, k, v)[1](cotangent)

    q, kv = (jax.ShapeDtypeStruct((2, 512, n, 128), jnp.bfloat16) for n in (8, 2))
    numbers = jax.ShapeDtypeStruct((2, 512), jnp.int32)
    text = jax.jit(program).trace(q, kv, kv, numbers, numbers, q).lower(lowering_platforms=("cuda",)).as_text()
    calls = [line for line in text.splitlines() if "custom_call @" in line]
    names = Counter(line.split("@")[1].split("(")[0] for line in calls)
    # Four blocks of 128 queries, nothing computed twice. The window of 100 needs one block of keys more; the last two
    # have a second program, which runs where a row has what they see further back.
    assert names == {"__cudnn$fmhaScaleBiasSoftmax": 6, "__cudnn$fmhaScaleBiasSoftmaxBackward": 6}
    found = []
    for line in calls:
        operands = line[line.rindex(" : (") :].split(" -> ")[0]
        (reached,) = (n for n in (128, 256, 384, 512) if f"tensor<2x1x128x{n}xbf16>" in operands)  # one mask for all
        assert operands.count(f"tensor<2x{reached}x2x128xbf16>") == 2  # keys and values, 2 heads
        found.append(reached)
    assert sorted(found) == [128, 128, *[256] * 6, 384, 384, 512, 512]
    assert "512x512" not in text  # neither scores nor a mask of the whole row

    def with_sinks(q, k, v, ends_BT, positions_BT, sinks_H):
        return jax.grad(lambda *arrays: make_attend("cudnn", ends_BT, positions_BT)(*arrays).sum(), (0, 3))(
            q, k, v, sinks_H
        )

    sinks = jax.ShapeDtypeStruct((8,), jnp.bfloat16)
    q, kv = (jax.ShapeDtypeStruct((2, 512, n, 64), jnp.bfloat16) for n in (8, 2))
    text = jax.jit(with_sinks).trace(q, kv, kv, numbers, numbers, sinks).lower(lowering_platforms=("cuda",)).as_text()
    calls = [line for line in text.splitlines() if "custom_call @" in line]
    assert len(calls) == 8 and all("tensor<2x128x8x72xbf16>" in line for line in calls)
    assert sum("tensor<2x192x2x72xbf16>" in line for line in calls) == 2  # 128 keys and the sink's 64


@pytest.mark.slow
@pytest.mark.skipif(find_spec("libtpu") is None, reason="needs libtpu to compile for TPUs that are not there")
@pytest.mark.parametrize("name", ["learner", "windows", "whole", "decoding", "tables", "gpt_oss"])
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
