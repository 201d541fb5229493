"""Plans for GPUs that are not here: compiled where JAX's CUDA plugin is installed, otherwise by arithmetic."""

import math

import pytest

from scope_jax.errors import UserError
from scope_jax.plan.hardware import CHIPS, CUDA, cuda_compiler, cuda_target, hardware
from scope_jax.sharding.chips import chip_of
from scope_jax.sharding.mesh import slices, torus


def test_the_compiler_knows_every_gpu_that_a_plan_can_name():
    for chip in CHIPS.values():
        if chip.name in CUDA:
            assert f"device_memory_size: {chip.hbm:.0f} " in cuda_target(chip)
    assert {name for name in CHIPS if not name.startswith("v")} == set(CUDA)


@pytest.mark.skipif(cuda_compiler(), reason="with the CUDA plugin the plan is compiled")
def test_without_the_plugin_nothing_is_compiled():
    assert not hardware("8xH100").compiles


@pytest.mark.parametrize(
    ("name", "devices", "domains", "chip"),
    [
        ("4x8xH100", 32, 4, "H100"),
        ("8xGB200", 8, 1, "GB200"),
        ("8xB300", 8, 1, "B300"),
        ("2xv6e:4x4", 32, 2, "v6e"),
        ("v7x:2x2x4", 32, 1, "v7x"),
        ("v5p:2x2x2", 8, 1, "v5p"),
    ],
)
def test_hardware_by_its_name(name, devices, domains, chip):
    """A chip of v7x is two devices. Devices of a slice or node come together, and have its number."""
    on = hardware(name, compiled=False)
    assert (len(on.devices), on.domains, on.chip.name, on.compiles) == (devices, domains, chip, False)
    assert [device.process_index for device in on.devices] == [place * domains // devices for place in range(devices)]
    if on.platform == "tpu":
        boxes = [torus(part) for part in slices(on.devices)]
        assert len(boxes) == domains and all(math.prod(box) == devices // domains for box in boxes)
        assert chip_of(on.devices[0].device_kind) == on.chip


@pytest.mark.parametrize("name", ["0x8xH100", "2x0xH100", "8xL4", "v7x", "2v6e:4x4", "-1xv6e:4x4", "v5p:0x2x2"])
def test_names_of_no_hardware(name):
    with pytest.raises(UserError, match="not known hardware"):
        hardware(name)


@pytest.mark.parametrize("stated", ["abc", "0", "99999999999"])
def test_a_number_of_cpus_that_is_none(stated, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", stated)
    with pytest.raises(UserError, match=f"{stated} is no number of CPU devices; correct JAX_NUM_CPU_DEVICES"):
        hardware(None, compiled=False)


@pytest.mark.parametrize("name", ["99999999999xH100", "400xv5p:99x99x99"])
def test_more_devices_than_any_cluster_has_are_not_listed(name):
    with pytest.raises(UserError, match=f"--on {name} has .* devices, and a plan at most 131,072; give fewer."):
        hardware(name, compiled=False)


@pytest.mark.parametrize("name", ["v5p:4x4", "v7x:2x2", "2xv5p:2x2", "v5e:2x2x2", "v6e:4x4x4"])
def test_a_topology_has_the_sides_of_its_chip(name):
    with pytest.raises(UserError, match=f"--on {name}: chips of v.. are linked in .*; give t.* sides, as v..:4x4"):
        hardware(name, compiled=False)


def test_a_plane_may_be_named_with_a_third_side_of_one():
    assert len(hardware("v5e:2x2x1", compiled=False).devices) == len(hardware("v6e:2x2", compiled=False).devices) == 4
