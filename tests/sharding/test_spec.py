"""Declarations, rules and mesh sizes, on one device."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from scope_jax.plan.hardware import hardware
from scope_jax.sharding.collectives import LOCAL, Shards
from scope_jax.sharding.mesh import AXES, SHARDED, MeshConfig, make_mesh, resolve_sizes, stages, torus
from scope_jax.sharding.reshard import reshard
from scope_jax.sharding.rules import DECODE, TRAIN, decode_rules, expert_axes
from scope_jax.sharding.spec import Param, abstract_params, init_params, normal, ones, param_shardings, spec_for, zeros


def matrix(*axes: str | None, shape=(4, 6)) -> Param:
    return Param(shape, axes, normal(0.02), jnp.float32)


@pytest.mark.parametrize(
    ("axes", "train", "decode"),
    [
        (("width", "heads"), P(SHARDED, "tensor"), P(None, "tensor")),
        (("heads", "width"), P(("tensor", *SHARDED), None), P("tensor", None)),
        (("vocab", "width"), P(("tensor", *SHARDED), None), P("tensor", None)),
        (("ffn", None), P(("tensor", *SHARDED), None), P("tensor", None)),
    ],
)
def test_rows_take_fsdp_and_tensor_comes_first(axes, train, decode):
    assert spec_for(matrix(*axes), TRAIN) == train
    assert spec_for(matrix(*axes), DECODE) == decode


def test_fsdp_distributes_whole_experts_and_tensor_splits_each():
    up_XDF, down_XFD = (matrix("experts", *axes, shape=(2, 4, 6)) for axes in (("width", "ffn"), ("ffn", "width")))
    assert spec_for(up_XDF, TRAIN) == P(SHARDED, None, "tensor")
    assert spec_for(down_XFD, TRAIN) == P(SHARDED, "tensor", None)
    assert spec_for(up_XDF, DECODE) == P(None, None, "tensor")


def test_unknown_logical_axis_is_named():
    with pytest.raises(ValueError, match="'colour' is not in the sharding rules"):
        spec_for(matrix("colour", "width"), TRAIN)


def test_param_needs_one_axis_name_per_dimension():
    with pytest.raises(ValueError, match="names 1 axes"):
        Param((2, 3), ("width",), ones, jnp.float32)


def test_mesh_sizes():
    assert resolve_sizes(MeshConfig(1, -1, 2), 8) == (1, 4, 1, 2)
    assert resolve_sizes(MeshConfig(2, 2, 2), 8) == (2, 2, 1, 2)
    assert resolve_sizes(MeshConfig(1, -1, 2, 2), 8) == (1, 2, 2, 2)
    for sizes, message in [
        ((1, 1, 1), "needs 1 devices but there are 8"),
        ((-1, -1, 1), "only one"),
        ((0, 1, 1), "positive"),
    ]:
        with pytest.raises(ValueError, match=message):
            resolve_sizes(MeshConfig(*sizes), 8)


@dataclass(frozen=True)
class Chip:
    coords: tuple[int, int, int]
    core_on_chip: int = 0


def slice_of(x: int, y: int, z: int) -> list[Chip]:
    return [Chip((i + 4, j, k)) for i in range(x) for j in range(y) for k in range(z)]  # anywhere in a pod


@pytest.mark.parametrize(
    ("box", "fsdp", "factored"),
    [
        ((4, 4, 4), 64, (16, 4)),
        ((4, 4, 8), 128, (16, 8)),
        ((2, 2, 2), 8, (4, 2)),
        ((2, 4, 1), 8, (8, 1)),  # a ring
        ((8, 8, 1), 64, (8, 8)),
        ((8, 8, 1), 16, (2, 8)),
        ((8, 8, 1), 4, (1, 4)),  # the others are a tensor group
        ((4, 4, 4), 6, (3, 2)),
        ((1, 1, 1), 1, (1, 1)),
    ],
)
def test_the_inner_stage_of_fsdp_is_along_one_dimension_of_the_torus(box, fsdp, factored):
    assert torus(slice_of(*box)) == box
    assert stages(fsdp, box) == factored


def test_several_slices_are_along_data_or_the_outer_fsdp():
    """Two slices of 2 x 2 chips: groups that communicate most are within one of them."""
    devices = hardware("2xv6e:2x2", compiled=False).devices
    for sizes, shape, crossing in [
        (MeshConfig(2, 2, 2), (2, 2, 1, 1, 2), "data"),
        (MeshConfig(1, 4, 2), (1, 4, 1, 1, 2), "fsdp"),
        (MeshConfig(4, 1, 2), (4, 1, 1, 1, 2), "data"),
    ]:
        mesh = make_mesh(sizes, devices)
        assert mesh.devices.shape == shape
        for place, axis in enumerate(AXES):
            groups = np.moveaxis(mesh.devices, place, 0).reshape(shape[place], -1)
            spread = {len({device.slice_index for device in groups[:, group]}) for group in range(groups.shape[1])}
            assert spread == {2 if axis == crossing else 1}
    with pytest.raises(ValueError, match="does not divide 2 slices of 4 devices"):
        make_mesh(MeshConfig(1, 1, 8), devices)


def test_fsdp_has_one_stage_on_devices_without_a_torus():
    assert torus(jax.devices()) == () and stages(8, ()) == (8, 1)
    assert make_mesh(MeshConfig(1, -1, 1)).shape == dict(zip(AXES, (1, jax.device_count(), 1, 1, 1), strict=True))


def test_init_is_a_function_of_key_and_path_alone():
    tree = {"a": matrix(None, None), "norm": Param((3,), (None,), ones, jnp.float32)}
    more = {**tree, "b": matrix(None, None), "bias": Param((3,), (None,), zeros, jnp.bfloat16)}
    first, second = init_params(tree, jax.random.key(3)), init_params(more, jax.random.key(3))
    assert np.array_equal(first["a"], second["a"])
    assert not np.array_equal(second["a"], second["b"])
    assert not np.array_equal(first["a"], init_params(tree, jax.random.key(4))["a"])
    assert np.array_equal(second["norm"], np.ones(3)) and second["bias"].dtype == jnp.bfloat16
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), second)
    assert shapes == jax.tree.map(lambda x: (x.shape, x.dtype), abstract_params(more))


def test_init_has_the_declared_standard_deviation():
    values = init_params({"w": matrix(None, None, shape=(100, 100))}, jax.random.key(0))["w"]
    assert abs(float(values.std()) - 0.02) < 0.001 and abs(float(values.mean())) < 0.001


def test_one_device_needs_no_collectives():
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    assert Shards.of(mesh) == LOCAL
    x = jnp.arange(3.0)
    for same in (LOCAL.psum(x), LOCAL.enter(x), LOCAL.pmax(x), LOCAL.sum_rows(x), LOCAL.gather(x, P("fsdp"), x.dtype)):
        assert np.array_equal(same, x)
    assert LOCAL.gather(x, P("fsdp"), jnp.bfloat16).dtype == jnp.bfloat16
    assert (LOCAL.size, LOCAL.index) == (1, 0)


def test_published_copy_survives_donation_of_the_source():
    mesh = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    shardings = param_shardings({"w": matrix("width", None)}, mesh, TRAIN)
    params = jax.device_put({"w": jnp.ones((4, 6))}, shardings)
    published, half = reshard(params, shardings), reshard(params, shardings["w"], jnp.bfloat16)
    jax.jit(lambda p: jax.tree.map(lambda x: x + 1, p), donate_argnums=0)(params)
    assert params["w"].is_deleted()
    assert float(published["w"].sum()) == 24.0
    assert half["w"].dtype == jnp.bfloat16 and float(half["w"].sum()) == 24.0


@pytest.mark.parametrize(
    ("experts", "sizes", "axes"),
    [
        (128, (4, 1, 1, 1, 4), ("data", "tensor")),
        (128, (1, 8, 1, 1, 1), ("fsdp",)),
        (128, (1, 4, 2, 1, 4), ("fsdp", "fsdp_inner", "tensor")),
        (60, (3, 8, 1, 1, 4), ("tensor",)),  # neither 96 nor 32 devices divide 60
        (5, (1, 2, 1, 1, 2), ()),
        (0, (2, 2, 1, 1, 2), ()),
    ],
)
def test_decoding_distributes_experts_over_the_inner_axes_that_divide_them(experts, sizes, axes):
    assert expert_axes(experts, dict(zip(AXES, sizes, strict=True))) == axes
    assert dict(decode_rules(experts, dict(zip(AXES, sizes, strict=True))))["experts"] == axes
