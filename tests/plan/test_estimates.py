"""Times of programs from their figures, worked out by hand."""

import pytest

from scope_jax.plan.costs import Costs, Kernel, Transfers
from scope_jax.plan.estimates import LAUNCH, Reads, _seconds, decode_figures
from scope_jax.plan.hardware import CHIPS, Hardware
from scope_jax.plan.hlo import Program
from scope_jax.sharding.chips import Chip

# 60 FLOP/s in products and 50 in kernels, 80 bytes/s of memory, 8 bytes/s between devices
GPU = Chip("G", 1.0, 100.0, 100.0, None, 10.0)
TPU = Chip("T", 1.0, 100.0, 100.0, 10.0)
MOVED = {"all-gather": Transfers(2, 80.0, 40.0), "all-reduce": Transfers(1, 8.0, 8.0)}


def test_seconds_of_a_program_on_a_gpu():
    costs = Costs(flops=120.0, memory=160.0, collectives=MOVED, beside=72.0)
    # products 2 s, memory 2 s, kernels 1 s; collectives 9 s beside them and (80 + 2 · 8 − 72) / 8 = 3 s alone
    assert _seconds(GPU, costs, 50.0) == pytest.approx(9 + 3)
    assert _seconds(GPU, costs, 500.0) == pytest.approx(2 + 2 + 10 + 3)
    assert _seconds(TPU, Costs(flops=120.0, cycles=30.0, collectives=MOVED), 50.0) == pytest.approx(3 + 1)
    assert _seconds(Chip("C", 1.0, None, None, None), costs, 0.0) is None
    assert all((chip.link is None) == (chip.clock is not None) for chip in CHIPS.values())


def test_a_token_on_a_gpu_reads_weights_and_cache():
    on, reads = Hardware("1xG", "gpu", GPU, []), Reads(cache=240.0, weights=160.0)
    # of the dispatch, 8 bytes for each of 10 tokens
    costs = Costs(memory=160.0 + 80.0), Costs(flops=60.0, memory=160.0, collectives=MOVED)
    found = decode_figures(on, *costs, reads, 10)
    # weights 2 s, which the products do not exceed, cache 3 s, the rest 168 / 80 s, collectives 96 / 8 s
    assert found["milliseconds"] == pytest.approx(1e3 * (2 + 3 + 2.1 + 12))
    assert found["roofline_milliseconds"] == pytest.approx(1e3 * 4)
    slow = decode_figures(on, costs[0], Costs(flops=600.0), reads, 10)
    assert slow["milliseconds"] == pytest.approx(1e3 * (10 + 3 + 240 / 80 / 10))


def test_a_token_on_a_tpu_reads_cache_and_weights_in_kernels():
    chip = Chip("T", 1.0, 100.0, 100.0, 1e4)
    on, reads = Hardware("T", "tpu", chip, []), Reads(cache=240.0, weights=160.0)
    attention, light, heavy = Kernel(0.0, 0.0), Kernel(10.0, 40.0), Kernel(100.0, 40.0)
    one = Costs(cycles=4e4, kernels={attention: 1.0, light: 2.0, heavy: 1.0})
    found = decode_figures(on, Costs(cycles=9e4, kernels=one.times(10).kernels), one, reads, 10)
    # cache 3 s; two kernels of 0.5 s that read, and one of 2 s that multiplies; 4 s of cycles, 5 s once in 10 tokens,
    # and four kernels' beginnings
    assert found["reads_milliseconds"] == pytest.approx(1e3 * (3 + 2 * 0.5 + 2))
    assert found["other_milliseconds"] == pytest.approx(1e3 * (4 + 0.5 + 4 * LAUNCH / 1e4))
    assert found["milliseconds"] == pytest.approx(found["reads_milliseconds"] + found["other_milliseconds"])
    assert found["roofline_milliseconds"] == pytest.approx(1e3 * 4)


def test_bytes_that_a_program_reads_and_writes():
    """A fusion reads a slice of 8 rows and writes them into another array; a product counts as such; a gather is
    scheduled around it, a scatter is not around anything."""
    table, rows = "f32[64,16]{1,0}", "f32[8,16]{1,0}"
    program = Program(f"""HloModule jit_step

%moved (a: {table}, b: {table}, i: s32[]) -> {table} {{
  %a = {table} parameter(0)
  %b = {table} parameter(1)
  %i = s32[] parameter(2)
  %part = {rows} dynamic-slice(%a, %i, %i), dynamic_slice_sizes={{8,16}}
  %old = {rows} dynamic-slice(%b, %i, %i), dynamic_slice_sizes={{8,16}}
  %sum = {rows} add(%part, %old)
  ROOT %new = {table} dynamic-update-slice(%b, %sum, %i, %i)
}}

ENTRY %main (x: {table}, y: {table}, n: s32[], r: {rows}) -> {table} {{
  %x = {table} parameter(0)
  %y = {table} parameter(1)
  %n = s32[] parameter(2)
  %r = {rows} parameter(3)
  %update = {table} fusion(%x, %y, %n), kind=kLoop, calls=%moved
  %start = ({rows}, {table}) all-gather-start(%r), channel_id=1
  %dot = f32[64,64]{{1,0}} dot(%update, %y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
  %gathered = {table} all-gather-done(%start)
  %start.2 = (({table}), {rows}) reduce-scatter-start(%gathered), channel_id=2
  %scattered = {rows} reduce-scatter-done(%start.2)
  ROOT %copied = {table} copy(%update)
}}
""")
    costs, row = program.costs(), 16 * 4
    # the fusion reads 8 rows of each and the place, and writes 8; the copy reads and writes all
    assert costs.memory == (8 + 8 + 8) * row + 4 + 2 * 64 * row
    assert costs.beside == 64 * row
    assert costs.flops == 2 * 64 * 64 * 16
