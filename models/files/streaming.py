"""Transfers weights between files and devices in blocks, so that the host holds a few blocks and never a whole weight.

A stacked weight [L, ...] of a large model is many times the largest tensor of its checkpoint. It is therefore assembled
and taken apart on the devices: blocks of about BLOCK_BYTES are transferred, and programs that write a block into a
donated buffer, or cut one out of a sharded weight, transpose and cast on the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from scope_jax.models.decoder.hf import HfTensor
from scope_jax.models.files.tensorfile import Checkpoint

BLOCK_BYTES = 4 * 2**20  # total size of the blocks that a process moves at one time; at most three such sets exist

Bounds = tuple[tuple[int, int], ...]  # start and stop in each dimension


def _even(count: int, most: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of pieces of equal size, at most `most` (at least 1), covering `count`; the last may be shorter."""
    pieces = -(-count // max(most, 1))
    step = -(-count // pieces)
    return ((start, min(start + step, count)) for start in range(0, count, step))


# ------------------------------------------------------------------------------------------------------------ import
def _read(
    checkpoint: Checkpoint,
    tensor: HfTensor,
    bounds: Bounds,
    lead: tuple[int, int],
    rows: tuple[int, int],
    dtype: np.dtype,
) -> np.ndarray:
    """Part of a shard in the files' layout [tensors, rows, ...]: the shard's tensors lead[0]:lead[1] (counted over its
    leading dimensions), and of each of them the shard's rows rows[0]:rows[1]. Rows past the end of a tensor are zero.
    """
    starts, stops = zip(*bounds[: tensor.leading], strict=True) if tensor.leading else ((), ())
    places = list(np.ndindex(tuple(np.subtract(stops, starts))))[slice(*lead)]
    rest = bounds[tensor.leading :][::-1] if tensor.transposed else bounds[tensor.leading :]
    index = (slice(rest[0][0] + rows[0], rest[0][0] + rows[1]), *(slice(*cut) for cut in rest[1:]))
    out = np.zeros((len(places), *(cut.stop - cut.start for cut in index)), dtype)
    for part, place in zip(out, places, strict=True):
        at = tuple(int(i) for i in np.add(place, starts))
        name = tensor.at(at)
        end = index[0].stop if tensor.rows else min(index[0].stop, checkpoint.shape(name)[1 if tensor.fused else 0])
        if (stored := end - index[0].start) > 0:
            _read_rows(checkpoint, name, tensor, at, (slice(index[0].start, end), *index[1:]), part[:stored])
    return out


def _read_rows(
    checkpoint: Checkpoint, name: str, tensor: HfTensor, at: tuple[int, ...], cut: tuple[slice, ...], out: np.ndarray
) -> None:
    """Rows of our weight at `at` of its leading dimensions, from where the file has them."""
    first = 0 if tensor.rows is None else tensor.rows[0]
    cut = (slice(first + cut[0].start, first + cut[0].stop), *cut[1:])
    which, several = tensor.turns
    if several > 1:
        last = cut[-1]
        cut = (*cut[:-1], slice(which + several * last.start, which + several * (last.stop - 1) + 1, several))
    if tensor.column:
        cut, out = (cut[0], slice(0, 1), *cut[1:]), out[:, None]
    if tensor.fused:
        cut, out = (slice(at[-1], at[-1] + 1), *cut), out[None]
    checkpoint.read(name, cut, out)


def file_blocks(checkpoint: Checkpoint, name: str, shape: tuple[int, ...], dtype: Any) -> Iterator[np.ndarray]:
    """The rows of one checkpoint tensor in file order, block by block, cast to dtype."""
    dtype = np.dtype(dtype)
    for first, last in _even(shape[0], BLOCK_BYTES // (math.prod(shape[1:]) * dtype.itemsize)):
        out = np.empty((last - first, *shape[1:]), dtype)
        checkpoint.read(name, (slice(first, last),), out)
        yield out


@partial(jax.jit, static_argnames=("mesh", "leading", "transposed", "dtype"), donate_argnums=0)
def _write(
    buffer: jax.Array,
    block: jax.Array,
    lead: Any,
    row: Any,
    mesh: Mesh,
    leading: int,
    transposed: bool,
    dtype: np.dtype,
) -> jax.Array:
    """Every device writes its block [tensors, rows, ...], cast to dtype, into its donated buffer in place.

    If the buffer has another dtype of the same width, the bits are written.
    """

    def body(buffer: jax.Array, block: jax.Array, lead: Any, row: Any) -> jax.Array:
        flat = buffer.reshape(-1, *buffer.shape[leading:])
        piece = (jnp.swapaxes(block, 1, 2) if transposed else block).astype(dtype)
        if piece.dtype != buffer.dtype:
            piece = lax.bitcast_convert_type(piece, buffer.dtype)
        start = [lead] + [jnp.zeros((), jnp.int32)] * (flat.ndim - 1)
        start[-1 if transposed else 1] = row
        return lax.dynamic_update_slice(flat, piece, start).reshape(buffer.shape)

    one, all = PartitionSpec("local"), PartitionSpec()
    return jax.shard_map(body, mesh=mesh, in_specs=(one, one, all, all), out_specs=one, check_vma=False)(
        buffer, block, lead, row
    )


def _fill(
    checkpoint: Checkpoint,
    tensor: HfTensor,
    bounds: dict[Any, Bounds],
    local: tuple[int, ...],
    stage: np.dtype,
    dtype: np.dtype,
) -> list[jax.Array]:
    """The shards of this process's devices, in the order of `bounds`, filled block by block.

    stage: dtype in which blocks are transferred. All shards have the same shape, so that one program, over a mesh of
    this process's devices alone, serves them all.
    """
    devices = list(bounds)
    mesh = Mesh(np.array(devices), ("local",))
    sharding = NamedSharding(mesh, PartitionSpec("local"))
    count = math.prod(local[: tensor.leading])
    rest = local[tensor.leading :][::-1] if tensor.transposed else local[tensor.leading :]
    row_bytes = math.prod(rest[1:]) * stage.itemsize * len(set(bounds.values()))
    several = max(1, BLOCK_BYTES // (row_bytes * rest[0]))
    # XLA's CPU backend computes bfloat16 through float32: writing one block would convert and copy the whole buffer.
    # There the buffer holds the bits as integers, which numpy then views as the real dtype.
    as_bits = devices[0].platform == "cpu" and dtype.itemsize == 2
    held = np.dtype(np.uint16) if as_bits else dtype
    buffer = jnp.zeros((len(devices) * local[0], *local[1:]), held, device=sharding)
    for lead in _even(count, several):
        for rows in _even(rest[0], BLOCK_BYTES // row_bytes):
            parts = {cut: _read(checkpoint, tensor, cut, lead, rows, stage) for cut in set(bounds.values())}
            shape = next(iter(parts.values())).shape
            block = jax.make_array_from_single_device_arrays(
                (len(devices) * shape[0], *shape[1:]),
                sharding,
                [jax.device_put(parts[bounds[device]], device) for device in devices],
            )
            del parts
            # The block just read waits for the previous one: two are alive at a time, never a queue of them.
            buffer.block_until_ready()
            place = (np.int32(lead[0]), np.int32(rows[0]))
            buffer = _write(buffer, block, *place, mesh, tensor.leading, tensor.transposed, dtype)
    buffer.block_until_ready()
    by_device = {shard.device: shard.data for shard in buffer.addressable_shards}
    del buffer
    if as_bits:  # no copy in either direction: numpy and JAX share the memory of a CPU array
        return [jax.device_put(np.asarray(by_device[device]).view(dtype), device) for device in devices]
    return [by_device[device] for device in devices]


def build(
    checkpoint: Checkpoint, tensor: HfTensor, shape: tuple[int, ...], sharding: Sharding, dtype: Any
) -> jax.Array:
    """One weight under its sharding; this process reads only the slices its devices hold, each once."""
    dtype = np.dtype(dtype)
    places = sharding.addressable_devices_indices_map(shape)
    bounds: dict[Any, Bounds] = {
        device: tuple(cut.indices(n)[:2] for cut, n in zip(place or (), shape, strict=True))
        for device, place in sorted(places.items(), key=lambda item: item[0].id)
    }
    local = sharding.shard_shape(shape)
    if math.prod(local) * dtype.itemsize * len(set(bounds.values())) > BLOCK_BYTES:
        stored = {checkpoint.dtype(tensor.at(place)) for place in np.ndindex(shape[: tensor.leading])}
        stage = stored.pop() if len(stored) == 1 else np.dtype(np.float32)  # can represent all of them
        shards = _fill(checkpoint, tensor, bounds, local, stage, dtype)
    else:
        # Norms, biases and small models need one transfer and no compiled program.
        count = math.prod(local[: tensor.leading])
        whole = {
            cut: _read(
                checkpoint, tensor, cut, (0, count), (0, local[-1 if tensor.transposed else tensor.leading]), dtype
            )
            for cut in set(bounds.values())
        }
        ours = {cut: (x.swapaxes(1, 2) if tensor.transposed else x).reshape(local) for cut, x in whole.items()}
        shards = [jax.device_put(ours[cut], device) for device, cut in bounds.items()]
    return jax.make_array_from_single_device_arrays(shape, sharding, shards)


# ------------------------------------------------------------------------------------------------------------ export
@partial(jax.jit, static_argnames=("sharding", "leading", "rows", "transposed", "dtype"))
def _cut(
    weight: jax.Array,
    start: jax.Array,
    sharding: NamedSharding,
    leading: int,
    rows: int,
    transposed: bool,
    dtype: np.dtype,
) -> jax.Array:
    """Rows start[-1] : start[-1] + rows, in the file's layout, of the tensor at start[:-1], on every device.

    Each device contributes its part of the block and zeros elsewhere; the sum of the bit patterns is the block. This is
    exact for every value and gathers only the block (a plain slice of a sharded dimension gathers the whole weight).
    """
    mesh = sharding.mesh
    entries = tuple(sharding.spec) + (None,) * (weight.ndim - len(sharding.spec))
    names = [(e,) if isinstance(e, str) else tuple(e or ()) for e in entries]
    row_axis = weight.ndim - 1 if transposed else leading

    def body(part: jax.Array, start: jax.Array) -> jax.Array:
        mine = jnp.ones((1,) * part.ndim, bool)
        for axis, axes in enumerate(names):
            size = 1 if axis < leading else rows if axis == row_axis else weight.shape[axis]
            first = start[axis] if axis < leading else start[-1] if axis == row_axis else 0
            if not axes:
                part = lax.dynamic_slice_in_dim(part, first, size, axis)
                continue
            held = part.shape[axis]
            at = first + jnp.arange(size) - lax.axis_index(axes) * held
            line = [1] * part.ndim
            line[axis] = size
            mine = mine & ((at >= 0) & (at < held)).reshape(line)
            part = jnp.take(part, jnp.clip(at, 0, held - 1), axis=axis)
        part = part.astype(dtype)
        cut_over = tuple(name for axes in names for name in axes)
        if cut_over:
            # 32 bits wide, because not every collective library can add 16-bit integers.
            bits = lax.bitcast_convert_type(part, jnp.uint16 if dtype.itemsize == 2 else jnp.uint32)
            total = lax.psum(jnp.where(mine, bits, 0).astype(jnp.uint32), cut_over)
            part = lax.bitcast_convert_type(total.astype(bits.dtype), dtype)
        part = part.reshape(part.shape[leading:])
        return part.T if transposed else part

    return jax.shard_map(
        body, mesh=mesh, in_specs=(sharding.spec, PartitionSpec()), out_specs=PartitionSpec(), check_vma=False
    )(weight, start)


Source = tuple[jax.Array, HfTensor, tuple[int, ...]]  # a weight, its tensor, and the tensor's leading index


def tensor_blocks(sources: Sequence[Source], dtype: Any, shape: tuple[int, ...]) -> Iterator[Any]:
    """The rows of one checkpoint tensor of this shape, in pieces, from its weights in the order of their experts, rows
    and turns (`HfTensor`); otherwise as `blocks`."""
    several = sources[0][1].turns[1]
    for first in range(0, len(sources), several):
        each = [_rows(*source, dtype, shape) for source in sources[first : first + several]]
        if several == 1:
            yield from each[0]
            continue
        for parts in zip(*each, strict=True):
            yield np.stack([np.asarray(part) for part in parts], axis=-1).reshape(*parts[0].shape[:-1], -1)


def _rows(
    weight: jax.Array, tensor: HfTensor, place: tuple[int, ...], dtype: Any, shape: tuple[int, ...]
) -> Iterator[jax.Array]:
    """The rows of a tensor that are those of one weight."""
    rest = weight.shape[tensor.leading :]
    whole = tensor.rows is None and not tensor.fused
    return blocks(weight, tensor, place, dtype, shape[0] if whole else rest[-1 if tensor.transposed else 0])


def named(weight: jax.Array) -> jax.Array:
    """The same buffers under a NamedSharding (a weight on a single device gets a mesh of that device)."""
    if isinstance(weight.sharding, NamedSharding):
        return weight
    (device,) = weight.sharding.device_set
    sharding = NamedSharding(Mesh(np.array([device]), ("whole",)), PartitionSpec())
    return jax.make_array_from_single_device_arrays(weight.shape, sharding, [weight.addressable_data(0)])


def blocks(weight: jax.Array, tensor: HfTensor, place: tuple[int, ...], dtype: Any, count: int) -> Iterator[jax.Array]:
    """The first `count` rows of one checkpoint tensor, block by block, in the file's layout and dtype, on a device of
    this process.

    place: index of the tensor in the weight's leading dimensions. If the weight is sharded over several processes, all
    of them must iterate over the same weights in the same order, and each gets every block.
    """
    weight = named(weight)
    sharding = weight.sharding
    assert isinstance(sharding, NamedSharding)
    rest = weight.shape[tensor.leading :][::-1] if tensor.transposed else weight.shape[tensor.leading :]
    row_bytes = math.prod(rest[1:]) * 4 * len(weight.addressable_shards)
    for first, last in _even(count, BLOCK_BYTES // row_bytes):
        start = np.array([*place, first], np.int32)
        block = _cut(weight, start, sharding, tensor.leading, last - first, tensor.transposed, np.dtype(dtype))
        block.block_until_ready()  # so that a process that does not write cannot run ahead and accumulate blocks
        yield block.addressable_data(0)
