"""Plans for GPUs that are not here: compiled where JAX's CUDA plugin is installed, otherwise by arithmetic."""

import pytest

from scope_jax.plan.hardware import CHIPS, CUDA, cuda_compiler, cuda_target, hardware


def test_the_compiler_knows_every_gpu_that_a_plan_can_name():
    for chip in CHIPS.values():
        if chip.name in CUDA:
            assert f"device_memory_size: {chip.hbm:.0f} " in cuda_target(chip)
    assert {chip.name for chip in CHIPS.values() if chip.clock is None} == set(CUDA)


@pytest.mark.skipif(cuda_compiler(), reason="with the CUDA plugin the plan is compiled")
def test_without_the_plugin_nothing_is_compiled():
    assert not hardware("8xH100").compiles
