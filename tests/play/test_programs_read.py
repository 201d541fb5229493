"""Programs of a model, read in the run's own thread: what they use, known in linear time and without an error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from scope_jax.environments import functions
from scope_jax.environments.functions import banned
from scope_jax.games.absolute_zero import rules


def steps_of(program: str) -> int:
    """Instructions of our own code that `banned` takes."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = frame.f_code.co_filename == functions.__file__
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        banned(program, NAMES)
    finally:
        sys.settrace(before)
    return count


NAMES = ("os", "os.path", "numpy.random.mtrand")
CHAINS: dict[str, Callable[[int], str]] = {
    "attributes of a name": lambda n: "x" + ".a" * n,
    "attributes of a module": lambda n: "import x\nx" + ".a" * n,
    "attributes of a module of many parts": lambda n: f"import x{'.y' * n} as x\n" + "x.a\n" * n,
    "a module of many parts": lambda n: "import a" + ".a" * n,
    "a name from a module of many parts": lambda n: f"from a{'.a' * n} import b",
    "many imports": lambda n: "import " + ",".join(f"a{place}" for place in range(n)),
    "calls of attributes": lambda n: "import x\nx" + ".a()" * n,
    "subscripts": lambda n: "x" + "[0]" * n,
    "fields of a text": lambda n: f"f'{'{a}' * n}'",
}


@pytest.mark.parametrize("name", CHAINS)
def test_what_is_banned_is_known_in_linear_time(name: str) -> None:
    """Twice the program takes about twice the steps."""
    once, twice = steps_of(CHAINS[name](200)), steps_of(CHAINS[name](400))
    assert 0 < twice < 2.5 * once


LONG: dict[str, str] = {
    **{f"long: {name}": program(50_000) for name, program in CHAINS.items()},
    **{f"deep: {name}": program(2900) for name, program in CHAINS.items()},
    **{
        f"nested: {part}": part * (9900 // len(part)) for part in ("(", "[", "{", "f(", "[[", "{1:", "lambda:", "if 1:")
    },
    **{f"unary: {part}": part * (9900 // len(part)) + "1" for part in ("-", "not ", "~", "1<", "1**", "1 if 1 else ")},
    **{
        f"open: {part}": part * (9900 // len(part)) for part in ("f'{", "f'{a:{", "with (", "await ", "a=", "\\\n", "*")
    },
    "half a character": "x = '\ud800'",
    "a null byte": "x\0 = 1",
    "tabs and spaces": "if 1:\n\tx\n        y",
    "an encoding": "# coding: nonsense\nx = 1",
}


@pytest.mark.parametrize("name", LONG)
def test_a_program_that_is_long_or_deep_raises_nothing(name: str) -> None:
    banned(LONG[name], NAMES)
    rules.function(LONG[name], True)
    if len(LONG[name]) > functions.LONGEST:
        assert functions.parsed(LONG[name]) is None and rules.function(LONG[name], True) == ""


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("import os", True),
        ("import os.path as p", True),
        ("from numpy.random import mtrand", True),
        ("from numpy import random\nrandom.mtrand.x", True),
        ("import numpy as np\nnp.random.mtrand", True),
        ("import numpy as np\nnp.random", False),
        ("from numpy import *", True),  # it may bring `random`
        ("from os.path import *", True),
        ("from . import os", True),
        ("import a.b.os.c", True),
        ("import nos, osx\nnos.x", False),
        ("os.path", False),  # no module: it was not imported
        ("import a\na.b.c.os.d()", True),
        ("import a\na.b().os", False),  # of what a call returns
    ],
)
def test_names_of_modules_are_found_wherever_they_stand(program: str, found: bool) -> None:
    assert banned(program, NAMES) is found
