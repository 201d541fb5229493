"""What is counted in the text of compiled programs, and that the recorded counts do not rise."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import jax
import pytest

from benchmarks.programs.cases import CASES, Case, kept, risen, table
from benchmarks.programs.launches import Launches, Reader
from scope_jax.plan.hardware import ABSENT, cuda_compiler

ROOT = Path(__file__).parents[2]
ROW, STATE, MATRIX = "f32[4,8]{1,0}", "f32[6,8]{1,0}", "bf16[8,8]{1,0}"  # 128, 192 and 128 bytes
# As the GPU compiler writes a loop over tokens: a product with room to work in, a fusion that reads a row of a table, a
# kernel that writes into the first four rows of an array of six, a condition, a loop of three rounds, two gathers of
# which one has a product beside it.
TEXT = f"""HloModule jit_tokens

%rows (table: bf16[100,8], at: s32[]) -> bf16[1,8] {{
  %table = bf16[100,8]{{1,0}} parameter(0)
  %at = s32[] parameter(1)
  %zero = s32[] constant(0)
  %wide = f32[100,8]{{1,0}} convert(%table)
  %row = f32[1,8]{{1,0}} dynamic-slice(%wide, %at, %zero), dynamic_slice_sizes={{1,8}}
  ROOT %narrow = bf16[1,8]{{1,0}} convert(%row)
}}

%put (state: {STATE}, new: f32[1,8]) -> {STATE} {{
  %state = {STATE} parameter(0)
  %new = f32[1,8]{{1,0}} parameter(1)
  %first = s32[] constant(0)
  ROOT %into = {STATE} dynamic-update-slice(%state, %new, %first, %first)
}}

%sum (x: {ROW}) -> f32[4] {{
  %x = {ROW} parameter(0)
  ROOT %added = f32[4]{{0}} reduce(%x), dimensions={{1}}
}}

%much (m: {ROW}) -> f32[4] {{
  %m = {ROW} parameter(0)
  %one = f32[4]{{0}} fusion(%m), kind=kInput, calls=%sum
  ROOT %two = f32[4]{{0}} fusion(%m), kind=kInput, calls=%sum
}}

%little (l: {ROW}) -> f32[4] {{
  %l = {ROW} parameter(0)
  ROOT %only = f32[4]{{0}} copy(%l)
}}

%thrice (t: {ROW}) -> {ROW} {{
  %t = {ROW} parameter(0)
  ROOT %sorted = {ROW} sort(%t), dimensions={{1}}
}}

%always (a: {ROW}) -> pred[] {{
  %a = {ROW} parameter(0)
  ROOT %yes = pred[] constant(true)
}}

%token (carry: ({ROW}, {STATE}, {MATRIX}, bf16[100,8], s32[])) -> ({ROW}, {STATE}) {{
  %carry = ({ROW}, {STATE}, {MATRIX}, bf16[100,8]{{1,0}}, s32[]) parameter(0)
  %act = {ROW} get-tuple-element(%carry), index=0
  %kept = {STATE} get-tuple-element(%carry), index=1
  %weight = {MATRIX} get-tuple-element(%carry), index=2
  %words = bf16[100,8]{{1,0}} get-tuple-element(%carry), index=3
  %place = s32[] get-tuple-element(%carry), index=4
  %begun = ({MATRIX}, bf16[16,8]{{1,0}}) all-gather-start(%weight), channel_id=1
  %word = bf16[1,8]{{1,0}} fusion(%words, %place), kind=kLoop, calls=%rows
  %ended = bf16[16,8]{{1,0}} all-gather-done(%begun)
  %again = ({MATRIX}, bf16[16,8]{{1,0}}) all-gather-start(%weight), channel_id=2
  %product = ({ROW}, s8[4194304]{{0}}) custom-call(%act, %weight), custom_call_target="__cublas$gemm"
  %over = bf16[16,8]{{1,0}} all-gather-done(%again)
  %step = ({ROW}, {STATE}) custom-call(%act, %kept), custom_call_target="__gpu$xla.gpu.triton", \
output_to_operand_aliasing={{{{1}}: (1, {{}})}}, backend_config={{grid_x = 4 : i32, grid_y = 2 : i32}}
  %settings = f32[4]{{0}} conditional(%place, %act, %act), branch_computations={{%much, %little}}
  %rounds = {ROW} while(%act), condition=%always, body=%thrice, backend_config={{"known_trip_count":{{"n":"3"}}}}
  %fresh = f32[1,8]{{1,0}} get-tuple-element(%carry), index=5
  %stored = {STATE} fusion(%kept, %fresh), kind=kLoop, calls=%put
  ROOT %next = ({ROW}, {STATE}) tuple(%rounds, %stored)
}}

