"""What the parser reads from compiled programs: one for this machine, and one as the TPU compiler writes it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scope_jax.plan.hlo import KERNEL, Program, bytes_of, parse
from scope_jax.plan.programs import memory_asked

ROOT = Path(__file__).parents[2]
# Shortened, but otherwise as libtpu 0.0.42 prints it: a loop of three rounds, in which one all-gather is spread over
# two fusions and a reduce-scatter stands alone, a kernel with metadata of several lines, a loop of unknown length,
# and a reduce-scatter written as a fusion of an all-reduce over padded rows and a slice.
TPU = Path(__file__).with_name("tpu_program.txt").read_text(encoding="utf-8")


def test_a_program_of_this_compiler():
    """8 devices: layers [8, 32] x [32, 32], three of them in a loop that counts once; then [32, 8] x [8, 32]."""
    command = [sys.executable, str(Path(__file__).with_name("eight_devices.py"))]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["flops"] == 3 * 2 * 8 * 32 * 32 + 2 * 32 * 8 * 32
    assert found["unknown"] == 1
    matrix = 32 * 32 * 4
    assert found["moved"] == {"all-gather": [3, 3 * matrix, matrix], "all-reduce": [1, matrix, matrix]}


def test_lines_of_the_tpu_compiler():
    program = Program(TPU)
    costs = program.costs()
    assert costs.flops == 3 * (2 * 512 * 256 * 256 + 2 * 512 * 256 * 256)  # the window's second half lies in padding
    assert costs.unknown == 1 and len(KERNEL.findall(TPU)) == 1
    moved = costs.collectives
    assert (moved["all-gather"].count, moved["all-gather"].largest) == (3 + 1, 512 * 256 * 4)
    assert moved["all-gather"].bytes == 3 * 256 * 256 * 2 + 512 * 256 * 4
    assert (moved["reduce-scatter"].count, moved["reduce-scatter"].largest) == (3 + 1, 576 * 256 * 4)
    assert moved["reduce-scatter"].bytes == 3 * 64 * 256 * 4 + 576 * 256 * 4
    assert (moved["all-reduce"].count, moved["all-reduce"].bytes) == (1, 64 * 256 * 4)
    assert program.body().collectives["all-gather"].count == 1
    assert program.largest_copy() == 64 * 256 * 4


def test_sizes_and_texts_that_are_no_program():
    assert bytes_of("(bf16[2,3]{1,0:T(8,128)(2,1)}, /*index=1*/s4[8]{0}, pred[])") == 12 + 4 + 1
    with pytest.raises(ValueError, match="no entry computation"):
        parse("HloModule nothing")


def test_a_refusal_for_lack_of_memory():
    said = (
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (47.68G) exceeds "
        "available HBM (15.75G)."
    )
    assert memory_asked(said) == 47.68 * 2**30
    assert memory_asked("RESOURCE_EXHAUSTED: Scoped allocation exceeded scoped vmem limit") is None


def test_lines_of_the_gpu_compiler():
    """cuDNN's attention, forward and backward, for 2 rows of 16 queries, 48 keys and 4 heads of 32; two gathers that
    the compiler has combined into one."""
    q, k, a, b = "bf16[2,16,4,32]{3,2,1,0}", "bf16[2,48,1,32]{3,2,1,0}", "bf16[8,4]{1,0}", "bf16[8,2]{1,0}"
    text = f"""HloModule jit_step

ENTRY %main (q: {q}, k: {k}) -> f32[8] {{
  %q = {q} parameter(0)
  %k = {k} parameter(1)
  %a = {a} parameter(2)
  %b = {b} parameter(3)
  %gather = (({a}, {b}), (bf16[64,4]{{1,0}}, bf16[64,2]{{1,0}})) all-gather-start(%a, %b), channel_id=1
  %fwd = ({q}, u8[0]{{0}}) custom-call(%q, %k, %k), custom_call_target="__cudnn$fmhaSoftmax"
  %bwd = ({q}, {k}, {k}, u8[0]{{0}}) custom-call(%q, %k, %k), custom_call_target="__cudnn$fmhaSoftmaxBackward"
  ROOT %pages = f32[8] custom-call(%q), custom_call_target="__gpu$xla.gpu.triton"
}}
"""
    costs = Program(text).costs()
    assert costs.flops == (2 + 5) * 2 * (2 * 4 * 16 * 48 * 32)
    assert len(KERNEL.findall(text)) == 3
    gathers = costs.collectives["all-gather"]
    assert (gathers.count, gathers.bytes) == (2, 64 * 4 * 2 + 64 * 2 * 2)


@pytest.mark.parametrize(("window", "pairs"), [(0, 16 * 17 // 2), (4, 10 + 12 * 4)])
def test_attention_that_sees_what_is_before(window, pairs):
    """cuDNN's causal calls, whose kernels skip what a query does not see."""
    q = "bf16[2,16,4,32]{3,2,1,0}"
    config = f'{{"mask_type": "CAUSAL", "sliding_window_length": {window}}}'
    text = f"""HloModule jit_step

ENTRY %main (q: {q}) -> {q} {{
  %q = {q} parameter(0)
  ROOT %fwd = {q} custom-call(%q, %q, %q), custom_call_target="__cudnn$fmhaSoftmax", backend_config={config}
}}
"""
    assert Program(text).costs().flops == 2 * 2 * (2 * 4 * pairs * 32)


def test_collectives_that_go_on_beside_a_loop_and_exchanges_between_neighbours():
    """A gather that begins before a loop of three rounds, goes on beside its products and ends behind it is one; a
    permute without a name of the program is the compiler's."""
    part, whole = "bf16[64,256]{1,0}", "bf16[256,256]{1,0}"
    program = Program(f"""HloModule jit_step

%piece (x: {part}) -> {whole} {{
  %x = {part} parameter(0)
  ROOT %all-gather.1 = {whole} all-gather(%x), channel_id=9, dimensions={{0}}
}}

%body (w: {part}) -> {part} {{
  %w = {part} parameter(0)
  %beside = {whole} fusion(%w), kind=kOutput, calls=%piece
  ROOT %round = {part} collective-permute(%w), channel_id=1, metadata={{op_name="jit(step)/ppermute"}}
}}

%condition (c: {part}) -> pred[] {{
  %c = {part} parameter(0)
  ROOT %never = pred[] constant(false)
}}

ENTRY %main (a: {part}) -> {whole} {{
  %a = {part} parameter(0)
  %start = {whole} fusion(%a), kind=kOutput, calls=%piece
  %loop = {part} while(%a), condition=%condition, body=%body, backend_config={{"known_trip_count":{{"n":"3"}}}}
  %border = {part} collective-permute(%loop), channel_id=1
  ROOT %done = {whole} fusion(%a), kind=kOutput, calls=%piece
}}
""")
    moved = program.costs().collectives
    assert {kind: one.count for kind, one in moved.items()} == {
        "all-gather": 1,
        "collective-permute": 3,
        "halo-exchange": 1,
    }
    assert program.body().collectives["all-gather"].count == 1
