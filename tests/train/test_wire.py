"""What processes of a run send each other: the same values with the same types, and nothing that runs."""

from __future__ import annotations

import os
import pickle
import time
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_jax.grading.math_answers import Comparison
from scope_jax.learner.types import Reply
from scope_jax.rollouts.types import Completion, Row, SamplingParams, Turn
from scope_jax.run import processes

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters()) | st.binary()
KEYS = st.text() | st.integers() | st.tuples(st.text(), st.integers())
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner) | st.frozensets(KEYS),
    max_leaves=20,
)


def types(value: Any) -> Any:
    """The types of a value and of all that it holds."""
    if isinstance(value, dict):
        return [(types(key), types(inner)) for key, inner in value.items()]
    return (type(value), [types(each) for each in value] if isinstance(value, (list, tuple)) else None)


@given(VALUES)
def test_a_value_arrives_as_it_was(value: Any) -> None:
    found = processes.decoded(processes.encoded(value))
    assert found == value and types(found) == types(value)


def completion(tokens: int = 3) -> Completion:
    ids = np.arange(tokens, dtype=np.int32)
    logprobs = np.linspace(-1, 0, tokens, dtype=np.float32)
    turn = Turn("sampled", ids, logprobs, "text \ud83c", "stop", thought=("<think>", "</think>"), entropies=logprobs)
    picked = np.arange(tokens * 4, dtype=np.uint8).reshape(tokens, 2, 2)
    return Completion((Row(ids, ids, ids > 0, logprobs, None, picked),), (turn,), "eos")


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and np.array_equal(one, other)
    if isinstance(one, (Completion, Row, Turn)):
        return type(one) is type(other) and all(same(vars(one)[name], vars(other)[name]) for name in vars(one))
    if isinstance(one, tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def test_completions_replies_comparisons_and_arrays_arrive() -> None:
    arrays = tuple(np.ones((2, 0, 3), dtype) for dtype in processes.DTYPES.values())
    scalars = (np.float32(0.1), np.int64(-3), np.bool_(True), np.array(1.5, jnp.bfloat16)[()])
    comparison = Comparison("1/2", ("0.5", r"\frac12"))
    sent = (completion(), Reply("yes", cut="length"), comparison, *arrays, *scalars, Path("a/b"), np.arange(4)[::2])
    found = processes.decoded(processes.encoded(sent))
    assert same(sent, found)
    assert found[0].turns[0].ids.flags.writeable  # as what this process sampled itself
    big = np.array([1, 256], ">i4")
    assert processes.decoded(processes.encoded(big)).tolist() == [1, 256]
    assert processes.decoded(processes.encoded(jnp.ones(2))).tolist() == [1, 1]
    assert processes.decoded(processes.encoded({comparison: "equal"})) == {comparison: "equal"}


class Runs:
    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


@pytest.mark.parametrize(
    "value",
    [
        Runs(),
        [{"a": (Runs(),)}],
        np.array([Runs()], object),
        np.array([(1, 2.0)], "i4,f4"),
        np.array(["text"]),
        len,
        Runs,
        SamplingParams(1.0, 0, 1.0, 8, (), (), False),
        ValueError("no"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_else_is_an_error_where_it_is_sent(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        processes.encoded(value)


# What each tries to have made of it, beside plain damage.
HOSTILE = [
    pickle.dumps(Runs()),
    processes.encoded((completion(), 1))[:-4],
    b"",
    b"\xc1",
    msgpack.packb(msgpack.ExtType(processes.RECORD, msgpack.packb(["Runs"]))),
    msgpack.packb(msgpack.ExtType(processes.RECORD, msgpack.packb(["os.mkdir", "ran"]))),
    msgpack.packb(msgpack.ExtType(processes.RECORD, msgpack.packb(["Reply"]))),
    msgpack.packb(msgpack.ExtType(processes.RECORD, msgpack.packb([{"Reply": 1}, "ran"]))),
    msgpack.packb(msgpack.ExtType(processes.ARRAY, msgpack.packb(["object", [1], b"\0" * 8]))),
    msgpack.packb(msgpack.ExtType(processes.ARRAY, msgpack.packb(["float32", [9], b"\0" * 8]))),
    msgpack.packb(msgpack.ExtType(99, pickle.dumps(Runs()))),
    msgpack.packb(msgpack.ExtType(processes.INTEGER, b"__import__('os')")),
    b"\x91" * 100_000,
    b"\xdd\xff\xff\xff\xff",
]


@pytest.mark.parametrize("message", HOSTILE, ids=range(len(HOSTILE)))
def test_bytes_that_were_not_encoded_are_refused_and_nothing_runs(message: bytes, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="message of another process cannot be read"):
        processes.decoded(message)
    assert not list(tmp_path.iterdir())


def test_completions_of_a_step_are_packed_in_a_moment() -> None:
    """1,024 completions of 2,048 tokens; about as long as with pickle, bound generously."""
    sent = [completion(2048)] * 1024
    began = time.process_time()
    assert len(processes.decoded(processes.encoded(sent))) == 1024
    assert time.process_time() - began < 5
