"""The self-test finds kernels and programs that are wrong, and passes those that are right."""

import json
import math
from functools import cache, partial

import jax
import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

from scope_jax.cli import app
from scope_jax.models.decoder import backends as kernels
from scope_jax.models.decoder.check import ROUNDING, Check, apart, outcome
from scope_jax.models.decoder.paged_gpu import Triton
from scope_jax.models.decoder.pages import Loop, Ragged
from scope_jax.models.kernels import heads_tpu, moe_tpu
from scope_jax.selftest import programs


class Wrong(Loop):
    """Attention that misses a twentieth of its result."""

    def _attention(self, *arguments):
        return 0.95 * super()._attention(*arguments)


class Forgetful(Loop):
    """States of which a twentieth is lost."""

    def token_step(self, key_dim, value_dim):
        kernel = Triton(interpret=True).token_step(key_dim, value_dim)
        assert kernel is not None

        def step(*arguments):
            out, state = kernel(*arguments)
            return out, 0.95 * state

        return step


class Late(Loop):
    """Queries and keys of the next position."""

    def place(self, layer, page_N, column_N, how, positions_RQ, q_RQn, k_RQn, v_RQKh):
        return super().place(layer, page_N, column_N, how, positions_RQ + 1, q_RQn, k_RQn, v_RQKh)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_norm_rotation_and_writes_of_decoding_rows(dtype):
    assert kernels.norm_and_rotation(Triton(interpret=True), dtype) <= ROUNDING[dtype]
    assert kernels.norm_and_rotation(Late(), dtype) > ROUNDING[dtype]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_states_of_decoding_rows(dtype):
    assert kernels.token_states(Triton(interpret=True), dtype) <= ROUNDING[dtype]
    assert kernels.token_states(Forgetful(), dtype) > ROUNDING[dtype]


CASES = [(1, None, False), (1, 100, False), (32, None, False), (32, 100, False), (32, None, True)]
QUICK = [(*CASES[0], "float32"), (*CASES[1], "bfloat16"), (*CASES[3], "float32"), (*CASES[4], "bfloat16")]
OTHERS = [(*case, dtype) for case in CASES for dtype in ("float32", "bfloat16") if (*case, dtype) not in QUICK]


@pytest.mark.parametrize(
    ("queries", "window", "sinks", "dtype"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS)]
)
def test_attention_over_pages(dtype, queries, window, sinks):
    """The kernel for GPUs, interpreted, passes; a twentieth less does not, in any case."""
    what = dtype, queries, window, kernels.Heads(), sinks
    assert kernels.page_attention(Triton(interpret=True), *what) <= ROUNDING[dtype]
    assert kernels.page_attention(Wrong(), *what) > ROUNDING[dtype]


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_attention_over_keys_and_values_in_8_bits(dtype):
    what = dtype, 1, None, kernels.Heads(), False, "int8"
    assert kernels.page_attention(Triton(interpret=True), *what) <= ROUNDING[dtype]
    assert kernels.page_attention(Wrong(), *what) > ROUNDING[dtype]


def test_kernels_for_tpus(monkeypatch):
    """Interpreted, in float32, they pass; with another rotation or other experts they do not."""
    bound = ROUNDING["float32"]
    monkeypatch.setattr(heads_tpu, "norm_and_rotate", partial(heads_tpu.norm_and_rotate, interpret=True))
    assert kernels.norm_and_rotation(Ragged(), "float32") <= bound
    monkeypatch.setattr(heads_tpu, "norm_and_rotate", lambda q, k, *others: _unrotated(q, k))
    assert kernels.norm_and_rotation(Ragged(), "float32") > bound

    plain = partial(moe_tpu.route_few, interpret=True)
    monkeypatch.setattr(moe_tpu, "few_tokens", partial(moe_tpu.few_tokens, interpret=True))
    monkeypatch.setattr(moe_tpu, "route_few", plain)
    assert kernels.few_tokens("float32") <= bound
    monkeypatch.setattr(moe_tpu, "route_few", lambda x, *others: plain(-x, *others))
    assert kernels.few_tokens("float32") > bound


def _unrotated(q, k):
    return q.reshape(len(q), -1, 128), k.reshape(len(k), -1, 128)


