"""The values that processes of a run exchange, as msgpack: data alone, from which nothing but the types here is made.

Plain values, tuples, sets, paths, arrays as dtype, shape and bytes (those of JAX become numpy's), and the types in
RECORDS by the values of their fields. Whatever else a process wants to send is an error there. `sharding.distributed`
signs what is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import msgpack
import numpy as np

from scope_jax.errors import UserError
from scope_jax.learner.types import Reply
from scope_jax.play.math_answers import Comparison
from scope_jax.rollouts.types import Completion, Row, Turn

RECORDS: tuple[type, ...] = (Completion, Row, Turn, Reply, Comparison)
DTYPES = {
    dtype.name: dtype
    for kinds in ("bool", "int8 int16 int32 int64", "uint8 uint16 uint32 uint64", "float16 float32 float64")
    for dtype in map(np.dtype, kinds.split())
} | {"bfloat16": np.dtype(jnp.bfloat16)}
# Codes of msgpack's extension types.
TUPLE, SET, INTEGER, PATH, ARRAY, SCALAR, RECORD = range(7)


def encoded(value: Any) -> bytes:
    """The value as bytes. Raises TypeError for one that holds anything but what the module names."""
    message = msgpack.packb(value, default=_extended, strict_types=True, unicode_errors="surrogatepass")
    assert message is not None  # as its own types have it
    return message


def decoded(message: bytes) -> Any:
    """The value that `encoded` was given, with its types. Raises ValueError for bytes that it did not make."""
    try:
        return msgpack.unpackb(
            message, ext_hook=_of_extension, strict_map_key=False, unicode_errors="surrogatepass", raw=False
        )
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, msgpack.UnpackException) as error:
        raise UserError(f"a message of another process cannot be read ({error}); give all the same version.") from None


def _extended(value: Any) -> msgpack.ExtType:
    value = np.asarray(value) if isinstance(value, jax.Array) else value
    kind = type(value)
    if kind is tuple:
        return msgpack.ExtType(TUPLE, encoded(list(value)))
    if kind in (set, frozenset):
        return msgpack.ExtType(SET, encoded([kind is frozenset, list(value)]))
    if kind is int:  # of more than 64 bits
        return msgpack.ExtType(INTEGER, f"{value:x}".encode())
    if isinstance(value, Path):
        return msgpack.ExtType(PATH, encoded(str(value)))
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.name in DTYPES:
        name = value.dtype.name
        content = [name, list(value.shape), np.asarray(value, DTYPES[name]).tobytes()]  # in this host's byte order
        return msgpack.ExtType(ARRAY if isinstance(value, np.ndarray) else SCALAR, encoded(content))
    if kind in RECORDS:
        names = [field.name for field in fields(kind)] if hasattr(kind, "__dataclass_fields__") else kind._fields
        return msgpack.ExtType(RECORD, encoded([kind.__name__, *(getattr(value, name) for name in names)]))
    raise TypeError(f"{kind.__module__}.{kind.__qualname__} cannot be sent to another process; send plain values.")


def _of_extension(code: int, content: bytes) -> Any:
    if code == INTEGER:
        return int(content, 16)
    return _MADE[code](decoded(content))


def _array(content: list[Any]) -> np.ndarray:
    name, shape, data = content
    return np.frombuffer(bytearray(data), DTYPES[name]).reshape(shape)  # a copy, as it may be written


def _record(content: list[Any]) -> Any:
    name, *values = content
    return {kind.__name__: kind for kind in RECORDS}[name](*values)


_MADE: dict[int, Callable[[Any], Any]] = {
    TUPLE: tuple,
    SET: lambda content: (frozenset if content[0] else set)(content[1]),
    PATH: Path,
    ARRAY: _array,
    SCALAR: lambda content: _array(content)[()],
    RECORD: _record,
}
