"""The collectives of an update, as the TPU compiler writes them, against their closed form."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from scope_jax.models.files.families import from_hf
from scope_jax.plan.hardware import ABSENT, cuda_compiler
from scope_jax.plan.theory import step_collectives
from tests.plan.collectives import FAMILIES, MODEL

ROOT = Path(__file__).parents[2]
STAGED = ("fsdp", "fsdp_inner")


def test_the_closed_form_on_values_worked_out_by_hand():
    """4 layers of 7 matrices, of an expert model 8 with the router, in two stages; gathered again where recomputed."""
    dense, tied, moe = (from_hf(MODEL | FAMILIES[name]) for name in ("dense", "tied", "moe"))
    assert step_collectives(dense, STAGED, True) == {"all-gather": 2 * 4 * 7 * 2 + 4, "reduce-scatter": 4 * 7 * 2 + 4}
    assert step_collectives(dense, ("fsdp",), False) == {"all-gather": 4 * 7 + 2, "reduce-scatter": 4 * 7 + 2}
    assert step_collectives(tied, STAGED, True) == {"all-gather": 2 * 4 * 7 * 2 + 2, "reduce-scatter": 4 * 7 * 2 + 2}
    assert step_collectives(moe, STAGED, True) == {"all-gather": 2 * 4 * 8 * 2 + 4, "reduce-scatter": 4 * 8 * 2 + 4}
    assert step_collectives(dense, (), True) == {"all-gather": 0, "reduce-scatter": 0}
    # Two more matrices for vectors of a layer, two fewer where keys are another layer's, the projection to all vectors;
    # of the vectors' table ids and gradients of rows are gathered, sums of rows scattered.
    vectors = from_hf(MODEL | FAMILIES["vectors"])
    matrices = 3 * 9 + 2 * 7
    assert step_collectives(vectors, ("fsdp",), True) == {
        "all-gather": 2 * matrices + 1 + 1 + 2,
        "reduce-scatter": matrices + 1 + 1 + 1,
    }


def test_the_closed_form_of_rows_divided_over_devices():
    """Weights are gathered along the context axis too, and the rows' ends and positions once."""
    dense, axes = from_hf(MODEL | FAMILIES["dense"]), ("fsdp_inner", "context")
    weights = {"all-gather": 2 * 4 * 7 * 2 + 4 + 1, "reduce-scatter": 4 * 7 * 2 + 4}
    # q, k, v and the result: forward, forward again, backward
    assert step_collectives(dense, axes, True, 8) == weights | {"all-to-all": 4 * 4 * 3}
    # 7 steps forward, 7 again, 7 backward for keys and values, 8 for their gradients
    assert step_collectives(dense, axes, True, 8, "ring") == weights | {"collective-permute": 4 * (7 + 7 + 7 + 8)}
    assert step_collectives(dense, axes, False, 2, "ring")["collective-permute"] == 4 * (1 + 1 + 2)


def test_the_closed_form_of_tokens_divided_over_a_tensor_group():
    """Of each layer two gathers and two sums forward, three of the four again, and as many backward; the embedding's
    sum, the last gather, and both backward. An expert layer gathers weights and indices of the routing, too."""
    dense, moe = (from_hf(MODEL | FAMILIES[name]) for name in ("dense", "moe"))
    weights = step_collectives(dense, ("fsdp",), True)
    assert step_collectives(dense, ("fsdp",), True, sequence=True) == {
        "all-gather": weights["all-gather"] + 4 * (2 + 2 + 2) + 2,
        "reduce-scatter": weights["reduce-scatter"] + 4 * (2 + 1 + 2) + 2,
    }
    assert step_collectives(moe, (), False, sequence=True) == {
        "all-gather": 4 * (4 + 2) + 2,
        "reduce-scatter": 4 * (2 + 3) + 2,
    }


TPU = pytest.mark.skipif(find_spec("libtpu") is None, reason="needs libtpu to compile for TPUs that are not there")
CUDA = pytest.mark.skipif(
    not cuda_compiler(), reason="needs jax[cuda12] or jax[cuda13] to compile for GPUs that are not there"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topology", "family", "groups"),
    [
        pytest.param("v5p:2x4x4", "dense", (), marks=TPU),
        pytest.param("v5p:4x4x4", "dense", (), marks=TPU),
        pytest.param("v6e:4x4", "dense", (), marks=TPU),
        pytest.param("v5e:8x8", "dense", (), marks=TPU),
        pytest.param("v7x:2x2x1", "dense", (), marks=TPU),
        pytest.param("v5p:2x2x2", "tied", (), marks=TPU),
        pytest.param("v5p:2x2x2", "vectors", (), marks=TPU),
        pytest.param("v5p:2x2x2", "deep", (), marks=TPU),
        pytest.param("v5p:4x4x4", "moe", (), marks=TPU),
        pytest.param("v5e:8x8", "dense", ("8", "ulysses"), marks=TPU),
        pytest.param("v5e:4x4", "dense", ("4", "ring"), marks=TPU),
        pytest.param("v6e:4x4", "dense", ("1", "auto", "4"), marks=TPU),
        pytest.param("v5p:2x4x4", "tied", ("2", "ulysses", "4"), marks=TPU),
        pytest.param("v5p:2x2x4", "moe", ("1", "auto", "4"), marks=TPU),
        pytest.param("8xH100", "dense", (), marks=CUDA),
        pytest.param("8xH100", "deep", (), marks=CUDA),
        pytest.param("8xH100", "tied", (), marks=CUDA),
        pytest.param("8xH100", "moe", (), marks=CUDA),
    ],
)
def test_an_update_has_the_collectives_of_the_closed_form(topology, family, groups):
    """Gathers and scatters are native ones: none of them became an all-reduce of a whole weight. No array has a value
    for every pair of tokens."""
    env = {**os.environ, **ABSENT, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(Path(__file__).with_name("collectives.py")), topology, family, *groups]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert {kind: facts["found"][kind][0] for kind in facts["closed"]} == facts["closed"]
    # norms of each layer on part of the tokens; those of deep models in parts
    assert facts["found"]["all-reduce"][0] <= (24 if len(groups) == 3 else 8 if family == "deep" else 4)
    assert not facts["square"]
    assert facts["found"]["all-reduce"][1] <= 1  # MiB: gradients of norms, and scalars