@pytest.mark.parametrize(
    ("window", "sinks"), [(None, True), *(pytest.param(w, False, marks=pytest.mark.slow) for w in (None, 100))]
)
def test_attention_of_the_learner(window, sinks):
    what = window, kernels.Heads(), sinks
    assert kernels.learner_attention("dot_product", "float32", *what) <= ROUNDING["float32"]
    assert kernels.learner_attention("dot_product", "bfloat16", *what) <= ROUNDING["bfloat16"]


def test_products_of_experts(monkeypatch):
    assert kernels.grouped_products("float32") <= ROUNDING["float32"]
    right = kernels.moe.grouped_matmul
    monkeypatch.setattr(kernels.moe, "grouped_matmul", lambda x, w, sizes: right(x, w[::-1], sizes))
    assert kernels.grouped_products("float32") > ROUNDING["float32"]


@pytest.fixture
def one_learner(monkeypatch):
    """Programs of the learner are compiled once for both sides of a comparison."""
    monkeypatch.setattr(programs, "learner_of", cache(programs.learner_of))


@pytest.mark.slow
@pytest.mark.usefixtures("one_learner")
def test_the_engine_is_compared_with_the_learner(monkeypatch):
    requests = programs.requests
    monkeypatch.setattr(programs, "requests", lambda count: requests(count)[:6])
    one = programs.mesh_of(jax.devices()[:1])
    assert programs.engine_against_learner(programs.DENSE, one, "float32") <= programs.LOGPROB["float32"]
    monkeypatch.setattr(programs, "attention_over_pages", lambda *_: Wrong())
    assert programs.engine_against_learner(programs.DENSE, one, "float32") > programs.LOGPROB["float32"]


@pytest.mark.slow
@pytest.mark.usefixtures("one_learner")
def test_an_update_equals_itself():
    assert programs.update_again(programs.DENSE, programs.mesh_of(jax.devices()[:1]), "float32") == 0


def test_an_update_is_compared_with_itself(monkeypatch):
    one = programs.mesh_of(jax.devices()[:1])
    arrays = iter(({"w": jnp.ones(3)}, {"w": jnp.ones(3).at[0].add(1e-7)}))
    monkeypatch.setattr(programs, "updated", lambda *_: (None, next(arrays)))
    assert programs.update_again(programs.DENSE, one, "float32") == 1


def test_outcomes():
    """Of a deviation within its bound and beyond, one that is not finite, an exception, and nothing to compare."""

    def broken() -> float:
        raise RuntimeError("Mosaic failed\n to compile")

    def of(measure, nothing=""):
        return outcome(Check("a", "b", 0.1, measure, nothing))

    assert of(lambda: 0.1).status == "ok" and not of(lambda: 0.1).failed
    assert of(lambda: 0.2).status == "differs" and of(lambda: 0.2).failed
    assert of(lambda: math.nan).failed
    assert apart(jnp.array([1.0, math.nan]), jnp.ones(2)) == math.inf
    assert of(broken).failed and of(broken).message == "RuntimeError: Mosaic failed to compile"
    assert of(broken, "no kernel").status == "skipped" and not of(broken, "no kernel").failed


def test_the_command(monkeypatch):
    run = CliRunner().invoke
    found = run(app, ["selftest", "--only", "products of experts", "--only", "decoding", "--json"])
    assert found.exit_code == 0
    report = json.loads(found.stdout)
    assert [check["status"] for check in report["checks"]] == ["skipped"] * 5 + ["ok"]
    assert report["failed"] == 0 and "cpu" in report["devices"]
    assert "1 of 1 checks passed, 5 have nothing to compare here." in found.stderr

    monkeypatch.setattr(kernels, "grouped_products", lambda dtype: 0.5)
    found = run(app, ["selftest", "--only", "products of experts"])
    assert found.exit_code == 1
    assert "differs  products of experts and their gradients: 0.5 from XLA in float32, at most 1e-05" in found.stderr
    assert "these did not: products of experts and their gradients (docs/operations.md" in found.stdout

    found = run(app, ["selftest", "--only", "nothing like it"])
    assert found.exit_code == 2 and "no check has nothing like it in its name; they are: attention over" in found.stderr


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_every_check_has_a_name_of_its_own(platform):
    found = [*kernels.checks(platform), *programs.checks(jax.devices()[:1])]
    assert len({check.name for check in found}) == len(found)
    assert all(check.nothing for check in kernels.checks("cpu") if "experts and their" not in check.name)