%go (c: ({ROW}, {STATE})) -> pred[] {{
  %c = ({ROW}, {STATE}) parameter(0)
  %number = s32[] get-tuple-element(%c), index=2
  ROOT %on = pred[] compare(%number, %number), direction=GT
}}

ENTRY %main (start: ({ROW}, {STATE})) -> ({ROW}, {STATE}) {{
  %start = ({ROW}, {STATE}) parameter(0)
  ROOT %loop = ({ROW}, {STATE}) while(%start), condition=%go, body=%token
}}
"""


def test_what_a_token_starts() -> None:
    token = Reader(TEXT, waits=True).round()
    expected = {"collective": 2, "fusion": 3, "product": 1, "kernel": 1, "copy": 1, "sort": 3}
    assert token.kernels == expected and token.count == sum(expected.values())  # `compare` is a kernel of its own
    assert token.waits == 2  # for whether to go on, and for the branch
    assert token.alone == {"all-gather": 1}
    gathers, word, product = 2 * (128 + 256), 16 + 4 + 16, 128 + 128 + 128
    step = 128 + 128 + 2 * 4 * 32  # four rows of the state, read and written
    branch, rounds, stored, go = 128 + 16, 3 * (128 + 128), 32 + 32, 4 + 4 + 1
    assert token.bytes == gathers + word + product + step + branch + rounds + stored + go
    assert Reader(TEXT, waits=False).round().waits == 0
    assert Reader(TEXT, waits=True).launches() == token


def test_what_is_more_than_before() -> None:
    one = {"kernels": {"all": 9.0}, "bytes": 10, "temporaries": 5, "waits": 2.0, "alone": {}, "layers": 1}
    one["each_layer"] = {"kernels": {"all": 3.0}, "bytes": 4}
    assert risen(one, one) == []
    worse = one | {"waits": 3.0, "alone": {"all-gather": 1.0}, "bytes": 9}
    assert risen(one, worse) == ["waits: 3.0 instead of 2.0", "alone: 1.0 instead of 0"]
    assert "| decode M 1xH100 | 1 | 9 | 3.0 | 0 | 0 | 0 | 3 | all-gather 1 |" in table({"decode M 1xH100": worse})


def test_sums_of_launches() -> None:
    one = Launches({"copy": 1}, 8, 1, {"all-gather": 1})
    assert one.plus(one.times(2)) == Launches({"copy": 3}, 24, 3, {"all-gather": 3})


def test_recorded_programs_are_those_of_the_benchmark() -> None:
    assert set(kept()) == {case.name for case in CASES}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_count_has_risen(case: Case) -> None:
    """Where the compiler is installed. Of another jaxlib there is no record until the benchmark has run."""
    there = cuda_compiler() if "H100" in case.on else find_spec("libtpu") is not None
    if not there or case.name not in kept():
        pytest.skip(f"no compiler for {case.on}, or no record for jaxlib {jax.lib.__version__}")
    command = [sys.executable, "-m", "benchmarks.programs", "--check", "--only", case.name]
    options = {"cwd": ROOT, "env": {**os.environ, **ABSENT, "PYTHONPATH": str(ROOT)}, "capture_output": True}
    done = subprocess.run(command, text=True, timeout=1800, **options)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


def test_a_kernel_that_places_tokens_leaves_the_other_pages_alone() -> None:
    """64 tokens of two query heads and a kv head, of 16 dimensions in two bytes each, their pages and columns: queries
    are read and written, keys and values, too, the pages not at all."""
    keys, values = "bf16[99,1,16,64]{3,2,1,0}", "bf16[99,1,64,16]{3,2,1,0}"
    aliases = "output_to_operand_aliasing={{1}: (3, {}), {2}: (4, {})}"
    name = 'metadata={op_name="jit(step)/place_tokens/pallas_call"}'
    text = f"""HloModule jit_step, is_scheduled=true

ENTRY %main (x: bf16[64,4,16], page: s32[64], column: s32[64], k: {keys}, v: {values}) -> bf16[64,2,16] {{
  %x = bf16[64,4,16]{{2,1,0}} parameter(0)
  %page = s32[64]{{0}} parameter(1)
  %column = s32[64]{{0}} parameter(2)
  %k = {keys} parameter(3)
  %v = {values} parameter(4)
  %all = (bf16[64,2,16]{{2,1,0}}, {keys}, {values}) custom-call(%x, %page, %column, %k, %v), \
custom_call_target="__gpu$xla.gpu.triton", {aliases}, {name}, backend_config={{grid_x = 64 : i32, grid_y = 1 : i32}}
  ROOT %q = bf16[64,2,16]{{2,1,0}} get-tuple-element(%all), index=0
}}
"""
    found = Reader(text, waits=True).launches()
    assert found.kernels == {"kernel": 1.0}
    assert found.bytes == 2 * (64 * 4 * 16 * 2) + 2 * (64 * 4)
