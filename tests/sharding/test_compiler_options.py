"""Options of XLA for programs on several devices."""

import pytest

from scope_jax.plan.hardware import hardware
from scope_jax.sharding.collectives import compiler_options
from scope_jax.sharding.mesh import MeshConfig, make_mesh


@pytest.mark.parametrize(("data", "fsdp", "pipelined"), [(1, 8, True), (2, 4, True), (8, 1, False)])
def test_gathers_of_gpus_are_pipelined_where_weights_are_divided(data, fsdp, pipelined):
    options = compiler_options(make_mesh(MeshConfig(data, fsdp, 1), hardware("8xH100", compiled=False).devices))
    assert options is not None
    assert ("xla_gpu_enable_pipelined_all_gather" in options) is pipelined


def test_a_single_gpu_has_no_options():
    mesh = make_mesh(MeshConfig(1, 1, 1), hardware("1xH100", compiled=False).devices)
    assert compiler_options(mesh) is None
